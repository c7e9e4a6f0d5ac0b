"""Reports on a run's memory (limits, owners, largest tensors, phases), as markdown and JSON; on SIGUSR1 too."""

import gc
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from torch import Tensor

from eigen_core.common.files import replacing
from eigen_core.common.text import duration, size
from eigen_core.machine.allocation import Values, add_largest, memory_of, tensors_of
from eigen_core.machine.limits import Pressure
from eigen_core.machine.memory_usage import OtherProcess, PhaseUsage, Usage, process_bytes, resident_part

_ROWS = 20
# Listing a million objects takes 0.05 s.
_ALONE_SECONDS = 5.0
_listing = threading.Lock()
logger = logging.getLogger(__name__)
Row = Mapping[str, str | float | None]


@dataclass(frozen=True)
class MeasuredPart:
    """A part of the memory: the name of what holds it, bytes on host and device, and its largest tensors in words."""

    name: str
    host: int
    device: int
    detail: str


@dataclass(frozen=True)
class TensorGroup:
    """Tensors or arrays with the same owner, device and `content` (type and shape: "float32 [50000, 108, 2]").

    `owner` is a name from `MemoryGuard.set_owners`, or empty. `resident` of their `bytes` are in memory; the rest was
    never written, or is in a file.
    """

    owner: str
    content: str
    device: str
    count: int
    bytes: int
    resident: int


@dataclass(frozen=True)
class MemoryReport:
    """The memory at a moment, and its history.

    Attributes:
        moment, reason: time of the report (UTC, ISO 8601); why it was made, for its title "Memory: {reason}".
        nearest: use of the limit that is closest to being reached, in words.
        own, others: bytes counted against that limit: of the run, and of other processes.
        largest_others: the largest three of these processes.
        limits: of the host, the smallest first, then of the GPU.
        parts: owners of tensors and the rest, the largest first; their sum is the memory of all processes of the run.
        tensors: the largest groups of tensors, by resident bytes.
        phases: the newest phases, the oldest of them first; the last one may be under way.
        plan: rows of a table of the predicted memory (`MemoryGuard.set_plan`).
    """

    moment: str
    reason: str
    nearest: str
    usage: Usage
    own: int = 0
    others: int = 0
    largest_others: tuple[OtherProcess, ...] = ()
    limits: tuple[Pressure, ...] = ()
    parts: tuple[MeasuredPart, ...] = ()
    tensors: tuple[TensorGroup, ...] = ()
    phases: tuple[PhaseUsage, ...] = ()
    plan: tuple[Row, ...] = ()

    @property
    def headline(self) -> str:
        sentences = []
        if self.others > self.own:
            named = f": {', '.join(map(str, self.largest_others))}" if self.largest_others else ""
            sentences = [f"The run holds {size(self.own)}, other processes hold {size(self.others)}{named}."]
        if not self.parts:
            return " ".join([*sentences, "No part of the run's memory was found."])
        largest = max(self.parts, key=lambda part: max(part.host, part.device))
        of_it = f"{largest.name} with {size(max(largest.host, largest.device))}"
        return " ".join([*sentences, f"The largest part of the run is {of_it}."])


def measured_parts(
    usage: Usage, before: int, owners: Mapping[str, object]
) -> tuple[tuple[MeasuredPart, ...], tuple[TensorGroup, ...]]:
    """Return the parts of `usage` and the largest tensors; `before`: resident bytes of this process before the run."""
    found = {address: ("", tensor) for address, tensor in _live_tensors().items()}
    for name, owner in owners.items():
        found |= {address: (name, tensor) for address, tensor in tensors_of(owner).items()}
    alike: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for address, (owner_name, tensor) in found.items():
        device = str(tensor.device) if isinstance(tensor, Tensor) else "cpu"
        key = owner_name, f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}", device
        _, amount = memory_of(tensor)
        resident = resident_part(address, amount) if device == "cpu" else amount
        alike.setdefault(key, []).append((amount, resident))
    groups = [TensorGroup(*key, len(sizes), *map(sum, zip(*sizes, strict=True))) for key, sizes in alike.items()]
    groups.sort(key=lambda group: (-group.resident, -group.bytes, group.content))
    parts = [_part_of(owner, groups) for owner in ["", *owners]]
    known = sum(part.host for part in parts)
    rest = max(usage.own - known - before, 0)
    files = process_bytes("RssFile")
    parts += [
        MeasuredPart(
            "the process before the run", min(before, usage.own), 0, f"libraries, {size(files)} of mapped files"
        ),
        MeasuredPart("other processes of the run", usage.children, 0, "such as Prefect's server, workers, plots"),
        MeasuredPart("memory that no tensor shows", rest, 0, "Python objects, gradients under way, freed memory kept"),
    ]
    parts = [part for part in parts if part.host or part.device]
    return tuple(sorted(parts, key=lambda part: -(part.host + part.device))), tuple(groups[:_ROWS])


