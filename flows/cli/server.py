"""The commands on Prefect's server, worker and flow runs, such as `eigen up`."""

import logging
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer
from rich.console import Console

from eigen_core.checkpoint.store import check_run_name, default_run_name
from eigen_core.checkpoint.store_location import is_remote, require_store, store_folder
from eigen_core.common.errors import InputError, Stopped
from eigen_core.common.text import rough_duration
from flows.cli.common import EXIT_OTHER, Json, RunName, RunOptions, examples, flag, option, run_options
from flows.cli.console import Styled, output_console, print_fact, print_line, print_result, say, stopped_gently
from flows.server.prefect_settings import HOST, client_environment, ui_of

if TYPE_CHECKING:
    from eigen_core.runs.handle import RunStatus
    from flows.server.deployments import Say
    from flows.server.state_directory import ProcessRecord, StateDirectory
    from flows.server.status import FlowRunStatus, ScheduleStatus, Status
    from flows.server.up import DownResult, UpResult

_print_fact = partial(print_fact, width=15)

Fact = str | Sequence[Styled] | None
"""Text after a label, with Rich styles or without; None: label and text are not printed."""


def print_up(console: Console, home: "StateDirectory", brought: "UpResult", resumed: str | None = None) -> None:
    _print_fact(console, "pages", (ui_of(brought.api), "bold"))
    _print_fact(console, "API", f"{brought.api}  ({_how(brought.server, 'server' in brought.began)})")
    if brought.worker is not None:
        _print_fact(console, "worker", f"{_how(brought.worker, 'worker' in brought.began)}, in {brought.worker.folder}")
        if brought.is_outdated:
            _print_fact(console, "", "other code of Eigen has started it: call `eigen down`, then `eigen up`")
        _print_fact(console, "launch", "eigen launch --preset quickstart --run first")
    for component in brought.components:
        _print_fact(console, f"{component} log", str(home.log(component)))
    if resumed is not None:
        _print_fact(console, "resuming", resumed)
    if brought.server is not None:
        _print_fact(console, "for prefect", f"export PREFECT_API_URL={shlex.quote(brought.api)}")


def print_down(console: Console, home: "StateDirectory", stopped: "DownResult") -> None:
    if stopped.worker is None and stopped.server is None:
        print_line(console, f"No server or worker of `eigen up` runs, by the records in {home.path}.")
        return
    for component, record in (("worker", stopped.worker), ("server", stopped.server)):
        if record is not None:
            how = "killed: it did not stop in time" if component in stopped.killed else "stopped"
            _print_fact(console, component, f"{how} (process {record.process.pid})")
    if stopped.trainings:
        _print_fact(console, "training", "was asked to stop; eigen status shows its last checkpoint")
        _print_fact(console, "go on", "eigen up resumes the run")


def print_status(console: Console, status: "Status") -> None:
    for label, fact in (
        ("server", _server(status)),
        ("worker", _worker(status)),
        *(() if status.flow_run is None else _flow_run(status.flow_run)),
        *_run(status),
        ("resume", None if status.schedule is None else _resume(status.schedule)),
    ):
        if fact is not None:
            _print_fact(console, label, *([fact] if isinstance(fact, str) else fact))


def _server(status: "Status") -> Fact:
    server = status.server
    if server is None:
        return "none: start one with `eigen up`, or set PREFECT_API_URL"
    process = "" if server.pid is None else f", process {server.pid}"
    answer = (f"Prefect {server.version or ''}".strip(), "") if server.answers else ("does not answer", "bold")
    return f"{server.ui}  (", answer, f"{process})"


def _worker(status: "Status") -> Fact:
    worker = status.worker
    if not worker.running:
        return "none: start it with `eigen up`"
    heard = "" if worker.heard_of is None else f", last heartbeat {_time_from_now(worker.heard_of)} ago"
    return f"process {worker.pid}, in {worker.folder}{heard}"


def _flow_run(flow_run: "FlowRunStatus") -> list[tuple[str, Fact]]:
    said = "resume or cancel it in its page" if flow_run.suspended else flow_run.message
    said = "it waits for the worker" if flow_run.waiting else said
    since = _time_from_now(flow_run.since)
    label, when = ("last flow run", f"{since} ago") if flow_run.has_ended else ("flow run", f"for {since}")
    state = f"{flow_run.name}, {flow_run.state} {when}"
    return [(label, f"{state}: {said}" if said else state), ("page", flow_run.page)]


