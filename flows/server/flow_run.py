"""The flow run of this process, at Prefect's server: its name, tags and state, and the schedule that resumes it."""

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect import runtime
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterCreatedBy,
    FlowRunFilterDeploymentId,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import StateType
from prefect.events import emit_event
from prefect.logging import get_logger, get_run_logger
from prefect.runtime import flow_run
from prefect.states import Running

from eigen_core.common.records import GenerationRecord, HoldoutResult, Telemetry
from eigen_core.config import Config
from eigen_core.training.listener import Listener, Training
from flows.server.environment import SCHEDULED_TAG, SUSPENDED_EVENT, run_tag
from flows.server.flow_runs import BEGUN_LABEL, own_deployment, trained_run
from flows.server.reporter import Reporter, require_server, server_asked, server_is_there, wait_for_server

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import DeploymentSchedule, FlowRun, State
    from prefect.client.schemas.responses import DeploymentResponse

    from eigen_core.training.journals import Start

logger = get_logger(__name__)

RESUME = "resume"
"""Slug of the schedule."""

_PARAMETERS = {"resume": True}


def is_scheduled() -> bool:
    """Whether a schedule has created this flow run.

    Switching a schedule on in Prefect's pages removes its parameters, so that they do not show it.
    """
    return SCHEDULED_TAG in runtime.flow_run.tags


def switch_schedule(active: bool) -> None:
    """Switch the schedule of this flow run's deployment on or off; without a deployment there is nothing to switch."""
    deployment = own_deployment()
    if deployment is not None:
        _switch(deployment, active)


def remove_needless_resumes() -> None:
    """Remove the flow runs that are to resume a run and have not begun, since this flow run trains.

    The schedule creates 144 of them a day, and the trigger more than one a crash if the server's database is busy: its
    events come at least once. Those left would go on with another run of the store, or with this one after it was
    cancelled.
    """
    deployment = own_deployment()
    if deployment is None or not server_is_there():
        return
    with server_asked("Flow runs that never began are still listed", logger) as client:
        for due in _due(deployment):
            for waiting in client.read_flow_runs(flow_run_filter=due):
                if waiting.run_count == 0 and not waiting.parameters.get("run"):
                    client.delete_flow_run(waiting.id)


def stop_resuming(flow: "Flow[..., Any]", flow_run: "FlowRun", state: "State[Any]") -> None:  # noqa: ARG001 - what Prefect calls a hook with
    """Switch the schedule off after a cancellation, and keep with the run that nothing but its name continues it."""
    if flow_run.deployment_id is not None:
        _switch(flow_run.deployment_id, False)
    run = trained_run(flow_run)
    if run is not None:
        # It loads torch, which a server's pages need not wait for.
        from flows.server.choosing import keep_stop

        keep_stop(run)


def schedule_of(found: "DeploymentResponse") -> "DeploymentSchedule | None":
    """Return the schedule of a deployment that resumes, None if it has none."""
    return next((schedule for schedule in found.schedules if schedule.slug == RESUME), None)


def set_schedule(client: "SyncPrefectClient", found: "DeploymentResponse", active: bool) -> bool:
    """Switch the schedule of a deployment on or off, and return whether it has one."""
    schedule = schedule_of(found)
    if schedule is not None and (schedule.active, schedule.parameters) != (active, _PARAMETERS):
        # A change that does not name the parameters removes them.
        client.update_deployment_schedule(found.id, schedule.id, active=active, parameters=_PARAMETERS)
    return schedule is not None


def _switch(deployment_id: UUID, active: bool) -> None:
    failure = f"The schedule '{RESUME}' could not be switched {'on' if active else 'off'}"
    with server_asked(failure, logger) as client:
        require_server()
        set_schedule(client, client.read_deployment(deployment_id), active)


def _due(deployment_id: UUID) -> list[FlowRunFilter]:
    """Return filters for the flow runs of a deployment that the schedule or the trigger has created.

    They are due, and wait or are cancelled. The number of its processes shows whether one has ever begun: the server
    sets the times of all that end.
    """
    due = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[deployment_id]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED, StateType.CANCELLED])),
        expected_start_time=FlowRunFilterExpectedStartTime(before_=datetime.now(UTC)),
    )
    return [
        due.model_copy(update={"tags": FlowRunFilterTags(all_=[SCHEDULED_TAG])}),
        due.model_copy(update={"created_by": FlowRunFilterCreatedBy(type_=["AUTOMATION"])}),
    ]


# A server that is unavailable at the end of a training is waited for so long.
_REPORT_SECONDS = 120.0
# What the server makes of this flow run is looked at so often, at the end of a generation.
_LOOK_SECONDS = 5.0


