"""Addresses kept back for the moment when there are no others: saying why takes memory too."""

import logging
import mmap
from collections.abc import Iterable

from eigen_core.memory.limits import HostLimit

logger = logging.getLogger(__name__)

# Measured: counting the objects, the texts, the drawing, and what Prefect sends at the end of a flow.
_BYTES = 128_000_000


class Reserve:
    """A stretch of addresses without memory behind it, held while a run is under a limit on addresses (RLIMIT_AS).

    Other limits count resident memory: an allocation beyond them does not fail, and nothing needs to be kept back.
    """

    def __init__(self) -> None:
        self._held: mmap.mmap | None = None

    def hold(self, limits: Iterable[HostLimit]) -> None:
        """Take the addresses if one of the limits counts them; where they cannot be had, there is no reserve."""
        if self._held is not None or all(limit.kind != "address_space" for limit in limits):
            return
        try:
            self._held = mmap.mmap(-1, _BYTES, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            logger.warning("No addresses can be kept back for a memory report: %s.", error)

    def drop(self) -> None:
        """Give the addresses to whoever needs them now."""
        if self._held is not None:
            self._held.close()
            self._held = None
