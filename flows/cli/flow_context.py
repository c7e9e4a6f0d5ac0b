"""How a command trains: signals, display, with a Prefect server or without, and sentences for how it ends early."""

import gc
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console

from eigen_core.common.errors import InputError, SchedulerLostError, WorkerLostError
from eigen_core.store import StoreUnavailableError, check_run_name, is_remote, open_store
from eigen_core.training.listener import Listener, observed_by
from flows.cli.display import ConsoleHandler, Display, display_on
from flows.cli.output import output_console, print_line
from flows.cli.runs import command_for
from flows.cli.signals import StopSignals, stop_signals
from flows.endings import Stopped, StoppedByMemory, require_addresses
from flows.server.environment import RUNNING_NAME, prepare_environment, set_umask

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from eigen_core.common.records import GenerationRecord, Telemetry
    from eigen_core.config import Config
    from eigen_core.config.model import CheckpointConfig
    from eigen_core.planning.run_plan import RunPlan
    from eigen_core.training.journals import Start
    from eigen_core.training.listener import Training


@contextmanager
def prepared_to_train(
    name: str, settings: "CheckpointConfig", console: Console | None = None
) -> Iterator[tuple[Display, StopSignals]]:
    """Handle signals and show the display; check what needs neither torch nor Prefect, which take seconds to import.

    The environment then names the Prefect server that is used: one that is configured, or that `eigen up` has started.
    """
    from flows.server.home import Home
    from flows.server.servers import server_for_training

    console = output_console() if console is None else console
    with stop_signals() as signals, display_on(console) as display:
        signals.before_leaving(lambda: console.show_cursor(True))
        display.waiting_for("loading")
        prepare_environment()
        set_umask(os.environ)
        os.environ.update(server_for_training(Home.of(os.environ), os.environ))
        require_addresses()
        check_run_name(name)
        if is_remote(settings.store):
            open_store(settings.store).check()
        announce(display, "loading")
        yield display, signals


def announce(display: Display, what: str) -> None:
    """Show what is done before the training begins, on a pipe too."""
    display.waiting_for(what)
    if not display.console.is_terminal:
        print_line(display.console, f"{what} ...", style="dim")


@contextmanager
def collecting_nothing() -> Iterator[None]:
    """Switch Python's collector of garbage off while the block imports: nothing of that is garbage, and looking for it
    takes a tenth of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        # Into the oldest generation: else it would be looked through once for each younger one.
        gc.freeze()
        gc.unfreeze()
        gc.enable()


class StoppableObserver(Listener):
    """Shows a training on a display, and stops it between two phases if that was requested.

    Args:
        display: shows it.
        signals: know whether a stop was requested.
        config, run: what is trained first.
        describes: show data and plan of the first run, which have not been shown yet.

    Attributes:
        config, run: what is trained, or was trained last.
        training: generations are being trained.
    """

    def __init__(
        self, display: Display, signals: StopSignals, config: "Config", run: str, *, describes: bool = False
    ) -> None:
        self.display = display
        self.signals = signals
        self.config = config
        self.run = run
        self.training = False
        self._describes = describes

    def update(self, name: str, done: int, total: int) -> None:
        """Show how far the loop `name` is."""
        self.display.update(name, done, total)

    def prepared(self, training: "Training") -> None:
        """Show what was found in the data, and what the run will take."""
        if self._describes:
            describe(self.display.console, training.data.lines, training.plan)
        self._describes = False

    def begun(self, training: "Training", starts: "Sequence[Start]") -> None:  # noqa: ARG002
        """Show the training's start."""
        self.training = True
        self.config, self.run = training.config, training.name
        self.display.started(training.state.generation, training.config.generations)

    def phase_started(self, generation: int, phase: str) -> None:
        """Show that a phase begins."""
        self.signals.check()
        self.display.phase_started(generation, phase)

    def generation_finished(self, record: "GenerationRecord", telemetry: "Telemetry") -> None:
        """Show the figures of a generation."""
        self.display.generation_finished(record, telemetry)


def describe(console: Console, found: Sequence[str], run_plan: "RunPlan") -> None:
    """Show what was found in the data of a run, in sentences, and what it will take."""
    for line in (*found, run_plan.sentence()):
        print_line(console, line, style="dim")


def _warnings_console(display: Display) -> Console:
    """Bars and warnings must share a console; lines on a pipe must not be mixed with them."""
    return display.console if display.console.is_terminal else Console(stderr=True)


@contextmanager
def _warnings_shown_by(observer: StoppableObserver) -> Iterator[None]:
    """Show the warnings of the block on the display."""
    display, root = observer.display, logging.getLogger()
    handler = ConsoleHandler(_warnings_console(display), observer.signals)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


def _silence_prefects_console() -> None:
    """Take Prefect's own console handler away, and let our own information reach Prefect's API."""
    # Its import adds Prefect's handlers: what is removed below must be there already, and nothing logged before.
    import prefect.main  # noqa: F401
    from prefect.logging.handlers import PrefectConsoleHandler

    root = logging.getLogger()
    for other in list(root.handlers):
        if isinstance(other, PrefectConsoleHandler):
            root.removeHandler(other)
    logging.getLogger("eigen_core").setLevel(logging.INFO)


