"""What the commands up, down, status, launch and logs print."""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from eigen_core.common.units import rough_duration
from flows.cli.output import Styled, print_fact, print_line
from flows.endings import Stopped
from flows.server.environment import api_at, ui_of

if TYPE_CHECKING:
    from eigen_core.training.runs import RunStatus
    from flows.server.home import Home, ProcessRecord
    from flows.server.launching import Down, Launched
    from flows.server.status import FlowRunStatus, LogLine, ScheduleStatus, Status
    from flows.server.up import Up

_DAY_SECONDS = 86_400.0
_print_fact = partial(print_fact, width=15)

Fact = str | Sequence[Styled] | None
"""Text, with styles or without; None: it is not printed."""


def print_up(console: Console, home: "Home", brought: "Up", resumed: str | None = None) -> None:
    """Print what runs, where its pages and logs are, and what to do next."""
    _print_fact(console, "pages", (ui_of(brought.api), "bold"))
    _print_fact(console, "API", f"{brought.api}  ({_how(brought.server, 'server' in brought.began)})")
    if brought.worker is not None:
        _print_fact(console, "worker", f"{_how(brought.worker, 'worker' in brought.began)}, in {brought.worker.folder}")
    for component in brought.components:
        _print_fact(console, f"{component} log", str(home.log(component)))
    if resumed is not None:
        _print_fact(console, "resuming", resumed)
    if brought.worker is not None:
        _print_fact(console, "launch", "eigen launch --preset quickstart --run first")
    if brought.server is not None:
        _print_fact(console, "for prefect", f"export PREFECT_API_URL={brought.api}")


def print_down(
    console: Console, home: "Home", stopped: "Down", run: "RunStatus | None", removed_from: str | None = None
) -> None:
    """Print what was stopped, what is safe of the training, and what stays on a server elsewhere or was removed."""
    if removed_from is not None:
        _print_fact(console, "removed", f"deployments, schedules, automations and work pool, from {removed_from}")
    if stopped.worker is None and stopped.server is None:
        print_line(console, f"Nothing runs that was started here ({home.path}).")
        return
    for component, record in (("worker", stopped.worker), ("server", stopped.server)):
        if record is not None:
            how = "killed: it did not stop in time" if component in stopped.killed else "stopped"
            _print_fact(console, component, f"{how} (process {record.process.pid})")
    worker, port = stopped.worker, home.port()
    if removed_from is None and worker is not None and (port is None or worker.api != api_at(port)):
        stays = f"{worker.api} keeps deployments and schedules; eigen down --remove removes them"
        _print_fact(console, "server", stays)
    for name in stopped.by_hand:
        waits = f"{name}, of `eigen train`: if it still runs, it waits until `eigen up` starts the server again"
        _print_fact(console, "training", waits)
    if run is not None:
        _print_fact(console, "training", "run ", (run.run, "bold"), f" was asked to stop; {_last_checkpoint(run)}")
        if run.state == "unfinished":
            _print_fact(console, "go on", "eigen up: it is resumed by itself")


def print_launched(console: Console, launched: "Launched", lines: Sequence[str]) -> None:
    """Print what was found in the checks, and where the launched run is seen."""
    for line in lines:
        print_line(console, line, style="dim")
    _print_fact(console, "run", (launched.run, "bold"))
    _print_fact(console, "page", launched.page)
    # That page has no address before the run has begun.
    _print_fact(console, "plots", "on the run's own page: once the run has begun, eigen status prints its address")
    _print_fact(console, "how far", "eigen status")


