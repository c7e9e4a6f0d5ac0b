"""The schedule of a deployment: on while a run of it trains, off when nothing is left that it could go on with."""

import base64
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest
from flow_cases import small_flow_config
from known import known
from prefect import State, tags
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.exceptions import Pause, TerminationSignal
from prefect.runtime import flow_run
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed, Pending, Running, Scheduled, Suspended
from store_cases import run_config, save_generations

from eigen_core import generation as phases
from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.checkpoint.session import RunSession
from eigen_core.common.errors import InputError
from eigen_core.common.records import GenerationRecord
from eigen_core.config import Config
from eigen_core.config.model import CheckpointConfig
from eigen_core.runs.handle import status_of, unfinished_runs
from eigen_core.runs.journals import ATTEMPTS, MOST_ATTEMPTS, BlockedError, count_attempt, has_failed_too_often
from flows.server import flow_runs, training_flow
from flows.server.flow_runs import (
    BLOCKED_NAME,
    FINISHED_NAME,
    NOTHING_NAME,
    RESUME,
    RUNNING_NAME,
    SUSPENDED_EVENT,
    SUSPENDED_NAME,
    run_tag,
    schedule_of,
    set_schedule,
    stop_resuming,
)
from flows.server.flows import train_flow

pytestmark = pytest.mark.usefixtures("prefect_api", "user_folder")


class Deployed:
    """A deployment with a schedule, of which the flow runs of a test believe to be."""

    def __init__(self, client: SyncPrefectClient, number: UUID) -> None:
        self.client = client
        self.number = number

    @property
    def is_on(self) -> bool:
        schedule = known(schedule_of(self.client.read_deployment(self.number)))
        assert not schedule.active or schedule.parameters == {"resume": True}
        return schedule.active

    def switch_on(self) -> None:
        """Switch the schedule on as Prefect's pages do."""
        schedule = known(schedule_of(self.client.read_deployment(self.number)))
        self.client.update_deployment_schedule(self.number, schedule.id, active=True)

    def asked(self, state: State[Any], *, by_schedule: bool = True) -> UUID:
        found = self.client.create_flow_run_from_deployment(
            self.number, state=state, tags=["auto-scheduled"] if by_schedule else []
        )
        return found.id

    def asked_by_automation(self, state: State[Any], **parameters: Any) -> UUID:
        """A flow run that an automation has asked for, as Prefect's server does for it."""
        name = base64.b64encode(b"resume-after-crash").decode()
        headers = {"Prefect-Automation-ID": str(uuid4()), "Prefect-Automation-Name": name}
        with get_client(sync_client=True, httpx_settings={"headers": headers}) as client:
            found = client.create_flow_run_from_deployment(self.number, state=state, parameters=parameters)
        assert found.created_by is not None
        return found.id

    def known(self) -> set[UUID]:
        ours = FlowRunFilter.model_validate({"deployment_id": {"any_": [self.number]}})
        return {found.id for found in self.client.read_flow_runs(flow_run_filter=ours)}


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    # The store is the worker's own: parameters do not give it.
    monkeypatch.setenv("EIGEN_STORE", str(tmp_path))
    with get_client(sync_client=True) as client:
        schedule = DeploymentScheduleCreate(
            schedule=IntervalSchedule(interval=timedelta(minutes=10)), active=False, slug=RESUME, parameters={}
        )
        number = client.create_deployment(client.create_flow(train_flow), "gpu", schedules=[schedule])
        # Prefect's own way to pretend that a worker runs the flow.
        monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", str(number))
        yield Deployed(client, number)
        client.delete_deployment(number)


def asked(config: Config, run: str | None = None, **parameters: Any) -> Any:
    return train_flow(config.model_copy(update={"checkpoint": CheckpointConfig()}), run, **parameters)


def scheduled(store: Path) -> State[Any]:
    """What the schedule starts, if its parameters were lost."""
    with tags("auto-scheduled"):
        return cast("State[Any]", asked(small_flow_config(store), return_state=True))


def fail(config: Config, run: str, monkeypatch: pytest.MonkeyPatch, **parameters: Any) -> None:
    """Begin a run, or go on with it, whose first generation fails."""
    with monkeypatch.context() as patch:
        patch.setattr(phases, "evolve", Mock(side_effect=RuntimeError("a mistake")))
        assert asked(config, run, return_state=True, **parameters).is_failed()


