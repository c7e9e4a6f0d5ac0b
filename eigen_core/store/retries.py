"""Retries for a limited time, and a deadline for calls that cannot be interrupted."""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from eigen_core.store.interface import StoreUnavailableError

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

RETRY_SECONDS = 30.0
"""How long a request is retried by default."""
_PAUSES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0)
_MIN_ATTEMPT_SECONDS = 1.0

# A generator of its own: the random numbers of a training must not depend on the network.
_jitter = random.Random()

# Named here so that tests can replace them.
sleep = time.sleep
clock = time.monotonic


class TransientError(StoreUnavailableError):
    """A request failed in a way that a retry may overcome."""


def retry(attempt: Callable[[float], _Result], seconds: float) -> _Result:
    """Return what `attempt` returns, and call it again with growing pauses while it raises `TransientError`.

    Args:
        attempt: gets the number of seconds that are left, at least one.
        seconds: no attempt starts later than this.

    Raises:
        TransientError: what the last attempt raised.
    """
    end = clock() + seconds
    for pause in _PAUSES:
        try:
            return attempt(max(end - clock(), _MIN_ATTEMPT_SECONDS))
        except TransientError as error:
            pause *= 0.75 + 0.5 * _jitter.random()
            if clock() + pause >= end:
                raise
            logger.debug("Retrying in %.1f s: %s", pause, error)
        sleep(pause)
    return attempt(max(end - clock(), _MIN_ATTEMPT_SECONDS))


def within(seconds: float, action: Callable[[], object], late: str) -> None:
    """Run `action` in a thread and wait for it no longer than `seconds`.

    A thread that does not end in time is abandoned: a call into a dead network file system cannot be interrupted.

    Raises:
        StoreUnavailableError: it did not end in time; the message is `late`.
        Exception: what `action` raised.
    """
    failures: list[Exception] = []

    def run() -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - raised again in the calling thread
            failures.append(error)

    thread = threading.Thread(target=run, name="eigen-store-check", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise StoreUnavailableError(late)
    if failures:
        raise failures[0]
