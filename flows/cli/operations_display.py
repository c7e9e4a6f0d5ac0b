"""What the commands up, down, status and launch print."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from eigen_core.units import rough_duration
from flows.endings import Stopped
from flows.operations.environment import api_at
from flows.operations.home import Home, Record

if TYPE_CHECKING:
    from flows.operations.launching import Launched
    from flows.operations.logs import LogLine
    from flows.operations.status import FlowRunStatus, ScheduleStatus, Status
    from flows.operations.stopping import Down
    from flows.operations.up import Up
    from flows.runs import RunStatus

_DAY_SECONDS = 86_400.0


def print_up(console: Console, home: Home, brought: "Up", resumed: str | None = None) -> None:
    """Print what runs, where its pages and logs are, and what to do next."""
    _line(console, "pages", f"[bold]{brought.ui}[/]")
    began = brought.server.began
    _line(console, "API", f"{brought.server.api}  ({_how(brought.server_record, began)})")
    if brought.worker is not None:
        _line(
            console, "worker", f"{_how(brought.worker, brought.worker_began)}, in {escape(str(brought.worker.folder))}"
        )
    for part in brought.parts:
        _line(console, f"{part} log", escape(str(home.log(part))))
    if resumed is not None:
        _line(console, "resuming", resumed)
    if brought.worker is not None:
        _line(console, "launch", "eigen launch --preset quickstart --run first")
    if brought.server_record is not None:
        _line(console, "for prefect", f"export PREFECT_API_URL={brought.server.api}")


def print_down(
    console: Console, home: Home, stopped: "Down", run: "RunStatus | None", removed_from: str | None = None
) -> None:
    """Print what was stopped, what is safe of the training, and what stays on a server elsewhere or was removed."""
    if removed_from is not None:
        _line(console, "removed", f"deployments, schedules, automations and work pool, from {removed_from}")
    if stopped.worker is None and stopped.server is None:
        console.print(
            f"Nothing runs that was started here ({escape(str(home.path))}).", highlight=False, soft_wrap=True
        )
        return
    for part, record in (("worker", stopped.worker), ("server", stopped.server)):
        if record is not None:
            how = "killed: it did not stop in time" if part in stopped.killed else "stopped"
            _line(console, part, f"{how} (process {record.process.pid})")
    worker, port = stopped.worker, home.port()
    if removed_from is None and worker is not None and (port is None or worker.api != api_at(port)):
        _line(console, "server", f"{worker.api} keeps deployments and schedules; eigen down --remove removes them")
    for name in stopped.by_hand:
        told = f"{escape(name)}, of `eigen train`: if it still runs, it waits until `eigen up` starts the server again"
        _line(console, "training", told)
    if run is not None:
        _line(console, "training", f"run [bold]{escape(run.run)}[/] was told to stop; {escape(_last_checkpoint(run))}")
        if run.state == "unfinished":
            _line(console, "go on", "eigen up: it is resumed by itself")


def print_launched(console: Console, launched: "Launched", lines: Sequence[str]) -> None:
    """Print what was found in the checks, and where the launched run is seen."""
    for line in lines:
        console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)
    _line(console, "run", f"[bold]{escape(launched.run)}[/]")
    _line(console, "flow run", launched.page)
    _line(console, "run's page", f"{launched.run_page} (once it has begun)")
    _line(console, "how far", "eigen status")


def print_status(console: Console, status: "Status") -> None:
    """Print what runs, and how far it is."""
    server = status.server
    if server is None:
        _line(console, "server", "none: start one with `eigen up`, or set PREFECT_API_URL")
    else:
        answer = f"Prefect {server.version or ''}".strip() if server.answers else "[bold]does not answer[/]"
        process = "" if server.record is None else f", process {server.record.process.pid}"
        _line(console, "server", f"{server.ui}  ({answer}{process})")
    _line(console, "worker", _worker(status))
    if status.supervisor is not None:
        alive = status.supervisor.process.is_alive()
        ended = "[bold]has ended[/]: nothing restarts server and worker until `eigen up` starts it again"
        _line(console, "supervisor", f"process {status.supervisor.process.pid}" if alive else ended)
    if status.flow_run is not None:
        _print_flow_run(console, status.flow_run)
    if status.run is not None:
        _print_run(console, status.run)
        if status.run_page is not None:
            _line(console, "run's page", status.run_page)
    elif status.run_problem is not None:
        _line(console, "run", escape(status.run_problem))
    elif status.flow_run is not None and status.flow_run.run is not None:
        _line(console, "run", f"[bold]{escape(status.flow_run.run)}[/] is yet to be begun")
    else:
        _line(console, "run", "none yet: eigen launch")
    if status.schedule is not None:
        _line(console, "resume", _resume(status.schedule))


def status_document(status: "Status") -> dict[str, Any]:
    """Return what `eigen status --json` prints. Its keys are a contract."""
    server, worker, flow_run, schedule, run = (
        status.server,
        status.worker,
        status.flow_run,
        status.schedule,
        status.run,
    )
    return {
        "up": status.is_up,
        "server": server
        and {
            "api": server.api,
            "ui": server.ui,
            "answers": server.answers,
            "version": server.version,
            "pid": server.record and server.record.process.pid,
            "log": server.record and str(server.record.log),
        },
        "worker": {
            "name": worker.name,
            "running": worker.record is not None,
            "pid": worker.record and worker.record.process.pid,
            "folder": worker.record and str(worker.record.folder),
            "log": worker.record and str(worker.record.log),
            "heard_of": _iso(worker.heard_of),
        },
        "supervisor": status.supervisor
        and {
            "running": status.supervisor.process.is_alive(),
            "pid": status.supervisor.process.pid,
            "log": str(status.supervisor.log),
        },
        "flow_run": flow_run
        and {
            "id": flow_run.id,
            "name": flow_run.name,
            "run": flow_run.run,
            "state": flow_run.state,
            "message": flow_run.message,
            "since": _iso(flow_run.since),
            "active": flow_run.active,
            "waiting": flow_run.waiting,
            "suspended": flow_run.suspended,
            "page": flow_run.page,
        },
        "schedule": schedule and {"active": schedule.active, "next": _iso(schedule.next)},
        "run": run
        and {
            "run": run.run,
            "state": run.state,
            "generation": run.generation,
            "generations": run.config.generations,
            "store": run.store,
            "folder": str(run.folder),
            "uploads": None if run.uploads is None else run.uploads.model_dump(mode="json"),
        },
        "problem": status.run_problem,
    }


def _print_flow_run(console: Console, flow_run: "FlowRunStatus") -> None:
    said = "resume or cancel it in its page" if flow_run.suspended else flow_run.message
    said = "it waits for the worker" if flow_run.waiting else said
    message = f": {said}" if said else ""
    what, when = ("last flow run", _when) if flow_run.has_ended else ("flow run", _how_long)
    _line(console, what, escape(f"{flow_run.name}, {flow_run.state} {when(flow_run.since)}{message}"))
    _line(console, "page", flow_run.page)


def _print_run(console: Console, run: "RunStatus") -> None:
    _line(console, "run", f"[bold]{escape(run.run)}[/] is {run.state}: {escape(_last_checkpoint(run))}")
    if run.uploads is not None:
        _line(console, "uploads", escape(str(run.uploads)))


def _resume(schedule: "ScheduleStatus") -> str:
    how = "every 10 minutes" if schedule.active else "off until a launch"
    if schedule.next is None:
        return how
    if schedule.next < datetime.now(UTC):
        return f"{how}, the next one waits for the worker"
    return f"{how}, next {_when(schedule.next)}"


def print_run_page(console: Console, run: str) -> None:
    """Print the address of a run's page, unless the server was one of this process alone or is away."""
    from flows.operations.deploying import client_of
    from flows.operations.launching import run_page_of
    from flows.run_plan import api_url

    api = api_url()
    if api is None:
        return
    with suppress(Stopped), client_of(api) as client:
        page = run_page_of(client, api, run)
        if page is not None:
            console.print(f"  {'page':<12}{page}", highlight=False, soft_wrap=True)


