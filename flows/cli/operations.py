"""The commands that run Eigen for days: up, down, status, launch, logs, alerts, deploy.

Each sets the environment of Prefect before it imports what needs Prefect.
"""

import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.console import Console

from eigen_core.common.errors import InputError
from eigen_core.store import check_run_name, is_remote, store_folder
from flows.cli.common import (
    EXIT_OTHER,
    Assignments,
    Data,
    Device,
    Generations,
    Json,
    Preset,
    Run,
    RunName,
    Seed,
    Store,
    given_settings,
    sentences,
    store_of,
)
from flows.cli.operations_display import (
    print_down,
    print_flow_run_of,
    print_launched,
    print_log_line,
    print_status,
    print_up,
)
from flows.cli.output import output_console, print_line, print_result, say
from flows.cli.signals import stopped_gently
from flows.server.environment import HOST, own_environment
from flows.server.home import Component

operations = typer.Typer()

_FOLLOW_SECONDS = 2.0

_UP_EXAMPLES = """[bold]Examples[/]

  eigen up
  eigen up --port 4300
  PREFECT_API_URL=http://server:4200/api eigen up      only the worker, for a server elsewhere
"""

_LAUNCH_EXAMPLES = """[bold]Examples[/]

  eigen launch
  eigen launch --preset eigen2 --run long --data prices --store gs://bucket/runs
  eigen launch --run long                  go on with it, as it was configured
"""


@operations.command(epilog=_UP_EXAMPLES)
@sentences
def up(
    port: Annotated[
        int | None,
        typer.Option(help="Port of the server.", show_default="as before, else 4200", metavar="N", min=1, max=65_535),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address at which the server listens; 0.0.0.0: all. PREFECT_SERVER_API_AUTH_STRING sets a password.",
            metavar="ADDRESS",
        ),
    ] = HOST,
    without_password: Annotated[
        bool,
        typer.Option("--without-password", help="Let other machines reach a server without a password.", metavar=""),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with what was launched last, else the newest unfinished run.", metavar=""),
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run until SIGTERM or Ctrl-C, then stop everything.", metavar="")
    ] = False,
    only: Annotated[Component | None, typer.Option(help="Start this component alone.", metavar="server|worker")] = None,
) -> None:
    """Start what does not run yet of server, deployments and worker, in the background."""
    from flows.server.home import Home
    from flows.server.servers import require_home

    environment = _environment()
    if not os.environ.get("PREFECT_API_URL"):
        require_home(os.environ)
    from flows.server.launching import bring_down
    from flows.server.launching import resume as go_on
    from flows.server.servers import Listening
    from flows.server.supervisor import stop_event
    from flows.server.up import bring_up, watch

    home = Home.of(os.environ)
    stopping = stop_event() if foreground else None
    with nullcontext() if foreground else stopped_gently():
        brought = bring_up(
            home,
            environment,
            Listening(host, port, without_password),
            _Progress(),
            only=only,
            waits=foreground,
            supervised=not foreground,
        )
    try:
        # What was stopped with its worker goes on with it: a crash just before a server's end may trigger nothing.
        page = go_on(brought.api, always=resume) if resume or "worker" in brought.began else None
        print_up(output_console(), home, brought, page)
        if stopping is not None:
            watch(home, brought.components, stopping.is_set)
    finally:
        if stopping is not None:
            bring_down(home, _Progress(), components=brought.components)


