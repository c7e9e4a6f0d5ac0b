"""A memory report as a page for people (markdown) and as files."""

import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

from eigen_core.memory.diagnosis import Growth, GrowthSince, MemoryReport
from eigen_core.units import duration, signed_size, size

_PARTS = 15
_PHASES = 20


def report_markdown(report: MemoryReport) -> str:
    """Return the report as markdown: the largest part first, then what supports it."""
    sections = [
        f"# Memory: {report.reason}",
        f"{report.headline}\n\n{report.moment}. Nearest limit: {report.nearest}.",
        _section("What takes the memory", _parts(report)),
        *(_section(f"Growth since generation {grown.generation} began", _growth(grown)) for grown in report.growth),
        _section("Limits", _limits(report)),
        _section("Phases", _phases(report)),
        _section("The plan", _rows(report.plan)),
        _section("Largest tensors and arrays", _blocks(report)),
        _section("Live objects by type", _objects(report)),
        _section("Where Python allocated", "\n".join(f"- `{line}`" for line in report.traced)),
        _section("Threads", "\n".join(f"- `{line}`" for line in report.threads)),
        *(_section(title, text) for title, text in report.sections),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def write_report(report: MemoryReport, folder: Path, stem: str) -> list[Path]:
    """Write the report into `folder` as `<stem>.md` and `<stem>.json`, each in one step, and return the files.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, text in (("md", report_markdown(report)), ("json", json.dumps(report.document(), indent=1))):
        path = folder / f"{stem}.{suffix}"
        temporary = folder / f".{path.name}.{uuid.uuid4().hex}.tmp"
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        paths.append(path)
    return paths


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if body else ""


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _parts(report: MemoryReport) -> str:
    rows = [
        (part.name, size(part.host), size(part.device) if part.device else "", part.detail)
        for part in report.parts[:_PARTS]
    ]
    total = ("all", size(report.host_bytes), size(report.device_taken) if report.device_taken else "", "")
    return _table(("part", "host", "device", "what"), [*rows, total])


def _growth(grown: GrowthSince) -> str:
    def row(entry: Growth) -> tuple[str, str, str, str]:
        return f"`{entry.type}`", signed_size(entry.bytes), f"{entry.more:+,}", f"{entry.count:,}"

    return _table(("type", "more memory", "more objects", "objects now"), [row(entry) for entry in grown.types])


def _limits(report: MemoryReport) -> str:
    lines = [*report.limits, *([report.device_line] if report.device_line else [])]
    rows = [(line.origin, size(line.bytes), size(line.counted), size(line.soft), size(line.hard)) for line in lines]
    return _table(("limit", "size", "counted against it", "soft line", "hard line"), rows)


def _phases(report: MemoryReport) -> str:
    rows = [
        (
            phase.phase,
            str(phase.generation),
            duration(phase.ended - phase.began),
            size(phase.start_bytes),
            size(phase.peak_bytes),
            size(phase.end_bytes),
            size(phase.device_allocated_peak) if phase.device_allocated_peak else "",
        )
        for phase in report.phases[-_PHASES:]
    ]
    return _table(("phase", "generation", "time", "start", "peak", "end", "device peak"), rows)


def _rows(rows: Sequence[dict[str, str | float | None]]) -> str:
    if not rows:
        return ""
    headings = list(rows[0])
    return _table(
        headings, [["" if row.get(name) is None else str(row.get(name)) for name in headings] for row in rows]
    )


def _blocks(report: MemoryReport) -> str:
    rows = [
        (block.holder, block.content, block.device, f"{block.count:,}", size(block.bytes), size(block.resident))
        for block in report.blocks
    ]
    return _table(("holder", "content", "device", "blocks", "size", "resident"), rows)


def _objects(report: MemoryReport) -> str:
    return _table(
        ("type", "objects", "memory"),
        [(f"`{name}`", f"{entry.count:,}", size(entry.bytes)) for name, entry in report.objects],
    )
