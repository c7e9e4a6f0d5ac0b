"""What a benchmark found: shown as a table, kept as a section of `RESULTS.md`."""

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
"""Processes that computed in the minute before this one began: what is measured adds to it."""
MOST_LOAD = 1.0
COUNTS = frozenset(
    {
        "audit",
        "claims",
        "control",
        "fuzz",
        "intervals",
        "kill",
        "learning",
        "learningportfolio",
        "limits",
        "memoryplan",
        "populations",
        "size",
        "timing_claims",
        "trust",
    }
)
"""Sections of counts, bytes and scores, which a busy machine does not change; beside them CPU seconds."""

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
    """What one benchmark found.

    Attributes:
        title: what was measured.
        method: one sentence that says how.
        columns: headings of the table.
        rows: its cells, one for each heading.
        remarks: sentences on what the table shows.
    """

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
    """End the process with a sentence if the machine was busy when it began and a section to be kept is of times."""
    timed = [name for name in names if name not in COUNTS]
    if timed and LOAD > MOST_LOAD:
        sys.exit(
            f"The load average was {LOAD:.1f} at the start: times of {', '.join(timed)} would be those of what else "
            f"computes. Wait until it is at most {MOST_LOAD:g}, or measure only {', '.join(sorted(COUNTS))}."
        )


def keep(sections: dict[str, Section], order: Sequence[str], path: Path = RESULTS) -> None:
    """Write sections into the file of results; those that were not measured now stay as they are.

    Args:
        sections: what was measured, by the benchmark's name.
        order: names of all benchmarks, in the order of the file.
        path: the file; it is made if it is missing.
    """
    if path == RESULTS:
        require_idle(sections)
    kept = _sections_of(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept |= {name: section.markdown() for name, section in sections.items()}
    parts = [_HEADER, *(f"<!-- benchmark: {name} -->\n{kept[name].rstrip()}\n" for name in order if name in kept)]
    path.write_text("\n".join(parts), encoding="utf-8")


def _sections_of(text: str) -> dict[str, str]:
    _, *parts = _MARK.split(text)
    return dict(zip(parts[::2], parts[1::2], strict=True))
