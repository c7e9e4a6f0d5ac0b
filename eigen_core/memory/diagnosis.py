"""The parts of the memory at a moment, and what has grown: measured for a report."""

import sys
import threading
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType

from eigen_core.memory.blocks import Block, find_blocks
from eigen_core.memory.course import PhaseUsage, Point
from eigen_core.memory.limits import Pressure
from eigen_core.memory.objects import (
    Baseline,
    Baselines,
    ObjectCounts,
    Start,
    count_objects,
    held_bytes,
    live_objects,
    type_name,
)
from eigen_core.memory.process import process_bytes
from eigen_core.memory.usage import Usage
from eigen_core.units import size

_ROWS = 20
_CLASSES_MEASURED = 60
_INSTANCES_MEASURED = 50
# Blocks that the description of a part names.
_NAMED_BLOCKS = 3
_DATA = ("torch.Tensor", "torch.nn.parameter.Parameter", "numpy.ndarray", "bytes", "bytearray")
# Classes of Eigen's own with few and small objects.
_UNINTERESTING = ("eigen_core.memory.", "eigen_core.config.")
_NATIVE = "values that gradients need, workspaces of libraries, freed memory that the allocator keeps, small numbers"
Row = Mapping[str, str | float | None]


@dataclass(frozen=True)
class Part:
    """A part of the memory.

    Attributes:
        name: the object or library that holds it.
        host, device: resident bytes on the host, bytes on the device.
        detail: its content, in words.
    """

    name: str
    host: int
    device: int
    detail: str


@dataclass(frozen=True)
class Growth:
    """Growth of the live objects of a type.

    Attributes:
        type: its name.
        count, more: objects now, and how many more than before.
        bytes: how much more they hold: themselves, and for classes what they hold through containers.
    """

    type: str
    count: int
    more: int
    bytes: int


@dataclass(frozen=True)
class GrowthSince:
    """Growth since a generation began, the largest first."""

    generation: int
    types: tuple[Growth, ...]


@dataclass(frozen=True)
class MemoryReport:
    """The memory at a moment, and how it came to that.

    Attributes:
        moment: when, ISO 8601, UTC.
        reason: why the report was made, the end of a sentence.
        nearest: the memory against the limit that is nearest, in words.
        usage: the reading.
        limits: of the host, the smallest first, then of the GPU.
        parts: measured parts, the largest first.
        growth: since the last count of the objects, then since an early one.
        blocks: the largest tensors and arrays.
        objects: name, number and bytes of the types with the most bytes, and of every class of Eigen's own.
        traced: lines of Python that allocated, each with the callers, if that was followed.
        threads: each with the line that it runs.
        phases: the newest phases; the last may be under way.
        course, recent: the memory over the whole time, each point the peak of a stretch, and over its end.
        plan: rows of the run's plan, as they were given.
        sections: further texts, by title.
    """

    moment: str
    reason: str
    nearest: str
    usage: Usage
    limits: tuple[Pressure, ...] = ()
    parts: tuple[Part, ...] = ()
    growth: tuple[GrowthSince, ...] = ()
    blocks: tuple[Block, ...] = ()
    objects: tuple[tuple[str, int, int], ...] = ()
    traced: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    phases: tuple[PhaseUsage, ...] = ()
    course: tuple[Point, ...] = ()
    recent: tuple[Point, ...] = ()
    plan: tuple[Row, ...] = ()
    sections: tuple[tuple[str, str], ...] = ()

    @property
    def host_bytes(self) -> int:
        """Resident memory of this process and its descendants."""
        return self.usage.host

    @property
    def headline(self) -> str:
        """One sentence that names the largest part and, where something has grown, the type that grew most."""
        if not self.parts:
            return "No part of the memory was found."
        largest = max(self.parts, key=lambda part: max(part.host, part.device))
        sentence = f"The largest part is {largest.name} with {size(max(largest.host, largest.device))}."
        if self.growth and self.growth[0].types and self.growth[0].types[0].bytes > 0:
            grown, since = self.growth[0].types[0], self.growth[0].generation
            sentence += f" Since generation {since} began, {grown.type} grew most, by {size(grown.bytes)}."
        return sentence


def measured(report: MemoryReport, baselines: Baselines) -> MemoryReport:
    """Return the report with the parts of the memory, the growth since the baselines, and the threads, as of now."""
    objects = live_objects()
    try:
        counts, blocks = count_objects(objects), find_blocks(objects)
        growth = [_growth_since(baseline, counts, objects) for baseline in baselines.taken]
    finally:
        # The list holds the frames and cells that refer to it: it would live on.
        objects.clear()
    return replace(
        report,
        parts=_measured_parts(report.usage, counts, blocks, baselines.of_process),
        growth=tuple(growth),
        blocks=tuple(blocks[:_ROWS]),
        objects=_notable_types(counts),
        traced=_traced_lines(),
        threads=_thread_lines(),
    )


