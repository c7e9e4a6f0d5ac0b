"""Journals (lists of events) beside a run's checkpoints: attempts, stops, requests; and memory reports."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Generic, TypeVar

from pydantic import Field, JsonValue

from eigen_core.checkpoint.integrity import ATTEMPTS_NAME, checksummed, parse_checksummed
from eigen_core.checkpoint.run_contents import RunContents, RunLocation
from eigen_core.checkpoint.store import LocalStore, MissingObjectError, StoreUnavailableError
from eigen_core.checkpoint.store_location import command_for
from eigen_core.common.errors import InputError
from eigen_core.common.files import require_own_files
from eigen_core.common.records import Record, Words

if TYPE_CHECKING:
    from eigen_core.machine.memory_report import MemoryReport

logger = logging.getLogger(__name__)

MOST_ATTEMPTS = 3
"""A run is blocked after this many scheduled resumes in a row that have not completed its next generation."""

_RECORDS_KEPT = 20
_REPORTS = "memory"
_REPORTS_KEPT = 20
_MOST_BYTES = 1 << 20

R = TypeVar("R", bound=Record)


class BlockedError(Exception):
    """A run is blocked: it is not resumed by schedule any more. The message says why, and how to resume it."""


class Journal(Generic[R]):
    """The newest records, of type `kind`, in each run's JSON file `name`; an unreadable one counts as empty."""

    def __init__(self, name: str, kind: type[R]) -> None:
        self._name = name
        self._kind = kind

    def read(self, location: RunLocation) -> list[R]:
        """Return a run's records, oldest first, from the copy with more records, on this machine or in the store."""
        return max((self._read_in(contents) for contents in location.contents()), key=len)

    def append(self, location: RunLocation, record: R) -> None:
        """Add a record, drop the oldest beyond `_RECORDS_KEPT`; writes as `replace` does."""
        records = [*self.read(location), record][-_RECORDS_KEPT:]
        self.replace(location, records)

    def replace(self, location: RunLocation, records: Sequence[R]) -> None:
        """Write a run's records to this machine and its store; if the store does not answer, only to this machine."""
        fields: dict[str, JsonValue] = {"records": [entry.model_dump(mode="json") for entry in records]}
        for contents in location.contents():
            try:
                contents.write_json(self._name, fields)
            except StoreUnavailableError as error:
                logger.warning("%s of run '%s' was written on this machine only: %s", self._name, location.name, error)

    def _read_in(self, contents: RunContents) -> list[R]:
        try:
            rows = contents.read_json(self._name)["records"]
            if not isinstance(rows, list):
                raise ValueError("it holds no records")
            return [self._kind.model_validate(row) for row in rows]
        except MissingObjectError:
            return []
        except (KeyError, ValueError) as error:
            logger.warning("%s/%s counts as empty: %s.", contents.store.url, contents.object_name(self._name), error)
            return []


class Attempt(Record):
    """One scheduled resume of a run."""

    generation: Annotated[int, Field(ge=1)]
    """The first generation that this resume was to train."""
    moment: Words
    """Time of the attempt (ISO 8601, UTC)."""


ATTEMPTS = Journal(ATTEMPTS_NAME, Attempt)


def count_attempt(location: RunLocation, generation: int) -> None:
    """Record a scheduled resume before it starts; `BlockedError` if `has_failed_too_often` for `generation`."""
    if has_failed_too_often(location, generation):
        since = ATTEMPTS.read(location)[-MOST_ATTEMPTS].moment
        raise BlockedError(
            f"Run '{location.name}' is blocked: {MOST_ATTEMPTS} scheduled resumes since {since} have not completed "
            f"generation {generation}. Their flow runs say why. `eigen launch --run {location.name}` and "
            f"`{command_for('resume', location.name, location.store.url)}` resume it all the same."
        )
    ATTEMPTS.append(location, Attempt(generation=generation, moment=now()))


def has_failed_too_often(location: RunLocation, generation: int) -> bool:
    newest = ATTEMPTS.read(location)[-MOST_ATTEMPTS:]
    return len(newest) == MOST_ATTEMPTS and all(attempt.generation == generation for attempt in newest)


class Stop(Record):
    """A user's cancellation or suspension of the run."""

    moment: Words
    """Time of the stop (ISO 8601, UTC)."""


STOPS = Journal("stops.json", Stop)


def now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


class Request(Record):
    """A request to continue a run after its last complete `generation` (0: none) with another configuration."""

    generation: int
    config: dict[str, JsonValue]


REQUESTS = Journal("requests.json", Request)


def write_memory_report(location: RunLocation, report: "MemoryReport", generation: int, phase: str) -> Path:
    """Write a report to the run's folder and remove the oldest beyond 20; return the path of its markdown file."""
    # Imported here because it loads torch, which a table of runs does without.
    from eigen_core.machine.memory_report import write_report

    folder = location.root / location.name / _REPORTS
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{generation:06d}-{phase or 'between'}"
    markdown = write_report(report, folder, stem)[0]
    for old in memory_reports(folder.parent)[_REPORTS_KEPT:]:
        # Earlier versions also drew a picture.
        for path in (old, old.with_suffix(".json"), old.with_suffix(".png")):
            path.unlink(missing_ok=True)
    return markdown


def memory_reports(folder: Path) -> list[Path]:
    """Return the paths of the memory reports (markdown) in a run's folder, newest first."""
    return sorted((folder / _REPORTS).glob("*.md"), reverse=True)


class OwnSettings(Record):
    """Path of the prices (`market.data`) with which this machine last trained a run of a remote store."""

    data: str | None


def own_settings(location: RunLocation) -> OwnSettings | None:
    """Return the `OwnSettings` of a run, kept in the folder `checkpoint.local`.

    Returns None if the store is a folder, or the run was never trained on this machine with this `checkpoint.local`.
    """
    if not location.remote:
        return None
    try:
        document = parse_checksummed(_own_store(location).read(f"{location.name}.json", _MOST_BYTES))
        return OwnSettings.model_validate({"data": document["data"]})
    except MissingObjectError:
        return None
    except (InputError, StoreUnavailableError, KeyError, ValueError) as error:
        logger.warning("The data path kept for run '%s' is unreadable, use --data: %s", location.name, error)
        return None


def remember_own_settings(location: RunLocation, data: str | None) -> None:
    """Keep the `OwnSettings` of a run in the folder `checkpoint.local`; if its store is a folder, do nothing."""
    if location.remote:
        content = checksummed(OwnSettings(data=data).model_dump(mode="json"))
        _own_store(location).put(f"{location.name}.json", content)


def _own_store(location: RunLocation) -> LocalStore:
    return LocalStore(require_own_files(location.root, ".own"))
