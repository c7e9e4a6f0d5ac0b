"""Launching a training on the worker, and stopping trainings, worker and server."""

import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactCollectionFilter, ArtifactCollectionFilterKey
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import PrefectHTTPStatusError

from eigen_core.common.errors import InputError
from eigen_core.config import Config
from flows.endings import Stopped
from flows.server.deploying import client_of, find_deployment, require_schedule, resume_schedule, set_resuming
from flows.server.environment import COMPONENTS, SCHEDULED_TAG, Component, ui_of
from flows.server.flow_run import RESUME
from flows.server.flow_runs import (
    begun_by_hand,
    is_choosing,
    next_flow_run,
    report_lost,
    running_flow_run,
    trained_run,
    waiting_flow_run,
)
from flows.server.home import Home, ProcessRecord
from flows.server.processes import LocalProcess, wait_until
from flows.server.servers import answers

_SOON_SECONDS = 30.0
# Prefect takes up to 20 s from the end of a cancelled process to its state Cancelled.
_ENDING_TIMEOUT_SECONDS = 30.0
_POLL_SECONDS = 1.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Launched:
    """A flow run that was created.

    Attributes:
        id: its number in Prefect.
        run: the run that it trains.
        page: address of its page.
    """

    id: str
    run: str
    page: str


def launch(
    api: str,
    values: Mapping[str, Any],
    run: str,
    say: Say,
    *,
    as_configured: bool = False,
    remembering: AbstractContextManager[None] = nullcontext(),  # noqa: B008 - it does nothing, and can be shared
) -> Launched:
    """Let the worker train `run`, and have it resumed until it is finished.

    What is being cancelled, or only looks for something to resume, is waited for.

    Args:
        api: of the server.
        values: the settings of the run that were given, nested; the rest is the preset's.
        run: its name.
        say: called with what is being waited for.
        as_configured: the run exists, and goes on with its own settings; of the given ones, only data count.
        remembering: entered before the worker hears of the run; it ends with the error if the server refuses the run.

    Raises:
        InputError: there is no deployment, a training is under way, or the server refuses the settings.
    """
    with client_of(api) as client:
        deployment = find_deployment(client)
        require_schedule(deployment)
        _wait_until_free(client, api, say)
        parameters = {"config": dict(values), "run": run, "resume": as_configured}
        with remembering:
            flow_run = _create(client, deployment.id, parameters, run)
        set_resuming(client, True)
    return Launched(str(flow_run.id), run, page_of(api, str(flow_run.id)))


def resume(api: str, *, always: bool = True) -> str | None:
    """Have the run that was launched last trained, now and until it is finished.

    Args:
        api: of the server.
        always: also if nothing was launched since the schedule that resumes was switched off, or if the last one is
            complete or was stopped: then the newest unfinished run of the worker's store that was not stopped.

    Returns the page of the flow run; None if one is under way or due already, or nothing is to be resumed.
    """
    with client_of(api) as client:
        if always:
            set_resuming(client, True)
        else:
            schedule = resume_schedule(client)
            if schedule is None or not schedule.active:
                return None
        if running_flow_run(client) is not None or _is_due(next_flow_run(client)):
            return None
        tags = () if always else (SCHEDULED_TAG,)
        created = _create(client, find_deployment(client).id, {"resume": True}, RESUME, tags)
        return page_of(api, str(created.id))


def _is_due(flow_run: FlowRun | None) -> bool:
    due = None if flow_run is None else flow_run.next_scheduled_start_time
    return due is not None and due.timestamp() - time.time() < _SOON_SECONDS


def require_same_run_here(config: Config, run: str) -> None:
    """Refuse to go on with a run that was begun with other settings, or that a process trains.

    Raises:
        InputError: its settings differ, or a process trains it.
    """
    from eigen_core.training.runs import Run

    here = Run(config.checkpoint, run)
    if here.exists:
        here.require_same(config)
        if here.is_running():
            raise InputError(f"Run '{run}' is being trained by another process: wait until it ends, or stop it.")


def page_of(api: str, flow_run_id: str) -> str:
    """Return the address of a flow run's page."""
    return f"{ui_of(api)}/runs/flow-run/{flow_run_id}"


def run_page_of(client: SyncPrefectClient, api: str, run: str) -> str | None:
    """Return the address of the page that a run renews with every generation; None if it has none yet."""

    from tasks.artifacts import artifact_key

    wanted = ArtifactCollectionFilter(key=ArtifactCollectionFilterKey(any_=[artifact_key(run)]))
    found = client.read_latest_artifacts(artifact_filter=wanted, limit=1)
    return f"{ui_of(api)}/artifacts/artifact/{found[0].latest_id}" if found else None


def require_free(api: str, say: Say) -> None:
    """Return when nothing is being trained, as the server at `api` knows.

    Raises:
        InputError: something is, or was launched before, or what should end in a moment does not.
    """
    with client_of(api) as client:
        _wait_until_free(client, api, say)


def _wait_until_free(client: SyncPrefectClient, api: str, say: Say) -> None:
    end = time.monotonic() + _ENDING_TIMEOUT_SECONDS
    while (active := running_flow_run(client)) is not None:
        ending = _ending(active)
        if ending is None or time.monotonic() > end:
            raise InputError(_occupied(active, ending, page_of(api, str(active.id))))
        say(f"waiting: {ending}")
        time.sleep(_POLL_SECONDS)
    waiting = waiting_flow_run(client)
    if waiting is not None:
        raise InputError(_occupied(waiting, None, page_of(api, str(waiting.id))))