def print_log_line(console: Console, line: "LogLine") -> None:
    """Print a line of a flow run's log."""
    text = f"{line.moment.astimezone():%Y-%m-%d %H:%M:%S}  {line.level:<8}{line.message}"
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def print_flow_run_of(console: Console, line: "LogLine", api: str) -> None:
    """Print which flow run has logged the lines that follow."""
    from flows.operations.launching import page_of

    found = line.flow_run
    page = page_of(api, str(found.id))
    state = "" if found.state_name is None else f", {found.state_name}"
    console.print(f"[bold]{escape(found.name)}[/]{state}  {page}", highlight=False, soft_wrap=True)


def _last_checkpoint(run: "RunStatus") -> str:
    where = f"{run.store.rstrip('/')}/{run.run}"
    if run.generation == 0:
        return f"it has no checkpoint yet, of {run.config.generations} generations, in {where}"
    return f"its last checkpoint is generation {run.generation} of {run.config.generations}, in {where}"


def _worker(status: "Status") -> str:
    worker = status.worker
    if worker.record is None:
        return "none: start it with `eigen up`"
    heard = "" if worker.heard_of is None else f", heard of {_when(worker.heard_of)}"
    return f"process {worker.record.process.pid}, in {escape(str(worker.record.folder))}{heard}"


def _how(record: Record | None, began: bool) -> str:
    if record is None:
        return "a server elsewhere"
    return f"{'started' if began else 'runs already'}, process {record.process.pid}"


def _when(moment: datetime) -> str:
    """Return a moment as one reads it best: how long ago, or in how long, if that is not days."""
    seconds = (moment - datetime.now(UTC)).total_seconds()
    if abs(seconds) >= _DAY_SECONDS:
        return f"{moment.astimezone():%Y-%m-%d %H:%M}"
    return f"in {rough_duration(round(seconds))}" if seconds > 0 else f"{rough_duration(round(-seconds))} ago"


def _how_long(moment: datetime) -> str:
    """Return since when something goes on: for how long, if that is not days."""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    if seconds >= _DAY_SECONDS:
        return f"since {moment.astimezone():%Y-%m-%d %H:%M}"
    return f"for {rough_duration(round(max(seconds, 0.0)))}"


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _line(console: Console, label: str, text: str) -> None:
    console.print(f"  {label:<15}{text}", highlight=False, soft_wrap=True)
