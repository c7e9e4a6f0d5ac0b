"""Journals of a run beside its checkpoints: attempts, stops, requests, aborts, starts and the goodput."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Generic, TypeVar

import psutil
from pydantic import AwareDatetime, Field, JsonValue

from eigen_core.checkpoint.contents import RunContents
from eigen_core.checkpoint.integrity import ATTEMPTS_NAME, checksummed, parse_checksummed
from eigen_core.checkpoint.local import LocalStore
from eigen_core.checkpoint.location import RunLocation
from eigen_core.checkpoint.store import MissingObjectError, StoreUnavailableError, is_remote, run_root
from eigen_core.common.errors import InputError
from eigen_core.common.progress import checked_by
from eigen_core.common.records import Record
from eigen_core.config import Config

if TYPE_CHECKING:
    from eigen_core.machine import HostLimits, MemoryReport

logger = logging.getLogger(__name__)

MOST_ATTEMPTS = 3
"""So many scheduled resumes that leave a run in the same generation are enough."""
MOST_ABORTS = 2
"""After this many aborts of the same generation, under the same limit and configuration, a run is blocked."""

_REPORTS = "memory"
_REPORTS_KEPT = 20
# The length of a run and its plots change nothing about a generation's memory.
_IRRELEVANT = ("generations", "reporting")
_MOST_BYTES = 1 << 20

R = TypeVar("R", bound=Record)


class BlockedError(Exception):
    """A run would be ended again as it was before. The message says why and what would change that."""


class Journal(Generic[R]):
    """The newest records of a kind, in a JSON file with a checksum.

    What cannot be read counts as empty: a journal only keeps a run from being tried in vain.

    Args:
        name: the file, relative to the run's folder.
        kind: the records.
        kept: so many stay.
    """

    def __init__(self, name: str, kind: type[R], kept: int = 20) -> None:
        self._name = name
        self._kind = kind
        self._kept = kept

    def read(self, location: RunLocation) -> list[R]:
        """Return the records of a run, oldest first, from wherever most of them are known."""
        return max((self._read_in(contents) for contents in location.contents()), key=len)

    def append(self, location: RunLocation, record: R) -> list[R]:
        """Add a record to those of a run, as `replace` does, and return them all."""
        records = [*self.read(location), record][-self._kept :]
        self.replace(location, records)
        return records

    def replace(self, location: RunLocation, records: Sequence[R]) -> None:
        """Let these be the records of a run, here and in its store.

        A store that does not answer is logged: they are then known on this machine alone.
        """
        content = checksummed({"records": [entry.model_dump(mode="json") for entry in records]})
        for contents in location.contents():
            try:
                contents.store.put(contents.object_name(self._name), content)
            except StoreUnavailableError as error:
                logger.warning("%s of run '%s' is kept on this machine only: %s", self._name, location.name, error)

    def _read_in(self, contents: RunContents) -> list[R]:
        name = contents.object_name(self._name)
        try:
            rows = parse_checksummed(contents.store.read(name, _MOST_BYTES))["records"]
            if not isinstance(rows, list):
                raise ValueError("it holds no records")
            return [self._kind.model_validate(row) for row in rows]
        except MissingObjectError:
            return []
        except (KeyError, ValueError) as error:
            logger.warning("%s in %s is skipped (%s).", name, contents.store.url, error)
            return []


class Attempt(Record):
    """One scheduled resume of a run."""

    generation: Annotated[int, Field(ge=1)]
    """The generation that it began with."""
    moment: str
    """When, ISO 8601, UTC."""


ATTEMPTS = Journal(ATTEMPTS_NAME, Attempt)


def count_attempt(location: RunLocation, generation: int) -> None:
    """Note that a run is about to be resumed by schedule, or refuse to try the same generation once more.

    Raises:
        BlockedError: the last attempts have all begun with this generation.
    """
    if has_failed_too_often(location, generation):
        since = ATTEMPTS.read(location)[-MOST_ATTEMPTS].moment
        raise BlockedError(
            f"Run '{location.name}' is blocked: {MOST_ATTEMPTS} scheduled resumes since {since} have not completed "
            f"generation {generation}. Their flow runs say why. `eigen launch --run {location.name}` and `eigen "
            f"resume {location.name}` try it again."
        )
    ATTEMPTS.append(location, Attempt(generation=generation, moment=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"))


def withdraw_attempt(location: RunLocation) -> None:
    """Take the last attempt back: what ended it says nothing about the run."""
    ATTEMPTS.replace(location, ATTEMPTS.read(location)[:-1])


def forget_attempts(location: RunLocation) -> None:
    """Begin to count anew: a launch has named this run."""
    if ATTEMPTS.read(location):
        ATTEMPTS.replace(location, [])


def has_failed_too_often(location: RunLocation, generation: int) -> bool:
    """Whether scheduled resumes have given `generation` up."""
    newest = ATTEMPTS.read(location)[-MOST_ATTEMPTS:]
    return len(newest) == MOST_ATTEMPTS and all(attempt.generation == generation for attempt in newest)


class Stop(Record):
    """A user has cancelled or suspended the run."""

    moment: str
    """When, ISO 8601, UTC."""


_STOPS = Journal("stops.json", Stop)


def remember_stop(location: RunLocation) -> None:
    """Keep that a user has stopped a run, which must exist: only who names it continues it."""
    _STOPS.append(location, Stop(moment=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"))


def forget_stop(location: RunLocation) -> None:
    """Let a run be resumed again: a user has named it."""
    if is_stopped(location):
        _STOPS.replace(location, [])


def is_stopped(location: RunLocation) -> bool:
    """Whether a user has stopped a run, and nobody has named it since."""
    return bool(_STOPS.read(location))


class Request(Record):
    """A request for more, or something else, than a run was configured with."""

    generation: int
    """The newest complete generation then; 0: none."""
    config: dict[str, JsonValue]
    """The configuration from the next generation on."""


_REQUESTS = Journal("requests.json", Request)


def remember_request(location: RunLocation, generation: int, config: Mapping[str, JsonValue]) -> None:
    """Keep the configuration with which a run continues after `generation`: it may be stopped before the next one."""
    _REQUESTS.append(location, Request(generation=generation, config=dict(config)))


def requested_config(location: RunLocation, generation: int) -> dict[str, JsonValue] | None:
    """Return the configuration that was requested after the newest `generation` of a run; None if none was."""
    last = _REQUESTS.read(location)[-1:]
    return next((request.config for request in last if request.generation == generation), None)


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
    """Message of the guard."""

    @property
    def conditions(self) -> tuple[int, str, str]:
        """Generation, limit and configuration: aborts that share them are alike."""
        return self.generation, self.limit, self.config_sha256


# Stored runs have the file under this name.
ABORTS = Journal(f"{_REPORTS}/trips.json", GuardAbort)


def write_memory_report(location: RunLocation, report: "MemoryReport", generation: int, phase: str) -> Path:
    """Write a report into the run's folder, as markdown and JSON, and return the markdown's path; old ones go.

    Raises:
        OSError: the folder cannot be written to.
    """
    # Imported here because it loads torch, which a table of runs does without.
    from eigen_core.machine import write_report

    folder = location.root / location.name / _REPORTS
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{generation:06d}-{phase or 'between'}"
    markdown = write_report(report, folder, stem)[0]
    for old in memory_reports(folder.parent)[_REPORTS_KEPT:]:
        for path in (old, old.with_suffix(".json"), old.with_suffix(".png")):
            path.unlink(missing_ok=True)
    return markdown


def memory_reports(folder: Path) -> list[Path]:
    """Return the reports of a run (markdown), newest first; `folder` is the run's on this machine."""
    return sorted((folder / _REPORTS).glob("*.md"), reverse=True)


