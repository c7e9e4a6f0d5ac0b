"""A memory report as a page (markdown) and as files."""

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict
from pathlib import Path

from eigen_core.memory.diagnosis import MemoryReport
from eigen_core.store.files import replacing
from eigen_core.units import duration, signed_size, size

_PARTS = 15
_PHASES = 20


def report_markdown(report: MemoryReport) -> str:
    """Return the report as markdown: the largest part first, then what supports it."""
    sections = {
        "Memory by part": _parts(report),
        **{
            f"Growth since generation {since.generation} began": _table(
                ("type", "more memory", "more objects", "objects now"),
                ((f"`{g.type}`", signed_size(g.bytes), f"{g.more:+,}", f"{g.count:,}") for g in since.types),
            )
            for since in report.growth
        },
        "Limits": _table(
            ("limit", "size", "counted against it", "soft line", "hard line"),
            ((line.origin, *map(size, (line.bytes, line.counted, line.soft, line.hard))) for line in report.limits),
        ),
        "Phases": _phases(report),
        "The plan": _table(report.plan[0].keys() if report.plan else (), (row.values() for row in report.plan)),
        "Largest tensors and arrays": _table(
            ("holder", "content", "device", "blocks", "size", "resident"),
            ((b.holder, b.content, b.device, f"{b.count:,}", size(b.bytes), size(b.resident)) for b in report.blocks),
        ),
        "Live objects by type": _table(
            ("type", "objects", "memory"),
            ((f"`{name}`", f"{count:,}", size(amount)) for name, count, amount in report.objects),
        ),
        "Where Python allocated": "\n".join(f"- `{line}`" for line in report.traced),
        "Threads": "\n".join(f"- `{line}`" for line in report.threads),
        **dict(report.sections),
    }
    head = f"# Memory: {report.reason}\n\n{report.headline}\n\n{report.moment}. Nearest limit: {report.nearest}."
    return "\n\n".join([head, *(f"## {title}\n\n{text}" for title, text in sections.items() if text)]) + "\n"


def write_report(report: MemoryReport, folder: Path, stem: str) -> list[Path]:
    """Write the report into `folder` as `<stem>.md` and `<stem>.json`, each in one step, and return the files.

    Raises:
        OSError: the folder cannot be written to.
    """
    texts = {"md": report_markdown(report), "json": json.dumps(asdict(report), indent=1)}
    paths = [folder / f"{stem}.{suffix}" for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        with replacing(path) as file:
            file.write(text.encode())
    return paths


def _table(headings: Collection[str], rows: Iterable[Iterable[str | float | None]]) -> str:
    """Return a table in markdown; nothing without rows."""
    cells = [["" if cell is None else str(cell).replace("|", "/") for cell in row] for row in rows]
    lines = [list(headings), ["---"] * len(headings), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if cells else ""


def _parts(report: MemoryReport) -> str:
    rows = [(p.name, size(p.host), size(p.device) if p.device else "", p.detail) for p in report.parts[:_PARTS]]
    device = size(report.usage.device.taken) if report.usage.device else ""
    return _table(("part", "host", "device", "what"), [*rows, ("all", size(report.host_bytes), device, "")])


def _phases(report: MemoryReport) -> str:
    rows = (
        (
            phase.phase,
            str(phase.generation),
            duration(phase.ended - phase.began),
            *map(size, (phase.start_bytes, phase.peak_bytes, phase.end_bytes)),
            size(phase.device_allocated_peak) if phase.device_allocated_peak else "",
        )
        for phase in report.phases[-_PHASES:]
    )
    return _table(("phase", "generation", "time", "start", "peak", "end", "device peak"), rows)
