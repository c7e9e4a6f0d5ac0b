"""The large blocks of memory behind tensors, arrays and bytes, and the objects that hold them."""

import gc
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import CellType, FrameType, FunctionType, MemberDescriptorType, ModuleType

import numpy as np
from torch import Tensor

from eigen_core.memory.objects import (
    CONTAINERS,
    live_objects,
    of_types,
    owner_of,
    referents_in_chunks,
    storage,
    tensors_among,
)
from eigen_core.memory.process import resident_part

# The holder of smaller blocks is not looked for.
_SMALL = 1 << 16
# At most this many containers lie between a block and its holder.
_LEVELS = 4
_PASSED: frozenset[type] = CONTAINERS | {CellType, partial, Tensor}


@dataclass(frozen=True, slots=True)
class Block:
    """One or more blocks of memory with the same content and the same holder.

    Attributes:
        owner: the holder: a class, a module, or a function that holds them in a variable.
        name: the attribute or variable; empty where there is none.
        content: kind, type and shape: "tensor float32 [50000, 108, 2]".
        device: "cpu" or the name of the device.
        count: number of blocks.
        bytes: their size.
        resident: the part of it that is in memory; the rest was never written, or lies in a file.
    """

    owner: str
    name: str
    content: str
    device: str
    count: int
    bytes: int
    resident: int

    @property
    def holder(self) -> str:
        """Owner and name."""
        return f"{self.owner}.{self.name}" if self.name else self.owner


_Found = dict[int, tuple[str, str, int, int]]
"""Blocks by their address: content, device, size and resident part."""
_Reach = Mapping[int, set[int]]
"""Addresses of the blocks that objects hold, by the identity of the object."""
_Holders = dict[int, tuple[int, str, str]]
"""Holders of the blocks, by the address: rank, owner and name. The one of the lowest rank is kept."""


def find_blocks(objects: Sequence[object] | None = None) -> list[Block]:
    """Find the blocks of at least 64 kB, the largest first; takes about 3 seconds for each million objects.

    Args:
        objects: result of `live_objects`; None: listed now.
    """
    objects = live_objects() if objects is None else objects
    found, reach = _blocks(objects)
    holders: _Holders = {}
    _name_local_variables(holders, reach)
    _name_holders(objects, holders, reach)
    groups: dict[tuple[str, str, str, str], list[tuple[int, int]]] = defaultdict(list)
    for address, (content, device, size, resident) in found.items():
        _, owner, name = holders.get(address, (0, "held by no Python object", ""))
        groups[owner, name, content, device].append((size, resident))
    blocks = [
        Block(*key, len(sizes), sum(size for size, _ in sizes), sum(resident for _, resident in sizes))
        for key, sizes in groups.items()
    ]
    return sorted(blocks, key=lambda block: (-block.resident, -block.bytes, block.holder))


def _blocks(objects: Sequence[object]) -> tuple[_Found, _Reach]:
    """Return the large blocks, and the tensors, arrays and bytes that show them."""
    found: _Found = {}
    reach: dict[int, set[int]] = {}

    def note(item: object, address: int, size: int, content: str, device: str = "cpu") -> None:
        if address not in found:
            found[address] = (content, device, size, resident_part(address, size) if device == "cpu" else size)
        reach[id(item)] = {address}

    for tensor in tensors_among(objects):
        for address, size in storage(tensor):
            if size >= _SMALL:
                content = f"tensor {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
                note(tensor, address, size, content, str(tensor.device))
    for array in of_types({np.ndarray}, objects):
        owner = owner_of(array)
        if owner.nbytes >= _SMALL and not issubclass(type(owner.base), Tensor):
            note(array, int(owner.ctypes.data), owner.nbytes, f"array {owner.dtype} {list(owner.shape)}")
    for text in of_types({bytes, bytearray}, objects):
        if len(text) >= _SMALL:
            note(text, id(text), sys.getsizeof(text), type(text).__name__)
    return found, reach


def _propose(holders: _Holders, addresses: Iterable[int], rank: int, owner: str, name: str) -> None:
    for address in addresses:
        holders[address] = min(holders.get(address, (99, "", "")), (rank, owner, name))


def _name_holders(objects: Sequence[object], holders: _Holders, reach: _Reach) -> None:
    """Go from the blocks up through containers to the objects that hold them."""
    known = dict(reach)
    for level in range(_LEVELS):
        following: dict[int, set[int]] = defaultdict(set)
        for chunk, referents in referents_in_chunks(objects):
            if reach.keys().isdisjoint(map(id, referents)):
                continue
            for item in chunk:
                held = set().union(*(reach[id(part)] for part in gc.get_referents(item) if id(part) in reach))
                if held and type(item) not in _PASSED:
                    _name_holder(item, level, held, holders, known)
                elif held:
                    _propose(holders, held, 80 + level, f"a {type(item).__name__}", "")
                    if id(item) not in known:
                        following[id(item)] |= held
        if not following:
            return
        known.update(following)
        reach = following


def _name_holder(item: object, level: int, held: set[int], holders: _Holders, known: _Reach) -> None:
    # By type: isinstance would run code of the object.
    kind = type(item)
    if kind is FrameType:
        return
    if issubclass(kind, ModuleType):
        rank, owner = 10, f"module {dict(_attributes(item)).get('__name__')}"
    elif kind is FunctionType:
        rank, owner = 40, f"function {item.__qualname__}"  # type: ignore[attr-defined] # a function
    elif issubclass(kind, type):
        rank, owner = 20, item.__qualname__  # type: ignore[attr-defined] # a class
    else:
        rank, owner = (0 if str(kind.__module__).startswith("eigen_core.") else 20), kind.__qualname__
    unnamed = set(held)
    for name, value in _attributes(item):
        here = held.intersection(known.get(id(value), ()))
        _propose(holders, here, rank + level, owner, name)
        unnamed -= here
    _propose(holders, unnamed, rank + level + 1, owner, "")


def _attributes(item: object) -> Iterator[tuple[str, object]]:
    """Yield the attributes of the object itself, without running code of its class."""
    try:
        attributes = object.__getattribute__(item, "__dict__")
    except AttributeError:
        attributes = {}
    if type(attributes) is dict:
        yield from ((str(name), value) for name, value in list(attributes.items()))
    for kind in type(item).__mro__:
        for name, member in list(vars(kind).items()):
            if type(member) is MemberDescriptorType:
                with suppress(AttributeError):
                    yield name, member.__get__(item)


def _name_local_variables(holders: _Holders, reach: _Reach) -> None:
    """Name the blocks that running functions of any thread have in their variables."""
    stacks = sys._current_frames()
    frame: FrameType | None = None
    try:
        for frame in stacks.values():
            while frame is not None:
                if frame.f_globals.get("__name__") != __name__:
                    _name_variables_of(frame, holders, reach)
                frame = frame.f_back
    finally:
        # This function's own frame is among them: it would live on in its own variables, with those that called it.
        stacks.clear()
        del frame


def _name_variables_of(frame: FrameType, holders: _Holders, reach: _Reach) -> None:
    variables = frame.f_locals
    for name, value in list(variables.items()):
        _propose(holders, reach.get(id(value), ()), 30, f"running {frame.f_code.co_qualname}", name)
    if isinstance(variables, dict) and frame.f_code.co_flags & inspect.CO_OPTIMIZED and frame.f_trace is None:
        # Before Python 3.13 the frame keeps this copy: objects that the function releases would live on in it.
        variables.clear()
