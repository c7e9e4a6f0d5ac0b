"""Output on a console: lines, tables, JSON, the progress of a training; and how Ctrl-C and SIGTERM stop a command."""

import json
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self

import typer
from pydantic_core import to_jsonable_python
from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, JustifyMethod
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from eigen_core.common.process import stop_requests_raised
from eigen_core.common.progress import progress_to
from eigen_core.common.text import duration, size
from eigen_core.runs.listener import Listener

if TYPE_CHECKING:
    from eigen_core.common.records import GenerationRecord, Telemetry
    from eigen_core.planning.run_plan import RunPlan
    from eigen_core.runs.listener import Training


class StopSignals:
    """Handles Ctrl-C and SIGTERM.

    Outside `raising` a signal ends the process at once: a library that is being imported could swallow an exception and
    stay half initialised. Inside it the first signal sets `requested` and raises `KeyboardInterrupt`, so that the flow
    run can report its end; the second ends the process at once, which is safe: checkpoints are written atomically, and
    the kernel frees the run's lock. Before the process ends, the cursor of `console`, hidden by a display, is shown.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.requested = False
        self._gentle = False
        self._console = console

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Let the first signal inside the block raise `KeyboardInterrupt`."""
        self._gentle = True
        try:
            yield
        finally:
            self._gentle = False

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if a signal requested a stop: a library may have swallowed the first exception."""
        if self.requested:
            raise KeyboardInterrupt

    def handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a signal handler
        if self._gentle and not self.requested:
            self.requested = True
            raise KeyboardInterrupt
        if self._console is not None:
            self._console.show_cursor()
        os.write(2, b"eigen: Stopped.\n")
        os._exit(1)


@contextmanager
def stop_signals(console: Console | None = None) -> Iterator[StopSignals]:
    """Handle Ctrl-C and SIGTERM inside the block. A signal that the process was started to ignore stays ignored."""
    signals = StopSignals(console)
    # A shell lets its background jobs ignore Ctrl-C.
    handled = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
    former = {number: signal.signal(number, signals.handle) for number in handled}
    try:
        with stop_requests_raised():
            yield signals
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def stopped_gently() -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM inside the block raise `KeyboardInterrupt`, and the second end the process."""
    with stop_signals() as signals, signals.raising():
        yield


_RUN_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")


class Display(Listener, AbstractContextManager["Display"]):
    """Prints one line for each generation, for files and pipes; stops a training between two phases after a signal.

    Attributes:
        has_begun: whether a training has started.
    """

    def __init__(self, console: Console, signals: StopSignals | None = None) -> None:
        self.console = console
        self.signals = signals or StopSignals()
        self.has_begun = False
        self._steps = 0

    def __exit__(self, *error: object) -> None:
        pass

    def chosen(self, generation: int) -> None:  # noqa: ARG002
        self.announce("reading the data")

    def prepared(self, training: "Training") -> None:
        self.describe(training.data.lines, training.plan)

    def begun(self, training: "Training") -> None:
        self.has_begun = True
        self.started(training.state.generation, training.config.generations)

    def phase_started(self, generation: int, phase: str) -> None:  # noqa: ARG002
        self.signals.check()

    def describe(self, found: Sequence[str], run_plan: "RunPlan") -> None:
        for line in (*found, run_plan.sentence()):
            print_line(self.console, line, style="dim")

    def announce(self, what: str) -> None:
        print_line(self.console, f"{what} ...", style="dim")

    def waiting_for(self, what: str) -> None:
        """Show what the command waits for; only `BarDisplay` does."""

    def started(self, generation: int, generations: int) -> None:
        self._steps = generations
        if generation:
            print_line(self.console, f"continuing after generation {generation}/{generations}")

    def progressed(self, done: int, total: int) -> None:
        """Show that `done` of `total` steps of the outermost loop are finished; only `BarDisplay` does."""

    def generation_finished(self, record: "GenerationRecord", telemetry: "Telemetry") -> None:
        print_line(self.console, f"generation {record.generation}/{self._steps}  {metrics_text(record, telemetry)}")


def display_on(console: Console, steps: str = "generations", signals: StopSignals | None = None) -> Display:
    """Return a display, with bars if `console` is a terminal; `steps`: name of the steps of the outermost loop."""
    return BarDisplay(console, steps, signals) if console.is_terminal else Display(console, signals)


@contextmanager
def progress_shown(console: Console | None = None, steps: str = "generations") -> Iterator[Display]:
    """Show the progress of the block, which first reads data, on `console` (None: standard error); see `display_on`."""
    with display_on(console or Console(stderr=True), steps) as display, progress_to(display):
        display.waiting_for("reading the data")
        yield display