def _ending(active: FlowRun) -> str | None:
    """Return what a flow run does that should end in a moment; None if it trains, or begins to."""
    if active.state is not None and active.state.is_cancelling():
        return f"flow run {active.name} is being cancelled"
    if is_choosing(active):
        return f"flow run {active.name} looks for something to resume"
    return None


def _create(
    client: SyncPrefectClient, deployment_id: UUID, parameters: dict[str, Any], name: str, tags: Sequence[str] = ()
) -> FlowRun:
    try:
        return client.create_flow_run_from_deployment(deployment_id, parameters=parameters, name=name, tags=tags)
    except PrefectHTTPStatusError as error:
        detail = error.response.json().get("detail", error.response.text) if error.response.content else str(error)
        raise InputError(
            f"The server refuses the run: {detail} After an update of Eigen: `eigen down`, then `eigen up`."
        ) from error


def _occupied(active: FlowRun, ending: str | None, page: str) -> str:
    if ending is not None:
        return f"{ending[0].upper()}{ending[1:]}, and has not ended yet ({page}): try again in a few seconds."
    run = trained_run(active)
    what = f"Run '{run}'" if run else "A run"
    waits = active.state is not None and active.state.is_scheduled()
    does = "was launched before and waits for a worker" if waits else "is being trained"
    return (
        f"{what} {does} (flow run {active.name}, {page}), and one at a time is trained: wait until it has ended, or "
        f"cancel it there or with `prefect flow-run cancel {active.id}`."
    )


GRACE_SECONDS = 120.0
"""How long a training that is asked to stop may take to reach a point where it can."""

# Worker and server end within seconds, but not on a machine with other things to do.
_END_SECONDS = 60.0
_REPORT_SECONDS = 10.0
_STOP_POLL_SECONDS = 0.1
# What Prefect's worker starts for a flow run; beside it, it starts processes for hooks, which end by themselves.
_ENGINE = "prefect.engine"


@dataclass(frozen=True)
class Down:
    """Result of stopping.

    Attributes:
        worker, server: the process, None if none ran.
        trainings: how many flow runs were asked to stop.
        killed: what did not stop by itself in time.
        by_hand: names of the flow runs of `eigen train` that have lost their server, as far as it knew.
    """

    worker: ProcessRecord | None
    server: ProcessRecord | None
    trainings: int
    killed: tuple[str, ...]
    by_hand: tuple[str, ...] = ()


def bring_down(
    home: Home,
    say: Say,
    grace_seconds: float = GRACE_SECONDS,
    components: Collection[Component] = COMPONENTS,
    before_server: Callable[[], None] = lambda: None,
) -> Down:
    """Stop what `bring_up` has started here, or some components of it.

    Args:
        home: what has been started.
        say: called with what is being waited for.
        grace_seconds: how long a training may take to stop by itself.
        components: what to stop of it.
        before_server: called between the ends of worker and server.

    Raises:
        InputError: another `eigen up` or `eigen down` is at work.
    """
    if not home.path.is_dir():
        before_server()
        return Down(None, None, 0, ())
    with home.alone():
        recorded = home.read("worker") if "worker" in components else None
        worker = recorded if recorded is not None and recorded.process.is_alive() else None
        server = home.running("server") if "server" in components else None
        killed: list[str] = []
        trainings = 0
        if worker is not None:
            trainings, worker_killed = _stop_worker(worker, say, grace_seconds)
            killed += ["worker"] * worker_killed
        if recorded is not None and answers(recorded.api):
            # If the server does not answer, the next `eigen up` reports them.
            with suppress(Stopped), client_of(recorded.api) as client:
                report_lost(client, recorded, home.worker_name)
        before_server()
        by_hand = () if server is None else _begun_by_hand(server.api)
        if server is not None:
            say("stopping the server")
            killed += ["server"] * server.process.stop(_END_SECONDS)
        for component in components:
            home.forget(component)
        return Down(worker, server, trainings, tuple(killed), by_hand)


def _stop_worker(worker: ProcessRecord, say: Say, grace_seconds: float) -> tuple[int, bool]:
    """Stop a worker and what it runs.

    A worker that is asked to stop ends its flow runs at once and does not report it, so they are stopped first. It is
    suspended meanwhile: a request for their resume must wait for the next worker, and not go to one that ends.

    Returns how many trainings were asked to stop, and whether they or the worker had to be killed.
    """
    process = worker.process
    asked: list[LocalProcess] = []
    end = time.monotonic() + grace_seconds
    killed = False
    try:
        while engines := [child for child in process.children() if child.runs(_ENGINE)]:
            for engine in engines:
                if engine not in asked:
                    say("stopping the training")
                    process.send(signal.SIGSTOP)
                    engine.send(signal.SIGTERM)
                    asked.append(engine)
            if time.monotonic() > end:
                killed = True
                for engine in engines:
                    engine.kill()
            time.sleep(_STOP_POLL_SECONDS)
        if asked:
            wait_until(lambda: _nothing_runs(worker.api), _REPORT_SECONDS)
        say("stopping the worker")
        process.send(signal.SIGTERM)
    finally:
        # Not even an interrupted command leaves a worker that is suspended for ever.
        process.send(signal.SIGCONT)
    # A second SIGTERM would kill the worker.
    if not process.wait(_END_SECONDS):
        killed = True
        process.kill()
    return len(asked), killed


def _begun_by_hand(api: str) -> tuple[str, ...]:
    if answers(api):
        with suppress(Stopped), client_of(api) as client:
            return tuple(found.name for found in begun_by_hand(client))
    return ()


def _nothing_runs(api: str) -> bool:
    """Whether the server takes no flow run for running, or cannot be asked."""
    try:
        with client_of(api) as client:
            return running_flow_run(client) is None
    except Stopped:
        return True
