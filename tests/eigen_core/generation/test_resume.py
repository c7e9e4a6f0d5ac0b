"""A run that was saved and loaded goes on bit for bit as if it had never stopped."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from science_cases import random_panel, small_config
from training_cases import advance, content_of, saved_of, small_state

from eigen_core.checkpoint.integrity import checksummed
from eigen_core.checkpoint.manifest import Manifest, manifest_bytes, parse_manifest
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.common.errors import InputError
from eigen_core.common.records import Telemetry
from eigen_core.config import Config
from eigen_core.config.stored import config_from_stored
from eigen_core.generation import TrainingState, record_telemetry, restore, snapshot, snapshot_form, start_training
from eigen_core.machine.arithmetic import arithmetic_of
from eigen_core.market import Panel

KINDS: list[dict[str, Any]] = [
    {},
    {"network": {"encoder": "tcn"}, "learner": {"twin_critics": True, "policy_delay": 2}},
    {"trading": {"observe_portfolio": False}, "evaluation": {"shared_slices": False}},
    # Learning begins after the first resume; nothing mutates but what a plateau has grown.
    {
        "replay": {"minimum": 241},
        "evolution": {"plateau_generations": 1, "plateau_improvement": 5.0, "mutation_growth": 2.0},
    },
]


def saved_and_loaded(state: TrainingState, run: RunDirectory, config: Config, panel: Panel) -> TrainingState:
    """The state by way of the disk, where only a configuration's JSON and a snapshot's files are."""
    run.save(snapshot(state))
    reopened = RunDirectory.open(run.root, run.name)
    same_config = Config.model_validate(reopened.config)
    assert same_config == config
    restored = start_training(same_config, panel)
    loaded = reopened.load_newest(snapshot_form(restored), partial(restore, restored, take_memory=True))
    assert loaded is not None
    assert loaded.damages == []
    return restored


def restored_from(saved: Snapshot, config: Config) -> TrainingState:
    """A state by way of the memory."""
    state = start_training(config, random_panel(config))
    restore(state, saved)
    return state


def new_run(folder: Path, config: Config) -> RunDirectory:
    return RunDirectory.create(folder, "run", config.model_dump(mode="json"))


@pytest.mark.parametrize("sections", KINDS)
def test_a_run_that_stops_after_every_generation_ends_as_one_that_never_does(
    tmp_path: Path, sections: dict[str, Any]
) -> None:
    """Four generations: the ring of the replay is full after the third."""
    config = small_config(**sections)
    run = new_run(tmp_path, config)
    undisturbed = start_training(config, random_panel(config))
    stopping = start_training(config, random_panel(config))
    for generation in range(1, 5):
        for state in (undisturbed, stopping):
            advance(state, 1)
            seconds = {f"{phase}_seconds": 0.1 * generation for phase in ("evaluate", "train", "evolve")}
            record_telemetry(state, Telemetry(generation=generation, rss_bytes=5, rss_peak_bytes=6, **seconds))
        stopping = saved_and_loaded(stopping, run, config, random_panel(config))
        assert content_of(stopping) == content_of(undisturbed)
    for name, tensor in undisturbed.population.tensors().items():
        assert torch.equal(stopping.population.tensors()[name], tensor)
        assert stopping.population.tensors()[name].dtype == tensor.dtype
    assert stopping.replay.capacity == undisturbed.replay.capacity


def reseal(run: RunDirectory, manifest: Manifest, **fields: Any) -> None:
    """Replace a manifest by one that says something else; what is None is left out."""
    (run.path / manifest.name).unlink()
    changed = {**manifest.model_dump(mode="json", exclude={"checksum"}), **fields}
    content = checksummed({name: value for name, value in changed.items() if (name, value) != ("computed_by", None)})
    found = parse_manifest(content)
    assert isinstance(found, Manifest)
    assert manifest_bytes(found) == content
    (run.path / found.name).write_bytes(content)


def said_on_resume(run: RunDirectory, config: Config, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings while a state goes on from a run's newest generation."""
    state = start_training(config, random_panel(config))
    caplog.clear()
    assert RunDirectory.open(run.root, run.name).load_newest(snapshot_form(state), partial(restore, state)) is not None
    return [record.getMessage() for record in caplog.records]


@pytest.mark.cpu
def test_a_resume_on_another_processor_says_that_bits_may_differ(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config()
    run = new_run(tmp_path, config)
    manifest = run.save(snapshot(advance(small_state(), 1))).manifest
    here = arithmetic_of(torch.device("cpu"))
    assert manifest.computed_by == here
    assert said_on_resume(run, config, caplog) == []
    reseal(run, manifest, computed_by={**here.model_dump(), "processor": "Another"})
    (said,) = said_on_resume(run, config, caplog)
    assert f"Generation 1 was computed by Another with {here.instructions}" in said
    assert f"and {here} goes on with it: bits may differ" in said
    assert "instructions=avx2" in said


def test_a_manifest_that_does_not_name_what_computed_it_can_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config()
    run = new_run(tmp_path, config)
    reseal(run, run.save(snapshot(advance(small_state(), 1))).manifest, computed_by=None)
    assert said_on_resume(run, config, caplog) == []


def test_a_snapshot_is_not_changed_by_the_states_restored_from_it() -> None:
    config, panel = small_config(), random_panel(small_config())
    state = advance(start_training(config, panel), 2)
    saved, before = saved_of(state), content_of(state)
    first = content_of(advance(restored_from(saved, config), 2))
    assert content_of(state) == before
    assert content_of(advance(restored_from(saved, config), 2)) == first


def test_another_panel_is_refused() -> None:
    config = small_config()
    saved = saved_of(advance(small_state(), 1))
    other = random_panel(config, seed=6)
    with pytest.raises(InputError, match="generation 1 was trained on other data") as refusal:
        restore(start_training(config, other), saved)
    assert other.fingerprint[:12] in str(refusal.value)
    assert random_panel(config).fingerprint[:12] in str(refusal.value)


@pytest.mark.cpu
def test_groups_may_change_at_a_resume() -> None:
    """They are no part of the result of a run, but on a GPU, where products round by the agents that share them."""
    other = small_config(population={"group_size": 2})
    state = advance(small_state(), 1)
    restored = restored_from(saved_of(state), other)
    assert content_of(advance(restored, 1)) == content_of(advance(state, 1))


def test_a_run_whose_replay_holds_days_of_settlement_goes_on() -> None:
    """As runs of earlier versions do, whose stored configurations do not say so."""
    config = small_config(replay={"settlement_days": True})
    stored = {**config.model_dump(mode="json"), "format_version": 4}
    del stored["replay"]["settlement_days"]
    assert config_from_stored(stored) == config
    state = advance(start_training(config, random_panel(config)), 1)
    assert state.transitions == 5 * 2 * config.trading.episode_days
    resumed = restored_from(saved_of(state), config_from_stored(stored))
    assert content_of(advance(resumed, 1)) == content_of(advance(state, 1))
