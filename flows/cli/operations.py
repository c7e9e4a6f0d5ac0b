"""The commands that run Eigen for days: up, down, status, launch, logs, alerts, deploy."""

import os
import time
from contextlib import nullcontext
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console

from eigen_core.config.loading import load_config, parse_assignments
from eigen_core.errors import InputError
from eigen_core.store import check_run_name
from flows.cli.common import EXIT_OTHER, given_settings, print_json, say, sentences, store_of
from flows.cli.options import Assignments, Data, Device, Generations, Json, Preset, RunName, Seed, Store
from flows.cli.signals import stopped_gently
from flows.cli.tables import output_console
from flows.operations.environment import HOST, own_environment
from flows.operations.home import Home, Part

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
        bool, typer.Option("--resume", help="Go on with the newest unfinished run of the store.", metavar="")
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, and stop everything when told to stop.", metavar="")
    ] = False,
    only: Annotated[Part | None, typer.Option(help="Start this part alone.", metavar="server|worker")] = None,
) -> None:
    """Start server, deployments and worker, as far as they do not run; they go on in the background."""
    from flows.cli.operations_display import print_up
    from flows.operations.launching import resume as go_on
    from flows.operations.server import Listening
    from flows.operations.stopping import bring_down
    from flows.operations.supervisor import stop_event
    from flows.operations.up import bring_up, watch

    home = Home.of(os.environ)
    environment = _environment()
    stopping = stop_event() if foreground else None
    with nullcontext() if foreground else stopped_gently():
        brought = bring_up(
            home,
            environment,
            Listening(host, port, without_password),
            _progress(),
            only=only,
            patient=foreground,
            supervised=not foreground,
        )
    try:
        # What was stopped with its worker goes on with it: a crash just before a server's end may trigger nothing.
        page = go_on(brought.server.api, always=resume) if resume or brought.worker_began else None
        print_up(output_console(), home, brought, page)
        if stopping is not None:
            watch(home, brought.parts, stopping.is_set)
    finally:
        if stopping is not None:
            bring_down(home, _progress(), parts=brought.parts)


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
    from flows.cli.operations_display import print_down
    from flows.operations.deploying import client_of
    from flows.operations.deploying import remove as remove_deployed
    from flows.operations.server import known_server
    from flows.operations.status import last_trained
    from flows.operations.stopping import bring_down
    from flows.operations.supervisor import stop_supervisor

    _environment()
    home = Home.of(os.environ)
    api = known_server(home, os.environ).api if remove else None

    def before_server() -> None:
        if api is not None:
            with client_of(api) as client:
                remove_deployed(client)

    worker = home.running("worker")
    stop_supervisor(home)
    stopped = bring_down(home, _progress(), grace, before_server=before_server)
    print_down(output_console(), home, stopped, last_trained(home, worker) if stopped.trainings else None, api)


@operations.command()
@sentences
def status(
    as_json: Json = False,
    healthy: Annotated[
        bool, typer.Option("--healthy", help="Print nothing; is all of it running? Quick.", metavar="")
    ] = False,
) -> None:
    """Show server, worker, the flow run under way, its last checkpoint and uploads; exit code 1 if not all runs."""
    home = Home.of(os.environ)
    if healthy:
        from flows.operations.health import is_up

        if not is_up(home):
            raise typer.Exit(EXIT_OTHER)
        return
    from flows.cli.operations_display import print_status, status_document
    from flows.operations.status import status_here

    _environment()
    found = status_here(home)
    if as_json:
        print_json(status_document(found))
    else:
        print_status(output_console(), found)
    if not found.is_up:
        raise typer.Exit(EXIT_OTHER)


