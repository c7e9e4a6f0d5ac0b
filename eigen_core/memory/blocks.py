"""The large blocks of memory behind tensors, arrays and bytes, and who holds them."""

import ctypes
import gc
import inspect
import mmap
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from types import CellType, FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.memory.census import (
    CONTAINERS,
    leaves_among,
    live_objects,
    owner_of,
    referents_in_chunks,
    storage_of,
    tensors_among,
)

# Smaller blocks are not asked for their holder.
_SMALL = 1 << 16
# So many containers may lie between a block and its holder.
_LEVELS = 4
# One byte for each: addresses without memory can be many.
_PAGES_LOOKED_AT = 1 << 20
_PASSED: frozenset[type] = CONTAINERS | {CellType, partial, Tensor}
_UNHELD = "held by no Python object"
_OWN_MODULE = "eigen_core."


@dataclass(frozen=True, slots=True)
class Block:
    """One or more blocks of memory of the same kind with the same holder.

    Attributes:
        owner: who holds them: a class, a module, or a function whose variable it is.
        name: the attribute or variable; empty where there is none.
        content: what is in it: "tensor float32 [50000, 108, 2]".
        device: "cpu" or the name of the device.
        count: blocks.
        bytes: their size.
        resident: what of it is in memory; the rest was never touched, or lies in a file.
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


@dataclass(slots=True)
class _Found:
    content: str
    device: str
    bytes: int
    resident: int
    objects: list[int] = field(default_factory=list)
    holder: tuple[int, str, str] = (99, _UNHELD, "")


def find_blocks() -> list[Block]:
    """Find the blocks of at least 64 kB, the largest first; takes about a second for each million objects."""
    objects = live_objects()
    found = _blocks(objects)
    _name_holders(objects, found)
    groups: dict[tuple[str, str, str, str], list[_Found]] = defaultdict(list)
    for block in found.values():
        groups[(*block.holder[1:], block.content, block.device)].append(block)
    blocks = [
        Block(*key, len(group), sum(block.bytes for block in group), sum(block.resident for block in group))
        for key, group in groups.items()
    ]
    return sorted(blocks, key=lambda block: (-block.resident, -block.bytes, block.holder))


def _blocks(objects: Sequence[object]) -> dict[int, _Found]:
    """The large blocks by their address, with the identities of the objects that show them."""
    found: dict[int, _Found] = {}
    for tensor in tensors_among(objects, set(map(type, objects))):
        address, size = storage_of(tensor)
        if address and size >= _SMALL:
            device = str(tensor.device)
            content = f"tensor {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
            _note(found, address, size, content, device, tensor)
    for _, referents in referents_in_chunks(objects):
        for item, shown in leaves_among(referents):
            kind = type(item)
            if kind is np.ndarray:
                owner = owner_of(item)
                if owner.nbytes >= _SMALL and not issubclass(type(owner.base), Tensor):
                    content = f"array {owner.dtype} {list(owner.shape)}"
                    _note(found, int(owner.ctypes.data), owner.nbytes, content, "cpu", shown)
            elif kind is not str and len(item) >= _SMALL:
                # Python's own bytes have been written, all of them.
                _note(found, id(item), sys.getsizeof(item), kind.__name__, "", shown)
    return found


def _note(found: dict[int, _Found], address: int, size: int, content: str, device: str, item: object) -> None:
    if address not in found:
        resident = resident_part(address, size) if device == "cpu" else size
        found[address] = _Found(content, device or "cpu", size, resident)
    found[address].objects.append(id(item))


def _name_holders(objects: Sequence[object], found: dict[int, _Found]) -> None:
    targets: dict[int, set[int]] = defaultdict(set)
    for address, block in found.items():
        for identity in block.objects:
            targets[identity].add(address)
    _name_local_variables(targets, found)
    # Blocks, and the containers passed on the way from them: what an attribute may be.
    known: dict[int, set[int]] = dict(targets)
    for level in range(_LEVELS):
        if not targets:
            return
        following: dict[int, set[int]] = defaultdict(set)
        for chunk, referents in referents_in_chunks(objects):
            if targets.keys().isdisjoint(map(id, referents)):
                continue
            for item in chunk:
                held = {
                    address for part in gc.get_referents(item) if id(part) in targets for address in targets[id(part)]
                }
                if not held:
                    continue
                if type(item) in _PASSED:
                    if id(item) not in known:
                        following[id(item)] |= held
                    _propose(found, held, 80 + level, f"a {type(item).__name__}", "")
                else:
                    _propose_holder(item, known, held, level, found)
        known.update(following)
        targets = following


def _propose_holder(
    item: object, known: Mapping[int, set[int]], held: set[int], level: int, found: dict[int, _Found]
) -> None:
    # By type: isinstance would ask the object what it is.
    kind = type(item)
    if kind is FrameType:
        return
    if issubclass(kind, ModuleType):
        owner, rank = f"module {dict(_attributes(item)).get('__name__')}", 10 + level
    elif kind is FunctionType:
        owner, rank = f"function {item.__qualname__}", 40 + level  # type: ignore[attr-defined] # a function
    elif issubclass(kind, type):
        owner, rank = item.__qualname__, 20 + level  # type: ignore[attr-defined] # a class
    else:
        owner, rank = kind.__qualname__, (0 if str(kind.__module__).startswith(_OWN_MODULE) else 20) + level
    names = {id(value): name for name, value in _attributes(item) if id(value) in known}
    for identity, name in names.items():
        _propose(found, known[identity] & held, rank, owner, name)
    named = {address for identity in names for address in known[identity]}
    _propose(found, held - named, rank + 1, owner, "")


def _attributes(item: object) -> Iterator[tuple[str, object]]:
    """The attributes that an object has itself, without running code of its class."""
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


def _name_local_variables(targets: Mapping[int, set[int]], found: dict[int, _Found]) -> None:
    """Name the blocks that functions under way have in their variables, in any thread."""
    stacks = sys._current_frames()
    try:
        for frame in stacks.values():
            current: FrameType | None = frame
            while current is not None:
                if current.f_globals.get("__name__") != __name__:
                    _name_variables_of(current, targets, found)
                current = current.f_back
    finally:
        # This function's own frame is among them: it would live on in its own variables, with those that called it.
        stacks.clear()
        del frame, current


def _name_variables_of(frame: FrameType, targets: Mapping[int, set[int]], found: dict[int, _Found]) -> None:
    variables = frame.f_locals
    for name, value in list(variables.items()):
        if id(value) in targets:
            _propose(found, targets[id(value)], 30, f"running {frame.f_code.co_qualname}", name)
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and frame.f_trace is None:
        # A copy that the frame keeps: what the function lets go of would live on in it.
        variables.clear()


def _propose(found: dict[int, _Found], addresses: set[int], rank: int, owner: str, name: str) -> None:
    for address in addresses:
        found[address].holder = min(found[address].holder, (rank, owner, name))


def resident_part(address: int, size: int) -> int:
    """Return how much of a stretch of this process's memory is there (bytes); `size` where the system does not say."""
    mincore = _mincore()
    page = mmap.PAGESIZE
    start = address - address % page
    if mincore is None or size == 0:
        return size
    resident = 0
    for piece in range(start, address + size, _PAGES_LOOKED_AT * page):
        pages = min((address + size - piece + page - 1) // page, _PAGES_LOOKED_AT)
        present = (ctypes.c_ubyte * pages)()
        if mincore(piece, pages * page, ctypes.addressof(present)) != 0:
            return size
        flags: NDArray[np.uint8] = np.ctypeslib.as_array(present)
        resident += int(np.count_nonzero(flags & 1)) * page
    return min(resident, size)


@cache
def _mincore() -> Any:  # noqa: ANN401 - a function of the C library
    try:
        function = ctypes.CDLL(None).mincore
    except AttributeError:
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function
