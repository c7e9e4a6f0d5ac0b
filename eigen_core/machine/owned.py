"""The memory of the tensors and arrays that an object holds."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

_CONTAINERS = (list, tuple, set, frozenset)
Values = Tensor | NDArray[Any]


def tensors_of(owner: object) -> dict[int, Values]:
    """Return the tensors and arrays that an object holds, by the address of their memory; of views the largest.

    Attributes and containers are followed, as far as they are objects of Eigen's own.
    """
    found: dict[int, Values] = {}
    seen: set[int] = set()
    stack = [owner]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor | np.ndarray):
            add_largest(found, item)
        elif isinstance(item, dict):
            stack += item.values()
        elif isinstance(item, _CONTAINERS):
            stack += item
        elif item is owner or type(item).__module__.partition(".")[0] == "eigen_core":
            attributes: Mapping[str, object] = getattr(item, "__dict__", {})
            stack += attributes.values()
    return found


def add_largest(found: dict[int, Values], item: Values) -> None:
    """Add a tensor or array to those that are known, unless one that shows more of its memory is among them."""
    address, _ = memory_of(item)
    if address and (address not in found or found[address].nbytes < item.nbytes):
        found[address] = item


def memory_of(item: Values) -> tuple[int, int]:
    """Return address and size of the memory that a tensor or array shows (bytes); zeros where it has none."""
    if isinstance(item, Tensor):
        try:
            storage = item.untyped_storage()
            return int(storage.data_ptr()), int(storage.nbytes())
        except (NotImplementedError, RuntimeError):
            # Sparse, fake and batched tensors.
            return 0, 0
    while isinstance(item.base, np.ndarray):
        item = item.base
    return int(item.ctypes.data), item.nbytes


def owned_bytes(owner: object) -> int:
    """Return the size of the tensors and arrays that an object holds, on any device (bytes)."""
    return sum(memory_of(item)[1] for item in tensors_of(owner).values())