def _measured_parts(
    usage: Usage, counts: ObjectCounts, blocks: Sequence[Block], start: Start | None = None
) -> tuple[Part, ...]:
    """Divide the memory into parts, the largest first.

    Blocks count for their owners, with what of them is resident; then the process as it was before the run, Python's
    own objects, libraries, descendants, and the rest: native memory that no Python object shows.
    """
    owners: dict[str, list[Block]] = {}
    for block in blocks:
        owners.setdefault(block.owner, []).append(block)
    parts = [_part_of(owner, held) for owner, held in owners.items()]
    python, files = _bytes(counts, data=False), process_bytes("RssFile")
    if start is not None:
        base = max(start.own - _bytes(start.counts, data=True), 0)
        parts.append(Part("the process before the run", base, 0, "Python, torch and Prefect, with all they load"))
        python, files = python - _bytes(start.counts, data=False), files - start.files
    parts += [
        Part("Python objects", max(python, 0), 0, "without tensors, arrays and numbers"),
        Part("libraries and mapped files", max(files, 0), 0, "the system can drop them"),
        Part("other processes of the run", usage.children, 0, "such as Prefect's server"),
    ]
    rest = max(usage.host - sum(part.host for part in parts), 0)
    parts.append(Part("native memory of no Python object", rest, 0, _NATIVE))
    return tuple(sorted((part for part in parts if part.host or part.device), key=lambda p: -(p.host + p.device)))


def _part_of(owner: str, blocks: Sequence[Block]) -> Part:
    names = [
        f"{block.name or 'unnamed'}: {block.content} {size(block.bytes)}" + (f" x {block.count}" * (block.count > 1))
        for block in blocks[:_NAMED_BLOCKS]
    ]
    more = len(blocks) - len(names)
    return Part(
        owner,
        sum(block.resident for block in blocks if block.device == "cpu"),
        sum(block.bytes for block in blocks if block.device != "cpu"),
        "; ".join([*names, *([f"and {more} more"] if more else [])]),
    )


def _bytes(counts: ObjectCounts, *, data: bool) -> int:
    """Return the bytes in tensors, arrays and byte strings, or in all other objects."""
    return sum(amount for name, (_, amount) in counts.items() if (name in _DATA) == data)


def _growth_since(baseline: Baseline, counts: ObjectCounts, objects: Sequence[object]) -> GrowthSince:
    """Return the types that have grown since a baseline, the largest growth first."""
    grown = []
    for name, (count, amount) in counts.items():
        count_then, amount_then = baseline.counts.get(name, (0, 0))
        if count > count_then or amount > amount_then:
            grown.append(Growth(name, count, count - count_then, amount - amount_then))
    # Instances hold little themselves: a leak is in the objects that they refer to.
    classes = sorted((entry for entry in grown if entry.more > 0 and "." in entry.type), key=lambda entry: -entry.more)
    held = _mean_held({entry.type for entry in classes[:_CLASSES_MEASURED]}, objects)
    grown = [
        Growth(entry.type, entry.count, entry.more, max(entry.bytes, round(entry.more * held.get(entry.type, 0.0))))
        for entry in grown
    ]
    grown.sort(key=lambda entry: (-entry.bytes, -entry.more, entry.type))
    return GrowthSince(baseline.generation, tuple(grown[:_ROWS]))


def _mean_held(names: set[str], objects: Sequence[object]) -> dict[str, float]:
    """Return the mean bytes that an instance of each type holds, of some of its instances."""
    kinds = {kind: name for kind in set(map(type, objects)) if (name := type_name(kind)) in names}
    instances: dict[str, list[object]] = {name: [] for name in kinds.values()}
    for item in objects:
        name = kinds.get(type(item), "")
        if name and len(instances[name]) < _INSTANCES_MEASURED:
            instances[name].append(item)
    return {name: held_bytes(found) / len(found) for name, found in instances.items()}


def _notable_types(counts: ObjectCounts) -> tuple[tuple[str, int, int], ...]:
    """Return the types with the most bytes, and every class of Eigen's own: name, number and bytes."""
    ranked = sorted(((name, *entry) for name, entry in counts.items()), key=lambda entry: (-entry[2], entry[0]))
    own = [
        entry
        for entry in ranked[_ROWS:]
        if (entry[0].startswith("eigen_core.") and not entry[0].startswith(_UNINTERESTING))
        or entry[0] == "matplotlib.figure.Figure"
    ]
    return (*ranked[:_ROWS], *own)


def _traced_lines() -> tuple[str, ...]:
    """Return the lines of Python that allocated most, the callers last; nothing if that was not followed."""
    if not tracemalloc.is_tracing():
        return ()
    own = tracemalloc.Filter(False, tracemalloc.__file__)
    statistics = tracemalloc.take_snapshot().filter_traces([own]).statistics("traceback")
    return tuple(
        f"{size(entry.size)} in {entry.count:,} blocks: "
        + " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(entry.traceback))
        for entry in statistics[:_ROWS]
    )


def _thread_lines() -> tuple[str, ...]:
    """Return each thread with the line that it runs."""
    stacks = sys._current_frames()
    running = {thread: _line_of(frame) for thread, frame in stacks.items()}
    # This function's own frame is among them and would live on in its own variables.
    stacks.clear()
    return tuple(
        sorted(
            f"{thread.name}{', daemon' if thread.daemon else ''}: {running.get(thread.ident or 0, 'not started')}"
            for thread in threading.enumerate()
        )
    )


def _line_of(frame: FrameType) -> str:
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
