"""What tasks have in common: names, nothing cached, retries only where they may help."""

from typing import Any

import pytest
from prefect import Task
from prefect.cache_policies import NO_CACHE

from tasks.artifacts import artifact_key
from tasks.phases import checkpoint, evaluate, evolve, holdout, plot, run_name, train

PHASES: list[Task[..., Any]] = [evaluate, train, evolve, checkpoint, holdout]


@pytest.mark.parametrize("task", [*PHASES, plot], ids=lambda task: task.name)
def test_no_task_caches_or_stores_anything(task: Task[..., Any]) -> None:
    assert task.cache_policy is NO_CACHE
    assert task.persist_result is False


def test_phases_are_retried_with_a_growing_delay_and_plots_are_not() -> None:
    for task in PHASES:
        assert task.retries == 2
        assert task.retry_delay_seconds == [1.0, 5.0]
    assert plot.retries == 0


def test_runs_of_tasks_are_named_by_generation() -> None:
    assert run_name("evaluate", 7) == "evaluate-007"
    assert run_name("plot", 1_234) == "plot-1234"
    for task in (*PHASES, plot):
        assert task.task_run_name == f"{task.name}-{{generation:03d}}"


@pytest.mark.parametrize("name", ["first", "First", "a.b", "a-b", "a_b", "...x", "---", "_", "7"])
def test_artifact_keys_are_lower_case_letters_digits_and_dashes(name: str) -> None:
    key = artifact_key(name, "plots")
    assert key.endswith("-plots")
    assert set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not key.startswith("-")


def test_different_runs_have_different_artifact_keys() -> None:
    names = ["a-b", "a.b", "a_b", "A-b", "a--b", "-a-b", "...", "---"]
    assert len({artifact_key(name, "plots") for name in names}) == len(names)
