"""What takes the memory at a moment: measured parts, growth, course, threads; as markdown and as JSON."""

import logging
import sys
import threading
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import FrameType

from eigen_core.config.sections import MemoryConfig
from eigen_core.memory.baselines import Baseline, Start
from eigen_core.memory.blocks import Block, find_blocks
from eigen_core.memory.census import Census, TypeCount, held_bytes, live_objects, take_census, type_name
from eigen_core.memory.curve import Point
from eigen_core.memory.limits import DeviceLimit, HostLimit
from eigen_core.memory.phases import PhaseUsage
from eigen_core.memory.usage import Usage, process_bytes
from eigen_core.units import size

logger = logging.getLogger(__name__)

_ROWS = 20
_HOLDERS_LOOKED_AT = 60
_INSTANCES_LOOKED_AT = 50
# Data of one owner shows so many of its blocks.
_BLOCKS_OF_A_PART = 3
_DATA = ("torch.Tensor", "torch.nn.parameter.Parameter", "numpy.ndarray", "bytes", "bytearray")
# Classes of Eigen's own whose objects are few and small, by design.
_DULL = ("eigen_core.memory.", "eigen_core.config.")
_NATIVE = "values that gradients need, workspaces of libraries, freed memory that the allocator keeps, small numbers"
Row = dict[str, str | float | None]


@dataclass(frozen=True)
class Sources:
    """What a report is made of.

    Attributes:
        reason: why it is made, the end of a sentence.
        memory: settings of the guard.
        limits, device_limit: bounds.
        nearest: the reading against the limit that is nearest, in words.
        usage: the reading.
        phases, under_way: what phases took.
        course, recent: the memory over the whole time and over its end.
        start: the process before the run, if that is known.
        baselines: what lived before, the newest first.
        plan: rows of the run's plan.
        sections: texts of others, by title.
    """

    reason: str
    memory: MemoryConfig
    limits: tuple[HostLimit, ...]
    device_limit: DeviceLimit | None
    nearest: str
    usage: Usage
    phases: tuple[PhaseUsage, ...]
    under_way: tuple[PhaseUsage, ...]
    course: tuple[Point, ...]
    recent: tuple[Point, ...]
    start: Start | None
    baselines: tuple[Baseline, ...]
    plan: tuple[Row, ...]
    sections: Mapping[str, Callable[[], str]]


@dataclass(frozen=True)
class Part:
    """A part of the memory.

    Attributes:
        name: what or who holds it.
        host, device: resident bytes on the host, bytes on the device.
        detail: what is in it, in words.
    """

    name: str
    host: int
    device: int
    detail: str


