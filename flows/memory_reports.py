"""The memory reports in a run's folder, and the aborts of its guard. No Prefect in here."""

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from eigen_core.checkpoint import RunPlace
from eigen_core.config import Config
from eigen_core.memory import HostLimits, MemoryReport, write_report
from eigen_core.records import Record
from flows.journal import Journal

FOLDER = "memory"
MOST_ABORTS = 2
"""After this many aborts of the same generation, under the same limit and configuration, a run is blocked."""

_REPORTS_KEPT = 20
# What says how long a run is, or where it is kept, changes nothing about a generation's memory.
_IRRELEVANT = ("generations", "reporting")


class BlockedError(Exception):
    """A run would be ended by its memory guard again. The message says why and what would change that."""


class GuardAbort(Record):
    """One abort of a training by its memory guard."""

    generation: int
    """The generation under way."""
    phase: str
    """Its phase; empty between phases."""
    moment: str
    """When, ISO 8601, UTC."""
    limit: str
    """The smallest limit of the host, in words."""
    config_sha256: str
    """Hash of what determines the memory of a generation."""
    reason: str
    """What the guard said."""


# Stored runs have the file under this name.
ABORTS = Journal(f"{FOLDER}/trips.json", GuardAbort)


def write_memory_report(place: RunPlace, report: MemoryReport, generation: int, phase: str) -> Path:
    """Write a report into the run's folder, as markdown and JSON, and return the markdown's path; old ones go.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder = place.root / place.name / FOLDER
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{generation:06d}-{phase or 'between'}"
    markdown = write_report(report, folder, stem)[0]
    for old in memory_reports(folder.parent)[_REPORTS_KEPT:]:
        for path in (old, old.with_suffix(".json"), old.with_suffix(".png")):
            path.unlink(missing_ok=True)
    return markdown


def memory_reports(folder: Path) -> list[Path]:
    """Return the reports of a run (markdown), newest first; `folder` is the run's on this machine."""
    return sorted((folder / FOLDER).glob("*.md"), reverse=True)


def memory_key(config: Config) -> str:
    """Return a hash of all that a generation's memory can depend on."""
    values = {key: value for key, value in config.model_dump(mode="json").items() if key not in _IRRELEVANT}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def remember_abort(place: RunPlace, abort: GuardAbort) -> int:
    """Add an abort to those of the run, here and in its store, and return how many of them are alike."""
    return len(_like(ABORTS.append(place, abort), abort))


def is_blocked(place: RunPlace, generation: int) -> bool:
    """Whether the guard has ended `generation` so often, in the same way, that it is not tried again."""
    aborts = ABORTS.read(place)
    return bool(aborts) and aborts[-1].generation == generation and len(_like(aborts, aborts[-1])) >= MOST_ABORTS


def require_not_blocked(place: RunPlace, config: Config, limits: HostLimits, generation: int) -> None:
    """Refuse to train a generation that the guard has ended before, often enough, under these conditions.

    Raises:
        BlockedError: it has.
    """
    aborts = [
        abort
        for abort in ABORTS.read(place)
        if (abort.generation, abort.limit, abort.config_sha256)
        == (generation, str(limits.smallest), memory_key(config))
    ]
    if len(aborts) < MOST_ABORTS:
        return
    last = aborts[-1]
    raise BlockedError(
        f"Run '{place.name}' is blocked: the memory guard has ended generation {generation} {len(aborts)} times under "
        f"{last.limit}, the last time {f'in {last.phase} ' if last.phase else ''}at {last.moment}. Raise the limit or "
        f"change the configuration (`eigen memory {place.name}` shows what took the memory, `eigen plan` what would "
        "fit); its checkpoints are good."
    )


def _like(aborts: Sequence[GuardAbort], abort: GuardAbort) -> list[GuardAbort]:
    return [
        other
        for other in aborts
        if (other.generation, other.limit, other.config_sha256) == (abort.generation, abort.limit, abort.config_sha256)
    ]