def memory_key(config: Config) -> str:
    """Return a hash of all that a generation's memory can depend on."""
    values = {key: value for key, value in config.model_dump(mode="json").items() if key not in _IRRELEVANT}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def remember_abort(location: RunLocation, abort: GuardAbort) -> int:
    """Add an abort to those of the run, here and in its store, and return how many of them are alike."""
    return len(_aborts_under(abort.conditions, ABORTS.append(location, abort)))


def is_blocked(location: RunLocation, generation: int) -> bool:
    """Whether the guard has ended `generation` so often, in the same way, that it is not tried again."""
    aborts = ABORTS.read(location)
    if not aborts or aborts[-1].generation != generation:
        return False
    return len(_aborts_under(aborts[-1].conditions, aborts)) >= MOST_ABORTS


def require_not_blocked(location: RunLocation, config: Config, limits: "HostLimits", generation: int) -> None:
    """Refuse to train a generation that the guard has ended before, often enough, under these conditions.

    Raises:
        BlockedError: it has.
    """
    aborts = _aborts_under((generation, str(limits.smallest), memory_key(config)), ABORTS.read(location))
    if len(aborts) < MOST_ABORTS:
        return
    last = aborts[-1]
    raise BlockedError(
        f"Run '{location.name}' is blocked: the memory guard has ended generation {generation} {len(aborts)} times "
        f"under {last.limit}, the last time {f'in {last.phase} ' if last.phase else ''}at {last.moment}. "
        f"Raise the limit or change the configuration (`eigen memory {location.name}` shows what took the "
        "memory, `eigen plan` what would fit); its checkpoints are good."
    )


