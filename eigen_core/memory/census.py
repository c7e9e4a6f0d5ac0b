"""Counting what lives in the process, by type."""

import gc
import operator
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import compress
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

# Containers that know their own size; asking others would run code of theirs, pandas' walks all it holds.
CONTAINERS: frozenset[type] = frozenset({list, dict, set, frozenset, tuple, deque})
# Objects that the collector does not track, found through what refers to them. Shorter texts are not looked at.
_LEAVES: frozenset[type] = frozenset({bytes, bytearray, str, np.ndarray})
_SMALL_LEAF = 512
_COLLECTOR_HEADER = 16
CHUNK = 256
# Listing a million objects takes a twentieth of a second.
_ALONE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class TypeCount:
    """Live objects of a type.

    Attributes:
        count: how many.
        bytes: what they take themselves: tensors and arrays with their values, others without what they refer to.
    """

    count: int
    bytes: int


Census = Mapping[str, TypeCount]
"""Live objects by the name of their type."""


def take_census() -> Census:
    """Count the live objects by type; takes about a second for each million.

    Strings and bytes below 512 characters are left out, and so are numbers.
    """
    objects = live_objects()
    counts = Counter(map(type, objects))
    sizes = {kind: count * (kind.__basicsize__ + _COLLECTOR_HEADER) for kind, count in counts.items()}
    for kind in CONTAINERS.intersection(counts):
        sizes[kind] = sum(map(sys.getsizeof, (item for item in objects if type(item) is kind)))
    tensors = tensors_among(objects, counts)
    for (kind, _), size in _storages(tensors).items():
        sizes[kind] += size
    for kind, found in _leaves(objects).items():
        counts[kind] = len(found)
        sizes[kind] = sum(found.values())
    census: dict[str, TypeCount] = {}
    for kind, count in counts.items():
        name = type_name(kind)
        known = census.get(name, TypeCount(0, 0))
        census[name] = TypeCount(known.count + count, known.bytes + sizes[kind])
    return MappingProxyType(census)


def live_objects() -> list[object]:
    """Return the objects that the collector tracks; a tuple only if another object refers to it.

    CPython ends a thread with a SystemError that fills a tuple to which somebody else refers (`_PyTuple_Resize`), and
    the collector lists tuples that are being filled.
    """
    with _alone():
        objects = [item for item in gc.get_objects() if type(item) is not tuple]
    seen: set[int] = set()
    level, tuples = objects, list[object]()
    while level:
        following: dict[int, object] = {}
        for _, referents in referents_in_chunks(level):
            for item in compress(referents, map(_is_tuple, map(type, referents))):
                if gc.is_tracked(item) and id(item) not in seen:
                    following[id(item)] = item
        seen.update(following)
        level = list(following.values())
        tuples += level
    return objects + tuples


_is_tuple = partial(operator.is_, tuple)
_being_alone = threading.Lock()


@contextmanager
def _alone() -> Iterator[None]:
    """Let no other thread have its turn inside the block, which must take less than `_ALONE_SECONDS`."""
    with _being_alone:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_ALONE_SECONDS)
        try:
            # Whoever waits by the old interval has its turn first, and then waits by the new one.
            time.sleep(2.0 * interval)
            yield
        finally:
            sys.setswitchinterval(interval)


def type_name(kind: type) -> str:
    """Return the name of a type with its module, without one for what is built in."""
    module = str(kind.__module__)
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def tensors_among(objects: Sequence[object], kinds: Iterable[type]) -> list[Tensor]:
    """Return the tensors among `objects`, whose types are `kinds`."""
    # By type: isinstance would ask objects that stand for others what they stand for, and make them.
    tensor_kinds = {kind for kind in kinds if issubclass(kind, Tensor)}
    return [item for item in objects if type(item) in tensor_kinds]  # type: ignore[misc] # what the set says


def storage_of(tensor: Tensor) -> tuple[int, int]:
    """Return address and bytes of what is behind a tensor; zeros where it has nothing behind it of its own."""
    try:
        storage = tensor.untyped_storage()
        return int(storage.data_ptr()), int(storage.nbytes())
    except (NotImplementedError, RuntimeError):
        # Sparse, fake and batched tensors have none.
        return 0, 0


def _storages(tensors: Iterable[Tensor]) -> dict[tuple[type, int], int]:
    """Bytes behind the tensors: each address once, for the type that has it first."""
    found: dict[int, tuple[type, int]] = {}
    for tensor in tensors:
        address, size = storage_of(tensor)
        if address:
            found.setdefault(address, (type(tensor), size))
    return {(kind, address): size for address, (kind, size) in found.items()}


def referents_in_chunks(objects: Sequence[object]) -> Iterator[tuple[Sequence[object], list[Any]]]:
    """Give the objects in pieces, each with all that they refer to: faster by far than one by one."""
    for start in range(0, len(objects), CHUNK):
        chunk = objects[start : start + CHUNK]
        yield chunk, gc.get_referents(*chunk)


def leaves_among(referents: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Give the arrays and the longer strings and bytes, each with the one of `referents` that it is or is in.

    The collector leaves out dictionaries and tuples that hold nothing but such things: they are looked into.
    """
    for item in referents:
        kind = type(item)
        if kind in _LEAVES:
            if kind is np.ndarray or len(item) >= _SMALL_LEAF:
                yield item, item
        elif (kind is dict or kind is tuple) and item and not gc.is_tracked(item):
            for leaf, _ in leaves_among(gc.get_referents(item)):
                yield leaf, item


def _leaves(objects: Sequence[object]) -> dict[type, dict[int, int]]:
    """Sizes of what the collector does not track, by type and identity."""
    found: dict[type, dict[int, int]] = {kind: {} for kind in _LEAVES}
    for _, referents in referents_in_chunks(objects):
        for leaf, _ in leaves_among(referents):
            item = owner_of(leaf) if type(leaf) is np.ndarray else leaf
            found[type(leaf)][id(item)] = sys.getsizeof(item)
    return {kind: sizes for kind, sizes in found.items() if sizes}


def owner_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array whose values a view shows; itself if it is no view of an array."""
    while type(array.base) is np.ndarray:
        array = array.base
    return array


def held_bytes(instances: Iterable[object], depth: int = 4) -> int:
    """Return what objects hold together (bytes): themselves, and through containers all but other instances.

    Tensors and arrays count with their values. What several of the objects share counts once.
    """
    seen: set[int] = set()
    storages: dict[int, int] = {}
    total = 0
    level = list(instances)
    for step in range(depth):
        following: list[object] = []
        for item in level:
            kind = type(item)
            if id(item) in seen:
                continue
            seen.add(id(item))
            if issubclass(kind, Tensor):
                address, size = storage_of(item)  # type: ignore[arg-type] # a tensor, by its type
                storages[address] = size
            elif kind in CONTAINERS or kind in _LEAVES or kind in (int, float):
                total += sys.getsizeof(item)
            elif step == 0:
                total += kind.__basicsize__ + _COLLECTOR_HEADER
            if step == 0 or kind in CONTAINERS:
                following += gc.get_referents(item)
        level = following
    return total + sum(storages.values())