def _run(status: "Status") -> list[tuple[str, Fact]]:
    run, flow_run = status.run, status.flow_run
    if run is not None:
        return [
            ("run", ((run.run, "bold"), f" is {run.state}: {_last_checkpoint(run)}")),
            *_champion(run),
            ("uploads", None if run.uploads is None else str(run.uploads)),
            ("run's page", status.run_page),
        ]
    if status.problem is not None:
        return [("run", status.problem)]
    if flow_run is not None and flow_run.run is not None:
        return [("run", ((flow_run.run, "bold"), " has not begun"))]
    return [("run", "none yet: eigen launch")]


def _champion(run: "RunStatus") -> list[tuple[str, Fact]]:
    if not run.history:
        return []
    # Imported here because numpy and tables take time, in vain for a run without a generation.
    from eigen_core.reporting.health import learning_sentences
    from eigen_core.reporting.tables import champion_in_words

    sentences = " ".join(learning_sentences(run.history))
    return [("champion", champion_in_words(run.history[-1])), ("trend", sentences or None)]


def _resume(schedule: "ScheduleStatus") -> str:
    how = "every 10 minutes" if schedule.active else "off until the next launch"
    if schedule.next is None:
        return how
    if schedule.next < datetime.now(UTC):
        return f"{how}, the next one waits for the worker"
    return f"{how}, next in {_time_from_now(schedule.next)}"


def print_run_page(console: Console, run: str) -> None:
    """Print the URL of a run's page in Prefect, if a server is configured, answers, and has the page."""
    from flows.server import servers

    api = servers.configured_api(os.environ)
    if api is None:
        return
    from flows.server import deployments

    with suppress(Stopped), deployments.client_of(api) as client:
        page = deployments.run_page_of(client, api, run)
        if page is not None:
            print_fact(console, "page", page)


def _last_checkpoint(run: "RunStatus") -> str:
    where = f"{run.store.rstrip('/')}/{run.run}"
    if run.generation == 0:
        return f"it has no checkpoint yet, of {run.config.generations} generations, in {where}"
    return f"its last checkpoint is generation {run.generation} of {run.config.generations}, in {where}"


def _how(record: "ProcessRecord | None", began: bool) -> str:
    if record is None:
        return "a server elsewhere"
    return f"{'started' if began else 'runs already'}, process {record.process.pid}"


def _time_from_now(moment: datetime) -> str:
    """Return the time from now to a moment, or since it, as text: "5 min", "3 days 4 h"."""
    return rough_duration(round(abs((moment - datetime.now(UTC)).total_seconds())))


@examples(
    """
  eigen up
  eigen up --port 4300
  PREFECT_API_URL=http://server:4200/api eigen up      only the worker, for a server elsewhere
"""
)
def up(
    port: Annotated[int | None, option("N", "Port of the server.", "as before, else 4200", min=1, max=65_535)] = None,
    host: Annotated[
        str,
        option(
            "ADDRESS",
            "Address at which the server listens; 0.0.0.0: all. PREFECT_SERVER_API_AUTH_STRING sets a password.",
        ),
    ] = HOST,
    without_password: Annotated[
        bool, flag("--without-password", "Let other machines reach a server without a password.")
    ] = False,
    resume: Annotated[
        bool, flag("--resume", "Continue the run that was launched last, else the newest unfinished one.")
    ] = False,
    foreground: Annotated[bool, flag("--foreground", "Run until SIGTERM or Ctrl-C, then stop everything.")] = False,
    only: Annotated[Literal["server", "worker"] | None, option("server|worker", "Start this component alone.")] = None,
) -> None:
    """Start Prefect's server, Eigen's deployments and a worker in the background, unless they run already."""
    from flows.server import servers

    environment = _environment()
    if not os.environ.get("PREFECT_API_URL"):
        servers.require_home(os.environ)
    from flows.server import deployments
    from flows.server.up import bring_down, bring_up, stop_event, watch

    home = _state_directory()
    stopping = stop_event() if foreground else None
    with nullcontext() if foreground else stopped_gently():
        listening = servers.ListenOptions(host, port, without_password)
        brought = bring_up(home, environment, listening, _announcing(), only=only)
    try:
        # Resume a training that was stopped with its worker: a crash that was reported just before the server's end,
        # or before its automations listen, may trigger none.
        goes_on = resume or (brought.worker is not None and brought.began)
        page = deployments.resume(brought.api, always=resume, worker=home.worker_name) if goes_on else None
        print_up(output_console(), home, brought, page)
        if stopping is not None:
            watch(home, brought.components, stopping.is_set)
    finally:
        if stopping is not None:
            bring_down(home, _announcing(), components=brought.components)


