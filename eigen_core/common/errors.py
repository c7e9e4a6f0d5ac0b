"""Errors that are part of the interface."""


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message is one or two sentences: what is wrong, where, and what to do. The command line prints it
    without a traceback and exits with code 2.
    """


class WorkerLostError(RuntimeError):
    """A worker ended, or sent no heartbeat, while it computed agents: the others can compute the phase again.

    Args:
        message: what happened.
        address: of the worker; None: it is not known which one was lost.
    """

    def __init__(self, message: str, address: str | None = None) -> None:
        super().__init__(message)
        self.address = address


class SchedulerLostError(RuntimeError):
    """The scheduler of the workers cannot be reached any more. The run can be resumed once it is there again."""
