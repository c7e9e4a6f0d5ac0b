"""How often a run was resumed by schedule in vain, and when that is enough. No Prefect in here."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from eigen_core.checkpoint import RunPlace
from eigen_core.records import Record
from flows.journal import Journal
from flows.memory_reports import BlockedError

MOST_ATTEMPTS = 3
"""So many scheduled resumes that leave a run in the same generation are enough."""


class Attempt(Record):
    """One scheduled resume of a run."""

    generation: Annotated[int, Field(ge=1)]
    """The generation that it began with."""
    moment: str
    """When, ISO 8601, UTC."""


ATTEMPTS = Journal("attempts.json", Attempt)


def count_attempt(place: RunPlace, generation: int) -> None:
    """Note that a run is about to be resumed by schedule, or refuse to try the same generation once more.

    Raises:
        BlockedError: the last attempts have all begun with this generation.
    """
    if has_failed_too_often(place, generation):
        since = ATTEMPTS.read(place)[-MOST_ATTEMPTS].moment
        raise BlockedError(
            f"Run '{place.name}' is blocked: {MOST_ATTEMPTS} scheduled resumes since {since} have not completed "
            f"generation {generation}. Their flow runs say why. `eigen launch --run {place.name}` and `eigen "
            f"resume {place.name}` try it again."
        )
    ATTEMPTS.append(place, Attempt(generation=generation, moment=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"))


def withdraw_attempt(place: RunPlace) -> None:
    """Take the last attempt back: what ended it says nothing about the run."""
    ATTEMPTS.replace(place, ATTEMPTS.read(place)[:-1])


def forget_attempts(place: RunPlace) -> None:
    """Begin to count anew: a launch has asked for this run by name."""
    if ATTEMPTS.read(place):
        ATTEMPTS.replace(place, [])


def has_failed_too_often(place: RunPlace, generation: int) -> bool:
    """Whether scheduled resumes have given `generation` up."""
    newest = ATTEMPTS.read(place)[-MOST_ATTEMPTS:]
    return len(newest) == MOST_ATTEMPTS and all(attempt.generation == generation for attempt in newest)