@dataclass(frozen=True)
class Growth:
    """How the live objects of a type have grown.

    Attributes:
        type: its name.
        count, more: objects now, and how many more than before.
        bytes: how much more they hold: what they take themselves, and for classes what they hold through containers.
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
class Line:
    """A limit and where its lines are (bytes)."""

    origin: str
    bytes: int
    counted: int
    soft: int
    hard: int


@dataclass(frozen=True)
class MemoryReport:
    """What takes the memory at a moment.

    Attributes:
        moment: when, ISO 8601, UTC.
        reason: why the report was made, the end of a sentence.
        nearest: the memory against the limit that is nearest, in words.
        own_bytes, children_bytes: resident memory of this process and of its descendants.
        device_allocated, device_reserved, device_taken: on the GPU; 0 without one.
        limits: bounds on the host, the smallest first.
        device_line: bound on the GPU; None without one.
        parts: measured parts, the largest first.
        growth: since the last counting, then since an early one.
        blocks: the largest tensors and arrays.
        objects: the types with the most bytes, and every class of Eigen's own.
        traced: where Python allocated, each with the callers, if that was followed.
        threads: each with the place where it is.
        phases: what the newest phases took; the last may be under way.
        course, recent: the memory over the whole time, each point the peak of a stretch, and over its end.
        plan: rows of the run's plan, as they were given.
        sections: texts of others, by title.
    """

    moment: str
    reason: str
    nearest: str
    own_bytes: int
    children_bytes: int
    device_allocated: int
    device_reserved: int
    device_taken: int
    limits: tuple[Line, ...]
    device_line: Line | None
    parts: tuple[Part, ...]
    growth: tuple[GrowthSince, ...]
    blocks: tuple[Block, ...]
    objects: tuple[tuple[str, TypeCount], ...]
    traced: tuple[str, ...]
    threads: tuple[str, ...]
    phases: tuple[PhaseUsage, ...]
    course: tuple[Point, ...]
    recent: tuple[Point, ...]
    plan: tuple[Row, ...]
    sections: tuple[tuple[str, str], ...]

    @property
    def host_bytes(self) -> int:
        """Resident memory of this process and its descendants."""
        return self.own_bytes + self.children_bytes

    @property
    def headline(self) -> str:
        """One sentence that names the largest part and, where something has grown, the type that grew most."""
        if not self.parts:
            return "Nothing was found to hold it."
        largest = max(self.parts, key=lambda part: max(part.host, part.device))
        taken = size(max(largest.host, largest.device))
        sentence = f"The largest part is {largest.name} with {taken}."
        if self.growth and self.growth[0].types and self.growth[0].types[0].bytes > 0:
            grown, since = self.growth[0].types[0], self.growth[0].generation
            sentence += f" Since generation {since} began, {grown.type} grew most, by {size(grown.bytes)}."
        return sentence

    def document(self) -> dict[str, object]:
        """Everything as values of JSON."""
        return asdict(self)


def describe(sources: Sources) -> MemoryReport:
    """Measure what takes the memory now.

    Strings and bytes below 512 characters and numbers are not counted; blocks below 64 kB are not asked who holds
    them.
    """
    usage, device = sources.usage, sources.usage.device
    census = take_census()
    growth = tuple(_growth(census, baseline) for baseline in sources.baselines)
    blocks = find_blocks()
    share = sources.memory
    lines = tuple(
        Line(limit.origin, limit.bytes, counted, int(limit.bytes * share.soft), int(limit.bytes * share.hard))
        for limit, counted in zip(sources.limits, usage.counted, strict=True)
    )
    device_line = None
    if sources.device_limit is not None:
        bound = sources.device_limit
        counted = device.counted if device else 0
        device_line = Line(
            bound.origin, bound.bytes, counted, int(bound.bytes * share.soft), int(bound.bytes * share.hard)
        )
    return MemoryReport(
        moment=datetime.now(UTC).isoformat(timespec="seconds"),
        reason=sources.reason,
        nearest=sources.nearest,
        own_bytes=usage.own,
        children_bytes=usage.children,
        device_allocated=device.allocated if device else 0,
        device_reserved=device.reserved if device else 0,
        device_taken=device.taken if device else 0,
        limits=lines,
        device_line=device_line,
        parts=measured_parts(usage, census, blocks, sources.start),
        growth=growth,
        blocks=tuple(blocks[:_ROWS]),
        objects=_notable(census),
        traced=_traced(),
        threads=_threads(),
        phases=(*sources.phases, *sources.under_way),
        course=sources.course,
        recent=sources.recent,
        plan=sources.plan,
        sections=tuple((title, text()) for title, text in sources.sections.items()),
    )


def measured_parts(
    usage: Usage, census: Census, blocks: Sequence[Block], start: Start | None = None
) -> tuple[Part, ...]:
    """Divide the memory among those who hold it, the largest part first.

    Blocks count for their owners, with what of them is resident; then the process as it was before the run, Python's
    own objects, libraries, descendants, and what is left: native memory that no Python object shows.
    """
    owners: dict[str, list[Block]] = {}
    for block in blocks:
        owners.setdefault(block.owner, []).append(block)
    parts = [_part_of(owner, held) for owner, held in owners.items()]
    python, files = _python_bytes(census), process_bytes("RssFile")
    if start is not None:
        base = max(start.own - _data_bytes(start.census), 0)
        parts.append(Part("the process before the run", base, 0, "Python, torch and Prefect, with all they load"))
        python, files = python - _python_bytes(start.census), files - start.files
    parts += [
        Part("Python objects", max(python, 0), 0, "without tensors, arrays and numbers"),
        Part("libraries and mapped files", max(files, 0), 0, "the system can drop them"),
        Part("other processes of the run", usage.children, 0, "such as Prefect's server"),
    ]
    left = max(usage.host - sum(part.host for part in parts), 0)
    parts.append(Part("native memory of no Python object", left, 0, _NATIVE))
    return tuple(sorted((part for part in parts if part.host or part.device), key=lambda p: -(p.host + p.device)))


def _part_of(owner: str, blocks: Sequence[Block]) -> Part:
    names = [
        f"{block.name or 'unnamed'}: {block.content} {size(block.bytes)}" + (f" x {block.count}" * (block.count > 1))
        for block in blocks[:_BLOCKS_OF_A_PART]
    ]
    more = len(blocks) - len(names)
    return Part(
        owner,
        sum(block.resident for block in blocks if block.device == "cpu"),
        sum(block.bytes for block in blocks if block.device != "cpu"),
        "; ".join(names) + (f"; and {more} more" if more > 0 else ""),
    )


def _data_bytes(census: Census) -> int:
    """Bytes in tensors, arrays and byte strings."""
    return sum(census[kind].bytes for kind in _DATA if kind in census)


def _python_bytes(census: Census) -> int:
    """Bytes in all other objects."""
    return sum(entry.bytes for entry in census.values()) - _data_bytes(census)


def _growth(census: Census, baseline: Baseline) -> GrowthSince:
    before = baseline.census
    grown = []
    for name, now in census.items():
        then = before.get(name, TypeCount(0, 0))
        if now.count > then.count or now.bytes > then.bytes:
            grown.append(Growth(name, now.count, now.count - then.count, now.bytes - then.bytes))
    # Classes hold little themselves: what leaks is in what their instances refer to.
    classes = [entry for entry in grown if entry.more > 0 and "." in entry.type]
    classes.sort(key=lambda entry: -entry.more)
    held = _mean_held({entry.type for entry in classes[:_HOLDERS_LOOKED_AT]})
    grown = [
        Growth(entry.type, entry.count, entry.more, max(entry.bytes, round(entry.more * held[entry.type])))
        if entry.type in held
        else entry
        for entry in grown
    ]
    grown.sort(key=lambda entry: (-entry.bytes, -entry.more, entry.type))
    return GrowthSince(baseline.generation, tuple(grown[:_ROWS]))


def _mean_held(names: set[str]) -> dict[str, float]:
    """Return what an instance of each of these types holds, the mean of the newest ones (bytes)."""
    instances: dict[str, list[object]] = {name: [] for name in names}
    kinds: dict[type, str | None] = {}
    for item in live_objects():
        kind = type(item)
        if kind not in kinds:
            name = type_name(kind)
            kinds[kind] = name if name in names else None
        known = kinds[kind]
        if known is not None and len(instances[known]) < _INSTANCES_LOOKED_AT:
            instances[known].append(item)
    return {name: held_bytes(found) / len(found) for name, found in instances.items() if found}


def _notable(census: Census) -> tuple[tuple[str, TypeCount], ...]:
    ranked = sorted(census.items(), key=lambda entry: (-entry[1].bytes, entry[0]))
    rest = ranked[_ROWS:]
    own = [entry for entry in rest if entry[0].startswith("eigen_core.") and not entry[0].startswith(_DULL)]
    figures = [entry for entry in rest if entry[0] == "matplotlib.figure.Figure"]
    return (*ranked[:_ROWS], *own, *figures)


def _traced() -> tuple[str, ...]:
    """Where Python allocated most of what is there, the callers last; nothing if that was not followed."""
    if not tracemalloc.is_tracing():
        return ()
    own = tracemalloc.Filter(False, tracemalloc.__file__)
    statistics = tracemalloc.take_snapshot().filter_traces([own]).statistics("traceback")
    return tuple(
        f"{size(entry.size)} in {entry.count:,} blocks: "
        + " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(entry.traceback))
        for entry in statistics[:_ROWS]
    )


def _threads() -> tuple[str, ...]:
    stacks = sys._current_frames()
    places = {thread: _place(frame) for thread, frame in stacks.items()}
    # This function's own frame is among them and would live on in its own variables.
    stacks.clear()
    return tuple(
        sorted(
            f"{thread.name}{', daemon' if thread.daemon else ''}: {places.get(thread.ident or 0, 'not started')}"
            for thread in threading.enumerate()
        )
    )


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
