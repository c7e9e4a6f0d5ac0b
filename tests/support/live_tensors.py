"""Counts the bytes of all tensors that live while some code runs, whatever the allocator makes of them."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from operator_modes import OperatorMode, leaves_of


class LiveTensors(OperatorMode):  # type: ignore[no-untyped-call] # torch has no annotation here
    def __init__(self) -> None:
        super().__init__()
        self._live = self._peak = 0
        self._known: set[int] = set()

    def peak_of(self, work: Callable[[], object]) -> int:
        """Do some work and return the most that lived at once meanwhile beside what lived before (bytes)."""
        before = self._peak = self._live
        work()
        return self._peak - before

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        inputs = {id(storage) for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            self._count(storage, inputs)
        return result

    def _count(self, storage: torch.UntypedStorage, inputs: set[int]) -> None:
        key = storage._cdata
        # What an operation returns in its inputs' memory was there before.
        if key in self._known or id(storage) in inputs:
            return
        self._known.add(key)
        self._live += storage.nbytes()
        self._peak = max(self._peak, self._live)
        weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._live -= size


def _storages(values: Any) -> list[torch.UntypedStorage]:
    # Tensors of the stand-in for a GPU have their memory in what they hold.
    tensors = (getattr(leaf, "held", leaf) for leaf in leaves_of(values))
    return [tensor.untyped_storage() for tensor in tensors if isinstance(tensor, torch.Tensor)]