def _part_of(owner: str, groups: Iterable[TensorGroup]) -> MeasuredPart:
    own = [group for group in groups if group.owner == owner]
    detail = "; ".join(f"{group.content} {size(group.bytes)}" for group in own[:3])
    host = sum(group.resident for group in own if group.device == "cpu")
    device = sum(group.bytes for group in own if group.device != "cpu")
    return MeasuredPart(owner or "tensors of no known owner", host, device, detail)


def _live_tensors() -> dict[int, Values]:
    """Return all tensors of this process, by the address of their memory; of views of the same memory, the largest."""
    # The collector lists tuples that are still being filled. CPython ends the thread that fills one with a SystemError
    # if the tuple is referred to from elsewhere (`_PyTuple_Resize`): no other Python thread may run while it lists.
    with _listing:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_ALONE_SECONDS)
        try:
            # Threads that already wait use the old interval; after their turn they use the new one.
            time.sleep(2.0 * interval)
            listed = [item for item in gc.get_objects() if issubclass(type(item), Tensor)]
        finally:
            sys.setswitchinterval(interval)
    found: dict[int, Values] = {}
    for tensor in listed:
        add_largest(found, tensor)
    return found


def report_markdown(report: MemoryReport) -> str:
    """Return the report as markdown, the largest part first."""
    device = size(report.usage.device.taken) if report.usage.device else ""
    parts = [(p.name, size(p.host), size(p.device) if p.device else "", p.detail) for p in report.parts]
    parts += [("all", size(report.usage.host), device, "")]
    largest = ", ".join(map(str, report.largest_others))
    sections = {
        "Memory by part": _table(("part", "host", "device", "content"), parts),
        "Other processes": f"{size(report.others)} of the nearest limit. The largest: {largest}." if largest else "",
        "Limits": _table(
            ("limit", "size", "counted against it", "soft line", "hard line"),
            ((line.origin, *map(size, (line.bytes, line.counted, line.soft, line.hard))) for line in report.limits),
        ),
        "Phases": _table(
            ("phase", "generation", "time", "start", "peak", "end", "device peak"),
            (
                (
                    phase.phase,
                    str(phase.generation),
                    duration(phase.ended - phase.began),
                    *map(size, (phase.start_bytes, phase.peak_bytes, phase.end_bytes)),
                    size(phase.device_allocated_peak) if phase.device_allocated_peak else "",
                )
                for phase in report.phases[-_ROWS:]
            ),
        ),
        "The plan": _table(report.plan[0].keys() if report.plan else (), (row.values() for row in report.plan)),
        "Largest tensors and arrays": _table(
            ("owner", "content", "device", "number", "size", "resident"),
            ((t.owner, t.content, t.device, f"{t.count:,}", size(t.bytes), size(t.resident)) for t in report.tensors),
        ),
    }
    head = f"# Memory: {report.reason}\n\n{report.headline}\n\n{report.moment}. Nearest limit: {report.nearest}."
    return "\n\n".join([head, *(f"## {title}\n\n{text}" for title, text in sections.items() if text)]) + "\n"


def write_report(report: MemoryReport, folder: Path, stem: str) -> list[Path]:
    """Write the report into `folder` as `<stem>.md` and `<stem>.json`, each atomically, and return the files."""
    texts = {"md": report_markdown(report), "json": json.dumps(asdict(report), indent=1)}
    paths = [folder / f"{stem}.{suffix}" for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        with replacing(path) as file:
            file.write(text.encode())
    return paths


def _table(headings: Collection[str], rows: Iterable[Iterable[str | float | None]]) -> str:
    cells = [["" if cell is None else str(cell).replace("|", "/") for cell in row] for row in rows]
    lines = [list(headings), ["---"] * len(headings), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if cells else ""


def install_report_signal(callback: Callable[[], object]) -> Callable[[], None]:
    """Call `callback` whenever this process receives SIGUSR1; return a function that undoes this.

    The callback runs in its own thread, one call at a time; its errors go to `threading.excepthook`. Does nothing where
    there is no SIGUSR1, and outside the main thread, where Python cannot handle signals.
    """
    if not hasattr(signal, "SIGUSR1") or threading.current_thread() is not threading.main_thread():
        logger.debug("SIGUSR1 is not answered here: only the main thread of a Unix process can handle it.")
        return lambda: None
    # A handler may interrupt any line of the main thread, whatever locks that holds: SimpleQueue.put takes none of
    # Python's own.
    requests: SimpleQueue[bool] = SimpleQueue()
    before = signal.signal(signal.SIGUSR1, lambda *_: requests.put(True))

    def answer() -> None:
        while requests.get():
            call = threading.Thread(target=callback, name="memory-report", daemon=True)
            call.start()
            call.join()

    listener = threading.Thread(target=answer, name="memory-report-signal", daemon=True)
    listener.start()

    def undo() -> None:
        signal.signal(signal.SIGUSR1, before)
        requests.put(False)
        listener.join()

    return undo