def _aborts_under(conditions: tuple[int, str, str], aborts: Sequence[GuardAbort]) -> list[GuardAbort]:
    return [abort for abort in aborts if abort.conditions == conditions]


class OwnSettings(Record):
    """The settings of a run with which it was last trained on this machine."""

    data: str | None
    """`market.data`."""


def own_settings(location: RunLocation, local: str) -> OwnSettings | None:
    """Return what is remembered of a run in a store elsewhere; None if it was never trained here, or the store is here.

    Args:
        location: the run.
        local: the folder that may hold the memory, a value of `checkpoint.local`.
    """
    if not location.remote:
        return None
    try:
        document = parse_checksummed(_own_store(location.store.url, local).read(f"{location.name}.json", _MOST_BYTES))
        return OwnSettings.model_validate({"data": document["data"]})
    except MissingObjectError:
        return None
    except (InputError, StoreUnavailableError, KeyError, ValueError) as error:
        logger.warning("Where this machine keeps run '%s' is not remembered: %s", location.name, error)
        return None


def remember_own_settings(config: Config, name: str) -> None:
    """Keep this machine's own settings of a run in a store elsewhere, in its folder for what is on its way there.

    Raises:
        InputError: the folder cannot be written to.
    """
    settings = config.checkpoint
    if is_remote(settings.store):
        content = checksummed(OwnSettings(data=config.market.data).model_dump(mode="json"))
        _own_store(settings.store, settings.local).put(f"{name}.json", content)


def _own_store(store: str, local: str) -> LocalStore:
    return LocalStore(run_root(store, local) / ".own")


SIGN_OF_LIFE = "alive"
"""File in a run's folder that a training touches between its steps; only an interrupted one leaves it there."""
_TOUCH_SECONDS = 0.5

Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Start(Record):
    """One time that a process began to train a run, and what became of the process before."""

    moment: AwareDatetime
    """When its first phase began (UTC)."""
    waited_seconds: Seconds
    """From the interruption of the process before, or else from the start of this process, to `moment`."""
    kept_seconds: Seconds = 0.0
    """Training of the process before up to its last checkpoint (seconds)."""
    lost_seconds: Seconds | None = None
    """Training after that (seconds); None: it was not interrupted."""


_STARTS = Journal("starts.json", Start, kept=2_000)