def test_without_any_unfinished_run_it_goes_off(deployed: Deployed, tmp_path: Path) -> None:
    deployed.switch_on()
    ended = scheduled(tmp_path)
    assert ended.name == NOTHING_NAME
    assert not deployed.is_on


def test_a_resume_that_is_refused_is_tried_again(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_schedule(deployed.client, deployed.client.read_deployment(deployed.number), True)
    monkeypatch.setattr(
        training_flow, "unfinished_runs", Mock(side_effect=InputError("the key may not read the bucket"))
    )
    ended = scheduled(tmp_path)
    assert (ended.is_failed(), "may not read" in str(ended.message)) == (True, True)
    assert deployed.is_on


# Made anew each time: one that was raised holds all that its traceback does.
@pytest.mark.parametrize("telling", [partial(TerminationSignal, signal.SIGTERM), partial(Pause, state=Suspended())])
@pytest.mark.usefixtures("sigterm_ignored")
@pytest.mark.thorough
def test_a_generation_that_was_complete_when_a_training_was_stopped_is_kept_and_no_attempt_was_in_vain(
    deployed: Deployed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: tuple[GenerationRecord, ...],
    telling: Callable[[], BaseException],
) -> None:
    told = telling()
    config = small_flow_config(tmp_path, generations=3)
    location = RunLocation.of(config.checkpoint, "mine")
    ends: list[dict[str, Any]] = []
    monkeypatch.setattr(flow_runs, "emit_event", lambda event, **more: ends.append({"event": event, **more}))

    def resumed() -> State[Any]:
        """What goes on: of itself after a signal; what was suspended because its user resumes it."""
        if isinstance(told, Pause):
            return cast("State[Any]", asked(small_flow_config(tmp_path), "mine", resume=True, return_state=True))
        return scheduled(tmp_path)

    begun: list[tuple[Any, str, Callable[[], object]]] = [
        (phases, "train", lambda: asked(config, "mine", return_state=True)),
        (RunSession, "save", resumed),
    ]
    for generation, (owner, name, begin) in enumerate(begun):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, Mock(side_effect=told))
            with pytest.raises(type(told)):
                begin()
        assert status_of(str(tmp_path), "mine").generation == generation
        assert deployed.is_on
    assert ATTEMPTS.read(location) == []
    # A missing heartbeat of a suspended flow run must not look like a crash.
    assert [end["event"] for end in ends] == [SUSPENDED_EVENT] * (2 if isinstance(told, Pause) else 0)
    for end in ends:
        assert end["resource"]["prefect.resource.id"].startswith("prefect.flow-run.")
        (related,) = end["related"]
        assert related["prefect.resource.id"] == f"prefect.deployment.{deployed.number}"
    assert location.stored.verify() == []
    assert resumed().is_completed()
    whole = status_of(str(tmp_path), "mine")
    assert whole.history == expected
    assert [entry.generation for entry in whole.telemetry] == [1, 2, 3]