def first_name() -> str:
    """Return the name of this flow run as it begins, made from its parameters.

    Schedules and automations cannot name the flow runs that they create, and Prefect's own names are random words.
    """
    run = flow_run.parameters.get("run")
    return str(run) if run else "resume" if flow_run.parameters.get("resume") or is_scheduled() else "new run"


def name_flow_run(name: str, tags: Iterable[str] | None = None) -> None:
    """Name this flow run, and tag it if tags are given. That the server does not accept it is logged."""
    if flow_run.id is not None:
        with server_asked("The flow run could not be named", get_run_logger()) as client:
            require_server()
            client.update_flow_run(flow_run.id, name=name, tags=None if tags is None else sorted(tags))


class CancellationError(Exception):
    """This flow run is to be cancelled."""


class OwnFlowRun(Listener):
    """Describes this flow run at the server, and keeps its state and the schedule that resumes it right.

    Args:
        config: of the run that is trained.
        run: its name.
        reporter: sends its names.
    """

    def __init__(self, config: Config, run: str, reporter: Reporter) -> None:
        self._config = config
        self._run = run
        self._reporter = reporter
        self._looked = time.monotonic()
        self._name = ""

    def chosen(self, generation: int) -> None:
        """Give the flow run a name that says what it trains, such as `mine gen 7-25`, and tags to find it by."""
        config, last = self._config, self._config.generations
        self._name = f"{self._run} gen {generation}-{last}" if generation <= last else f"{self._run} ({last} done)"
        tags = {*flow_run.tags, run_tag(self._run), f"preset:{config.preset}", f"device:{config.device}"}
        name_flow_run(self._name, tags)

    def prepared(self, training: Training) -> None:  # noqa: ARG002
        """Label the flow run: from now on the run's own store has on record what was asked for."""
        if flow_run.id is not None:
            with server_asked("The flow run could not be labelled", get_run_logger()) as client:
                require_server()
                client.update_flow_run_labels(UUID(flow_run.id), {BEGUN_LABEL: time.time()})

    def begun(self, training: Training, starts: "Sequence[Start]") -> None:  # noqa: ARG002
        """Let the schedule resume the run from now on, after a crash."""
        switch_schedule(True)
        remove_needless_resumes()

    def checkpointed(self, training: Training) -> None:
        """Add the newest complete generation to the flow run's name."""
        name = f"{self._name} ({training.state.generation} done)"
        self._reporter.report("name", lambda: name_flow_run(name))

    def generation_finished(self, record: GenerationRecord, telemetry: Telemetry) -> None:  # noqa: ARG002
        """Look at what the server makes of this flow run.

        Raises:
            CancellationError: it is being cancelled.
        """
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._reporter.report("resumes", remove_needless_resumes)
            correct_state()
            self._looked = time.monotonic()

    def completed(self, training: Training, result: HoldoutResult | None) -> None:  # noqa: ARG002
        """Wait for a server that is unavailable: a training that cannot report its end would be taken for crashed."""
        wait_for_server(_REPORT_SECONDS)
        remove_needless_resumes()
        correct_state()


def correct_state() -> None:
    """Report that this flow run trains, if the server took it for crashed because heartbeats were lost.

    Raises:
        CancellationError: it or the flow run that began it is being cancelled, which a process that no worker watches,
            or whose worker has no connection to the server, does not notice.
    """
    if flow_run.id is None or not server_is_there():
        return
    with server_asked("It is not known whether the server takes this flow run for crashed", get_run_logger()) as client:
        found = client.read_flow_run(UUID(flow_run.id)).state
        if found is not None and found.is_crashed():
            get_run_logger().warning("This flow run was taken for crashed (%s), but it trains.", found.message)
            client.set_flow_run_state(UUID(flow_run.id), Running(message="It trains."), force=True)
        if found is not None and found.is_cancelling():
            raise CancellationError("It was cancelled.")
        parent = flow_run.parent_flow_run_id
        begun_by = None if parent is None else client.read_flow_run(UUID(parent))
        if begun_by is not None and begun_by.state is not None and begun_by.state.is_cancelling():
            raise CancellationError(f"The flow run '{begun_by.name}', which began it, was cancelled.")


def report_suspension() -> None:
    """Report to the server that this process ends because its flow run is suspended.

    Without that, heartbeats that came after the suspension and then stop would look like those of a crashed process.
    """
    deployment = own_deployment()
    if deployment is None:
        return
    emit_event(
        SUSPENDED_EVENT,
        resource={"prefect.resource.id": f"prefect.flow-run.{flow_run.id}"},
        related=[
            {
                "prefect.resource.id": f"prefect.deployment.{deployment}",
                "prefect.resource.role": "deployment",
            }
        ],
    )