def metrics_text(record: "GenerationRecord", telemetry: "Telemetry") -> str:
    excess = record.champion_excess
    return (
        f"best {record.best_fitness:,.1f}  mean {record.mean_fitness:,.1f}  "
        f"champion {record.champion_score:,.1f}  "
        f"{'' if excess is None else f'excess {excess.short} a {excess.per}  '}"
        f"replay {record.transitions:,}/{record.replay_capacity:,}  "
        f"{duration(telemetry.seconds)}  RSS {size(telemetry.rss_bytes)}"
    )


class BarDisplay(Display):
    """Shows on a terminal a bar for the generations (or `steps`), one for the current phase, and the latest metrics."""

    def __init__(self, console: Console, steps: str = "generations", signals: StopSignals | None = None) -> None:
        super().__init__(console, signals)
        clock = Column(no_wrap=True, min_width=len("0:00:00"))
        self._overall = Progress(
            TextColumn(steps, table_column=Column(width=22)),
            BarColumn(bar_width=40),
            MofNCompleteColumn(table_column=clock.copy()),
            TimeElapsedColumn(table_column=clock.copy()),
            TextColumn("elapsed{task.fields[left]}"),
            console=console,
        )
        self._phase = Progress(
            TextColumn("{task.description}", table_column=Column(width=22)),
            BarColumn(bar_width=40),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(table_column=clock.copy()),
            console=console,
        )
        self._overall_task = self._overall.add_task("", total=None, left="", visible=False)
        self._phase_task = self._phase.add_task("starting", total=None, count="")
        self._metrics = Text("", style="dim")
        self._live = Live(Group(self._overall, self._phase, self._metrics), console=console, transient=True)
        self._current = ""
        self._first = 0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def waiting_for(self, what: str) -> None:
        self._phase.reset(self._phase_task, total=None, description=what, count="")

    announce = waiting_for

    def update(self, name: str, done: int, total: int) -> None:
        kind = "" if name == self._current else f" ({name})"
        self._phase.update(self._phase_task, completed=done, total=total, count=f"{done:,}/{total:,}{kind}")

    def started(self, generation: int, generations: int) -> None:
        self._first, self._steps = generation, generations
        self._overall.reset(self._overall_task, total=generations, completed=generation, left="", visible=True)

    def progressed(self, done: int, total: int) -> None:
        if total != self._steps:
            self.started(done, total)
        elif done > self._first:
            elapsed = self._overall.tasks[0].elapsed or 0.0
            left = timedelta(seconds=round(elapsed / (done - self._first) * (total - done)))
            self._overall.update(self._overall_task, completed=done, left=f", {left} left")

    def phase_started(self, generation: int, phase: str) -> None:
        super().phase_started(generation, phase)
        self._current = phase
        self.waiting_for(f"{generation}: {phase}")

    def generation_finished(self, record: "GenerationRecord", telemetry: "Telemetry") -> None:
        self.progressed(record.generation, self._steps)
        self._metrics.plain = f"generation {record.generation}: {metrics_text(record, telemetry)}"
        self._live.refresh()


class ConsoleHandler(logging.Handler):
    """Prints warnings and errors of loggers on the console of the progress bars, so that they do not garble the bars.

    Drops errors that Prefect logs about flow and task runs, since the command prints them, and everything that Prefect
    logs after a signal requested a stop.
    """

    def __init__(self, console: Console, signals: StopSignals) -> None:
        super().__init__(logging.WARNING)
        self.console = console
        self._signals = signals

    def emit(self, record: logging.LogRecord) -> None:
        # Only the message is printed: Prefect's history keeps the traceback.
        if record.name.startswith("prefect") and self._signals.requested:
            return
        if record.name.startswith(_RUN_LOGGERS) and record.levelno >= logging.ERROR:
            return
        colour = "red" if record.levelno >= logging.ERROR else "yellow"
        print_line(self.console, (f"{record.levelname.lower()}: ", colour), record.getMessage())


P = ParamSpec("P")

Styled = str | tuple[str, str]
"""Text, or text and its style in Rich; markup in the text, such as [bold], is printed as it is."""

_PIPE_WIDTH = 120
# Least width of the text after a label, however narrow the terminal.
_LEAST_WIDTH = 20


