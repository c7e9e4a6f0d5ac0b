"""The commands train and resume: as a flow run where a Prefect server is known, else in this process."""

import gc
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eigen_core.checkpoint.location import is_remote, open_store
from eigen_core.checkpoint.store import StoreUnavailableError, check_run_name
from eigen_core.common.errors import InputError, SchedulerLostError, WorkerLostError
from eigen_core.common.progress import progress_to
from eigen_core.training.listener import Listener, observed_by
from flows.cli.common import (
    LARGEST,
    MEMORY_ADVICE,
    Assignments,
    Data,
    Device,
    Generations,
    Json,
    Preset,
    Run,
    RunName,
    RunsOn,
    Seed,
    Store,
    config_of,
    given_settings,
    given_store,
    output_console,
    print_json,
    print_line,
    say,
    sentences,
    store_of,
)
from flows.cli.display import ConsoleHandler, Display, StopSignals, display_on, stop_signals
from flows.cli.operations import print_run_page
from flows.cli.plan import (
    print_plan,
)
from flows.cli.runs import command_for, print_ending
from flows.server.environment import (
    RUNNING_NAME,
    Stopped,
    StoppedByMemory,
    default_run_name,
    prepare_environment,
    require_addresses,
    set_umask,
)

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from eigen_core.common.records import GenerationRecord, Telemetry
    from eigen_core.config import Config
    from eigen_core.config.model import CheckpointConfig
    from eigen_core.generation import TrainingState
    from eigen_core.machine.profiling import Profile
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
    from flows.server.servers import server_for_training
    from flows.server.state_directory import Home

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
        from eigen_core.checkpoint.location import RunLocation
        from eigen_core.reporting.trackers import Tracking
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
    from eigen_core.checkpoint.lease import LeaseLostError
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
    from eigen_core.checkpoint.location import RunLocation
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
    from eigen_core.checkpoint.location import RunLocation

    location = RunLocation.of(config.checkpoint, name)
    newest = location.local.newest_manifest()
    saved = "There is no checkpoint" if newest is None else f"The last checkpoint is generation {newest.generation}"
    return f"{saved} in {location.root / name}"


_OPERATORS_SHOWN = 5
"""Of each phase that was profiled."""


def start_or_continue(config: "Config", name: str, *, fresh: bool, profile: bool = False) -> None:
    """Train the run `name` with `config`, from its newest checkpoint if there is one.

    With `profile` a generation is profiled (`_profile_of`) and its table printed.

    Raises:
        InputError: something that was given cannot be used, or the run exists and must be `fresh`.
        StoreUnavailableError: the store does not answer.
        Stopped: it ended early; `StoppedByMemory` if it does not fit, or its guard has stopped it.
    """
    if profile:
        # Read when torch is imported; else its profiler writes lines of its own about each start and stop.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with prepared_to_train(name, config.checkpoint) as (display, signals):
        with collecting_nothing():
            import eigen_core.checkpoint.session
            import eigen_core.generation
            import eigen_core.task  # noqa: F401
        from eigen_core.training.runs import Run

        run = Run(config.checkpoint, name)
        if run.exists:
            if fresh:
                raise InputError(
                    f"Run '{name}' exists in {run.location.store.url}: choose another name, or leave out --fresh."
                )
            run.require_same(config)
        if not profile:
            _train(config, name, display, signals)
            return
        from eigen_core.machine.profiling import profiled_to

        profiled = _profile_of(config, name)
        with profiled_to(profiled):
            _train(config, name, display, signals)
        print_profile(display.console, profiled)


def _profile_of(config: "Config", name: str) -> "Profile":
    """Return an empty profile of the second generation that is trained now, or of the only one that is left.

    The first one warms up caches and allocators.
    """
    from eigen_core.machine.profiling import Profile
    from eigen_core.training.runs import Run

    done = Run(config.checkpoint, name).generation
    return Profile(Path.cwd() / f"{name}-profile", min(done + 2, config.generations))


def print_profile(console: Console, profile: "Profile") -> None:
    """Print what took longest in each phase, on the GPU if there is one, and where the whole table is."""
    if not profile.operators:
        print_line(console, "Nothing was profiled: no generation was left to train.")
        return
    on_gpu = any(operator.gpu_seconds for operator in profile.operators)
    kind = f"{'GPU' if on_gpu else 'CPU'} seconds of operators"
    print_line(console, f"Profile of generation {profile.generation}, {kind}: {profile.folder}")
    for phase in dict.fromkeys(operator.phase for operator in profile.operators):
        found = [operator for operator in profile.operators if operator.phase == phase]
        seconds = [operator.gpu_seconds if on_gpu else operator.cpu_seconds for operator in found]
        # A phase may have left the GPU alone.
        total = sum(seconds) or 1.0
        for operator, own in list(zip(found, seconds, strict=True))[:_OPERATORS_SHOWN]:
            took = f"{100 * own / total:3.0f} % {own:8.3f} s {operator.calls:8,} x"
            print_line(console, f"  {phase:10} {took} {operator.operator}")


