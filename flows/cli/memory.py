"""The command `eigen memory`: the newest memory report of a run, or what its generations took."""

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markdown import Markdown

from eigen_core.common.errors import InputError
from eigen_core.common.text import size
from flows.cli.output import PlainTable, print_fact, print_line

if TYPE_CHECKING:
    from eigen_core.common.records import Telemetry
    from eigen_core.training.runs import RunStatus

_SHOWN_GENERATIONS = 3
_MOST_REPORT_BYTES = 16 << 20
_SUFFIXES = (".md", ".json", ".png")


@dataclass(frozen=True)
class RunMemory:
    """Memory of a run, as far as it is known on this machine.

    Attributes:
        status: the run.
        reports: markdown files of its reports, newest first.
        pid: the process that trains it on this machine; None if there is none.
    """

    status: "RunStatus"
    reports: tuple[Path, ...]
    pid: int | None

    @property
    def files(self) -> list[Path]:
        """The files of the newest report."""
        return [path for suffix in _SUFFIXES for path in (self.reports[0].with_suffix(suffix),) if path.is_file()]

    @property
    def newest_telemetry(self) -> tuple["Telemetry", ...]:
        """Memory of the newest generations, oldest first."""
        return self.status.telemetry[-_SHOWN_GENERATIONS:]


def memory_of(store: str, name: str) -> RunMemory:
    """Return what is known of the memory of the run `name`. Reports stay on the machine that made them.

    Raises:
        InputError: there is no such run, or its configuration cannot be read.
        StoreUnavailableError: the store does not answer, and there is nothing of the run on this machine.
    """
    from eigen_core.training.journals import memory_reports
    from eigen_core.training.runs import status_of

    status = status_of(store, name)
    reports = tuple(memory_reports(status.folder))
    return RunMemory(status, reports, _pid(status.folder) if status.state == "running" else None)


def _pid(folder: Path) -> int | None:
    """Return the process that has the run's lock on this machine, None if that is not known."""
    from eigen_core.checkpoint.names import LOCK_NAME
    from eigen_core.store.locks import FileLock

    holder = FileLock(folder / LOCK_NAME).holder()
    return holder.pid if holder is not None and holder.host == socket.gethostname() else None


def print_memory(console: Console, memory: RunMemory) -> None:
    """Print the newest report and where it is; without one, what each phase of the newest generations took.

    Raises:
        InputError: the report cannot be read.
    """
    if memory.reports:
        text = _content(memory.reports[0])
        if console.is_terminal:
            console.print(Markdown(text))
        else:
            print_line(console, text)
        for index, path in enumerate(memory.files):
            print_fact(console, "" if index else "files", str(path), width=8)
        older = len(memory.reports) - 1
        print_fact(console, "older", f"{older} report{'s' * (older != 1)} in {memory.reports[0].parent}", width=8)
        return
    _print_phases(console, memory)
    print_line(console, f"  Run {memory.status.run} has no memory report on this machine.")
    print_line(console, f"  {_how_to_get_one(memory)}")


def _print_phases(console: Console, memory: RunMemory) -> None:
    shown = memory.newest_telemetry
    if not shown:
        print_line(console, f"  Run {memory.status.run} has no generation yet.")
        return
    on_device = any(entry.device_peak_bytes for entry in shown)
    table = PlainTable(
        *("generation", "phase", "RSS at start", "peak", "end"),
        *(["tensors on GPU", "held on GPU"] if on_device else []),
        left=("phase",),
        least_important=("RSS at start", "end"),
    )
    for entry in shown:
        if not entry.phases:
            sizes_of_all = ("", size(entry.rss_peak_bytes), size(entry.rss_bytes))
            table.add_row(str(entry.generation), "all", *sizes_of_all, ends_section=True)
        for index, phase in enumerate(entry.phases):
            sizes = [phase.start_bytes, phase.peak_bytes, phase.end_bytes]
            device = [phase.device_allocated_peak, phase.device_reserved_peak] if on_device else []
            generation = "" if index else str(entry.generation)
            is_last = index == len(entry.phases) - 1
            table.add_row(
                generation, phase.phase, *(size(amount) for amount in [*sizes, *device]), ends_section=is_last
            )
    table.print(console)


def _how_to_get_one(memory: RunMemory) -> str:
    if memory.pid is not None:
        return f"To get one: kill -USR1 {memory.pid}"
    if memory.status.state == "running":
        return "To get one, on its machine: kill -USR1 PID"
    return "While it trains, kill -USR1 PID asks the training for one; the memory guard writes one when it stops a run."


def memory_document(memory: RunMemory) -> dict[str, Any]:
    """Return what `eigen memory --json` prints. Its keys are a contract.

    Raises:
        InputError: the report cannot be read.
    """
    return {
        "run": memory.status.run,
        "state": memory.status.state,
        "pid": memory.pid,
        "folder": memory.status.folder / "memory",
        "report": _report(memory.reports[0].with_suffix(".json")) if memory.reports else None,
        "files": memory.files if memory.reports else [],
        "older_reports": max(len(memory.reports) - 1, 0),
        "generations": [
            {
                "generation": entry.generation,
                "rss_bytes": entry.rss_bytes,
                "rss_peak_bytes": entry.rss_peak_bytes,
                "phases": entry.phases,
            }
            for entry in memory.newest_telemetry
        ],
    }


def _report(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(_content(path))
    except ValueError as error:
        raise InputError(f"The memory report {path} is damaged ({error}). Remove it to see the one before.") from error
    if not isinstance(document, dict):
        raise InputError(f"The memory report {path} holds no report. Remove it to see the one before.")
    return document


def _content(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_REPORT_BYTES).decode(errors="replace")
    except OSError as error:
        raise InputError(
            f"The memory report {path} cannot be read: {error.strerror}. Make it readable, or remove it to see the one "
            "before."
        ) from error
