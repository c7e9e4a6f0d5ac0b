"""What a flow run is called in Prefect's pages, and by which tags it is found."""

from collections.abc import Iterable
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Running

from eigen_core.config import Config
from flows.resuming import is_scheduled
from flows.server_presence import require_server, server_is_there
from flows.tags import run_tag


def first_name() -> str:
    """Return what this flow run is called as it begins: what it was asked for.

    Schedules and automations cannot name what they ask for; Prefect's names for it say nothing.
    """
    run = flow_run.parameters.get("run")
    return str(run) if run else "resume" if flow_run.parameters.get("resume") or is_scheduled() else "new run"


def describe_flow_run(config: Config, run: str, generation: int) -> None:
    """Give this flow run a name that says what it trains, such as `mine gen 7-25`, and tags to find it by."""
    tags = {*flow_run.tags, run_tag(run), f"preset:{config.preset}", f"device:{config.device}"}
    name = flow_run_name(run, generation, config.generations)
    name_flow_run(name, tags)
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        # By this name the log tells what it says.
        context.flow_run.name = name


def flow_run_name(run: str, first: int, last: int, done: int | None = None) -> str:
    """Return what a flow run is called that trains generations `first` to `last`; `done`: the newest complete one."""
    if first > last:
        return f"{run} ({last} done)"
    generations = f"{run} gen {first}-{last}"
    return generations if done is None else f"{generations} ({done} done)"


def name_flow_run(name: str, tags: Iterable[str] | None = None) -> None:
    """Name this flow run, and tag it if tags are given.

    A server that does not take them is logged: names must not stop a training.
    """
    if flow_run.id is None:
        return
    try:
        require_server()
        rename_flow_run(name, tags)
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("The flow run could not be named: %s: %s", type(error).__name__, error)


class CancellationError(Exception):
    """This flow run is to be cancelled."""


def set_right_if_crashed() -> None:
    """Let the server know that this flow run trains, if it was taken for crashed: its heartbeats were not heard.

    Raises:
        CancellationError: it is being cancelled, which a worker whose server was away does not notice.
    """
    if flow_run.id is None or not server_is_there():
        return
    try:
        client = get_client(sync_client=True)
        found = client.read_flow_run(UUID(flow_run.id)).state
        if found is not None and found.is_crashed():
            get_run_logger().warning("This flow run was taken for crashed (%s), but it trains.", found.message)
            client.set_flow_run_state(UUID(flow_run.id), Running(message="It trains."), force=True)
        if found is not None and found.is_cancelling():
            raise CancellationError("It was cancelled.")
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("Whether the flow run is taken for crashed cannot be told: %s", error)


def rename_flow_run(name: str, tags: Iterable[str] | None = None) -> None:
    """Name this flow run, and tag it if tags are given.

    Raises:
        httpx.HTTPError: the server does not answer.
        PrefectException: it refuses.
    """
    client = get_client(sync_client=True)
    # Inside a flow run this is the client that the run reports its states with: it stays open.
    client.update_flow_run(flow_run.id, name=name, tags=None if tags is None else sorted(tags))
