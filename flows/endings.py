"""How a command that trains or plans ends early."""

import resource

from eigen_core.common.text import size

# What loading Python's modules takes before anything can be planned: measured with torch 2.13 (CPU) and Prefect 3.8.8.
_LEAST_ADDRESSES = 1_200_000_000


class Stopped(Exception):  # noqa: N818 - not always an error: the user may have asked for it
    """A training ended before its last generation. The message says why, what is safe and how to go on."""


class StoppedByMemory(Stopped):
    """A training was not begun, or ended, because it would have run out of memory."""


def require_addresses() -> None:
    """Refuse a limit on addresses under which not even torch and Prefect can be loaded: it would be a traceback.

    Raises:
        StoppedByMemory: RLIMIT_AS is so low.
    """
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft != resource.RLIM_INFINITY and soft < _LEAST_ADDRESSES:
        raise StoppedByMemory(
            f"RLIMIT_AS (ulimit -v) leaves {size(soft)} of addresses, and torch and Prefect alone take "
            f"{size(_LEAST_ADDRESSES)}: raise it."
        )