def print_status(console: Console, status: "Status") -> None:
    """Print what runs, and how far it is."""
    for label, fact in (
        ("server", _server(status)),
        ("worker", _worker(status)),
        ("supervisor", _supervisor(status)),
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
    heard = "" if worker.heard_of is None else f", heard of {_when(worker.heard_of)}"
    return f"process {worker.pid}, in {worker.folder}{heard}"


def _supervisor(status: "Status") -> Fact:
    supervisor = status.supervisor
    if supervisor is None:
        return None
    if supervisor.running:
        return f"process {supervisor.pid}"
    return ("has ended", "bold"), ": nothing restarts server and worker until `eigen up` starts it again"


def _flow_run(flow_run: "FlowRunStatus") -> list[tuple[str, Fact]]:
    said = "resume or cancel it in its page" if flow_run.suspended else flow_run.message
    said = "it waits for the worker" if flow_run.waiting else said
    message = f": {said}" if said else ""
    label, when = ("last flow run", _when) if flow_run.has_ended else ("flow run", _how_long)
    return [(label, f"{flow_run.name}, {flow_run.state} {when(flow_run.since)}{message}"), ("page", flow_run.page)]


def _run(status: "Status") -> list[tuple[str, Fact]]:
    run, flow_run = status.run, status.flow_run
    if run is not None:
        return [
            ("run", ((run.run, "bold"), f" is {run.state}: {_last_checkpoint(run)}")),
            ("uploads", None if run.uploads is None else str(run.uploads)),
            ("run's page", status.run_page),
        ]
    if status.problem is not None:
        return [("run", status.problem)]
    if flow_run is not None and flow_run.run is not None:
        return [("run", ((flow_run.run, "bold"), " is yet to be begun"))]
    return [("run", "none yet: eigen launch")]


def _resume(schedule: "ScheduleStatus") -> str:
    how = "every 10 minutes" if schedule.active else "off until a launch"
    if schedule.next is None:
        return how
    if schedule.next < datetime.now(UTC):
        return f"{how}, the next one waits for the worker"
    return f"{how}, next {_when(schedule.next)}"


def print_run_page(console: Console, run: str) -> None:
    """Print the address of a run's page, unless the server was one of this process alone or does not answer."""
    from flows.server.servers import configured_api

    api = configured_api(os.environ)
    if api is None:
        return
    from flows.server.deploying import client_of
    from flows.server.launching import run_page_of

    with suppress(Stopped), client_of(api) as client:
        page = run_page_of(client, api, run)
        if page is not None:
            print_fact(console, "page", page)


def print_log_line(console: Console, line: "LogLine") -> None:
    """Print a line of a flow run's log."""
    print_line(console, f"{line.moment.astimezone():%Y-%m-%d %H:%M:%S}  {line.level:<8}{line.message}")


def print_flow_run_of(console: Console, line: "LogLine", api: str) -> None:
    """Print which flow run has logged the lines that follow."""
    from flows.server.launching import page_of

    found = line.flow_run
    state = "" if found.state_name is None else f", {found.state_name}"
    print_line(console, (found.name, "bold"), f"{state}  {page_of(api, str(found.id))}")


def _last_checkpoint(run: "RunStatus") -> str:
    where = f"{run.store.rstrip('/')}/{run.run}"
    if run.generation == 0:
        return f"it has no checkpoint yet, of {run.config.generations} generations, in {where}"
    return f"its last checkpoint is generation {run.generation} of {run.config.generations}, in {where}"


def _how(record: "ProcessRecord | None", began: bool) -> str:
    if record is None:
        return "a server elsewhere"
    return f"{'started' if began else 'runs already'}, process {record.process.pid}"


def _when(moment: datetime) -> str:
    """Return how long ago a moment is, or in how long, if that is not days."""
    seconds = (moment - datetime.now(UTC)).total_seconds()
    if abs(seconds) >= _DAY_SECONDS:
        return f"{moment.astimezone():%Y-%m-%d %H:%M}"
    return f"in {rough_duration(round(seconds))}" if seconds > 0 else f"{rough_duration(round(-seconds))} ago"


def _how_long(moment: datetime) -> str:
    """Return for how long something has lasted; since when, if that is days."""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    if seconds >= _DAY_SECONDS:
        return f"since {moment.astimezone():%Y-%m-%d %H:%M}"
    return f"for {rough_duration(round(max(seconds, 0.0)))}"
