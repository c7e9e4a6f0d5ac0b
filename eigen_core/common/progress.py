"""Progress of long loops: listeners decide how to show it, checks may end the loop there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class ProgressListener(Protocol):
    """Receives the steps of named loops. Implementations must be cheap and must not raise."""

    def update(self, name: str, done: int, total: int) -> None:
        """`done` of `total` steps of the loop `name` are finished; a loop ends at `done == total`."""


_listener: ContextVar[ProgressListener | None] = ContextVar("eigen_progress", default=None)


@contextmanager
def progress_to(listener: ProgressListener) -> Iterator[None]:
    """Send the progress of everything called inside the block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


Check = Callable[[], None]
"""Called between the steps of loops; what it raises ends the loop there. Must be cheap, from any thread."""

_checks: ContextVar[tuple[Check, ...]] = ContextVar("eigen_checks", default=())


@contextmanager
def checked_by(check: Check) -> Iterator[None]:
    """Call `check` between the steps of every loop inside the block that reports progress, after those around it."""
    token = _checks.set((*_checks.get(), check))
    try:
        yield
    finally:
        _checks.reset(token)


def report_progress(name: str, done: int, total: int) -> None:
    """Report `done` of `total` steps of the loop `name` to the current listener, then run the checks.

    Raises:
        Exception: what a check raises (`checked_by`).
    """
    listener = _listener.get()
    if listener is not None:
        listener.update(name, done, total)
    for check in _checks.get():
        check()
