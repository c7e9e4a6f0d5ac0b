"""What tasks have in common: names, nothing cached, retries."""

import pytest
from prefect.cache_policies import NO_CACHE

from flows.server.reporter import artifact_key
from tasks.phases import TASKS, run_name


@pytest.mark.parametrize("phase", TASKS)
def test_no_task_caches_or_stores_anything(phase: str) -> None:
    task = TASKS[phase]
    assert task.cache_policy is NO_CACHE
    assert task.persist_result is False


@pytest.mark.parametrize("phase", TASKS)
def test_phases_are_retried_with_a_growing_delay(phase: str) -> None:
    assert TASKS[phase].retries == 2
    assert TASKS[phase].retry_delay_seconds == [1.0, 5.0]


@pytest.mark.parametrize("phase", TASKS)
def test_runs_of_tasks_are_named_by_generation(phase: str) -> None:
    assert TASKS[phase].task_run_name == f"{phase}-{{generation:03d}}"
    assert run_name(phase, 7) == f"{phase}-007"
    assert run_name(phase, 1_234) == f"{phase}-1234"


@pytest.mark.parametrize("name", ["first", "First", "a.b", "a-b", "a_b", "...x", "---", "_", "7"])
def test_artifact_keys_are_lower_case_letters_digits_and_dashes(name: str) -> None:
    key = artifact_key(name, "plots")
    assert key.endswith("-plots")
    assert set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not key.startswith("-")


def test_different_runs_have_different_artifact_keys() -> None:
    names = ["a-b", "a.b", "a_b", "A-b", "a--b", "-a-b", "...", "---"]
    assert len({artifact_key(name, "plots") for name in names}) == len(names)
