"""The commands `eigen train` and `eigen resume`. They train as a Prefect flow run if a Prefect server is configured."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from eigen_core.checkpoint.store import StoreUnavailableError, check_run_name, default_run_name
from eigen_core.checkpoint.store_location import require_store
from eigen_core.common.errors import InputError, SchedulerLostError, Stopped, StoppedByMemory, WorkerLostError
from eigen_core.common.process import set_umask
from eigen_core.runs.listener import observed_by
from flows.cli.common import RunName, RunOptions, examples, flag, option, require_addresses, run_options, store_of
from flows.cli.console import ConsoleHandler, Display, display_on, output_console, say, stop_signals
from flows.cli.plan import refused_with_its_plan
from flows.cli.runs import print_ending
from flows.cli.server import print_run_page
from flows.server.prefect_settings import prepare_environment

if TYPE_CHECKING:
    from eigen_core.config import Config
    from eigen_core.runs.handle import Run


@examples(
    """
  eigen train
  eigen train --preset quickstart --run first --generations 3 --seed 7
  eigen train --run mine --data prices.csv --set learner.batch_size=128 --set trading.cost_bps=10

Run the same command again to continue a run that was stopped. A run that does not fit into memory is not begun: its
plan is printed, exit code 3.
"""
)
@run_options()
def train(
    *, options: RunOptions, fresh: Annotated[bool, flag("--fresh", "Refuse to continue an existing run.")] = False
) -> None:
    """Train a run; if a run of this name exists and has the same settings, continue it."""
    config = options.config()
    name = default_run_name(config.preset) if options.run is None else options.run
    with prepared_to_train(name, config.checkpoint.store) as display:
        from eigen_core.runs.handle import Run

        run = Run.of(config, name)
        if fresh and run.exists:
            raise InputError(
                f"Run '{name}' exists in {run.location.store.url}: choose another name, or leave out --fresh."
            )
        config = run.config_to_train(config)
        _train(config, run, display)


@run_options("assignments", "store", "device")
def resume(
    name: RunName,
    *,
    generations: Annotated[str | None, option("N", "Train up to this generation.")] = None,
    data: Annotated[str | None, option("PATH", "Path of the run's prices on this machine.", "as last time")] = None,
    options: RunOptions,
) -> None:
    """Continue a run from its newest undamaged checkpoint; the result is that of a run without interruption.

    --set accepts only settings that do not change this result, such as workers.
    """
    from eigen_core.config.loading import changed, parse_assignments
    from eigen_core.config.machine_settings import machine_values

    options = replace(options, generations=generations, data=data)
    given = parse_assignments(options.settings())
    own = machine_values(given)
    store = store_of(own.get("checkpoint", {}).get("store"))
    with prepared_to_train(name, store) as display:
        from eigen_core.runs.handle import Run

        run = Run.open(store, name, own)
        config = run.config_to_resume(given.get("market", {}).get("data"))
        config = changed(config, given)
        run.require_same_settings(config)
        _train(config, run, display)


@contextmanager
def prepared_to_train(name: str, store: str) -> Iterator[Display]:
    """Handle Ctrl-C and SIGTERM, show a display, and check the run's name, its remote store and RLIMIT_AS; then yield.

    These checks precede the imports of torch and Prefect, which take seconds. Without a configured Prefect server, the
    environment variables are set to those of the server that `eigen up` has started here, if it answers.
    """
    from flows.server.servers import server_for_training
    from flows.server.state_directory import StateDirectory

    console = output_console()
    with stop_signals(console) as signals, display_on(console, signals=signals) as display:
        display.waiting_for("loading")
        prepare_environment()
        set_umask(os.environ)
        os.environ.update(server_for_training(StateDirectory.of(os.environ), os.environ))
        require_addresses()
        check_run_name(name)
        require_store(store)
        display.announce("loading")
        yield display


def _train(config: "Config", run: "Run", display: Display) -> None:
    from eigen_core.reporting.trackers import TrackerListener

    console = display.console
    if run.is_finished(config):
        status = run.status()
        with TrackerListener(config, run.location, say) as tracking:
            tracking.write(status.history, status.telemetry)
        print_ending(console, status, "is finished")
        return
    with_server = answering_server()
    with refused_with_its_plan(config, console):
        if with_server:
            train_as_flow(run, config, display)
        else:
            train_here(run, config, display)
    print_ending(console, run.refresh().status(), "is finished")
    if with_server:
        print_run_page(console, run.name)


def answering_server() -> bool:
    """Return whether a Prefect server is configured; raise `InputError` if it is and does not answer."""
    from flows.server.servers import configured_api, require_answer

    url = configured_api(os.environ)
    if url is not None:
        require_answer(url)
    return url is not None


@contextmanager
def _shown_on(display: Display, run: "Run") -> Iterator[None]:
    """Show the training in the block, let the first Ctrl-C or SIGTERM stop it, and wrap it in `errors_as_stops`."""
    # Bars and warnings must share a console; lines on a pipe must not be mixed with them.
    console, root = display.console, logging.getLogger()
    handler = ConsoleHandler(console if console.is_terminal else Console(stderr=True), display.signals)
    root.addHandler(handler)
    try:
        with errors_as_stops(display, run), display.signals.raising(), observed_by(display):
            yield
    finally:
        root.removeHandler(handler)


def train_here(run: "Run", config: "Config", display: Display) -> None:
    """Train a run in this process, without a Prefect server; raise `Stopped` if it ends early."""
    from eigen_core.reporting.trackers import TrackerListener
    from eigen_core.run import train_run

    with _shown_on(display, run):
        run.forget_stops_and_attempts()
        with TrackerListener(config, run.location, logging.getLogger("eigen_core").warning) as tracking:
            train_run(config, run, listeners=[tracking])


def train_as_flow(run: "Run", config: "Config", display: Display) -> None:
    """Train a run as a flow run of the configured server; raise `Stopped` if it ends early."""
    display.announce("starting Prefect")
    # This import adds Prefect's handlers; the console handler is removed below, before anything is logged.
    import prefect.main  # noqa: F401
    from prefect.logging.handlers import PrefectConsoleHandler

    root = logging.getLogger()
    root.handlers[:] = [handler for handler in root.handlers if not isinstance(handler, PrefectConsoleHandler)]
    from flows.server.flow_runs import RUNNING_NAME
    from flows.server.training_flow import ChosenRun, train_as_flow_run

    with _shown_on(display, run):
        ended = train_as_flow_run(ChosenRun(run, config))
        if ended.is_cancelled():
            raise Stopped(f"{ended.message} {_where_it_stands(run)}")
        ended.result()
        if ended.name == RUNNING_NAME:
            raise InputError(str(ended.message))


@contextmanager
def errors_as_stops(display: Display, run: "Run") -> Iterator[None]:
    """Raise `Stopped` for Ctrl-C, the memory guard, non-finite numbers and failures of disks, stores and workers.

    Its message names the newest checkpoint on this machine, and the command that continues the run. `RunTooLargeError`,
    and `InputError` before the training begins, are raised unchanged.
    """
    from eigen_core.checkpoint.locks import LeaseLostError
    from eigen_core.machine.memory_guard import MemoryGuardError
    from eigen_core.planning.run_plan import RunTooLargeError

    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(f"Stopped. {_where_it_stands(run)}") from None
    except MemoryGuardError as error:
        raise StoppedByMemory(f"{error} {_memory_report(run)} {_where_it_stands(run)}") from error
    except RunTooLargeError:
        raise
    except (InputError, StoreUnavailableError, LeaseLostError, SchedulerLostError, WorkerLostError) as error:
        if isinstance(error, InputError) and not display.has_begun:
            raise
        # Once a run trains, its input was valid: the cause is another one, such as a full disk.
        raise Stopped(f"{error} {_where_it_stands(run)}") from error
    except FloatingPointError as error:
        # The same computation from the same checkpoint ends in the same way.
        raise Stopped(
            f"{error} A resume would end in the same way: correct the cause, or train another run with other "
            f"settings. {_what_is_saved(run)}."
        ) from error
    except OSError as error:
        raise Stopped(f"{type(error).__name__}: {error}. {_where_it_stands(run)}") from error
    except Exception as error:
        error.add_note(_where_it_stands(run))
        raise


def _memory_report(run: "Run") -> str:
    from eigen_core.runs.journals import memory_reports

    reports = memory_reports(run.location.root / run.name)
    report = f"The memory report is {reports[0]} ({run.command('memory')} shows it). " if reports else ""
    return f"{report}Free memory or raise the limit first."


def _where_it_stands(run: "Run") -> str:
    return f"{_what_is_saved(run)}. Go on with: {run.command('resume')}"


def _what_is_saved(run: "Run") -> str:
    """Return a sentence about a run's newest local checkpoint; a remote store is not read, since it may have failed."""
    newest = run.location.local.newest_manifest()
    saved = "There is no checkpoint" if newest is None else f"The last checkpoint is generation {newest.generation}"
    return f"{saved} in {run.location.root / run.name}"
