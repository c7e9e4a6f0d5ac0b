"""What a training leaves in the database of Prefect's server."""

from typing import Any

import pytest
from operated import BUSY_SECONDS, GENERATIONS, PHASES, Operated, Undisturbed

pytestmark = pytest.mark.thorough


def test_what_task_runs_say_already_is_not_kept_a_second_time_as_events(
    operated: Operated, undisturbed: Undisturbed
) -> None:
    assert undisturbed.outcome(GENERATIONS)
    (number,) = [flow_run["id"] for flow_run in operated.flow_runs(Undisturbed.NAME)]
    of_run = {"id": {"any_": [number]}}
    task_runs = operated.ask("task_runs/filter", flow_runs=of_run)
    assert len(task_runs) >= len(PHASES) * GENERATIONS
    assert {task_run["state_type"] for task_run in task_runs} == {"COMPLETED"}

    def events(kind: str) -> list[Any]:
        wanted = {"any_resource": {"id": [f"prefect.flow-run.{number}"]}, "event": {"prefix": [f"prefect.{kind}."]}}
        found: list[Any] = operated.ask("events/filter", filter=wanted)["events"]
        return found

    operated.wait(BUSY_SECONDS, lambda: not events("task-run"), "the events of task runs are gone", every=2.0)
    assert events("flow-run")