def down(
    grace: Annotated[float, option("SECONDS", "Seconds that a training may take to stop by itself.", min=0)] = 120.0,
) -> None:
    """Stop the training, the worker and the server that `eigen up` has started here."""
    _environment()
    from flows.server.up import bring_down

    home = _state_directory()
    print_down(output_console(), home, bring_down(home, _announcing(), grace))


def status(
    as_json: Json = False,
    healthy: Annotated[bool, flag("--healthy", "Print nothing; exit code 0 if all of it is running, else 1.")] = False,
) -> None:
    """Show the state of server, worker and training; exit code 1: server or worker is not running."""
    home = _state_directory()
    if healthy:
        from flows.server.servers import is_up

        running = is_up(home)
    else:
        _environment()
        from flows.server.status import Status, status_here

        found = status_here(home)
        print_result(as_json, Status.document, print_status, found)
        running = found.up
    if not running:
        raise typer.Exit(EXIT_OTHER)


@examples(
    """
  eigen launch
  eigen launch --preset eigen2 --run long --data prices --store gs://bucket/runs
  eigen launch --run long                  go on with it, as it was configured
"""
)
@run_options()
def launch(*, options: RunOptions) -> None:
    """Train a run on the worker, resumed automatically until it is finished; first check it as `eigen train` does."""
    from eigen_core.config.loading import load_config, parse_assignments
    from eigen_core.config.machine_settings import machine_values, run_values

    _environment()
    from eigen_core.runs.handle import Run
    from flows.cli.plan import refused_with_its_plan, require_trainable
    from flows.server import deployments, state_directory

    home = _state_directory()
    if options.store is not None and not is_remote(options.store):
        # The same folder for the worker, wherever it works.
        options = replace(options, store=str(store_folder(options.store)))
    settings = options.settings()
    config = load_config(options.preset, settings)
    name = default_run_name(config.preset) if options.run is None else options.run
    check_run_name(name)
    api = _known_server()
    # Before the run is checked: a training in progress takes memory, and may lock the run.
    deployments.require_free(api, _announcing())
    worker = home.running("worker")
    goes_on = False
    values = parse_assignments(settings)
    own = machine_values(values)
    if worker is None:
        _require_no_settings_of_worker(own)
        lines = ["The worker is elsewhere: data, memory and store are checked there, as the run begins."]
    else:
        # A worker elsewhere has other data, another memory and another store: the flow itself checks them there.
        config = state_directory.as_worker_sees(config, worker)
        require_store(config.checkpoint.store)
        given = (options.preset, options.generations, options.seed, options.assignments, options.device)
        run, here = Run.of(config, name), state_directory.store_here(None)
        if (
            options.store is None
            and not run.exists
            and Run(config.checkpoint.model_copy(update={"store": here}), name).exists
        ):
            raise InputError(
                f"Run '{name}' is in {here}, and the worker would begin another one in {config.checkpoint.store}: add "
                f"--store {shlex.quote(here)} to continue it, or choose another name with --run."
            )
        goes_on = not any(given) and run.exists
        if goes_on:
            own_before = {**home.launch_settings(name), "checkpoint": {"local": config.checkpoint.local}}
            run = Run.open(config.checkpoint.store, name, own_before)
            config = run.config_to_resume(config.market.data)
        else:
            config = run.config_to_train(config)
        if run.exists and run.is_running():
            raise InputError(f"Run '{name}' is being trained by another process: wait until it ends, or stop it.")
        with refused_with_its_plan(config, output_console()):
            found, run_plan = require_trainable(config, run)
        lines = [*found, run_plan.sentence()]
    values = run_values(values if options.preset is None else {"preset": options.preset, **values})

    own_are_known = worker is None or (goes_on and not own)
    with nullcontext() if own_are_known else home.new_launch_settings(name, own):
        page = deployments.launch(api, values, name, _announcing(), as_configured=goes_on)
    console = output_console()
    for line in lines:
        print_line(console, line, style="dim")
    _print_fact(console, "run", (name, "bold"), "" if worker is None else f", in {config.checkpoint.store}")
    _print_fact(console, "page", page)
    # The run's own page has no address before the run has begun.
    _print_fact(console, "plots", "on the run's own page: once the run has begun, eigen status prints its address")
    _print_fact(console, "how far", "eigen status")