def output_console() -> Console:
    """Return the console of standard output. If it is no terminal, its width is the variable COLUMNS, or 120."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_PIPE_WIDTH)


def print_fact(console: Console, label: str, *parts: Styled, width: int = 12) -> None:
    """Print a label of `width` letters, then `parts` as `print_line` does, with further lines indented as far."""
    print_line(console, *parts, label=f"  {label:<{width}}")


def print_line(console: Console, *parts: Styled, style: str | None = None, label: str = "") -> None:
    """Print `parts` after `label` as one line, which a terminal wraps between words, and a file or pipe does not."""
    indent = cell_len(label)
    lines = list(Text.assemble(*parts).split("\n", allow_blank=True))
    if console.is_terminal:
        width = max(console.width - indent, _LEAST_WIDTH)
        lines = [part for line in lines for part in _wrapped(line, width)]
    for number, line in enumerate(lines):
        console.print(Text.assemble(" " * indent if number else label, line), style=style, soft_wrap=True)


def _wrapped(line: Text, width: int) -> list[Text]:
    """Divide a line into parts of at most `width` cells, each with the line's indent; a longer word stays whole."""
    # `Text.wrap` would break such a word, or cut it off.
    indent = len(line) - len(line.plain.lstrip())
    starts, used, end = [], 0, 0
    for word in re.finditer(r"\S+", line.plain):
        used += cell_len(line.plain[end : word.end()])
        if end and used > width:
            starts.append(word.start())
            used = indent + cell_len(word[0])
        end = word.end()
    first, *others = line.divide(starts)
    parts = [first, *(Text.assemble(" " * indent, part) for part in others)]
    for part in parts[:-1]:
        part.rstrip()
    return parts


def attributes(of: object, *names: str) -> dict[str, Any]:
    """Return the attributes `names` of an object, by name: a part of the JSON that a command prints."""
    return {name: getattr(of, name) for name in names}


def print_json(document: object) -> None:
    """Print a document as JSON; it may hold pydantic models, dataclasses and paths."""
    typer.echo(json.dumps(document, indent=2, default=to_jsonable_python))


def print_result(
    as_json: bool,
    document: Callable[P, object],
    show: Callable[Concatenate[Console, P], object],
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Print `document(...)` as JSON, whose keys are a public interface; without `as_json` call `show(console, ...)`."""
    if as_json:
        print_json(document(*args, **kwargs))
    else:
        show(output_console(), *args, **kwargs)


def say(sentence: str) -> None:
    """Print a sentence on standard error, with the prefix `eigen: `."""
    print_line(Console(stderr=True), f"eigen: {sentence}")


class PlainTable:
    """A table that wraps text between words only, and leaves out columns that are empty or do not fit.

    Args:
        headers: one for each column.
        left: columns of text; the others hold numbers and are aligned to the right.
        least_important: columns that are left out, the first one first, until the rest fits.
    """

    def __init__(self, *headers: str, left: Sequence[str] = (), least_important: Sequence[str] = ()) -> None:
        self._headers = headers
        self._left = left
        self._least_important = least_important
        self._rows: list[tuple[list[Text], bool]] = []

    def add_row(self, *cells: Styled, ends_section: bool = False) -> None:
        """Add a row, one cell for each header; `ends_section`: a line follows, unless it is the last row."""
        self._rows.append(([Text.assemble(cell) for cell in cells], ends_section))

    def print(self, console: Console) -> None:
        """Print as many columns as the width of the console holds, those not in `least_important` in any case."""
        columns = range(len(self._headers))
        bounds = [self._bounds(column) for column in columns]
        filled = [column for column in columns if not self._rows or any(cells[column] for cells, _ in self._rows)]
        shown = list(filled)
        for header in self._least_important:
            if sum(bounds[column][0] for column in shown) + _frame_width(len(shown)) <= console.width:
                break
            if self._headers.index(header) in shown:
                shown.remove(self._headers.index(header))
        least, natural = (sum(bounds[column][which] for column in shown) for which in (0, 1))
        # Each column gets its least width, and of the rest a share by how much more it could use.
        spare = max(min(console.width - _frame_width(len(shown)), natural) - least, 0)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=least + spare + _frame_width(len(shown)))
        for column in shown:
            low, high = bounds[column]
            width = low + (spare * (high - low) // (natural - least) if spare else 0)
            justify: JustifyMethod = "left" if self._headers[column] in self._left else "right"
            table.add_column(self._headers[column], justify=justify, width=width)
        for cells, ends_section in self._rows:
            table.add_row(*(cells[column] for column in shown), end_section=ends_section)
        # A word that is wider than the console is not cropped: the terminal wraps it.
        console.print(table, width=max(console.width, table.width or 0), crop=False)
        left_out = [self._headers[column] for column in filled if column not in shown]
        if left_out:
            print_line(console, f"Not shown at this width: {', '.join(left_out)}.", style="dim")

    def _bounds(self, index: int) -> tuple[int, int]:
        """Return the widths of a column's longest word and of its longest line; a number and its unit are one word."""
        header = self._headers[index]
        lines = [line for cells, _ in self._rows for line in cells[index].plain.splitlines()]
        words = [word for line in lines for word in line.split()] if header in self._left else lines
        return max(map(cell_len, [*header.split(), *words])), max(map(cell_len, [header, *lines]))


def _frame_width(columns: int) -> int:
    """Return the width (cells) that Rich adds around and between the columns of a `PlainTable`."""
    return 2 + 3 * (columns - 1)
