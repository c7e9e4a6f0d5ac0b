"""Names at Prefect's server: end states, tags, events, and those of runs without a name of their own."""

from collections.abc import Iterable
from datetime import UTC, datetime

FINISHED_NAME = "AlreadyFinished"
RUNNING_NAME = "AlreadyRunning"
NOTHING_NAME = "NothingToDo"
SUSPENDED_NAME = "StillSuspended"
GUARD_NAME = "MemoryGuard"
PLAN_NAME = "MemoryPlan"
BLOCKED_NAME = "Blocked"

SCHEDULED_TAG = "auto-scheduled"
"""Prefect's own tag of a flow run that was created by a schedule: those here resume."""

SUSPENDED_EVENT = "eigen.flow-run.suspended"
"""The process of a suspended flow run ends."""

_RUN = "run:"


def run_tag(run: str) -> str:
    """Return the tag of the flow runs that train a run."""
    return f"{_RUN}{run}"


def tagged_run(tags: Iterable[str]) -> str | None:
    """Return the run that a flow run with these tags trains; None if no tag names one."""
    return next((tag.removeprefix(_RUN) for tag in tags if tag.startswith(_RUN)), None)


def default_run_name(preset: str, moment: datetime | None = None) -> str:
    """Return a name for a run that was given none: its preset and the time, which is now unless another is given."""
    return f"{preset}-{moment or datetime.now(UTC):%Y%m%d-%H%M%S}"