@operations.command(epilog=_LAUNCH_EXAMPLES)
@sentences
def launch(
    preset: Preset = None,
    run: Annotated[
        str | None,
        typer.Option(help="Name of the run; an existing one goes on.", show_default="preset and time", metavar="NAME"),
    ] = None,
    generations: Generations = None,
    seed: Seed = None,
    assignments: Assignments = None,
    data: Data = None,
    store: Store = None,
    device: Device = None,
) -> None:
    """Train a run on the worker, resumed by itself until it is finished; it is checked here as `eigen train` does."""
    from flows.cli.operations_display import print_launched
    from flows.cli.training import refused_with_its_plan, require_trainable
    from flows.names import default_run_name
    from flows.operations.launching import launch as launch_run
    from flows.operations.launching import require_free, require_same_run_here
    from flows.operations.server import known_server
    from flows.operations.stores import as_worker_sees
    from flows.runs import config_to_resume, require_store, run_exists

    _environment()
    home = Home.of(os.environ)
    settings = given_settings(generations, seed, assignments, data, _placed(store), device)
    config = load_config(preset, settings)
    name = default_run_name(config) if run is None else run
    check_run_name(name)
    server = known_server(home, os.environ)
    # First: what is being trained takes the memory and holds the run that would be checked here.
    require_free(server.api, _progress())
    worker = home.running("worker")
    goes_on = False
    if worker is not None:
        # A worker elsewhere has other data, another memory and another store: the flow itself checks them there.
        config = as_worker_sees(config, worker)
        require_store(config.checkpoint)
        nothing_given = not any((preset, generations, seed, assignments, device))
        goes_on = nothing_given and run_exists(config.checkpoint, name)
        if goes_on:
            config = config_to_resume(config.checkpoint.store, name, config.market.data, config.checkpoint.local)
        with refused_with_its_plan(config, output_console()):
            found, run_plan = require_trainable(config)
        require_same_run_here(config, name)
    values = parse_assignments(settings)
    values = values if preset is None else {"preset": preset, **values}
    launched = launch_run(server.api, values, name, _progress(), as_configured=goes_on)
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
        bool, typer.Option("--follow", "-f", help="Stay, and print what is logged, until Ctrl-C.", metavar="")
    ] = False,
    store: Store = None,
) -> None:
    """Show what a run's flow runs have logged, in the order of time; without a server, what the run itself keeps."""
    from flows.cli.operations_display import print_flow_run_of, print_log_line
    from flows.operations.deploying import client_of
    from flows.operations.logs import RunLogs
    from flows.operations.server import known_server

    _environment()
    check_run_name(name)
    console = output_console()
    try:
        api = known_server(Home.of(os.environ), os.environ).api
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
    off: Annotated[bool, typer.Option("--off", help="Call no address any more.", metavar="")] = False,
) -> None:
    """Have the server call an address when a training is finished, crashed, failed or blocked.

    It is sent JSON: text (a sentence, as Slack shows it), flow_run, state and page.
    """
    from flows.operations.alerts import remove_alert, set_alert
    from flows.operations.deploying import client_of, find_deployment
    from flows.operations.server import known_server

    if (url is None) != off:
        raise InputError("Give the address to call, or --off.")
    _environment()
    with client_of(known_server(Home.of(os.environ), os.environ).api) as client:
        deployment = find_deployment(client).id
        if url is None:
            remove_alert(client, deployment)
        else:
            set_alert(client, deployment, url)
    # An address of this kind is often a secret.
    called = "No address" if url is None else urlsplit(url).hostname
    output_console().print(f"{called} is called when a training ends.", highlight=False)


@operations.command()
@sentences
def deploy() -> None:
    """Bring work pool, deployments and automations to the server; schedules stay on or off as they are."""
    from flows.operations.deploying import DEPLOYMENTS
    from flows.operations.deploying import deploy as bring
    from flows.operations.server import known_server

    _environment()
    server = known_server(Home.of(os.environ), os.environ)
    _progress()("bringing the deployments")
    bring(server.api)
    output_console().print(f"{' and '.join(DEPLOYMENTS)} are at {server.api}.", highlight=False, soft_wrap=True)


def _print_kept(console: Console, store: str | None, name: str, reason: str) -> None:
    """Print what a run itself keeps of its past, after why there is no more."""
    from flows.operations.logs import kept_events

    events = kept_events(store_of(store), name)
    say(f"{reason} What the run itself keeps:")
    for moment, event in events:
        console.print(f"{moment}  {event}", highlight=False, markup=False, soft_wrap=True)


def _environment() -> dict[str, str]:
    """Set what Prefect needs before it is imported, and return the environment for what is started."""
    given = dict(os.environ)
    os.environ.update(own_environment(given))
    return given


def _placed(store: str | None) -> str | None:
    """Return a store's folder as a path that means the same to the worker."""
    if store is None:
        return None
    from eigen_core.store import is_remote
    from eigen_core.store.location import store_folder

    return store if is_remote(store) else str(store_folder(store))


def _progress() -> "_Progress":
    return _Progress(Console(stderr=True))


class _Progress:
    """Says what is being done, each thing once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ""

    def __call__(self, what: str) -> None:
        if what != self._last:
            self._console.print(f"{what} ...", style="dim", highlight=False, soft_wrap=True)
        self._last = what
