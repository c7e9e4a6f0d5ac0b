"""Copies in pieces: what a copy takes beside its source and its target does not depend on their size."""

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

PIECE_BYTES = 8 << 20


def copy_pieces(source: Tensor, target: Tensor, piece_bytes: int = PIECE_BYTES) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut a tensor and the one that it is to be copied to, `[rows, ...]`, into pieces of at most so many bytes.

    A piece is a row at least.
    """
    rows = max(piece_bytes // max(prod(target.shape[1:]) * target.element_size(), 1), 1)
    yield from zip(torch.split(source, rows), torch.split(target, rows), strict=True)


class HostToDevice:
    """Copies tensors of the host to a device while it computes.

    A piece is gathered in pinned memory and converted there, sent without waiting, and distributed on the device. There
    are two pinned pieces: one is filled while the other is sent.

    Args:
        device: where the targets live; on the CPU there is nothing to pin, and nothing to wait for.
        piece_bytes: size of each piece, at least that of a row.
    """

    def __init__(self, device: torch.device, piece_bytes: int = PIECE_BYTES) -> None:
        self._on_gpu = device.type == "cuda"
        self._size = piece_bytes
        self._pinned = [torch.empty(piece_bytes, dtype=torch.uint8, pin_memory=self._on_gpu) for _ in range(2)]
        self._arrived = torch.empty(piece_bytes, dtype=torch.uint8, device=device)
        self._sent = [_event() if self._on_gpu else None for _ in self._pinned]
        self._turn = 0

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy `[rows, ...]` of the host to the device. The source may change as soon as this returns."""
        for part, there in copy_pieces(source, target, self._size):
            self._turn = 1 - self._turn
            sent = self._sent[self._turn]
            if sent is not None:
                sent.synchronize()
            pinned, arrived = (_shaped(memory, there) for memory in (self._pinned[self._turn], self._arrived))
            pinned.copy_(part)
            arrived.copy_(pinned, non_blocking=True)
            if sent is not None:
                sent.record()
            there.copy_(arrived)


def _shaped(memory: Tensor, like: Tensor) -> Tensor:
    """The beginning of memory, uint8 `[bytes]`, as a contiguous tensor of another's type and shape."""
    return memory[: like.nbytes].view(like.dtype).view(like.shape)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call] # torch has no annotation here
