"""The commands that train: everything is checked first, then Prefect starts, then the flow runs under a display."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console

from eigen_core.config import Config, merge
from eigen_core.config.loading import config_from_values, parse_assignments
from eigen_core.config.sections import CheckpointConfig
from eigen_core.errors import InputError
from eigen_core.progress import progress_to
from eigen_core.records import GenerationRecord, Telemetry
from eigen_core.store import StoreUnavailableError, check_run_name, is_remote, open_store
from flows.cli.common import MEMORY_ADVICE
from flows.cli.display import ConsoleHandler, Display, display_on
from flows.cli.operations_display import print_run_page
from flows.cli.output import output_console, print_line, say
from flows.cli.plan import print_plan
from flows.cli.runs import command_for, print_ending
from flows.cli.signals import StopSignals, stop_signals
from flows.endings import Stopped, StoppedByMemory, require_addresses
from flows.listener import Listener, observed_by
from flows.names import RUNNING_NAME
from flows.operations.home import Home
from flows.operations.server import server_for_training
from flows.prefect_environment import PrefectServer, prepare_environment

if TYPE_CHECKING:
    from flows.goodput import Start
    from flows.run_plan import RunPlan
    from flows.training import Training


def start_or_continue(config: Config, name: str, *, fresh: bool) -> None:
    """Train the run `name` with `config`, from its newest checkpoint if there is one.

    Raises:
        InputError: something that was given cannot be used, or the run exists and must be `fresh`.
        StoreUnavailableError: the store does not answer.
        Stopped: it ended early; `StoppedByMemory` if it does not fit, or its guard has stopped it.
    """
    with _prepared(name, config.checkpoint) as (display, signals):
        from eigen_core.checkpoint import RunLocation
        from flows.runs import require_same_run, run_exists

        if run_exists(config.checkpoint, name):
            location = RunLocation.of(config.checkpoint, name)
            if fresh:
                raise InputError(
                    f"Run '{name}' exists in {location.store.url}: choose another name, or leave out --fresh."
                )
            require_same_run(location, config)
        _train(config, name, display, signals)


def continue_run(name: str, store: str, assignments: Sequence[str]) -> None:
    """Train the run `name` from its newest checkpoint on, with `assignments` laid over the configuration it had last.

    Raises:
        InputError: there is no such run, or it cannot be continued so.
        StoreUnavailableError: the store does not answer.
        Stopped: it ended early; `StoppedByMemory` if it does not fit, or its guard has stopped it.
    """
    with _prepared(name, CheckpointConfig(store=store)) as (display, signals):
        from flows.runs import config_to_resume

        given = parse_assignments(assignments)
        config = config_to_resume(store, name, given.get("market", {}).get("data"))
        _train(config_from_values(merge(config.model_dump(), given)), name, display, signals)


@contextmanager
def _prepared(name: str, settings: CheckpointConfig) -> Iterator[tuple[Display, StopSignals]]:
    """Handle signals and show the display; check what needs neither torch nor Prefect, which take seconds to import.

    Prefect is imported inside the block: its environment is set here.
    """
    console = output_console()
    with stop_signals() as signals, display_on(console) as display:
        signals.before_leaving(lambda: console.show_cursor(True))
        display.waiting_for("loading")
        prepare_environment()
        os.environ.update(server_for_training(Home.of(os.environ), os.environ))
        require_addresses()
        check_run_name(name)
        if is_remote(settings.store):
            open_store(settings.store).check()
        _announce(display, "loading")
        yield display, signals


def _announce(display: Display, what: str) -> None:
    """Show what is done before the training begins, on a pipe too."""
    display.waiting_for(what)
    if not display.console.is_terminal:
        print_line(display.console, f"{what} ...", style="dim")


def _train(config: Config, name: str, display: Display, signals: StopSignals) -> None:
    from eigen_core.checkpoint import RunLocation
    from flows.runs import status_of
    from flows.tracking import Tracking

    console = display.console
    if is_finished(config, name):
        status = status_of(config.checkpoint.store, name)
        with Tracking(config, RunLocation.of(config.checkpoint, name), say) as tracking:
            tracking.write(status.history, status.telemetry)
        print_ending(console, status, "is finished")
        return
    server = PrefectServer()
    server.check()
    with refused_with_its_plan(config, console):
        # Not around the flow: what Prefect still reports at this process's end needs the server.
        with _started_meanwhile(server, signals), progress_to(display):
            _announce(display, "reading the data")
            found, run_plan = _check(config, name)
        for line in (*found, run_plan.sentence()):
            print_line(console, line, style="dim")
        _run_flow(config, name, display, signals, server)
    print_ending(console, status_of(config.checkpoint.store, name), "is finished")
    print_run_page(console, name)


def is_finished(config: Config, name: str) -> bool:
    """Whether the run has all generations of `config`, which may be more than it was last trained for."""
    from flows.runs import is_complete, is_in_store, run_exists, status_of

    if not run_exists(config.checkpoint, name):
        return False
    status = status_of(config.checkpoint.store, name)
    return is_complete(config, status.generation, status.holdout) and is_in_store(config.checkpoint, name)


@contextmanager
def refused_with_its_plan(config: Config, console: Console) -> Iterator[None]:
    """Print the plan of a run that is refused because it does not fit, and turn the refusal into `StoppedByMemory`.

    So is an allocation that fails before the guard is there to report it.
    """
    try:
        yield
    except Exception as error:
        # Imported here because they need torch.
        from eigen_core.memory.allocation import is_exhaustion
        from flows.run_plan import RunTooLargeError

        if isinstance(error, RunTooLargeError):
            print_plan(console, config, error.run_plan)
            raise StoppedByMemory(str(error)) from error
        if is_exhaustion(error):
            raise StoppedByMemory(f"There is not enough memory to prepare the run. {MEMORY_ADVICE}") from error
        raise


@contextmanager
def _started_meanwhile(server: PrefectServer, signals: StopSignals) -> Iterator[None]:
    """Let the embedded server start while the data are read, and end at once if the run is refused."""
    signals.before_leaving(server.stop)
    with ExitStack() as refused:
        refused.callback(server.stop)
        server.start()
        yield
        refused.pop_all()


def _check(config: Config, name: str) -> "tuple[Sequence[str], RunPlan]":
    """Refuse what cannot be trained, then make the run: the last thing that can fail for what the user gave.

    Returns what was found in the data, in sentences, and what the run will take.
    """
    from eigen_core.checkpoint import RunDirectory
    from flows.runs import open_or_create

    found = require_trainable(config)
    location = open_or_create(config, name)
    if location.local.exists():
        with RunDirectory.open(location.root, name).lock():
            # Held for an instant: it shows that no process trains this run before Prefect takes its time to start.
            pass
    return found


def require_trainable(config: Config) -> "tuple[Sequence[str], RunPlan]":
    """Refuse a configuration that cannot be trained on its data, here; nothing is written.

    Returns what was found in the data, in sentences, and what the run will take.

    Raises:
        InputError: the data, or the configuration with them, cannot be used.
        RunTooLargeError: the run does not fit into memory or disk.
    """
    from eigen_core.generation import start_training
    from eigen_core.reporting.trackers import require_packages
    from eigen_core.task import open_data
    from flows.run_plan import require_fit

    require_packages(config)
    data = open_data(config)
    run_plan = require_fit(config, data.facts)
    start_training(config, data.content)
    return data.lines, run_plan


def _run_flow(config: Config, name: str, display: Display, signals: StopSignals, server: PrefectServer) -> None:
    _announce(display, "starting Prefect")
    _show_warnings_with(ConsoleHandler(_warnings_console(display), signals))
    import flows.training  # noqa: F401 - while the server starts
    from flows.train import train_flow
    from tasks.phases import run_name

    server.wait_until_ready()
    observer = _StoppableObserver(display, signals)
    with _explained(config, name, observer), signals.raising():
        with observed_by(observer):
            ended = train_flow(config, name, return_state=True)
        display.waiting_for("writing the history")
        flow_run_id = ended.state_details.flow_run_id
        if flow_run_id is not None and ended.is_completed() and observer.last is not None:
            server.wait_until_recorded(flow_run_id, run_name(observer.last, config.generations))
        ended.result()
        if ended.name == RUNNING_NAME:
            raise InputError(str(ended.message))


class _StoppableObserver(Listener):
    """Shows a training on a display, and stops it between two phases if that was requested.

    Attributes:
        training: generations are being trained.
        last: the last task but the phases of a generation; None if there was none.
    """

    def __init__(self, display: Display, signals: StopSignals) -> None:
        self._display = display
        self._signals = signals
        self.training = False
        self.last: str | None = None

    def update(self, name: str, done: int, total: int) -> None:
        """Show how far the loop `name` is."""
        self._display.update(name, done, total)

    def begun(self, training: "Training", starts: "Sequence[Start]") -> None:  # noqa: ARG002
        """Show the training's start."""
        self.training = True
        self._display.started(training.state.generation, training.run.config.generations)

    def phase_started(self, generation: int, phase: str) -> None:
        """Show that a phase begins."""
        self._signals.check()
        if phase in ("plot", "holdout"):
            self.last = phase
        self._display.phase_started(generation, phase)

    def generation_finished(self, record: GenerationRecord, telemetry: Telemetry) -> None:
        """Show the figures of a generation."""
        self._display.generation_finished(record, telemetry)


