"""The phases of a generation as Prefect tasks; drawing plots and playing the holdout episodes are phases, too.

A task receives the function that computes its phase. Prefect neither caches nor serializes results.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger

from eigen_core.run import PASSING_ERRORS, RETRY_DELAYS_SECONDS

R = TypeVar("R")


def _is_passing(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Return whether a retry of a failed phase may succeed: its error is in `PASSING_ERRORS`. Log it then."""
    error = state.result(raise_on_failure=False)
    if not isinstance(error, PASSING_ERRORS):
        return False
    get_run_logger().warning("%s failed (%s: %s): retrying.", task_run.name or task.name, type(error).__name__, error)
    return True


def _phase_task(phase: str) -> Task[..., Any]:
    """Return the Prefect task of a phase; its task runs are named `<phase>-<generation>`, as `train-007`."""

    def compute_phase(compute: Callable[[], R], generation: int) -> R:  # noqa: ARG001 - names the task run
        return compute()

    return task(
        name=phase,
        task_run_name=f"{phase}-{{generation:03d}}",
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=len(RETRY_DELAYS_SECONDS),
        retry_delay_seconds=list(RETRY_DELAYS_SECONDS),
        retry_condition_fn=_is_passing,
    )(compute_phase)


TASKS = {phase: _phase_task(phase) for phase in ("evaluate", "train", "evolve", "checkpoint", "plot", "holdout")}
"""The Prefect task of each phase, by the phase's name."""
