"""Errors that are part of the interface."""


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message is one or two sentences: what is wrong, where, and what to do. The command line prints it
    without a traceback and exits with code 2.
    """


class WorkerLostError(RuntimeError):
    """A worker ended, or sent no heartbeat, while it computed agents: the others can compute the phase again."""


class SchedulerLostError(RuntimeError):
    """The scheduler of the workers cannot be reached any more. The run can be resumed once it is there again."""