def train_here(runs: "Sequence[tuple[str, Config]]", observer: StoppableObserver) -> None:
    """Train runs, one after another, in this process, of which no Prefect server knows.

    Args:
        runs: names and configurations.
        observer: shows them.

    Raises:
        InputError: a run cannot be trained so, or another process trains it.
        RunTooLargeError: a run does not fit.
        Stopped: one ended early; `StoppedByMemory` if its guard has stopped it.
    """
    with collecting_nothing():
        from eigen_core.checkpoint import RunLocation
        from eigen_core.reporting.tracking import Tracking
        from eigen_core.run import train_run
        from eigen_core.training.journals import forget_attempts, forget_stop
    announce(observer.display, "reading the data")
    with _warnings_shown_by(observer), explained(observer), observer.signals.raising(), observed_by(observer):
        for name, config in runs:
            location = RunLocation.of(config.checkpoint, name)
            if location.exists():
                forget_attempts(location)
                forget_stop(location)
            with Tracking(config, location, logging.getLogger("eigen_core").warning) as tracking:
                train_run(config, name, listeners=[tracking])


def train_as_flow(load: "Callable[[], Callable[[], State[Any]]]", observer: StoppableObserver) -> None:
    """Run a flow that trains, at the Prefect server that is configured, to its end.

    Args:
        load: imports the flow, and returns what runs it.
        observer: shows it.

    Raises:
        InputError: another process trains the run.
        Stopped: it ended early; `StoppedByMemory` if its guard has stopped it.
    """
    announce(observer.display, "starting Prefect")
    with collecting_nothing():
        _silence_prefects_console()
        run = load()
    with _warnings_shown_by(observer), explained(observer), observer.signals.raising():
        with observed_by(observer):
            ended = run()
        if ended.is_cancelled():
            raise Stopped(f"{ended.message} {_where_it_stands(observer.config, observer.run)}")
        ended.result()
        if ended.name == RUNNING_NAME:
            raise InputError(str(ended.message))


@contextmanager
def explained(observer: StoppableObserver) -> Iterator[None]:
    """Turn Ctrl-C, the memory guard and failures of disks, stores, workers and numbers into `Stopped`; say how to go
    on.
    """
    from eigen_core.checkpoint import LeaseLostError
    from eigen_core.machine import MemoryGuardError
    from eigen_core.planning.run_plan import RunTooLargeError
    from eigen_core.training.journals import BlockedError

    began = datetime.now(UTC)
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(f"Stopped. {_where_it_stands(observer.config, observer.run)}") from None
    except MemoryGuardError as error:
        raise StoppedByMemory(f"{error} {_memory_report_since(began, observer.config, observer.run)}") from error
    except BlockedError as error:
        raise StoppedByMemory(str(error)) from error
    except RunTooLargeError:
        raise
    except (InputError, StoreUnavailableError, LeaseLostError, SchedulerLostError, WorkerLostError) as error:
        if isinstance(error, InputError) and not observer.training:
            raise
        # Once it trains, what was given was good: a disk has filled up since, for example.
        raise Stopped(f"{error} {_where_it_stands(observer.config, observer.run)}") from error
    except FloatingPointError as error:
        # The same computation from the same checkpoint ends in the same way.
        raise Stopped(
            f"{error} A resume would end in the same way: correct what gave it, or train another run with other "
            f"settings. {_what_is_saved(observer.config, observer.run)}."
        ) from error
    except OSError as error:
        raise Stopped(f"{type(error).__name__}: {error}. {_where_it_stands(observer.config, observer.run)}") from error
    except Exception as error:
        error.add_note(_where_it_stands(observer.config, observer.run))
        raise


def _memory_report_since(began: datetime, config: "Config", name: str) -> str:
    """Say where the memory report of the training that began then is, what is safe and how to go on."""
    from eigen_core.checkpoint import RunLocation
    from eigen_core.training.journals import memory_reports

    folder = RunLocation.of(config.checkpoint, name).root / name
    # A report's name begins with its time.
    reports = [path for path in memory_reports(folder) if path.name >= f"{began:%Y%m%dT%H%M%S}"]
    report = f"The report is {reports[0]} ({command_for('memory', config, name)} shows it). " if reports else ""
    return f"{report}Free memory or raise the limit first. {_where_it_stands(config, name)}"


def _where_it_stands(config: "Config", name: str) -> str:
    """Say what is safe on this machine and how to go on. A store elsewhere is not asked: it may be what failed."""
    return f"{_what_is_saved(config, name)}. Go on with: {command_for('resume', config, name)}"


def _what_is_saved(config: "Config", name: str) -> str:
    from eigen_core.checkpoint import RunLocation

    location = RunLocation.of(config.checkpoint, name)
    newest = location.local.newest_manifest()
    saved = "There is no checkpoint" if newest is None else f"The last checkpoint is generation {newest.generation}"
    return f"{saved} in {location.root / name}"
