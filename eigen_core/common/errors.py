"""Errors that callers of Eigen's functions may catch."""


class InputError(ValueError):
    """A setting, a file, the store or something else that the user chose cannot be used.

    The message says in one or two sentences what is wrong, where, and what to do. The command `eigen` prints it without
    a traceback and exits with code 2.
    """


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
    """A training run ended before its last generation; the message says why, what is saved and how to continue."""


class StoppedByMemory(Stopped):
    """A training run did not start, or ended early, because it would have run out of memory."""