def continue_run(name: str, store: str, assignments: Sequence[str]) -> None:
    """Train the run `name` from its newest checkpoint on, with `assignments` laid over the configuration it had last.

    Raises:
        InputError: there is no such run, or it cannot be continued so.
        StoreUnavailableError: the store does not answer.
        Stopped: it ended early; `StoppedByMemory` if it does not fit, or its guard has stopped it.
    """
    from eigen_core.config import merge
    from eigen_core.config.loading import config_from_values, parse_assignments
    from eigen_core.config.machine import machine_values
    from eigen_core.config.model import CheckpointConfig

    with prepared_to_train(name, CheckpointConfig(store=store)) as (display, signals):
        from eigen_core.training.runs import Run

        given = parse_assignments(assignments)
        own = machine_values(given)
        local = own.get("checkpoint", {}).get("local", CheckpointConfig().local)
        config = Run.open(store, name, local, own).config_to_resume(given.get("market", {}).get("data"))
        _train(config_from_values(merge(config.model_dump(), given)), name, display, signals)


def _train(config: "Config", name: str, display: Display, signals: StopSignals) -> None:
    from eigen_core.reporting.trackers import Tracking
    from eigen_core.training.runs import Run, status_of

    console, run = display.console, Run(config.checkpoint, name)
    if run.is_complete(config) and run.is_in_store():
        run.require_same(config)
        status = run.status()
        with Tracking(config, run.location, say) as tracking:
            tracking.write(status.history, status.telemetry)
        print_ending(console, status, "is finished")
        return
    with_server = answering_server()
    with refused_with_its_plan(config, console):
        if with_server:
            with progress_to(display):
                announce(display, "reading the data")
                describe(console, *_check(config, name))
            train_as_flow(lambda: _loaded_flow(config, name), StoppableObserver(display, signals, config, name))
        else:
            train_here([(name, config)], StoppableObserver(display, signals, config, name, describes=True))
    print_ending(console, status_of(config.checkpoint.store, name), "is finished")
    if with_server:
        print_run_page(console, name)


def answering_server() -> bool:
    """Whether a Prefect server is configured, whose flow runs trainings are to be.

    Raises:
        InputError: one is, and it does not answer.
    """
    from flows.server.servers import configured_api, names_an_api, require_answer

    if not names_an_api(os.environ):
        return False
    url = configured_api(os.environ)
    if url is not None:
        require_answer(url)
    return url is not None


def _loaded_flow(config: "Config", name: str) -> "Callable[[], State[Any]]":
    from flows.server.flows import train_flow

    return lambda: train_flow(config, name, return_state=True)


def is_finished(config: "Config", name: str) -> bool:
    """Whether the run has all generations of `config`, which may be more than it was last trained for."""
    from eigen_core.training.runs import Run

    run = Run(config.checkpoint, name)
    return run.is_complete(config) and run.is_in_store()


@contextmanager
def refused_with_its_plan(config: "Config", console: Console) -> Iterator[None]:
    """Print the plan of a run that is refused because it does not fit, and turn the refusal into `StoppedByMemory`.

    So is an allocation that fails before the guard is there to report it.
    """
    try:
        yield
    except Exception as error:
        # Imported here because they need torch.
        from eigen_core.machine.allocation import is_exhaustion
        from eigen_core.planning.run_plan import RunTooLargeError

        if isinstance(error, RunTooLargeError):
            print_plan(console, config, error.run_plan)
            raise StoppedByMemory(str(error)) from error
        if is_exhaustion(error):
            raise StoppedByMemory(f"There is not enough memory to prepare the run. {MEMORY_ADVICE}") from error
        raise


def _check(config: "Config", name: str) -> "tuple[Sequence[str], RunPlan]":
    """Refuse what cannot be trained, then make the run: the last thing that can fail for what the user gave.

    Returns what was found in the data, in sentences, and what the run will take.
    """
    from eigen_core.checkpoint.run import RunDirectory
    from eigen_core.training.runs import Run

    found = require_trainable(config, name)
    location = Run(config.checkpoint, name).begin(config)
    if location.local.exists():
        with RunDirectory.open(location.root, name).lock():
            # Held for an instant: it shows that no process trains this run before Prefect takes its time to start.
            pass
    return found


