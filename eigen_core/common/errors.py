"""Errors that callers of Eigen's functions may catch."""


class InputError(ValueError):
    """Invalid user input.

    The message says in one or two sentences what is wrong, where, and what to do. The command line prints it without a
    traceback and exits with code 2.
    """


class WorkerLostError(RuntimeError):
    """A Dask worker exited or sent no heartbeat while it computed agents; the other workers can retry the phase.

    `address` is the worker's address; None if unknown.
    """

    def __init__(self, message: str, address: str | None = None) -> None:
        super().__init__(message)
        self.address = address


class SchedulerLostError(RuntimeError):
    """The Dask scheduler of the workers cannot be reached. Once it runs again, the training run can be resumed."""


class Stopped(Exception):  # noqa: N818 - not always an error: the user may have asked for it
    """A training ended before its last generation; the message says why, what is saved and how to continue."""


class StoppedByMemory(Stopped):
    """A training was not started, or was ended early, because it would have run out of memory."""
