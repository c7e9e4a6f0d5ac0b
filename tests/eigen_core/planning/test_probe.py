"""The probe measures, and no failure of its child reaches the process that asked for it."""

import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from science_cases import LEARNERS_OF_ANY_TASK, random_panel, small_config
from training_cases import advance, content_of

from eigen_core.config import Config
from eigen_core.generation import start_training
from eigen_core.machine.memory_usage import own_resident_bytes
from eigen_core.planning.probe import ProbeFailure, ProbeResult, cache_probe, cached_probe, measure, probe
from eigen_core.task import open_data
from eigen_core.task.interface import TaskData

MB = 1_000_000
GYM = {
    "task": "gym:uneven_environment:EndlessEnvironment",
    "environment": {"episode_steps": 40, "normalise_observations": True},
    "replay": {"capacity": 5_000, "minimum": 4_000},
}


def measured_of(config: Config, **panel: int) -> ProbeResult:
    data = TaskData(random_panel(config, **panel)) if config.task in ("market", "portfolio") else open_data(config)
    return measure(config, data, own_resident_bytes())


@pytest.mark.parametrize("learner", [*LEARNERS_OF_ANY_TASK, "direct", "counterfactual"])
def test_each_learner_is_measured_though_its_first_generations_would_not_learn(learner: str) -> None:
    found = measured_of(small_config(learner={"algorithm": learner}, replay={"minimum": 390}))
    assert set(found.phases) == {"start", "evaluate", "train", "evolve"}
    assert min(found.seconds.values()) > 0
    assert found.generation_seconds == sum(found.seconds.values())
    assert (found.playing, found.learning) == (5, 5)


@pytest.mark.parametrize("learner", LEARNERS_OF_ANY_TASK)
def test_an_environment_is_measured(learner: str) -> None:
    assert min(measured_of(small_config(**GYM, learner={"algorithm": learner})).seconds.values()) > 0


def test_a_run_that_never_learns_is_measured_without_learning() -> None:
    found = measured_of(small_config(learner={"gradient_steps": 0}))
    assert found.seconds["train"] == 0
    assert found.seconds["evaluate"] > 0


def test_more_at_a_time_takes_more_and_the_time_is_that_of_all_steps() -> None:
    wide: dict[str, Any] = {"network": {"channels": 32, "head_width": 32}, "trading": {"observe_portfolio": False}}
    few, many = (
        measured_of(
            small_config(
                population={"size": 12, "group_size": size},
                learner={"batch_size": 40, "block_bars": 0, "gradient_steps": steps},
                replay={"capacity": 4_000},
                **wide,
            ),
            days=400,
            assets=120,
        )
        for size, steps in ((1, 4), (12, 200))
    )
    assert many.phases["train"].host > few.phases["train"].host + 5 * MB
    assert many.phases["evaluate"].host > few.phases["evaluate"].host
    assert many.seconds["train"] > 5 * few.seconds["train"]


def test_measuring_changes_no_bit_of_a_run() -> None:
    config = small_config()
    before = content_of(advance(start_training(config, random_panel(config)), 2))
    measured_of(config)
    assert content_of(advance(start_training(config, random_panel(config)), 2)) == before


@pytest.mark.thorough
def test_a_child_process_measures_a_panel_that_is_not_there() -> None:
    config = small_config()
    found = probe(config, (400, 8, 6))
    assert isinstance(found, ProbeResult), found
    assert 100 * MB < found.process < 1_000 * MB
    assert min(found.seconds.values()) > 0


@pytest.mark.thorough
def test_a_child_that_takes_more_than_it_may_is_ended() -> None:
    found = probe(small_config(), (400, 8, 6), limit=50 * MB)
    assert isinstance(found, ProbeFailure)
    assert (found.reached_bytes, found.out_of_memory) == (50 * MB, False)


def _as_child(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a shell script be what is started as Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(path))


@pytest.mark.parametrize(
    ("script", "phase", "out_of_memory"),
    [
        ("""echo '{"phase": "train"}'; kill -KILL $$""", "train", True),
        # A process that it has started keeps its output open.
        ("""echo '{"phase": "train"}'; sleep 600 & sleep 600""", "train", False),
        ("echo broken >&2; exit 1", "start", False),
        ("echo '{'; exit 0", "start", False),
        (":", "start", False),
    ],
)
def test_a_child_that_is_killed_hangs_or_fails_is_ended_and_only_the_kill_says_that_the_run_does_not_fit(
    script: str, phase: str, out_of_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _as_child(tmp_path, script, monkeypatch)
    began = time.monotonic()
    found = probe(small_config(), timeout=2.0 if "sleep" in script else 300.0)
    assert time.monotonic() - began < 60
    assert isinstance(found, ProbeFailure)
    assert (found.phase, found.out_of_memory) == (phase, out_of_memory)


def test_what_was_measured_is_known_again_for_the_same_settings_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EIGEN_CACHE", str(tmp_path))
    config, data = small_config(), TaskData(size="400 days")
    assert cached_probe(config, data) is None
    found = measured_of(config)
    cache_probe(config, data, found)
    assert cached_probe(config, data) == found
    # Longer runs and other seeds compute the same pieces.
    assert cached_probe(small_config(generations=99, seed=4, memory={"limit_gb": 3.0}), data) == found
    assert cached_probe(small_config(learner={"batch_size": 8}), data) is None
    assert cached_probe(config, TaskData(size="500 days")) is None
    (path,) = (tmp_path / "probes").iterdir()
    path.write_text("{}")
    assert cached_probe(config, data) is None
