"""The live objects of this process, counted by type, now and at earlier moments."""

import gc
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.memory.process import own_resident_bytes, process_bytes

# Containers whose size is asked for; asking other objects would run code of their classes: pandas walks all its data.
CONTAINERS: frozenset[type] = frozenset({list, dict, set, frozenset, tuple, deque})
_LEAVES: frozenset[type] = frozenset({bytes, bytearray, str, np.ndarray})
# The collector does not list all objects of these types; shorter strings and bytes are left out.
_ALWAYS: frozenset[type] = frozenset({tuple, np.ndarray})
_UNLISTED = _LEAVES | _ALWAYS | {dict}
_SHORT = 512
_COLLECTOR_HEADER = 16
_CHUNK = 256
# Listing a million objects takes 0.05 s.
_ALONE_SECONDS = 5.0
# Counting all objects of a process takes about a second: at most these shares of the time are spent on it, on the count
# that is early in a run and on others.
_EARLY_SHARE, _SHARE = 0.02, 0.002

ObjectCounts = Mapping[str, tuple[int, int]]
"""Live objects by the name of their type: how many, and their own bytes. Tensors and arrays count with their values,
other objects without those that they refer to."""


def count_objects(objects: Sequence[object] | None = None) -> ObjectCounts:
    """Count the live objects by type; takes about 2 seconds for each million.

    Args:
        objects: result of `live_objects`; None: listed now.
    """
    objects = live_objects() if objects is None else objects
    counts = Counter(map(type, objects))
    known = CONTAINERS | _LEAVES
    sizes = {
        kind: 0 if kind in known else count * (kind.__basicsize__ + _COLLECTOR_HEADER) for kind, count in counts.items()
    }
    for item in of_types(known, objects):
        sizes[type(item)] += sys.getsizeof(item)
    arrays = {id(array): array for array in map(owner_of, of_types({np.ndarray}, objects))}
    counts[np.ndarray], sizes[np.ndarray] = len(arrays), sum(map(sys.getsizeof, arrays.values()))
    storages = {address: (type(tensor), size) for tensor in tensors_among(objects) for address, size in storage(tensor)}
    for kind, size in storages.values():
        sizes[kind] += size
    named: dict[str, tuple[int, int]] = {}
    for kind, count in counts.items():
        same_name = named.get(type_name(kind), (0, 0))
        named[type_name(kind)] = (same_name[0] + count, same_name[1] + sizes[kind])
    return named


def live_objects() -> list[object]:
    """Return the objects that the collector lists, and the other containers, arrays, strings and bytes in them.

    Strings and bytes below 512 characters are left out, and so are numbers.

    The collector lists tuples that are still being filled. CPython ends the thread that fills one with a SystemError if
    the tuple is referred to from elsewhere (`_PyTuple_Resize`), so tuples count only if another object refers to them.
    """
    with _no_thread_switch():
        objects = [item for item in gc.get_objects() if type(item) is not tuple]
    return objects + _unlisted_objects(objects)


def _unlisted_objects(objects: Sequence[object]) -> list[object]:
    """Return the objects that the collector does not list, and that others refer to, each once."""
    seen: set[int] = set()
    level, found = objects, list[object]()
    while level:
        following: list[object] = []
        for _, referents in referents_in_chunks(level):
            for item in of_types(_UNLISTED, referents):
                kind = type(item)
                # No function of its own: this line runs a million times.
                unlisted = not gc.is_tracked(item) if kind is dict else kind in _ALWAYS or len(item) >= _SHORT
                if unlisted and id(item) not in seen:
                    seen.add(id(item))
                    following.append(item)
        found += following
        level = following
    return found


_listing = threading.Lock()


@contextmanager
def _no_thread_switch() -> Iterator[None]:
    """Let no other Python thread run inside the block, which must take less than `_ALONE_SECONDS`."""
    with _listing:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_ALONE_SECONDS)
        try:
            # Threads that wait already do so by the old interval: after their turn they wait by the new one.
            time.sleep(2.0 * interval)
            yield
        finally:
            sys.setswitchinterval(interval)


def type_name(kind: type) -> str:
    """Return the name of a type with its module, without one for built-in types."""
    module = str(kind.__module__)
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def referents_in_chunks(objects: Sequence[object]) -> Iterator[tuple[Sequence[object], list[Any]]]:
    """Yield the objects in chunks, each with all that they refer to: much faster than one by one."""
    for start in range(0, len(objects), _CHUNK):
        chunk = objects[start : start + _CHUNK]
        yield chunk, gc.get_referents(*chunk)