@operations.command()
@sentences
def down(
    grace: Annotated[
        float, typer.Option(help="Seconds that a training may take to stop by itself.", metavar="SECONDS", min=0)
    ] = 120.0,
    remove: Annotated[
        bool,
        typer.Option(
            "--remove", help="Remove deployments, schedules and automations from the server, too.", metavar=""
        ),
    ] = False,
) -> None:
    """Stop what `eigen up` has started here: the training, the worker, the server."""
    from flows.server.home import Home

    _environment()
    from flows.server.deploying import client_of
    from flows.server.deploying import remove as remove_deployed
    from flows.server.launching import bring_down
    from flows.server.servers import known_server
    from flows.server.supervisor import stop_supervisor

    home = Home.of(os.environ)
    api = known_server(home, os.environ) if remove else None

    def before_server() -> None:
        if api is not None:
            with client_of(api) as client:
                remove_deployed(client)

    worker = home.running("worker")
    stop_supervisor(home)
    stopped = bring_down(home, _Progress(), grace, before_server=before_server)
    run = None
    if stopped.trainings:
        from flows.server.status import last_trained

        run = last_trained(home, worker)
    print_down(output_console(), home, stopped, run, api)


@operations.command()
@sentences
def status(
    as_json: Json = False,
    healthy: Annotated[
        bool, typer.Option("--healthy", help="Print nothing; exit code 0 if all of it is running, else 1.", metavar="")
    ] = False,
) -> None:
    """Show what runs, the last checkpoint and uploads; exit code 1: a component is not running."""
    from flows.server.home import Home

    home = Home.of(os.environ)
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


@operations.command(epilog=_LAUNCH_EXAMPLES)
@sentences
def launch(
    preset: Preset = None,
    run: Run = None,
    generations: Generations = None,
    seed: Seed = None,
    assignments: Assignments = None,
    data: Data = None,
    store: Store = None,
    device: Device = None,
) -> None:
    """Train a run on the worker, resumed by itself until it is finished; it is checked here as `eigen train` does."""
    from eigen_core.config.loading import load_config, parse_assignments
    from eigen_core.config.machine import machine_values, run_values
    from flows.server.home import Home

    _environment()
    from eigen_core.training.runs import Run, require_store
    from flows.cli.training import refused_with_its_plan, require_trainable
    from flows.server.environment import default_run_name
    from flows.server.launching import launch as launch_run
    from flows.server.launching import require_free, require_same_run_here
    from flows.server.servers import known_server
    from flows.server.working_folder import as_worker_sees

    home = Home.of(os.environ)
    settings = given_settings(generations, seed, assignments, data, _absolute(store), device)
    config = load_config(preset, settings)
    name = default_run_name(config.preset) if run is None else run
    check_run_name(name)
    api = known_server(home, os.environ)
    # First: what is being trained takes the memory and holds the run that would be checked here.
    require_free(api, _Progress())
    worker = home.running("worker")
    goes_on = False
    values = parse_assignments(settings)
    own = machine_values(values)
    if worker is None:
        _require_no_settings_of_worker(own)
    else:
        # A worker elsewhere has other data, another memory and another store: the flow itself checks them there.
        config = as_worker_sees(config, worker)
        require_store(config.checkpoint)
        nothing_given = not any((preset, generations, seed, assignments, device))
        goes_on = nothing_given and Run(config.checkpoint, name).exists
        if goes_on:
            run_here = Run.open(config.checkpoint.store, name, config.checkpoint.local, home.launched(name))
            config = run_here.config_to_resume(config.market.data)
        require_same_run_here(config, name)
        with refused_with_its_plan(config, output_console()):
            found, run_plan = require_trainable(config, name)
    values = run_values(values if preset is None else {"preset": preset, **values})

    own_are_known = worker is None or (goes_on and not own)
    remembering = nullcontext() if own_are_known else home.launching(name, own)
    launched = launch_run(api, values, name, _Progress(), as_configured=goes_on, remembering=remembering)
    if worker is None:
        lines = ["The worker is elsewhere: data, memory and store are checked there, as the run begins."]
    else:
        lines = [*found, run_plan.sentence()]
    print_launched(output_console(), launched, lines)