def logs(
    name: RunName, follow: Annotated[bool, flag("--follow", "Print new lines too, until Ctrl-C.", "-f")] = False
) -> None:
    """Show the logs of a run's flow runs, in the order of time."""
    _environment()
    from flows.server import deployments, flow_runs

    check_run_name(name)
    console = output_console()
    api = _known_server()
    last = None
    with deployments.client_of(api) as client:
        run_logs = flow_runs.RunLogs(client, name)
        while True:
            for found, line in run_logs.new_lines():
                if found.id != last:
                    state = "" if found.state_name is None else f", {found.state_name}"
                    print_line(console, (found.name, "bold"), f"{state}  {deployments.page_of(api, str(found.id))}")
                last = found.id
                level = logging.getLevelName(line.level)
                print_line(console, f"{line.timestamp.astimezone():%Y-%m-%d %H:%M:%S}  {level:<8}{line.message}")
            if not follow:
                break
            time.sleep(2.0)
    if last is None:
        say(f"The server at {api} has no log of run '{name}': `eigen runs` lists the runs of the store.")


def alerts(
    url: Annotated[
        str | None, typer.Argument(help="URL that gets the requests.", show_default=False, metavar="[URL]")
    ] = None,
    off: Annotated[bool, flag("--off", "Send no more requests.")] = False,
) -> None:
    """Have the server send a POST request when a flow run ends, unless a user stopped it: once for each final state.

    The request is JSON with the keys text (which Slack shows), flow_run, state, message (the result, or why it failed),
    seconds (of training), generation (the newest on disk) and page.
    """
    if (url is None) != off:
        raise InputError("Give the URL that gets the requests, or --off.")
    _environment()
    from flows.server import deployments

    with deployments.client_of(_known_server()) as client:
        deployment = deployments.find_deployment(client).id
        if url is None:
            deployments.remove_alert(client, deployment)
        else:
            deployments.set_alert(client, deployment, url)
    # The path of a webhook's address is often a secret.
    called = "No address" if url is None else urlsplit(url).hostname
    print_line(output_console(), f"{called} is called when a training ends.")


def deploy() -> None:
    """Create or update Prefect's work pool, deployments and automations; schedules stay on or off as they are."""
    _environment()
    from flows.server import deployments

    api = _known_server()
    _announcing()("creating the deployments")
    deployments.deploy(api)
    print_line(output_console(), f"{' and '.join(deployments.DEPLOYMENTS)} are deployed at {api}.")


def _state_directory() -> "StateDirectory":
    from flows.server.state_directory import StateDirectory

    return StateDirectory.of(os.environ)


def _known_server() -> str:
    from flows.server.servers import known_server

    return known_server(_state_directory(), os.environ)


def _environment() -> dict[str, str]:
    """Set the environment variables that Prefect needs before its import; return all variables as they were before."""
    given = dict(os.environ)
    os.environ.update(client_environment(given))
    return given


def _require_no_settings_of_worker(own: Mapping[str, Any]) -> None:
    from eigen_core.config.explain import flatten
    from eigen_core.config.machine_settings import MACHINE_SETTINGS, TASK_VARIABLE

    given = {key: MACHINE_SETTINGS[key].variable if key != "task" else TASK_VARIABLE for key in flatten(own)}
    if given:
        raise InputError(
            f"The worker is on another machine, and {' and '.join(given)} would be settings of that machine, which a "
            f"launch from here cannot give: set {' and '.join(given.values())} among the worker's environment "
            f"variables there, and leave out {' and '.join(given)} here."
        )


def _announcing() -> "Say":
    """Return a function that prints a step of a command on standard error, once however often it is called."""
    console = Console(stderr=True)
    return cache(lambda what: print_line(console, f"{what} ...", style="dim"))
