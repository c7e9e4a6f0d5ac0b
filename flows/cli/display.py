"""Progress of a training on a console, and how Ctrl-C and SIGTERM stop it."""

import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from eigen_core.common.progress import progress_to
from eigen_core.common.text import duration, size
from eigen_core.training.listener import Listener
from eigen_core.training.stop_requests import stop_requests_raised
from flows.cli.printing import print_line

if TYPE_CHECKING:
    from eigen_core.common.records import GenerationRecord, Telemetry
    from eigen_core.config import Config
    from eigen_core.planning.run_plan import RunPlan
    from eigen_core.training.journals import Start
    from eigen_core.training.listener import Training


class StopSignals:
    """Handles Ctrl-C and SIGTERM.

    Before a training they end the process at once: a library that is being imported could swallow an exception and stay
    half initialised. During a training the first one raises `KeyboardInterrupt`, so that the flow can report its end;
    the second one ends the process at once. That is always safe: checkpoints are written atomically, and the kernel
    frees the run's lock. `requested`: the user has asked a training to stop.

    A display hides the cursor of `console`; it is shown again before the process ends.
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
        """Raise `KeyboardInterrupt` if a stop was requested, in case the exception of the signal was swallowed."""
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
    """Handle Ctrl-C and SIGTERM inside the block. What the process was started to ignore stays ignored."""
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
    """Let the first Ctrl-C or SIGTERM inside the block raise `KeyboardInterrupt`, the second end the process."""
    with stop_signals() as signals, signals.raising():
        yield


_RUN_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")


class Display(Listener):
    """Prints one line for each generation, for files and pipes; stops a training between two phases on request.

    Attributes:
        describes: show data and plan of the next run.
        headings: lines to show when the training of a run starts, by its name.
        trained: the run that trains, or was trained last, and its configuration.
    """

    def __init__(self, console: Console, signals: StopSignals | None = None) -> None:
        self.console = console
        self.signals = signals or StopSignals()
        self.describes = False
        self.headings: Mapping[str, str] = {}
        self.trained: tuple[str, Config] | None = None
        self._steps = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def prepared(self, training: "Training") -> None:
        if self.describes:
            self.describe(training.data.lines, training.plan)
        self.describes = False

    def begun(self, training: "Training", starts: "Sequence[Start]") -> None:  # noqa: ARG002
        self.trained = training.name, training.config
        if training.name in self.headings:
            print_line(self.console, self.headings[training.name])
        self.started(training.state.generation, training.config.generations)

    def phase_started(self, generation: int, phase: str) -> None:  # noqa: ARG002
        self.signals.check()

    def describe(self, found: Sequence[str], run_plan: "RunPlan") -> None:
        for line in (*found, run_plan.sentence()):
            print_line(self.console, line, style="dim")

    def announce(self, what: str) -> None:
        print_line(self.console, f"{what} ...", style="dim")

    def waiting_for(self, what: str) -> None:
        """Show a wait on a terminal only."""

    def started(self, generation: int, generations: int) -> None:
        self._steps = generations
        if generation:
            print_line(self.console, f"continuing after generation {generation}/{generations}")

    def progressed(self, done: int, total: int) -> None:
        """Show that `done` of `total` steps of another loop than a training are finished."""

    def generation_finished(self, record: "GenerationRecord", telemetry: "Telemetry") -> None:
        print_line(self.console, f"generation {record.generation}/{self._steps}  {figures(record, telemetry)}")


def display_on(console: Console, steps: str = "generations", signals: StopSignals | None = None) -> Display:
    """Return progress bars if `console` is a terminal, else lines; `steps` names the steps of the outermost loop."""
    return BarDisplay(console, steps, signals) if console.is_terminal else Display(console, signals)


@contextmanager
def progress_shown(console: Console | None = None, steps: str = "generations") -> Iterator[Display]:
    """Show the progress of the block, which reads data first, on a console: standard error if none is given."""
    with display_on(console or Console(stderr=True), steps) as display, progress_to(display):
        display.waiting_for("reading the data")
        yield display


def figures(record: "GenerationRecord", telemetry: "Telemetry") -> str:
    excess = record.champion_excess
    return (
        f"best {record.best_fitness:,.1f}  mean {record.mean_fitness:,.1f}  "
        f"champion validation {record.champion_validation:,.1f}  "
        f"{'' if excess is None else f'excess {excess.short} a {excess.per}  '}"
        f"buffer {record.transitions:,}/{record.replay_capacity:,}  "
        f"{duration(telemetry.seconds)}  RSS {size(telemetry.rss_bytes)}"
    )


class BarDisplay(Display):
    """A bar for the generations, or other steps, a bar for the current phase, and the latest metrics."""

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
        self._figures = Text("", style="dim")
        self._live = Live(Group(self._overall, self._phase, self._figures), console=console, transient=True)
        self._current = ""
        self._first = 0
        self._started = time.monotonic()

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
        self._first, self._steps, self._started = generation, generations, time.monotonic()
        self._overall.reset(self._overall_task, total=generations, completed=generation, left="", visible=True)

    def progressed(self, done: int, total: int) -> None:
        if total != self._steps:
            self.started(done, total)
        elif done > self._first:
            seconds = (time.monotonic() - self._started) / (done - self._first) * (total - done)
            left = timedelta(seconds=round(seconds))
            self._overall.update(self._overall_task, completed=done, left=f", {left} left")

    def phase_started(self, generation: int, phase: str) -> None:
        super().phase_started(generation, phase)
        self._current = phase
        self.waiting_for(f"{generation}: {phase}")

    def generation_finished(self, record: "GenerationRecord", telemetry: "Telemetry") -> None:
        self.progressed(record.generation, self._steps)
        self._figures.plain = f"generation {record.generation}: {figures(record, telemetry)}"
        self._live.refresh()


class ConsoleHandler(logging.Handler):
    """Prints warnings and errors on the console of the progress bars, so that they do not garble them.

    Drops Prefect's records of a run's error, which it repeats and the command prints, and all of its records after a
    stop was requested.
    """

    def __init__(self, console: Console, signals: StopSignals) -> None:
        super().__init__(logging.WARNING)
        self.console = console
        self._signals = signals

    def emit(self, record: logging.LogRecord) -> None:
        # Without tracebacks, which Prefect's history keeps.
        if record.name.startswith("prefect") and self._signals.requested:
            return
        if record.name.startswith(_RUN_LOGGERS) and record.levelno >= logging.ERROR:
            return
        colour = "red" if record.levelno >= logging.ERROR else "yellow"
        print_line(self.console, (f"{record.levelname.lower()}: ", colour), record.getMessage())
