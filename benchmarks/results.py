"""The result of a benchmark: printed as a table, kept as a section of `RESULTS.md`."""

import os
import platform
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
import torch
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "RESULTS.md"
LOAD = os.getloadavg()[0]
"""Load average when this process began."""
_MOST_LOAD = 1.0
_TIMES = ("checkpoints", "pauses", "baselines", "overhead", "workers", "soak", "stop", "gpu")
"""Sections of times, which a busy machine changes."""

_MARK = re.compile(r"^<!-- benchmark: ([a-z_]+) -->\n", re.MULTILINE)
_HEADER = """\
# What was measured

`make bench` measures every section but those on memory over 300 generations (`make soak`), on kills and stops
(`make kill`), on runs under limits (`make limits`), on inputs drawn at random (`make fuzz`), on verdicts (`make
bench-trust`), on a GPU (`make bench-gpu`) and on markets whose edge is known (`make bench-learning`); `python -m
benchmarks NAME` measures one section alone. Ratios come from one process in which both sides took turns, after a
warm-up, unless the section says otherwise; times are medians. Sections of times are written only
where the load average was at most 1 when the process began.
"""


@dataclass(frozen=True)
class Section:
    """The result of a benchmark: a table with headings (`columns`), how it was measured, and remarks."""

    title: str
    method: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()

    def show(self, console: Console) -> None:
        table = Table(title=self.title, title_justify="left", caption=self.method, caption_justify="left")
        for index, heading in enumerate(self.columns):
            table.add_column(heading, justify="right" if index else "left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for remark in self.remarks:
            console.print(remark, highlight=False, markup=False)
        console.print()

    def markdown(self) -> str:
        """Return the section as Markdown, with the machine it was measured on."""

        def line(cells: Sequence[str]) -> str:
            return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"

        alignment = ["---", *("---:" for _ in self.columns[1:])]
        table = "\n".join(line(row) for row in (self.columns, alignment, *self.rows))
        paragraphs = [f"## {self.title}", self.method, table, *self.remarks, f"*{machine()}*"]
        return "\n\n".join(paragraphs) + "\n"


def machine() -> str:
    return (
        f"{psutil.cpu_count()} cores of {_processor()}, torch {torch.__version__} with "
        f"{torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.release()}, load average {LOAD:.1f} at the start; "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    )


def _processor() -> str:
    try:
        for entry in Path("/proc/cpuinfo").read_text().splitlines():
            if entry.startswith("model name"):
                return entry.partition(":")[2].strip()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    return platform.machine()


def require_idle(names: Iterable[str]) -> None:
    """End the process with a sentence if a section of times is to be measured and the machine was busy at the start."""
    timed = [name for name in names if name in _TIMES]
    if timed and LOAD > _MOST_LOAD:
        sys.exit(
            f"The load average was {LOAD:.1f} at the start, which would change the times of {', '.join(timed)}: wait "
            f"until it is at most {_MOST_LOAD:g}."
        )


def publish(name: str, section: Section, path: Path = RESULTS) -> None:
    """Print a section and write it into the file of results; the other sections stay as they are."""
    section.show(Console())
    keep(name, section, path)


def keep(name: str, section: Section, path: Path = RESULTS) -> None:
    if path == RESULTS:
        require_idle([name])
    kept = _sections_of(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept[name] = section.markdown()
    parts = [_HEADER, *(f"<!-- benchmark: {one} -->\n{text.rstrip()}\n" for one, text in kept.items())]
    path.write_text("\n".join(parts), encoding="utf-8")


def _sections_of(text: str) -> dict[str, str]:
    _, *parts = _MARK.split(text)
    return dict(zip(parts[::2], parts[1::2], strict=True))
