"""Errors that callers of Eigen's functions may catch, how they end a run, and what a job of several runs then does."""

import errno
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Literal, get_args

from eigen_core.common.text import DISTRIBUTION


class End(StrEnum):
    """How a run ended before it was finished; `FOLLOWS` says what follows from it."""

    REFUSED = "refused"  # its settings or its data cannot be used
    DIVERGED = "diverged"  # a weight, an action or a reward is not a finite number
    TOO_LARGE = "too large"  # by its plan it does not fit into the memory
    GUARD = "memory guard"  # the memory guard has stopped it
    DISK_FULL = "disk full"  # the disk is full, or by the plan would be
    INTERRUPTED = "interrupted"  # it was asked to stop
    OTHER = "failed"  # a store, a worker or its process failed, or its data or its scheduler were away

    @property
    def of_begun_run(self) -> "End":
        """This end, of a run that had begun: what it was given could be used then, so it is not refused for that."""
        return End.OTHER if self in (End.REFUSED, End.TOO_LARGE) else self


class Next(StrEnum):
    """What a job does after one of its runs has ended early: it records the end and goes on, or it stops.

    RECORD: the run is never trained again. RETRY: the same command, or the schedule, continues the run, since the cause
    may have passed. STOP: the run would end in the same way until a user changes something.
    """

    RECORD = "record"
    RETRY = "retry"
    STOP = "stop"


Job = Literal["sweep", "walk", "trust", "flow"]
_PASSES: Mapping[Job, Next] = dict.fromkeys(get_args(Job), Next.RETRY)
_STAYS: Mapping[Job, Next] = {**dict.fromkeys(get_args(Job), Next.STOP), "sweep": Next.RECORD}
FOLLOWS: Mapping[End, Mapping[Job, Next]] = {
    End.REFUSED: _STAYS,
    # The trials of `eigen trust` have the same settings: it is chance whether one of them diverges.
    End.DIVERGED: {**_STAYS, "trust": Next.RECORD},
    End.TOO_LARGE: _STAYS,
    End.GUARD: _PASSES,
    End.DISK_FULL: _PASSES,
    End.INTERRUPTED: _PASSES,
    End.OTHER: _PASSES,
}
"""What follows from each end. A walk stops, since it needs all its folds. "flow": flow runs that a schedule resumes."""

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers (`OSError.errno`) of a full disk."""


def end_of(error: BaseException) -> End:
    """Return how a run ended that raised `error`, by the type of the error and of its cause, never by its words."""
    if isinstance(error, FloatingPointError):
        return End.DIVERGED
    if isinstance(error, MemoryError):
        return End.TOO_LARGE
    if isinstance(error, KeyboardInterrupt):
        return End.INTERRUPTED
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        return End.DISK_FULL
    end: End = getattr(error, "end", End.OTHER)
    return end


class InputError(ValueError):
    """A setting, a file, the store or something else that the user chose cannot be used.

    The message says in one or two sentences what is wrong, where, and what to do. The command `eigen` prints it without
    a traceback and exits with code 2.
    """

    end = End.REFUSED


@contextmanager
def needs_extra(extra: str, what: str, otherwise: str = "") -> Iterator[None]:
    """Raise a missing package in the block as an `InputError`: `what` needs it, and Eigen's `extra` installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(
            f"{what} needs the package {error.name}, which is not installed: "
            f"`pip install {shlex.quote(f'{DISTRIBUTION}[{extra}]')}`{otherwise}."
        ) from error


class UnavailableError(InputError):
    """Something that a run needs, such as its prices or its scheduler, is away at the moment: it may come back."""

    end = End.OTHER


class FullDiskError(InputError):
    """A file cannot be written since the disk is full."""

    end = End.DISK_FULL


class WorkerLostError(RuntimeError):
    """A Dask worker exited, sent no heartbeat or was released while it evaluated or trained agents, or none is left.

    The run may call the phase (`evaluate` or `train`) again. `address`: network address of the worker; None if unknown.
    """

    def __init__(self, message: str, address: str | None = None) -> None:
        super().__init__(message)
        self.address = address


class SchedulerLostError(RuntimeError):
    """The scheduler of the Dask workers cannot be reached. Once it runs again, `eigen resume` continues the run."""


class Stopped(Exception):  # noqa: N818 - not always an error: the user may have asked for it
    """A training run or a download ended early; the message says why, what is saved and how to continue.

    Its cause (`raise ... from error`) is the error that ended the run; without one it was asked to stop.
    """

    @property
    def end(self) -> End:
        return End.INTERRUPTED if self.__cause__ is None else end_of(self.__cause__).of_begun_run


class StoppedByMemory(Stopped):
    """A training run did not start, or ended early, because it would have run out of memory."""

    @property
    def end(self) -> End:
        end = End.TOO_LARGE if self.__cause__ is None else end_of(self.__cause__)
        return End.TOO_LARGE if end is End.OTHER else end
