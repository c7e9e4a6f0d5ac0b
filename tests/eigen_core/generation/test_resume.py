"""A loaded run goes on bit for bit as if it had never stopped; what no run can have left is refused."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from known import known
from record_cases import telemetry
from science_cases import random_panel, small_config
from training_cases import advance, begun, content_of, market_of, saved_of, small_state

from eigen_core.checkpoint.integrity import UnfitSnapshotError, checksummed
from eigen_core.checkpoint.manifest import Manifest, manifest_bytes, parse_manifest
from eigen_core.checkpoint.replay_shards import Ring
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.config.stored import config_from_stored
from eigen_core.generation import TrainingState, record_telemetry, restore, snapshot, snapshot_form, start_training
from eigen_core.machine.reproducibility import arithmetic_of
from eigen_core.task.transitions import check_rows

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


def loaded_from(run: RunDirectory, state: TrainingState) -> list[str]:
    """Restore a state from the newest generation that fits; return the sentences about those passed over."""
    loaded = known(RunDirectory.open(run.root, run.name).load_newest(snapshot_form(state), partial(restore, state)))
    return [str(damage) for damage in loaded.damages]


@pytest.mark.parametrize("sections", KINDS)
def test_a_run_that_stops_after_every_generation_ends_as_one_that_never_does(
    tmp_path: Path, sections: dict[str, Any]
) -> None:
    config = small_config(**sections)
    run = RunDirectory.create(tmp_path, "run", config.model_dump(mode="json"))
    undisturbed, stopping = begun(config), begun(config)
    for generation in range(1, 5):
        for state in (undisturbed, stopping):
            advance(state, 1)
            record_telemetry(state, telemetry(generation))
        run.save(snapshot(stopping))
        stopping = begun(Config.model_validate(RunDirectory.open(run.root, run.name).config))
        assert stopping.config == config
        assert loaded_from(run, stopping) == []
        assert content_of(stopping) == content_of(undisturbed)
    for name, tensor in undisturbed.population.tensors().items():
        assert torch.equal(stopping.population.tensors()[name], tensor)
        assert stopping.population.tensors()[name].dtype == tensor.dtype
    assert stopping.replay.capacity == undisturbed.replay.capacity


@pytest.mark.parametrize(("preset", "learner"), [("quickstart", "ddpg"), ("counterfactual", "counterfactual")])
def test_a_run_goes_on_though_its_preset_has_another_learner_today_or_is_gone(
    tmp_path: Path, preset: str, learner: str
) -> None:
    undisturbed = advance(begun(small_config(learner={"algorithm": learner})), 1)
    values = undisturbed.config.model_dump(mode="json") | {"preset": preset, "format_version": 15}
    del values["network"]["linear_scales"]
    run = RunDirectory.create(tmp_path, "run", values)
    run.save(snapshot(undisturbed))
    resumed = begun(config_from_stored(RunDirectory.open(run.root, run.name).config))
    assert loaded_from(run, resumed) == []
    assert content_of(advance(resumed, 1)) == content_of(advance(undisturbed, 1))


def replaced_with(run: RunDirectory, manifest: Manifest, **fields: Any) -> Manifest:
    """Replace a manifest by one with other fields, and return it; a field that is None is left out."""
    (run.path / manifest.name).unlink()
    changed = {**manifest.model_dump(mode="json", exclude={"checksum"}), **fields}
    content = checksummed({name: value for name, value in changed.items() if (name, value) != ("computed_by", None)})
    found = parse_manifest(content)
    assert isinstance(found, Manifest)
    assert manifest_bytes(found) == content
    (run.path / found.name).write_bytes(content)
    return found


@pytest.mark.cpu
def test_a_resume_on_another_processor_says_that_bits_may_differ(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDirectory.create(tmp_path, "run", {})
    manifest = run.save(snapshot(advance(small_state(), 1))).manifest
    here = arithmetic_of(torch.device("cpu"))
    assert manifest.computed_by == here
    # Manifests of earlier versions do not name it.
    for computed_by in (here.model_dump(), None, {**here.model_dump(), "processor": "Another"}):
        assert caplog.messages == []
        manifest = replaced_with(run, manifest, computed_by=computed_by)
        assert loaded_from(run, small_state()) == []
    (said,) = caplog.messages
    assert f"Generation 1 was computed by Another with {here.instructions}" in said
    assert f"and {here} continues it: bits may differ" in said
    assert "instructions=avx2" in said


def test_another_panel_is_refused() -> None:
    config = small_config()
    saved = saved_of(advance(small_state(), 1))
    other = random_panel(config, seed=6)
    with pytest.raises(InputError, match="generation 1 was trained on other data") as refusal:
        restore(start_training(config, other), saved)
    assert other.fingerprint[:12] in str(refusal.value)
    assert random_panel(config).fingerprint[:12] in str(refusal.value)


def test_a_run_whose_replay_holds_days_of_settlement_goes_on() -> None:
    """As runs of earlier versions do, whose stored configurations do not say so."""
    config = small_config(replay={"settlement_bars": True})
    stored = {**config.model_dump(mode="json"), "format_version": 4}
    del stored["replay"]["settlement_bars"]
    assert config_from_stored(stored) == config
    state = advance(begun(config), 1)
    assert state.replay.size == 5 * 2 * config.trading.episode_bars
    resumed = begun(config_from_stored(stored))
    restore(resumed, saved_of(state))
    assert content_of(advance(resumed, 1)) == content_of(advance(state, 1))


GENERATIONS = 3
Change = Callable[[SimpleNamespace], object]


def content_in(saved: Snapshot) -> SimpleNamespace:
    """A copy of a snapshot as it is read, on the processor."""
    assert saved.ring is not None
    documents = {
        stem: json.loads(held if isinstance(held, bytes) else json.dumps(held))
        for stem, held in saved.documents.items()
    }
    return SimpleNamespace(
        generation=saved.generation,
        champion_generation=saved.champion_generation,
        metadata=documents.pop("champion"),
        columns={name: column.cpu().clone() for name, column in saved.ring.columns.items()},
        written=saved.ring.written,
        **documents,
        **{stem: {name: held.cpu().clone() for name, held in named.items()} for stem, named in saved.tensors.items()},
    )


def snapshot_in(content: SimpleNamespace) -> Snapshot:
    return Snapshot(
        content.generation,
        {"population": content.population, "champion": content.champion},
        {name: getattr(content, name) for name in ("state", "history", "telemetry")} | {"champion": content.metadata},
        content.champion_generation,
        Ring(content.columns, min(content.written, len(content.columns["day"])), content.written),
    )


# Not a fixture of the module: those are made before the device of a test is there.
@cache
def saved() -> list[Snapshot]:
    """Snapshots of three generations; the ring is full after the third. The first one is at index 0."""
    state = fresh()
    return [snapshot_in(content_in(snapshot(advance(state, 1)))) for _ in range(GENERATIONS)]


def fresh() -> TrainingState:
    return small_state(replay={"capacity": 300})


def put(place: str, value: object) -> Change:
    def change(content: SimpleNamespace) -> None:
        first, *path, last = place.split(".")
        inner: Any = getattr(content, first)
        for part in path:
            inner = inner[int(part)] if isinstance(inner, list) else inner[part]
        inner[int(last) if isinstance(inner, list) else last] = value

    return change


def fill(place: str, value: float, slot: int = 7) -> Change:
    def change(content: SimpleNamespace) -> None:
        first, name = place.split(".")
        getattr(content, first)[name].view(-1)[slot] = value

    return change


def telemetry_out_of_order(content: SimpleNamespace) -> None:
    content.telemetry = [telemetry(generation).model_dump(mode="json") for generation in (2, 1)]


def rotated(content: SimpleNamespace) -> None:
    content.columns = {name: column.roll(1, 0) for name, column in content.columns.items()}


def fewer_agents(content: SimpleNamespace) -> None:
    content.population = {name: held[:2] for name, held in content.population.items()}


VALUES: list[tuple[Change, str]] = [
    (put("state.noise_scale", -0.1), "state.json has an unexpected form (noise_scale: "),
    (put("state.generation", 2), "state.json is not of generation 3"),
    (put("state.more", 1), "state.json has an unexpected form (more: "),
    (lambda content: content.history.pop(0), "history.json does not hold one record for each generation from 1 to 3"),
    (put("history.1.generation", 7), "history.json does not hold one record for each generation"),
    (put("history.1.fitness", [1.0, 2.0]), "history.json does not describe 5 agents"),
    (put("history.0.champion_agent", 99), "history.json names an agent"),
    (put("history.0.champion_generation", 2), "history.json has a champion of generation 2, not of 1 to 1"),
    (put("history.2.descent.4.parents", [5]), "history.json names an agent"),
    (put("history.2.descent.4.agent", 3), "history.json does not list the origins of all agents in order"),
    (put("history.2.weights_sha256", "0" * 64), "population.safetensors holds weights that do not match"),
    (put("history.2.replay_sha256", "0" * 64), "replay does not match its hash in history.json"),
    (telemetry_out_of_order, "telemetry.json does not hold records of generations 1 to 3 in order"),
    (put("champion.generation", torch.tensor(2)), "state.json is not of generation 3"),
    (fill("champion.weights", float("nan")), "champion.safetensors holds weights from nan"),
    (fill("population.weights", float("inf")), "population.safetensors holds weights from"),
    (fill("population.weights", 0.5), "population.safetensors holds weights that do not match"),
    (fill("population.targets", float("nan")), "population.safetensors holds targets from nan"),
    (fill("population.first_moment", float("-inf")), "population.safetensors holds first_moment from -inf"),
    (fill("population.second_moment", -1e-3), "population.safetensors holds second_moment from -0.001"),
    (fill("population.critic_steps", -1, 0), "population.safetensors holds critic_steps from -1"),
    (fill("population.actor_steps", 1 << 40, 0), "population.safetensors holds actor_steps from"),
    (fill("columns.reward", float("nan")), "replay holds reward from nan"),
    (fill("columns.action", float("inf")), "replay holds action from"),
    (fill("columns.portfolio", float("nan")), "replay holds portfolio from nan"),
    (fill("columns.reward", 5.0), "replay does not match its hash in history.json"),
    (fill("columns.day", -1), "replay has episodes that do not begin on training days 7 to"),
    (fill("columns.day", 100_000), "replay has episodes that do not begin on training days 7 to"),
    (lambda content: content.columns["day"][:5].sub_(1), "replay has "),
    (lambda content: content.columns["day"].add_(1), "replay "),
    (fill("columns.step", 30_000), "replay has episodes whose steps are not in order"),
    (fill("columns.terminal", True, 8), "replay has episodes that do not end with their last step"),
    (rotated, "replay has episodes whose steps are not in order"),
    (
        lambda content: setattr(content, "generation", 2),
        "history.json does not hold one record for each generation from 1 to 2",
    ),
]

FORMS: list[tuple[Change, str]] = [
    (fewer_agents, "population.safetensors lists the tensor actor_steps as I64 [2], expected I64 [5]"),
    (lambda content: content.population.pop("targets"), "population.safetensors lists the tensor targets as none"),
    (put("population.more", torch.zeros(3)), "population.safetensors lists the tensor more as F32 [3], expected none"),
    (
        lambda content: content.population.update(weights=content.population["weights"].double()),
        "population.safetensors lists the tensor weights as F64",
    ),
    (put("champion.weights", torch.zeros(3)), "champion.safetensors lists the tensor weights as F32 [3]"),
    (lambda content: content.columns.pop("reward"), "replay lists the tensor reward as none, expected F32 []"),
    (
        lambda content: content.columns.update(day=content.columns["day"].long()),
        "replay lists the tensor day as I64 [], expected I32 []",
    ),
    (lambda content: setattr(content, "written", 0), "replay counts 0 appended rows instead of 360"),
    (
        lambda content: setattr(content, "columns", {name: held[:200] for name, held in content.columns.items()}),
        "replay has 200 slots instead of 300",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), VALUES, ids=[sentence[:60] for _, sentence in VALUES])
def test_what_no_run_can_have_left_is_refused(change: Change, sentence: str) -> None:
    content = content_in(saved()[-1])
    change(content)
    state = fresh()
    before = content_of(state)
    with pytest.raises(UnfitSnapshotError) as refused:
        restore(state, snapshot_in(content))
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)
    assert content_of(state) == before


@pytest.mark.parametrize(("change", "sentence"), [*FORMS, VALUES[0], VALUES[3]])
def test_an_older_generation_is_used_and_the_newer_one_named(
    tmp_path: Path, change: Change, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = content_in(saved()[-1])
    change(content)
    run = RunDirectory.create(tmp_path, "run", small_config().model_dump(mode="json"))
    for found in (*saved()[:-1], snapshot_in(content)):
        run.save(found)
    state = fresh()
    with caplog.at_level(logging.WARNING):
        (damage,) = loaded_from(run, state)
    assert damage.startswith(f"generation 3: {sentence}")
    assert damage in caplog.text
    assert content_of(state) == content_of(advance(fresh(), 2))


def test_retention_does_not_count_on_a_generation_that_was_passed_over(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "run", {})
    for found in (saved()[0], saved()[1], replace(saved()[2], generation=9)):
        run.save(found)
    state = fresh()
    # `run` itself knows which generation it passed over.
    assert run.load_newest(snapshot_form(state), partial(restore, state)) is not None
    assert state.generation == 2
    run.save(snapshot(advance(state, 1)))
    run.contents.clean(keep_last=1, keep_every=0)
    reopened = fresh()
    loaded_from(run, reopened)
    assert reopened.generation == 3


def test_rows_are_looked_at_in_pieces_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An episode whose days do not follow one another is found wherever it lies, also across the ring's end."""
    state = fresh()
    panel, days = market_of(state).panel, state.config.trading.trading_bars
    starts = panel.starts(panel.splits.train, state.config)
    ring = known(saved()[-1].ring)
    for pieces in (1, 3, 50, 1 << 18):
        monkeypatch.setattr("eigen_core.task.transitions._ROWS_AT_A_TIME", pieces)
        assert check_rows(ring, starts, days) is None
    for slot in range(0, ring.capacity, 23):
        changed = content_in(saved()[-1])
        fill("columns.day", float(ring.columns["day"][slot]) - 1, slot)(changed)
        wrong = known(snapshot_in(changed).ring)
        for pieces in (1, 50, 1 << 18):
            monkeypatch.setattr("eigen_core.task.transitions._ROWS_AT_A_TIME", pieces)
            assert check_rows(wrong, starts, days) is not None, (slot, pieces)