def of_types(kinds: Set[type], items: Sequence[Any]) -> Iterator[Any]:
    """Yield the items of these types, and not of types derived from them."""
    return compress(items, map(kinds.__contains__, map(type, items)))


def tensors_among(objects: Sequence[object]) -> list[Tensor]:
    """Return the tensors among `objects`."""
    # By type: isinstance would run code of objects that stand for others.
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, Tensor)}
    return list(of_types(kinds, objects))


def storage(tensor: Tensor) -> list[tuple[int, int]]:
    """Return address and bytes of a tensor's storage as the only entry; none for tensors without their own storage."""
    try:
        values = tensor.untyped_storage()
        found = (int(values.data_ptr()), int(values.nbytes()))
    except (NotImplementedError, RuntimeError):
        # Sparse, fake and batched tensors.
        return []
    return [found] if found[0] else []


def owner_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array whose values a view shows; itself if it is no view of an array."""
    while type(array.base) is np.ndarray:
        array = array.base
    return array


def held_bytes(instances: Iterable[object], depth: int = 4) -> int:
    """Return the bytes that objects hold together: their own, and through containers all but other instances.

    Tensors and arrays count with their values. Objects that several of them share count once.
    """
    sizes: dict[int, int] = {}
    level = list(instances)
    for step in range(depth):
        following: list[object] = []
        for item in level:
            kind = type(item)
            if id(item) in sizes:
                continue
            if issubclass(kind, Tensor):
                sizes.update(storage(item))  # type: ignore[arg-type] # a tensor, by its type
            elif kind in CONTAINERS or kind in _LEAVES or kind in (int, float):
                sizes[id(item)] = sys.getsizeof(item)
            elif step == 0:
                sizes[id(item)] = kind.__basicsize__ + _COLLECTOR_HEADER
            if step == 0 or kind in CONTAINERS:
                following += gc.get_referents(item)
        level = following
    return sum(sizes.values())


class Start(NamedTuple):
    """The process before the run.

    Attributes:
        own: its resident memory (bytes).
        files: the part of it that is libraries and mapped files (bytes).
        counts: the objects by type.
    """

    own: int
    files: int
    counts: ObjectCounts


class Baseline(NamedTuple):
    """The objects by type when a generation began."""

    generation: int
    counts: ObjectCounts


class Baselines:
    """Counts the objects when generations begin: as often as is affordable, and once early in the run.

    The early count is of the second generation that begins, when all has been loaded and built, or in a run of short
    generations of the first one that has taken the time. Until then growth is measured against the process before the
    run.

    Args:
        clock: seconds that only grow.
        count: function that counts the objects.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, count: Callable[[], ObjectCounts] = count_objects
    ) -> None:
        self._clock = clock
        self._count = count
        self.of_process: Start | None = None
        """The process before the run; None if `start` was not called."""
        self._generation: int | None = None
        self._begun = 0
        self._early: Baseline | None = None
        self._newest: Baseline | None = None
        self._ended, self._took = -float("inf"), 0.0

    def start(self) -> None:
        """Count the objects of the process before the run; a guard may be entered again during it."""
        if self.of_process is not None:
            return
        own, files = own_resident_bytes(), process_bytes("RssFile")
        self.of_process = Start(own, files, self._counted())

    def begin(self, generation: int) -> None:
        """Note that a phase of `generation` begins; the first one of each generation may count the objects."""
        if generation == self._generation:
            return
        self._generation = generation
        self._begun += 1
        is_early = self._begun > 1 and self._early is None
        if self._clock() >= self._ended + self._took / (_EARLY_SHARE if is_early else _SHARE):
            self._newest = Baseline(generation, self._counted())
            self._early = self._newest if is_early else self._early
        elif self._begun == 1 and self._newest is None and self.of_process is not None:
            self._newest = Baseline(generation, self.of_process.counts)

    def _counted(self) -> ObjectCounts:
        before = self._clock()
        counts = self._count()
        self._ended = self._clock()
        self._took = self._ended - before
        return counts

    @property
    def taken(self) -> tuple[Baseline, ...]:
        """The newest one first, then the early one if it is another."""
        known = (self._newest, self._early if self._early is not self._newest else None)
        return tuple(baseline for baseline in known if baseline is not None)