@operations.command()
@sentences
def logs(
    name: RunName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print what is logged until Ctrl-C.", metavar="")
    ] = False,
    store: Store = None,
) -> None:
    """Show what a run's flow runs have logged, in the order of time; without a server, what the run itself keeps."""
    from flows.server.home import Home

    _environment()
    from flows.server.deploying import client_of
    from flows.server.servers import known_server
    from flows.server.status import RunLogs

    check_run_name(name)
    console = output_console()
    try:
        api = known_server(Home.of(os.environ), os.environ)
    except InputError as error:
        if follow:
            raise
        _print_kept(console, store, name, str(error))
        return
    last = None
    with client_of(api) as client:
        run_logs = RunLogs(client, name)
        while True:
            for line in run_logs.new_lines():
                if line.flow_run.id != last:
                    print_flow_run_of(console, line, api)
                last = line.flow_run.id
                print_log_line(console, line)
            if not follow:
                break
            time.sleep(_FOLLOW_SECONDS)
    if last is None:
        _print_kept(console, store, name, f"The server at {api} has no log of run '{name}'.")


@operations.command()
@sentences
def alerts(
    url: Annotated[
        str | None, typer.Argument(help="Address that gets a POST request.", show_default=False, metavar="[URL]")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Stop calling the address.", metavar="")] = False,
) -> None:
    """Have the server call an address when a training is finished, crashed, failed, blocked or does not fit.

    The request is JSON: text (a sentence, as Slack shows it), flow_run, state and page.
    """
    from flows.server.home import Home

    if (url is None) != off:
        raise InputError("Give the address to call, or --off.")
    _environment()
    from flows.server.automations import remove_alert, set_alert
    from flows.server.deploying import client_of, find_deployment
    from flows.server.servers import known_server

    with client_of(known_server(Home.of(os.environ), os.environ)) as client:
        deployment = find_deployment(client).id
        if url is None:
            remove_alert(client, deployment)
        else:
            set_alert(client, deployment, url)
    # An address of this kind is often a secret.
    called = "No address" if url is None else urlsplit(url).hostname
    print_line(output_console(), f"{called} is called when a training ends.")


@operations.command()
@sentences
def deploy() -> None:
    """Create or update work pool, deployments and automations on the server; schedules stay on or off as they are."""
    from flows.server.home import Home

    _environment()
    from flows.server.deploying import DEPLOYMENTS
    from flows.server.deploying import deploy as bring
    from flows.server.servers import known_server

    api = known_server(Home.of(os.environ), os.environ)
    _Progress()("bringing the deployments")
    bring(api)
    print_line(output_console(), f"{' and '.join(DEPLOYMENTS)} are at {api}.")


def _print_kept(console: Console, store: str | None, name: str, reason: str) -> None:
    """Print what a run itself keeps of its past, after why there is no more."""
    from flows.server.status import kept_events

    events = kept_events(store_of(store), name)
    say(f"{reason} What the run itself keeps:")
    for moment, event in events:
        print_line(console, f"{moment}  {event}")


def _environment() -> dict[str, str]:
    """Set what Prefect needs before it is imported, and return the environment for what is started."""
    given = dict(os.environ)
    os.environ.update(own_environment(given))
    return given


def _require_no_settings_of_worker(own: Mapping[str, Any]) -> None:
    """Refuse to launch with settings that only the machine of a worker elsewhere can give."""
    from eigen_core.config.explain import flatten
    from eigen_core.config.machine import MACHINE_SETTINGS, TASK_VARIABLE

    given = {key: MACHINE_SETTINGS[key].variable if key != "task" else TASK_VARIABLE for key in flatten(own)}
    if given:
        raise InputError(
            f"The worker is on another machine, and {' and '.join(given)} would be settings of that machine, which a "
            f"launch from here cannot give: set {' and '.join(given.values())} in the worker's environment and leave "
            "them out here."
        )


def _absolute(store: str | None) -> str | None:
    """Return a store's folder as a path that means the same to the worker."""
    return store if store is None or is_remote(store) else str(store_folder(store))


class _Progress:
    """Prints what is being done on standard error, each thing once."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._last = ""

    def __call__(self, what: str) -> None:
        if what != self._last:
            print_line(self._console, f"{what} ...", style="dim")
        self._last = what
