"""Progress of long loops, which call `report_progress` in each step: a listener shows it, checks can abort the loop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class ProgressListener(Protocol):
    """Receives the progress of loops. `update` must be fast and must not raise."""

    def update(self, name: str, done: int, total: int) -> None:
        """Called after each step of the loop `name`, such as "train": `done` of `total` steps (or bytes) are done."""


_listener: ContextVar[ProgressListener | None] = ContextVar("eigen_progress", default=None)


@contextmanager
def progress_to(listener: ProgressListener) -> Iterator[None]:
    """Send the progress of all loops inside the block to `listener`, and not to the listener of an outer block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


Check = Callable[[], None]
"""`report_progress` calls it in each step of a loop, in that step's thread; must be fast. An error ends the loop."""

_checks: ContextVar[tuple[Check, ...]] = ContextVar("eigen_checks", default=())


@contextmanager
def checked_by(check: Check) -> Iterator[None]:
    """Call `check` in each step of all loops inside the block, after the checks of outer blocks."""
    token = _checks.set((*_checks.get(), check))
    try:
        yield
    finally:
        _checks.reset(token)


def report_progress(name: str, done: int, total: int) -> None:
    """Report `done` of `total` steps (or bytes) of the loop `name` to the listener, then call the checks."""
    listener = _listener.get()
    if listener is not None:
        listener.update(name, done, total)
    for check in _checks.get():
        check()