@pytest.mark.thorough
def test_what_is_suspended_is_left_alone_until_a_user_names_it(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(small_flow_config(tmp_path, generations=1), "mine", monkeypatch)
    number = deployed.asked(Running(), by_schedule=False)
    deployed.client.update_flow_run(number, name="mine gen 1-1", tags=[run_tag("mine")])
    deployed.client.set_flow_run_state(number, Suspended(timeout_seconds=3600), force=True)
    ended = scheduled(tmp_path)
    assert (ended.name, deployed.is_on) == (SUSPENDED_NAME, True)
    assert str(ended.message).startswith("Flow run mine gen 1-1 is suspended: resume it in its page.")
    assert ATTEMPTS.read(RunLocation.of(small_flow_config(tmp_path).checkpoint, "mine")) == []
    deployed.client.set_flow_run_state(number, Failed(message="The flow was paused and never resumed."), force=True)
    for _ in range(2):
        ended = scheduled(tmp_path)
        assert (ended.name, deployed.is_on) == (NOTHING_NAME, False)
        assert "`eigen launch --run mine` continues it" in str(ended.message)
        deployed.client.set_flow_run_state(number, Cancelled(), force=True)
    assert status_of(str(tmp_path), "mine").generation == 0
    assert asked(small_flow_config(tmp_path), "mine", resume=True, return_state=True).is_completed()


def resumed_by_user(store: Path) -> State[Any]:
    """What `eigen up --resume` starts."""
    return cast("State[Any]", asked(small_flow_config(store), resume=True, return_state=True))


def launched(deployed: Deployed, state: State[Any], **parameters: Any) -> UUID:
    config = parameters.pop("config", None)
    values = {} if config is None else {"config": config.model_dump(mode="json", exclude={"checkpoint"})}
    found = deployed.client.create_flow_run_from_deployment(deployed.number, parameters={**values, **parameters})
    deployed.client.set_flow_run_state(found.id, Running(), force=True)
    deployed.client.set_flow_run_state(found.id, state, force=True)
    return found.id


@pytest.mark.thorough
def test_one_that_fails_each_time_is_tried_three_times_under_one_name(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_flow_config(tmp_path, generations=1)
    deployed.switch_on()
    launched(deployed, Crashed(), config=config)
    with monkeypatch.context() as patch:
        patch.setattr(phases, "start_training", Mock(side_effect=RuntimeError("no luck")))
        ends = [scheduled(tmp_path) for _ in range(MOST_ATTEMPTS + 2)]
    assert [end.name for end in ends] == [*["Failed"] * MOST_ATTEMPTS, BLOCKED_NAME, BLOCKED_NAME]
    (name,) = (path.name for path in tmp_path.iterdir())
    assert name.startswith("ddpg-")
    assert f"eigen resume {name}" in str(ends[-1].message)
    assert not deployed.is_on
    # Whoever asks for this very run is not refused.
    assert asked(config, name, return_state=True).is_completed()


@pytest.mark.thorough
def test_more_generations_are_trained_though_the_process_died_before_they_were_in_the_store(
    deployed: Deployed, tmp_path: Path
) -> None:
    config = small_flow_config(tmp_path, generations=1)
    assert asked(config, "mine", return_state=True).is_completed()
    launched(deployed, Crashed(), config=config.model_copy(update={"generations": 2}), run="mine")
    assert scheduled(tmp_path).is_completed()
    assert status_of(str(tmp_path), "mine").generation == 2


@pytest.mark.parametrize("message", ["Deployment concurrency limit reached.", None])
@pytest.mark.thorough
def test_a_cancellation_by_the_server_stops_nothing_and_that_by_a_user_all(
    deployed: Deployed, tmp_path: Path, message: str | None
) -> None:
    config = small_flow_config(tmp_path, generations=1)
    launched(deployed, Crashed(), config=config, run="first")
    launched(deployed, Cancelled(message=message), config=config, run="second")
    deployed.switch_on()
    ended = scheduled(tmp_path)
    assert ended.name == ("Completed" if message else NOTHING_NAME)
    assert not deployed.is_on
    assert [path.name for path in tmp_path.iterdir()] == (["first"] if message else [])


@pytest.mark.thorough
def test_a_cancelled_run_stays_so_on_another_server_until_it_is_named(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_flow_config(tmp_path, generations=1)
    fail(config, "mine", monkeypatch)
    number = launched(deployed, Cancelled(), config=config, run="mine")
    stop_resuming(train_flow, deployed.client.read_flow_run(number), Cancelled())
    for ended in (scheduled(tmp_path), resumed_by_user(tmp_path)):
        assert (ended.name, "`eigen launch --run mine` continues it" in str(ended.message)) == (NOTHING_NAME, True)
    deployed.client.delete_flow_run(number)
    for ended in (scheduled(tmp_path), resumed_by_user(tmp_path)):
        assert ended.name == NOTHING_NAME
    fail(config, "mine", monkeypatch, resume=True)
    assert scheduled(tmp_path).is_completed()


@pytest.mark.thorough
def test_a_resume_that_nobody_has_asked_for_leaves_what_nobody_has_asked_for(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_flow_config(tmp_path, generations=1)
    fail(config, "by-hand", monkeypatch)
    launched(deployed, Completed(), config=config, run="mine")
    assert scheduled(tmp_path).name == NOTHING_NAME
    assert resumed_by_user(tmp_path).name == "Completed"
    assert status_of(str(tmp_path), "by-hand").generation == 1


def test_one_that_is_about_to_begin_is_left_to_its_own_flow_run(deployed: Deployed, tmp_path: Path) -> None:
    set_schedule(deployed.client, deployed.client.read_deployment(deployed.number), True)
    launched(deployed, Pending(), config=small_flow_config(tmp_path), run="mine")
    ended = scheduled(tmp_path)
    assert (ended.name, deployed.is_on) == (RUNNING_NAME, True)


@pytest.mark.thorough
def test_resumes_that_are_asked_for_in_vain_are_removed(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = datetime.now(UTC) - timedelta(minutes=20)
    late, cancelled = deployed.asked(Scheduled(scheduled_time=past)), deployed.asked(Scheduled(scheduled_time=past))
    repeated = deployed.asked_by_automation(Scheduled(scheduled_time=past), resume=True)
    deployed.client.set_flow_run_state(cancelled, Cancelled(), force=True)
    kept = [
        deployed.asked(Scheduled(scheduled_time=datetime.now(UTC) + timedelta(minutes=5))),
        deployed.asked(Scheduled(scheduled_time=past), by_schedule=False),
        deployed.asked_by_automation(Scheduled(scheduled_time=past), run="other"),
        deployed.asked(Running()),
    ]
    begun = deployed.asked(Running())
    deployed.client.set_flow_run_state(begun, Cancelled(), force=True)
    removed, meanwhile = {late, cancelled, repeated}, []
    evaluate = phases.evaluate

    def asking(state: phases.TrainingState) -> Any:
        assert deployed.known().isdisjoint(removed)
        meanwhile.append(deployed.asked(Scheduled(scheduled_time=past)))
        return evaluate(state)

    monkeypatch.setattr(phases, "evaluate", asking)
    assert asked(small_flow_config(tmp_path, generations=1), "mine", return_state=True).is_completed()
    assert len(meanwhile) == 1
    assert deployed.known().isdisjoint(meanwhile)
    assert deployed.known() >= {*kept, begun}


def test_a_named_run_is_resumed_as_it_was_configured(deployed: Deployed, tmp_path: Path) -> None:
    config = small_flow_config(tmp_path, generations=1, seed=5)
    assert asked(config, "mine", return_state=True).is_completed()
    deployed.switch_on()
    assert asked(small_flow_config(tmp_path), "mine", resume=True, return_state=True).name == FINISHED_NAME
    assert not deployed.is_on
    with pytest.raises(InputError, match="seed"):
        asked(small_flow_config(tmp_path), "mine")


@pytest.fixture(params=["folder", "bucket"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    store = tmp_path / "store" if request.param == "folder" else f"{request.getfixturevalue('gcs_bucket')}/prefix"
    return run_config(store, tmp_path / "runs")


def test_the_unfinished_run_that_was_trained_last_is_chosen(config: Config) -> None:
    store = config.checkpoint.store
    assert unfinished_runs(store) == []
    save_generations(config, "finished", 1, 2, 3)
    assert unfinished_runs(store) == []
    save_generations(config, "zero-day", 1)
    save_generations(config, "old", 1)
    assert unfinished_runs(store)[0].name == "old"
    save_generations(config, "zero-day", 2)
    assert unfinished_runs(store)[0].name == "zero-day"


def test_three_vain_attempts_are_enough_and_progress_is_a_new_beginning(config: Config) -> None:
    location = save_generations(config, "run", 1)
    for _ in range(MOST_ATTEMPTS):
        count_attempt(location, 2)
    with pytest.raises(BlockedError, match=r"'run' is blocked: 3 scheduled resumes since .* generation 2"):
        count_attempt(location, 2)
    elsewhere = config.checkpoint.model_copy(update={"local": f"{config.checkpoint.local}-2"})
    assert has_failed_too_often(RunLocation.of(elsewhere, "run"), 2)
    count_attempt(location, 3)
    assert not has_failed_too_often(location, 3)


@pytest.mark.parametrize(
    ("made", "generations", "expected"),
    [(Crashed, 1, ["Crashed", "Running", "Completed"]), (Cancelling, 50, ["Cancelling", "Cancelled"])],
)
@pytest.mark.thorough
def test_a_training_that_was_taken_for_crashed_goes_on_and_one_that_was_cancelled_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[[], State[Any]],
    generations: int,
    expected: list[str],
) -> None:
    evolve = phases.evolve

    def taken_for_crashed(state: phases.TrainingState) -> Any:
        client = get_client(sync_client=True)
        client.set_flow_run_state(UUID(flow_run.id), made(), force=True)
        return evolve(state)

    monkeypatch.setattr(phases, "evolve", taken_for_crashed)
    ended = train_flow(small_flow_config(tmp_path, generations=generations), "mine", return_state=True)
    assert ended.name == expected[-1]
    with get_client(sync_client=True) as client:
        states = client.read_flow_run_states(known(ended.state_details.flow_run_id))
    assert [state.name for state in states][-len(expected) :] == expected