def require_trainable(config: "Config", name: str) -> "tuple[Sequence[str], RunPlan]":
    """Refuse a configuration that cannot be trained on its data, here, as the run `name`; nothing is written.

    Returns what was found in the data, in sentences, and what the run will take.

    Raises:
        InputError: the data, or the configuration with them, cannot be used, or the run was trained on other data.
        RunTooLargeError: the run does not fit into memory or disk.
    """
    from eigen_core.config.values import tracker_class
    from eigen_core.generation import start_training
    from eigen_core.planning.run_plan import require_fit
    from eigen_core.task import open_data
    from eigen_core.workers import workers_of

    for tracker in config.reporting.trackers:
        tracker_class(tracker)
    if config.scheduler is not None:
        # Refused here if it cannot be reached: the flow would find out when the run has been made.
        workers_of(config.scheduler)
    data = open_data(config)
    run_plan = require_fit(config, data, name)
    _require_its_data(start_training(config, data.content), name)
    return data.lines, run_plan


def _require_its_data(state: "TrainingState", name: str) -> None:
    from eigen_core.checkpoint.integrity import DamagedGenerationError
    from eigen_core.generation import require_same_data
    from eigen_core.training.runs import Run

    newest = Run(state.config.checkpoint, name).newest
    if newest is not None:
        contents, manifest = newest
        # A damaged one is told, and passed over, when the run is brought back.
        with suppress(DamagedGenerationError, KeyError):
            require_same_data(state, contents.document(manifest, "state"), manifest.generation)


TRAIN_EXAMPLES = """[bold]Examples[/]

  eigen train
  eigen train --preset quickstart --run first --generations 3 --seed 7
  eigen train --run mine --data prices.csv --set learner.batch_size=128 --set trading.cost_bps=10

Run the same command again to continue a run that was stopped. A run that does not fit into memory is not begun: its
plan is printed, exit code 3.
"""

SWEEP_EXAMPLES = """[bold]Examples[/]

  eigen sweep rates --vary learner.gamma=0.9:0.999 --vary learner.batch_size=32,64 --trials 30
  eigen sweep seeds --seeds 5 --preset quickstart
  eigen sweep steps --vary learner.actor_learning_rate=1e-5:1e-3:log --seeds 3 --jobs 2 --set threads=1

A trial is an ordinary run for each seed, named `NAME-007-s1`: `eigen show`, `resume` and `export` accept it. Its value
is the mean of its champions' validation fitness.
"""


@sentences
def train(
    preset: Preset = None,
    run: Run = None,
    generations: Generations = None,
    seed: Seed = None,
    assignments: Assignments = None,
    data: Data = None,
    store: Store = None,
    device: Device = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Refuse to continue an existing run.", metavar="")] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Profile the second generation from here; files in NAME-profile/.", metavar=""),
    ] = False,
) -> None:
    """Train a run, or continue it if there is one of that name with the same settings."""
    config = config_of(preset, generations, seed, assignments, data, store, device)
    start_or_continue(config, default_run_name(config.preset) if run is None else run, fresh=fresh, profile=profile)


@sentences
def resume(
    name: RunName,
    generations: Annotated[str | None, typer.Option(help="Train up to this generation.", metavar="N")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Where its prices are on this machine.", show_default="where they were", metavar="PATH"),
    ] = None,
    assignments: Assignments = None,
    store: Store = None,
    device: Device = None,
) -> None:
    """Continue a run from its newest good checkpoint; the result is that of a run without a break.

    Settings can be given that do not change it, such as workers.
    """
    continue_run(name, store_of(store), given_settings(generations, None, assignments, data, None, device))


@sentences
def sweep(
    name: Annotated[str, typer.Argument(help="Name of the sweep; its runs begin with it.", metavar="NAME")],
    vary: Annotated[
        list[str] | None,
        typer.Option(help="A setting to vary: LOW:HIGH, LOW:HIGH:log or ONE,OTHER.", metavar="KEY=VALUES"),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, max=LARGEST, help="Most trials.", metavar="N")] = 20,
    seeds: Annotated[int, typer.Option(min=1, max=1_000, help="Seeds of each trial.", metavar="N")] = 1,
    jobs: Annotated[int, typer.Option(min=1, max=1_000, help="Trials trained at a time.", metavar="N")] = 1,
    runs_on: RunsOn = None,
    prune: Annotated[bool, typer.Option(help="End trials early that fall behind.")] = True,
    preset: Preset = None,
    generations: Generations = None,
    seed: Seed = None,
    assignments: Assignments = None,
    data: Data = None,
    store: Store = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Train runs over settings and seeds; run the same command again to continue a sweep that was stopped."""
    from flows.cli.sweep import Sweep, print_results, results_document, run_sweep

    named = given_store(store, assignments or ())
    settings = given_settings(generations, seed, assignments, data, named, device)
    given = Sweep(name, preset, settings, vary or (), trials, seeds, jobs, runs_on, prune)
    console = output_console()
    results = run_sweep(given, (lambda _: None) if as_json else partial(print_line, console))
    if as_json:
        print_json(results_document(given, results))
    else:
        print_results(console, results)
