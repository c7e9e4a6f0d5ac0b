"""How long loops tell how far they are; whoever listens decides how to show it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Progress(Protocol):
    """Receives the steps of named loops. Implementations must be cheap and must not raise."""

    def update(self, name: str, done: int, total: int) -> None:
        """`done` of `total` steps of the loop `name` are finished; a loop ends at `done == total`."""


class SilentProgress:
    """Listens to nothing."""

    def update(self, name: str, done: int, total: int) -> None:
        """Do nothing."""


_SILENT = SilentProgress()
_listener: ContextVar[Progress] = ContextVar("eigen_progress", default=_SILENT)


@contextmanager
def progress_to(listener: Progress) -> Iterator[None]:
    """Send the progress of everything called inside the block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report_progress(name: str, done: int, total: int) -> None:
    """Report `done` of `total` steps of the loop `name` to the current listener."""
    _listener.get().update(name, done, total)
