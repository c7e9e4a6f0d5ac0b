"""Progress of long loops: listeners show it, checks can abort the loop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class ProgressListener(Protocol):
    """Receives progress. Implementations must be cheap and must not raise."""

    def update(self, name: str, done: int, total: int) -> None:
        """Called after each step of the loop `name`: `done` of `total` steps (or bytes) are done."""


_listener: ContextVar[ProgressListener | None] = ContextVar("eigen_progress", default=None)


@contextmanager
def progress_to(listener: ProgressListener) -> Iterator[None]:
    """Send all progress inside the block to `listener` alone."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


Check = Callable[[], None]
"""Called between the steps of loops, from any thread; must be cheap. An exception aborts the loop."""

_checks: ContextVar[tuple[Check, ...]] = ContextVar("eigen_checks", default=())


@contextmanager
def checked_by(check: Check) -> Iterator[None]:
    """Call `check` between the steps of all loops inside the block, after the checks of outer blocks."""
    token = _checks.set((*_checks.get(), check))
    try:
        yield
    finally:
        _checks.reset(token)


def report_progress(name: str, done: int, total: int) -> None:
    """Report `done` of `total` steps of the loop `name` to the listener, then run the checks, which may raise."""
    listener = _listener.get()
    if listener is not None:
        listener.update(name, done, total)
    for check in _checks.get():
        check()
