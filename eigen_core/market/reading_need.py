"""Whether there is memory to read price files, estimated from their sizes before anything is read."""

from pathlib import Path

import torch

from eigen_core.config import Config
from eigen_core.errors import InputError
from eigen_core.market.files import Source
from eigen_core.memory import headroom_bytes
from eigen_core.units import size

BYTES_PER_BYTE = 8
"""Resident memory at the peak per byte of text that is read, until there is a panel. In processes of their own 6.3 to
8.0 were measured of files of 17, 51 and 120 MB, and 7.0 to 8.3 of a file a symbol, 15 to 105 MB together."""
WIDE_BYTES_PER_BYTE = 33
"""The same where each column is a symbol and 6 bytes are a day of it: 31.7 to 33.6 of files of 20, 58 and 136 MB."""
_LEAST_BYTES = 200_000_000
"""Less than this is little beside what loading torch takes: whether a run fits is for its plan to say."""
_ISIZE_BYTES = 4


def require_memory_to_read(source: Source, config: Config) -> None:
    """Refuse price files that would be killed for memory while they are read.

    Raises:
        InputError: reading them takes more memory than is left before the hard line of the guard.
    """
    text = sum(_bytes_of_text(file.path) for file in source.files)
    need = text * (WIDE_BYTES_PER_BYTE if config.market.layout == "wide" else BYTES_PER_BYTE)
    if need < _LEAST_BYTES:
        return
    left = headroom_bytes(config.memory, torch.device("cpu"))
    if need > left:
        raise InputError(
            f"{source.path} holds {size(text)} of prices: to read them takes some {size(need)} of memory, and "
            f"{size(left)} can be taken here. Give fewer days or symbols, or more memory."
        )


def _bytes_of_text(path: Path) -> int:
    """Return the size of a file, unpacked as far as that is known."""
    packed = path.stat().st_size
    if path.suffix != ".gz" or packed < _ISIZE_BYTES:
        return packed
    with path.open("rb") as file:
        file.seek(-_ISIZE_BYTES, 2)
        # The length of what was packed, modulo 4 GiB; of the last part alone if there are several.
        return max(packed, int.from_bytes(file.read(_ISIZE_BYTES), "little"))
