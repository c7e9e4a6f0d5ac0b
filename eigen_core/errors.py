"""Errors that are part of the interface."""


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message is one or two sentences: what is wrong, where, and what to do. The command line prints it
    without a traceback and exits with code 2.
    """
