"""The tags and events by which flow runs are known. No Prefect in here."""

SCHEDULED_TAG = "auto-scheduled"
"""Prefect's own tag of a flow run that a schedule has asked for: those here resume."""

SUSPENDED_EVENT = "eigen.flow-run.suspended"
"""The process of a suspended flow run ends."""

_RUN = "run:"


def run_tag(run: str) -> str:
    """Return the tag of the flow runs that train a run."""
    return f"{_RUN}{run}"


def tagged_run(tags: list[str]) -> str | None:
    """Return the run that a flow run with these tags trains, None if they do not tell."""
    return next((tag.removeprefix(_RUN) for tag in tags if tag.startswith(_RUN)), None)