def _warnings_console(display: Display) -> Console:
    """Bars and warnings must share a console; lines on a pipe must not be mixed with them."""
    return display.console if display.console.is_terminal else Console(stderr=True)


def _show_warnings_with(handler: ConsoleHandler) -> None:
    """Let `handler` stand in for Prefect's own console handler, and let our own information reach Prefect's API."""
    # Its import adds Prefect's handlers: what is removed below must be there already, and nothing logged before.
    import prefect.main  # noqa: F401
    from prefect.logging.handlers import PrefectConsoleHandler

    root = logging.getLogger()
    for other in list(root.handlers):
        if isinstance(other, PrefectConsoleHandler):
            root.removeHandler(other)
    root.addHandler(handler)
    logging.getLogger("eigen_core").setLevel(logging.INFO)


@contextmanager
def _explained(config: Config, name: str, observer: _StoppableObserver) -> Iterator[None]:
    """Turn Ctrl-C, the memory guard and failures of disks, stores and numbers into `Stopped`; say how to go on."""
    from eigen_core.checkpoint import LeaseLostError
    from eigen_core.memory import MemoryGuardError
    from flows.journals import BlockedError
    from flows.run_plan import RunTooLargeError

    began = datetime.now(UTC)
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(f"Stopped. {_where_it_stands(config, name)}") from None
    except MemoryGuardError as error:
        raise StoppedByMemory(f"{error} {_memory_report_since(began, config, name)}") from error
    except BlockedError as error:
        raise StoppedByMemory(str(error)) from error
    except RunTooLargeError:
        raise
    except (InputError, StoreUnavailableError, LeaseLostError) as error:
        if isinstance(error, InputError) and not observer.training:
            raise
        # Once it trains, what was given was good: a disk has filled up since, for example.
        raise Stopped(f"{error} {_where_it_stands(config, name)}") from error
    except (OSError, FloatingPointError) as error:
        raise Stopped(f"{type(error).__name__}: {error}. {_where_it_stands(config, name)}") from error
    except Exception as error:
        error.add_note(_where_it_stands(config, name))
        raise


def _memory_report_since(began: datetime, config: Config, name: str) -> str:
    """Say where the memory report of the training that began then is, what is safe and how to go on."""
    from eigen_core.checkpoint import RunLocation
    from flows.journals import memory_reports

    folder = RunLocation.of(config.checkpoint, name).root / name
    # A report's name begins with its time.
    reports = [path for path in memory_reports(folder) if path.name >= f"{began:%Y%m%dT%H%M%S}"]
    report = f"The report is {reports[0]} ({command_for('memory', config, name)} shows it). " if reports else ""
    return f"{report}Free memory or raise the limit first. {_where_it_stands(config, name)}"


def _where_it_stands(config: Config, name: str) -> str:
    """Say what is safe on this machine and how to go on. A store elsewhere is not asked: it may be what failed."""
    from eigen_core.checkpoint import RunLocation

    location = RunLocation.of(config.checkpoint, name)
    newest = location.local.newest_manifest()
    saved = "There is no checkpoint" if newest is None else f"The last checkpoint is generation {newest.generation}"
    return f"{saved} in {location.root / name}. Go on with: {command_for('resume', config, name)}"
