"""The requests to train that the server has on record: a flow run is there before its process has written any file."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect import runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId, FlowRunFilterExpectedStartTime
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import FlowRunContext

from eigen_core.config import Config
from flows.names import RUNNING_NAME, SCHEDULED_TAG, default_run_name, tagged_run
from flows.operations.environment import POOL
from flows.operations.flow_runs import is_beginning
from flows.prefect_internals import LIMIT_REACHED
from flows.resuming import own_deployment

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

BEGUN_LABEL = "eigen.begun"
"""Label of a flow run whose run is in its store: when that was so, in seconds since 1970."""

_PAGE = 200
_MOST_PAGES = 5
_AUTOMATION = "AUTOMATION"


@dataclass(frozen=True)
class TrainingRequest:
    """A request to train a run, and what has become of it.

    Attributes:
        run: the run.
        flow_run: the last flow run that was to train it.
        parameters: those of the flow run with which a user has asked for it; None: not known.
        begun: a process has put it into its store.
        stopped: the user has cancelled or suspended it, as a sentence; None: not so.
    """

    run: str
    flow_run: "FlowRun"
    parameters: Mapping[str, Any] | None
    begun: bool
    stopped: str | None

    @property
    def is_suspended(self) -> bool:
        """Whether its page can resume it."""
        return _state(self.flow_run).is_paused()

    @property
    def waits(self) -> bool:
        """Whether its flow run will begin by itself."""
        return self.flow_run.state_type == StateType.SCHEDULED or (
            self.flow_run.state_type == StateType.PENDING and is_beginning(self.flow_run)
        )

    @property
    def is_complete(self) -> bool:
        """Whether the run was trained to its end."""
        return self.flow_run.state_type == StateType.COMPLETED and self.flow_run.state_name != RUNNING_NAME


def is_automatic() -> bool:
    """Whether the schedule or an automation has asked for this flow run, rather than a user."""
    context = FlowRunContext.get()
    created_by = None if context is None or context.flow_run is None else context.flow_run.created_by
    return SCHEDULED_TAG in runtime.flow_run.tags or (created_by is not None and created_by.type == _AUTOMATION)


def own_run() -> str | None:
    """Return the run that this flow run has trained before: it was suspended, and its page has resumed it."""
    return tagged_run(runtime.flow_run.tags)


def own_run_name(config: Config) -> str:
    """Return the name of a new run of this flow run: the same each time that its request is tried again."""
    context = FlowRunContext.get()
    flow_run = None if context is None else context.flow_run
    return default_run_name(config.preset, None if flow_run is None else flow_run.created)


def last_request(run: str | None = None) -> TrainingRequest | None:
    """Return the request that was last begun, or made, of the deployment of this flow run.

    Flow runs that only look for something to resume ask for none, and neither does one that was cancelled because
    another one trained. Of the deployment's flow runs the newest 1,000 are looked at.

    Args:
        run: that it is to train; None: any.

    Raises:
        httpx.HTTPError, PrefectException: the server does not answer.
    """
    deployment = own_deployment()
    if deployment is None:
        return None
    with get_client(sync_client=True) as client:
        known = sorted(_requests(client, deployment), key=_moment, reverse=True)
        of_run = [found for found in known if run is None or _run_of(found) == run]
        if not of_run:
            return None
        last = of_run[0]
        name = _run_of(last)
        of_run = [found for found in known if _run_of(found) == name]
        asked = next((place for place, found in enumerate(of_run) if _names_its_run(found)), None)
        since = of_run if asked is None else of_run[: asked + 1]
        return TrainingRequest(
            run=name,
            flow_run=last,
            parameters=None if asked is None else of_run[asked].parameters,
            begun=any(BEGUN_LABEL in found.labels for found in since),
            stopped=_stopped(client, last, name),
        )


def _requests(client: "SyncPrefectClient", deployment: UUID) -> Iterator["FlowRun"]:
    due = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[deployment]),
        expected_start_time=FlowRunFilterExpectedStartTime(before_=datetime.now(UTC)),
    )
    for page in range(_MOST_PAGES):
        found = client.read_flow_runs(
            flow_run_filter=due, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=_PAGE, offset=page * _PAGE
        )
        yield from (flow_run for flow_run in found if _is_request(flow_run))
        if len(found) < _PAGE:
            break


def _is_request(flow_run: "FlowRun") -> bool:
    state = flow_run.state
    if state is None or not (_names_its_run(flow_run) or tagged_run(flow_run.tags)):
        return False
    if state.is_scheduled() and flow_run.work_pool_name not in (None, POOL):
        # No worker of ours takes what waits in the pool that an earlier version of Eigen has used.
        return False
    return not (state.is_cancelled() and str(state.message or "").startswith(LIMIT_REACHED))


def _names_its_run(flow_run: "FlowRun") -> bool:
    """Whether its parameters say what to train; else it has looked for that."""
    parameters = flow_run.parameters
    return bool(parameters.get("run")) or not (parameters.get("resume") or SCHEDULED_TAG in flow_run.tags)


def _run_of(flow_run: "FlowRun") -> str:
    named = tagged_run(flow_run.tags) or flow_run.parameters.get("run")
    if named:
        return str(named)
    config = flow_run.parameters.get("config")
    preset = config.get("preset") if isinstance(config, dict) else None
    return default_run_name(preset if isinstance(preset, str) else Config().preset, flow_run.created)


def _moment(flow_run: "FlowRun") -> float:
    """Return when a flow run was due or, if that was later because it was suspended, has begun (seconds since 1970)."""
    due = 0.0 if flow_run.expected_start_time is None else flow_run.expected_start_time.timestamp()
    begun = flow_run.labels.get(BEGUN_LABEL)
    return max(due, float(begun)) if isinstance(begun, int | float) else due


def _stopped(client: "SyncPrefectClient", flow_run: "FlowRun", run: str) -> str | None:
    state = _state(flow_run)
    go_on = f"`eigen launch --run {run}` continues it."
    if state.is_paused():
        end = state.state_details.pause_timeout
        until = "" if end is None else f" until {end:%d %b %H:%M} UTC"
        return f"Flow run {flow_run.name} is suspended{until}: resume it in its page. {go_on}"
    if state.is_cancelled() or state.is_cancelling():
        return f"Run '{run}' was cancelled: {go_on}"
    if state.is_failed():
        before = sorted(client.read_flow_run_states(flow_run.id), key=lambda found: found.timestamp)[:-1]
        if before and before[-1].is_paused():
            return f"Run '{run}' was suspended, and not resumed in its page in time: {go_on}"
    return None


def _state(flow_run: "FlowRun") -> "State[Any]":
    assert flow_run.state is not None
    return flow_run.state