@dataclass(frozen=True)
class Goodput:
    """Use of a run's time, from its first start to its newest checkpoint.

    Attributes:
        useful_seconds: training whose result checkpoints hold.
        lost_seconds: training after a last checkpoint, which an interruption has lost.
        waiting_seconds: from each interruption, and from each start of a process, to the first phase.
        interruptions: processes that have ended without a request to.
        recovery_seconds: mean time from an interruption to the next first phase; None: there was none.
    """

    useful_seconds: float
    lost_seconds: float
    waiting_seconds: float
    interruptions: int
    recovery_seconds: float | None

    @property
    def share(self) -> float:
        """Goodput, 0 to 1."""
        return self.useful_seconds / (self.useful_seconds + self.lost_seconds + self.waiting_seconds)

    def __str__(self) -> str:
        if self.recovery_seconds is None:
            return f"goodput {self.share:.1%}, no interruption"
        times = "1 interruption" if self.interruptions == 1 else f"{self.interruptions} interruptions"
        return (
            f"goodput {self.share:.1%}: {times}, {self.lost_seconds:.1f} s of work lost, "
            f"{self.recovery_seconds:.1f} s to recover on average"
        )


def starts_of(location: RunLocation) -> list[Start]:
    """Return all times that a process began to train a run."""
    return _STARTS.read(location)


def goodput(starts: Sequence[Start], last_checkpoint: datetime | None) -> Goodput | None:
    """Return the goodput of a run; None if no work of it is known.

    Args:
        starts: all times that a process began to train it.
        last_checkpoint: when its newest manifest was written (UTC); None: there is none.
    """
    if not starts or last_checkpoint is None:
        return None
    useful = sum(start.kept_seconds for start in starts) + _between(starts[-1].moment, last_checkpoint)
    if useful <= 0.0:
        return None
    interrupted = [start for start in starts if start.lost_seconds is not None]
    waited = sum(start.waited_seconds for start in interrupted)
    return Goodput(
        useful_seconds=useful,
        lost_seconds=sum(start.lost_seconds or 0.0 for start in interrupted),
        waiting_seconds=sum(start.waited_seconds for start in starts),
        interruptions=len(interrupted),
        recovery_seconds=waited / len(interrupted) if interrupted else None,
    )


@contextmanager
def work_recorded(
    location: RunLocation, last_checkpoint: datetime | None, stop_requests: tuple[type[BaseException], ...]
) -> Iterator[list[Start]]:
    """Record that training begins now, and the time of its last step until the block ends.

    Yields all starts of the run.

    An interruption shows to the next process on this machine; on another one the time up to its start is not counted.

    Args:
        location: the run, which this process holds.
        last_checkpoint: when its newest manifest was written (UTC); None: there is none.
        stop_requests: what the block raises when it is stopped on request; all else is an interruption.
    """
    sign = location.root / location.name / SIGN_OF_LIFE
    starts = _STARTS.append(location, _start(sign, _STARTS.read(location), last_checkpoint))
    sign.touch()
    try:
        with checked_by(_touching(sign)):
            yield starts
    except stop_requests:
        sign.unlink(missing_ok=True)
        raise
    except BaseException:
        # The disk may be what failed: the time of the last step remains.
        with suppress(OSError):
            sign.touch()
        raise
    sign.unlink(missing_ok=True)


def _start(sign: Path, starts: list[Start], last_checkpoint: datetime | None) -> Start:
    now = datetime.now(UTC)
    own = datetime.fromtimestamp(psutil.Process().create_time(), UTC)
    if not starts:
        return Start(moment=now, waited_seconds=_between(own, now))
    before = starts[-1].moment
    kept = 0.0 if last_checkpoint is None else _between(before, last_checkpoint)
    try:
        interrupted = datetime.fromtimestamp(sign.stat().st_mtime, UTC)
    except FileNotFoundError:
        return Start(moment=now, waited_seconds=_between(own, now), kept_seconds=kept)
    lost = max(_between(before, interrupted) - kept, 0.0)
    return Start(moment=now, waited_seconds=_between(interrupted, now), kept_seconds=kept, lost_seconds=lost)


def _touching(sign: Path) -> Callable[[], None]:
    touched = time.monotonic()

    def touch() -> None:
        nonlocal touched
        if time.monotonic() - touched >= _TOUCH_SECONDS:
            touched = time.monotonic()
            sign.touch()

    return touch


def _between(earlier: datetime, later: datetime) -> float:
    """Seconds; none if the clock was set back."""
    return max((later - earlier).total_seconds(), 0.0)
