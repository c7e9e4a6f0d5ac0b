"""Trying again, for a limited time."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from eigen_core.store.interface import StoreUnavailableError

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

SECONDS = 30.0
"""How long a request is tried again."""
_PAUSES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0)
_SHORTEST_ATTEMPT = 1.0

# Of our own: training must draw the same numbers whatever the network does.
_jitter = random.Random()

sleep = time.sleep
"""Waits between two attempts (seconds)."""
clock = time.monotonic
"""Tells how long that has taken (seconds)."""


class TransientError(StoreUnavailableError):
    """The service did not answer as it should; the same request may well succeed now."""


def insist(attempt: Callable[[float], _Result], seconds: float) -> _Result:
    """Return what `attempt` returns, and try again while it raises `TransientError`, with growing pauses.

    Args:
        attempt: what to try; it is told how many seconds are left, and at least one.
        seconds: no attempt begins later than this.

    Raises:
        TransientError: what the last attempt raised.
    """
    end = clock() + seconds
    for pause in _PAUSES:
        try:
            return attempt(max(end - clock(), _SHORTEST_ATTEMPT))
        except TransientError as error:
            pause *= 0.75 + 0.5 * _jitter.random()
            if clock() + pause >= end:
                raise
            logger.debug("Trying again in %.1f s: %s", pause, error)
        sleep(pause)
    return attempt(max(end - clock(), _SHORTEST_ATTEMPT))
