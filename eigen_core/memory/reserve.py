"""Addresses that are kept for a memory report: writing it takes memory too."""

import logging
import mmap
from collections.abc import Callable, Iterable

from eigen_core.memory.limits import HostLimit

logger = logging.getLogger(__name__)

# Measured: counting the objects, the texts, the picture, and what Prefect sends at the end of a flow.
_BYTES = 128_000_000


def keep_reserve(limits: Iterable[HostLimit]) -> Callable[[], None]:
    """Keep addresses without memory behind them if one of the limits counts addresses (RLIMIT_AS).

    Returns a function that frees them and may be called again. Other limits count resident memory: an allocation beyond
    them does not fail, and needs no reserve. Where there are not enough addresses, none are kept.
    """
    if all(limit.kind != "address_space" for limit in limits):
        return lambda: None
    try:
        held = mmap.mmap(-1, _BYTES, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        logger.warning("No addresses can be kept for a memory report: %s.", error)
        return lambda: None
    return held.close
