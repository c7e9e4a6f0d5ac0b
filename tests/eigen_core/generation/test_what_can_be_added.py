"""A learner, an encoder and a task are each one file and one line: all else trains, saves and resumes them."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from live_tensors import LiveTensors
from science_cases import facts_of, random_panel, small_config
from training_cases import advance, content_of

from eigen_core.checkpoint import RunDirectory
from eigen_core.config import Config, choices
from eigen_core.errors import InputError
from eigen_core.generation import (
    TrainingState,
    evaluate,
    hold_out,
    restore,
    snapshot,
    snapshot_form,
    start_training,
    train,
)
from eigen_core.planning import Limit, calibrate, phases, plan_of, suggestions_for
from eigen_core.planning.scale import Scale
from eigen_core.reporting.plots import write_plots
from eigen_core.task import open_data, task_class

POINTER = {"task": "pointer"}
JITTER = {"learner": "jitter"}
LAST_DAY = {"encoder": "last_day"}
BOTH = pytest.param({**POINTER, **JITTER}, marks=pytest.mark.thorough)


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more of each."""
    monkeypatch.setitem(choices.TASKS, "pointer", "pointer_task:PointerTask")
    monkeypatch.setitem(choices.LEARNERS, "jitter", "jitter_learner:JitterLearner")
    monkeypatch.setitem(choices.ENCODERS, "last_day", "last_day_encoder:LastDayEncoder")


def config_with(chosen: dict[str, str], **sections: Any) -> Config:
    """A small configuration that names what was added, which only a file in the package could do by itself."""
    config = small_config(**sections)
    learner = config.learner.model_copy(update={"algorithm": chosen.get("learner", "ddpg")})
    network = config.network.model_copy(update={"encoder": chosen.get("encoder", "filter_bank")})
    task = chosen.get("task", "market")
    return config.model_copy(update={"task": task, "learner": learner, "network": network})


def begin(config: Config) -> TrainingState:
    return start_training(config, open_data(config).content if config.task == "pointer" else random_panel(config))


@pytest.mark.parametrize("chosen", [POINTER, JITTER, LAST_DAY, BOTH], ids=str)
def test_what_was_added_trains_and_resumes_to_the_same_bits(chosen: dict[str, str], tmp_path: Path) -> None:
    config = config_with(chosen)
    state = advance(begin(config), 3)
    assert state.history[-1].learning is not None
    directory = RunDirectory.create(tmp_path, "added", {})
    directory.save(snapshot(state), compression="zstd")
    resumed = begin(config)
    loaded = directory.load_newest(snapshot_form(resumed))
    assert loaded is not None
    restore(resumed, loaded.snapshot)
    assert content_of(advance(resumed, 1)) == content_of(advance(state, 1))
    assert hold_out(state) is not None
    assert len(write_plots(state.history, state.telemetry, tmp_path / "plots", state.learner.curves)) == 7


def test_a_task_opens_its_own_data(tmp_path: Path) -> None:
    market = {"data": str(tmp_path / "nowhere.csv")}
    assert open_data(config_with(POINTER, market=market)).content is None
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        open_data(config_with(JITTER, market=market))


@pytest.mark.parametrize("chosen", [POINTER, JITTER, LAST_DAY, BOTH], ids=str)
@pytest.mark.cpu
def test_groups_change_no_bit_of_what_was_added(chosen: dict[str, str]) -> None:
    # The last of three is a group of its own.
    populations = [{"size": 3, "group_size": size} for size in (0, 1, 2)]
    contents = [content_of(advance(begin(config_with(chosen, population=one)), 2)) for one in populations]
    assert contents[0] == contents[1] == contents[2]


@pytest.mark.parametrize("chosen", [LAST_DAY, JITTER, {**LAST_DAY, **JITTER}], ids=str)
def test_what_was_added_is_planned(chosen: dict[str, str]) -> None:
    # The plan leaves out what small batches and narrow layers are filled up with.
    sizes: dict[str, Any] = {"learner": {"batch_size": 40}, "network": {"head_width": 16}}
    config = config_with(chosen, evaluation={"shared_slices": False}, **sizes)
    panel = random_panel(config)
    scale = Scale.of(config, facts_of(config, panel))
    with LiveTensors() as tensors:
        state = start_training(config, panel)
        measured = {phase: tensors.peak_of(partial(phase, state)) for phase in (evaluate, train)}
    assert phases.evaluate(scale) == pytest.approx(measured[evaluate], rel=0.1)
    assert scale.population_bytes + phases.train(scale) == pytest.approx(measured[train], rel=0.1)


def test_a_task_without_data_is_planned_and_timed() -> None:
    config = config_with(POINTER)
    facts = open_data(config).facts
    plan = plan_of(config, facts, device="cpu", limits={"host": Limit(600_000_000, "here")})
    assert plan.peak_host_bytes > 485_000_000
    assert {"replay", "population", "evaluation", "learning"} <= {part.name for part in plan.parts}
    assert not plan.fits
    # A few kilobytes less would not help.
    assert not suggestions_for(config, facts, plan, {"host": Limit(600_000_000, "here")})
    assert calibrate(config, facts).evaluate > 0
    with pytest.raises(InputError, match="not played on a panel"):
        task_class(config).facts_of_shape(config, 1_000, 10, 10)
