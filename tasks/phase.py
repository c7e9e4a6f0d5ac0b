"""What all tasks of a generation have in common: name, retries, and that nothing is cached or serialized."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger

from eigen_core.checkpoint import LeaseLostError
from eigen_core.errors import InputError
from eigen_core.memory import MemoryGuard, MemoryGuardError
from eigen_core.units import duration, size

P = ParamSpec("P")
R = TypeVar("R")

_MINUTE = 60.0

RETRIES = 2
RETRY_DELAYS_SECONDS = [1.0, 5.0]

# The same computation on the same state gives the same error or takes the same memory, and a lease that is lost stays
# lost: trying again only costs time.
_NOT_WORTH_RETRYING = (InputError, FloatingPointError, LeaseLostError, MemoryGuardError)


def worth_retrying(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether a failed phase may succeed when it is tried again. If so, a warning says that it will be."""
    error = state.result(raise_on_failure=False)
    if isinstance(error, _NOT_WORTH_RETRYING):
        return False
    get_run_logger().warning(
        "%s failed (%s: %s) and is tried again.", task_run.name or task.name, type(error).__name__, error
    )
    return True


def phase_task(phase: str, *, retried: bool = True) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Return the decorator that makes a phase a Prefect task whose runs are named `<phase>-<generation>`.

    The function must have a parameter `generation`. The training state is passed by reference: Prefect neither hashes
    it for a cache nor stores a result.
    """
    if not retried:
        return task(name=phase, task_run_name=_run_name(phase), cache_policy=NO_CACHE, persist_result=False)
    return task(
        name=phase,
        task_run_name=_run_name(phase),
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=RETRIES,
        retry_delay_seconds=RETRY_DELAYS_SECONDS,
        retry_condition_fn=worth_retrying,
    )


def run_name(phase: str, generation: int) -> str:
    """Return the name of a phase's task run, for example `evaluate-007`."""
    return _run_name(phase).format(generation=generation)


def took(guard: MemoryGuard, phase: str, generation: int) -> str:
    """Return the time and the peak of the resident memory of a phase that has just ended: "3.1 s, 1.20 GB"."""
    usage = next(usage for usage in reversed(guard.usage_of(generation)) if usage.phase == phase)
    device = f", GPU {size(usage.device_reserved_peak)}" if usage.device_reserved_peak else ""
    seconds = usage.ended - usage.began
    # So many digits in each line of the log, for those who read them by a script.
    time = f"{seconds:.2f} s" if seconds < _MINUTE else duration(seconds)
    return f"{time}, {size(usage.peak_bytes)}{device}"


def _run_name(phase: str) -> str:
    return f"{phase}-{{generation:03d}}"
