"""Stop requests (exceptions of signal handlers) that Python or Prefect would swallow."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN_SECONDS = 0.05


@contextmanager
def stop_requests_unmasked(requests: tuple[type[BaseException], ...]) -> Iterator[None]:
    """Raise the request to stop itself in place of an error that handling it caused.

    Prefect raises `ValueError("Task run is not set")` for a signal that comes while it creates a task run, which would
    end the flow as failed instead of as stopped.
    """
    try:
        yield
    except Exception as error:
        cause = error.__context__
        while cause is not None and not isinstance(cause, requests):
            cause = cause.__context__
        if cause is None:
            raise
        raise cause from None


@contextmanager
def stop_requests_raised() -> Iterator[None]:
    """Raise an exception of a signal handler again that came in a weakref callback, finalizer or garbage collection.

    Python reports an exception that ends in such code to `sys.unraisablehook` and goes on. Exceptions that are no
    `Exception`, such as `KeyboardInterrupt` and Prefect's `TerminationSignal`, are raised again in the main thread
    until they come out in ordinary code, also while that waits or sleeps. Uses SIGALRM; does nothing in other threads,
    which receive no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    swallowed: list[BaseException] = []

    def keep(report: "UnraisableHookArgs") -> None:
        if report.exc_value is None or isinstance(report.exc_value, Exception):
            former_hook(report)
            return
        swallowed.append(report.exc_value)
        # An alarm, since another exception from here would be swallowed too.
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)

    def raise_again(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a signal handler
        if swallowed:
            raise swallowed.pop().with_traceback(None)

    former_hook, sys.unraisablehook = sys.unraisablehook, keep
    former_handler = signal.signal(signal.SIGALRM, raise_again)
    try:
        yield
        if swallowed:
            raise swallowed.pop().with_traceback(None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, former_handler)
        sys.unraisablehook = former_hook
