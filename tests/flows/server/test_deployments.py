"""Pool, deployments and automations reach a server, as often as they are brought there; runs are launched on it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from flow_cases import small_flow_config
from known import known
from operation_cases import digest, record_of, sleeping
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.events import AutomationCore
from prefect.events.schemas.automations import EventTrigger
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling, Crashed, Pending, Running

from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.errors import InputError, Stopped
from eigen_core.common.process import default_cache_root
from eigen_core.runs.handle import unfinished_runs
from flows.server import deployments
from flows.server.artifacts import artifact_key
from flows.server.deployments import launch, require_free, resume
from flows.server.flow_runs import (
    DEPLOYMENT,
    POOL,
    SUSPENDED_EVENT,
    RunLogs,
    next_flow_run,
    report_lost,
    running_flow_run,
    trained_run,
    waiting_flow_run,
)
from flows.server.state_directory import StateDirectory
from flows.server.status import status_here
from flows.server.up import DownResult, bring_down


@pytest.fixture(scope="module")
def deployed(prefect_api_url: str) -> str:
    with deployments.client_of(prefect_api_url) as client:
        assert not deployments.is_up_to_date(client)
        with pytest.raises(InputError, match="has no deployment train/gpu: create it with `eigen deploy`"):
            deployments.find_deployment(client)
    deployments.deploy(prefect_api_url)
    return prefect_api_url


@pytest.fixture
def client(deployed: str) -> Iterator[SyncPrefectClient]:
    """A client of that server; flow runs end with the test."""
    with deployments.client_of(deployed) as client:
        yield client
        while (left := running_flow_run(client) or next_flow_run(client)) is not None:
            client.set_flow_run_state(left.id, Cancelled(), force=True)


def create(client: SyncPrefectClient, parameters: dict[str, Any], **more: Any) -> FlowRun:
    return client.create_flow_run_from_deployment(deployments.find_deployment(client).id, parameters=parameters, **more)


def assert_resuming(client: SyncPrefectClient) -> None:
    """The schedule is on, and resumes rather than begins."""
    schedule = known(deployments.resume_schedule(client))
    assert schedule.active
    assert schedule.parameters == {"resume": True}


@pytest.mark.thorough
def test_the_deployments_are_as_they_must_be(client: SyncPrefectClient) -> None:
    assert deployments.is_up_to_date(client)
    # A limit of the pool would be held for ever by a run whose process has vanished.
    assert client.read_work_pool(POOL).concurrency_limit is None
    train = client.read_deployment_by_name(DEPLOYMENT)
    assert [(found.slug, found.active) for found in train.schedules] == [("resume", False)]
    cleanup = client.read_deployment_by_name(deployments.CLEANUP)
    assert [found.active for found in cleanup.schedules] == [True]
    zombie = deployments.zombie_automation(train.id).trigger
    assert isinstance(zombie, EventTrigger)
    assert zombie.expect == {"prefect.flow-run.*", SUSPENDED_EVENT}
    # Three heartbeats fit, and the slot's lease of 300 s has not ended when the run is taken for dead.
    heartbeat = float(train.job_variables["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"])
    assert 3 * heartbeat <= zombie.within.total_seconds() < 300


@pytest.mark.parametrize("make", [deployments.resume_automation, deployments.zombie_automation])
@pytest.mark.parametrize("ours", [True, False])
def test_flow_runs_of_another_deployment_of_the_same_name_set_nothing_off(
    client: SyncPrefectClient, make: Callable[[UUID], AutomationCore], ours: bool
) -> None:
    from prefect.server.events.schemas import automations as server_automations, events as server_events

    deployment = deployments.find_deployment(client).id
    found = server_automations.AutomationCore.model_validate(make(deployment).model_dump(mode="json"))
    number = deployment if ours else uuid4()
    role, name = {"prefect.resource.role": "deployment"}, {"prefect.resource.name": "gpu"}
    resource = server_events.Resource({"prefect.resource.id": f"prefect.flow-run.{uuid4()}"})
    related = server_events.RelatedResource({"prefect.resource.id": f"prefect.deployment.{number}", **role, **name})
    trigger = found.trigger
    assert isinstance(trigger, server_automations.EventTrigger)
    assert trigger.covers_resources(resource, [related]) is ours


@pytest.mark.thorough
def test_another_deploy_brings_what_is_missing_changes_no_switch_and_doubles_nothing(
    client: SyncPrefectClient, deployed: str
) -> None:
    deployments.set_resuming(client, True)
    cleanup = client.read_deployment_by_name(deployments.CLEANUP)
    client.update_deployment_schedule(cleanup.id, cleanup.schedules[0].id, active=False)
    zombie = deployments.zombie_automation(deployments.find_deployment(client).id)
    client.create_automation(zombie)
    (doubled, _) = client.read_automations_by_name(zombie.name)
    client.update_automation(doubled.id, zombie.model_copy(update={"enabled": False}))
    client.delete_automation(client.read_automations_by_name(deployments.RESUME_NAME)[0].id)
    others = client.create_automation(deployments.resume_automation(uuid4()))
    assert not deployments.is_up_to_date(client)
    deployments.deploy(deployed)
    assert deployments.is_up_to_date(client)
    assert_resuming(client)
    assert [found.active for found in client.read_deployment_by_name(deployments.CLEANUP).schedules] == [False]
    automations = {automation.id: automation for automation in client.read_automations()}
    # It is of another deployment.
    assert automations.pop(others).name == deployments.RESUME_NAME
    found = sorted((automation.name, automation.enabled) for automation in automations.values())
    assert found == sorted((name, True) for name in (deployments.RESUME_NAME, deployments.ZOMBIE_NAME))
    client.delete_automation(others)


def test_switched_off_and_on_the_schedule_still_resumes(client: SyncPrefectClient) -> None:
    deployments.set_resuming(client, False)
    # The switch on Prefect's own page removes the parameters; the next launch sets them right.
    deployment = deployments.find_deployment(client)
    client.update_deployment_schedule(deployment.id, deployment.schedules[0].id, active=True)
    assert deployments.find_deployment(client).schedules[0].parameters == {}
    deployments.set_resuming(client, True)
    assert_resuming(client)


def test_a_deploy_that_fails_half_way_changes_no_switch(
    client: SyncPrefectClient, deployed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployments.set_resuming(client, True)

    def half(api: str) -> None:
        assert api == deployed
        deployments.set_resuming(client, False)
        raise Stopped("half-way")

    monkeypatch.setattr(deployments, "_run_prefect_deploy", half)
    with pytest.raises(Stopped, match="half-way"):
        deployments.deploy(deployed)
    assert_resuming(client)


@pytest.mark.usefixtures("client")
def test_a_wrong_setting_is_refused_by_the_server_and_leaves_nothing(deployed: str, tmp_path: Path) -> None:
    home = StateDirectory(tmp_path)
    with home.new_launch_settings("before", {"scheduler": "tcp://a:1"}):
        before = digest(default_cache_root() / "launched")
    for run in ("before", "mine"):
        with (
            pytest.raises(InputError, match=r"The server refuses the run: .*nonsense"),
            home.new_launch_settings(run, {"task": "portfolio"}),
        ):
            launch(deployed, {"nonsense": 1}, run, print)
    assert digest(default_cache_root() / "launched") == before


@pytest.mark.parametrize("state", [Pending(), Running()])
def test_one_at_a_time_is_launched(client: SyncPrefectClient, deployed: str, state: Any) -> None:
    active = create(client, {"resume": True}, tags=["run:other"], state=state)
    said: list[str] = []
    assert active.state_type in (StateType.PENDING, StateType.RUNNING)
    with pytest.raises(InputError, match=rf"Run 'other' is being trained .*flow-run cancel {active.id}"):
        launch(deployed, {}, "mine", said.append)
    assert said == []
    assert resume(deployed) is None


def test_what_was_launched_and_waits_for_a_worker_is_known_with_its_newest_page(
    client: SyncPrefectClient, deployed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # What a schedule asks for is no reason to refuse a launch.
    create(client, {"resume": True})
    assert waiting_flow_run(client) is None
    client.set_flow_run_state(next_flow_run(client).id, Cancelled(), force=True)  # type: ignore[union-attr] # that one
    first = launch(deployed, {}, "first", print).rpartition("/")[2]
    with pytest.raises(InputError, match=f"Run 'first' was launched before and waits for a worker .*{first}"):
        require_free(deployed, print)
    monkeypatch.chdir(tmp_path)
    home = StateDirectory(tmp_path)
    with sleeping() as process:
        home.write("worker", record_of(home, process.pid, deployed))
        RunDirectory.create(tmp_path / "runs", "earlier", small_flow_config(Path("runs")).model_dump(mode="json"))
        for text in ("old", "new"):
            artifact = {"key": artifact_key("first"), "type": "markdown", "data": text}
            number = client.request("POST", "/artifacts/", json=artifact).json()["id"]
        found = status_here(home)
    assert found.flow_run is not None
    assert (found.flow_run.id, found.flow_run.run, found.flow_run.waiting) == (first, "first", True)
    assert found.run is None
    assert found.problem is None
    assert found.run_page == f"{deployed.removesuffix('/api')}/artifacts/artifact/{number}"


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ({"parameters": {"resume": True}}, Pending()),
        ({"parameters": {}, "tags": ["auto-scheduled"]}, Running()),
        ({"parameters": {"run": "other"}, "state": Running()}, Cancelling()),
    ],
)
@pytest.mark.thorough
def test_a_launch_waits_for_what_ends_in_a_moment(
    client: SyncPrefectClient, deployed: str, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], state: Any
) -> None:
    ending = create(client, name="ending", **given)
    # Without a process, Prefect takes what is to be cancelled for cancelled.
    client.update_flow_run(ending.id, infrastructure_pid="1")
    client.set_flow_run_state(ending.id, state, force=True)
    monkeypatch.setattr(deployments, "_POLL_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(deployments, "_ENDING_TIMEOUT_SECONDS", 0.0)
        with pytest.raises(InputError, match=r"flow run ending, .*wait until it has ended"):
            launch(deployed, {}, "mine", print)
    said: list[str] = []

    def end_at_the_second_look(what: str) -> None:
        if len(said) == 1:
            client.set_flow_run_state(ending.id, Cancelled(), force=True)
        said.append(what)

    page = launch(deployed, {}, "mine", end_at_the_second_look)
    assert said == ["waiting for the end of flow run ending"] * 2
    assert client.read_flow_run(UUID(page.rpartition("/")[2])).name == "mine"


def test_what_has_waited_for_its_process_for_too_long_is_not_taken_for_a_training(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(client, {"resume": True}, state=Pending())
    assert running_flow_run(client) is not None
    monkeypatch.setattr("flows.server.flow_runs._PENDING_SECONDS", 0.0)
    assert running_flow_run(client) is None
    running = create(client, {"resume": True}, state=Running())
    found = known(running_flow_run(client))
    assert found.id == running.id
    # For the end of `client`.
    monkeypatch.undo()


def test_what_was_stopped_goes_on_once_if_it_is_to_be_resumed(client: SyncPrefectClient, deployed: str) -> None:
    deployments.set_resuming(client, False)
    assert resume(deployed, always=False) is None
    page = known(resume(deployed))
    found = client.read_flow_run(UUID(page.rsplit("/", 1)[1]))
    assert found.parameters["resume"] is True
    assert trained_run(found) is None
    assert_resuming(client)
    client.set_flow_run_state(found.id, Cancelled(), force=True)
    assert resume(deployed, always=False) is not None
    assert resume(deployed, always=False) is None


def test_what_was_killed_with_its_server_goes_on_once_its_worker_has_reported_it(
    client: SyncPrefectClient, deployed: str
) -> None:
    deployments.set_resuming(client, True)
    killed = create(client, {"resume": True}, state=Running())
    client.update_flow_run_labels(killed.id, {"prefect.worker.name": "mine"})
    assert resume(deployed, always=False) is None

    def report() -> None:
        with deployments.client_of(deployed) as of_worker:
            of_worker.set_flow_run_state(killed.id, Crashed(), force=True)

    reporting = threading.Timer(2.0, report)
    reporting.start()
    page = resume(deployed, always=False, worker="mine")
    reporting.join()
    state = known(client.read_flow_run(killed.id).state)
    assert state.is_crashed()
    # The trigger may have been as quick.
    assert page is not None or next_flow_run(client) is not None or running_flow_run(client) is not None


def test_trainings_that_were_killed_with_their_worker_are_reported_and_no_others(
    client: SyncPrefectClient, deployed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = StateDirectory(tmp_path / "home")
    home.path.mkdir()

    def training(run: str | None, state: Any, worker: str = home.worker_name) -> UUID:
        found = create(client, {"resume": True} if run is None else {"run": run}, state=Running()).id
        client.update_flow_run_labels(found, {"prefect.worker.name": worker})
        # Without a process, Prefect takes what is to be cancelled for cancelled.
        client.update_flow_run(found, infrastructure_pid="1")
        client.set_flow_run_state(found, state, force=True)
        return found

    killed, starting, cancelled, lives, other = (
        training("killed", Running()),
        training(None, Pending()),
        training("cancelled", Cancelling()),
        training("lives", Running()),
        training("other", Running(), "another machine"),
    )

    def states() -> list[StateType | None]:
        return [client.read_flow_run(found).state_type for found in (killed, starting, cancelled, lives, other)]

    before = states()
    with sleeping() as worker:
        record = record_of(home, worker.pid, deployed)
        home.write("worker", record)
        report_lost(client, home)
    for boot in ("another", None):
        home.write("worker", record.model_copy(update={"process": record.process.model_copy(update={"boot": boot})}))
        report_lost(client, home)
    assert states() == before
    home.write("worker", record)
    for run in ("killed", "cancelled"):
        RunDirectory.create(tmp_path / "runs", run, small_flow_config(Path("runs")).model_dump(mode="json"))
    # The runs are where the worker was, wherever `eigen down` or `eigen up` is called.
    monkeypatch.chdir(home.path)
    monkeypatch.delenv("EIGEN_STORE", raising=False)
    with ExitStack() as stack:
        with monkeypatch.context() as patch:
            patch.setenv("PREFECT__FLOW_RUN_ID", str(lives))
            stack.enter_context(sleeping())
        assert bring_down(home, print) == DownResult(None, None, 0, ())
    crashed, running = StateType.CRASHED, StateType.RUNNING
    assert states() == [crashed, crashed, StateType.CANCELLED, running, running]
    assert home.read("worker") is None
    # Not even another server resumes the cancelled one.
    assert [run.name for run in unfinished_runs(str(tmp_path / "runs"))] == ["killed"]


def test_the_logs_of_a_run_are_those_of_all_its_flow_runs_in_the_order_of_time(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server returns them in pages.
    monkeypatch.setattr("flows.server.flow_runs._PAGE", 3)
    first = create(client, {"run": "told"}, name="told gen 1-2", tags=["run:told"])
    second = create(client, {"run": "told"}, name="told")
    other = create(client, {"run": "other"}, name="other", tags=["run:other"])
    began = datetime.now(UTC) - timedelta(minutes=5)

    def log(flow_run: FlowRun, second: int, message: str, task_run: UUID | None = None) -> None:
        moment = began + timedelta(seconds=second)
        entry = {"name": "x", "level": 20, "message": message, "timestamp": moment.isoformat()}
        numbers = {"flow_run_id": str(flow_run.id), "task_run_id": task_run and str(task_run)}
        assert client.request("POST", "/logs/", json=[{**entry, **numbers}]).status_code == 201

    log(second, 30, "d")
    for number, message in enumerate("abc"):
        log(first, number, message, uuid4() if number else None)
    log(other, 1, "not of this run")
    run_logs = RunLogs(client, "told")
    lines = list(run_logs.new_lines())
    assert [(flow_run.name, line.message) for flow_run, line in lines] == [
        *(("told gen 1-2", message) for message in "abc"),
        ("told", "d"),
    ]
    assert lines[0][1].timestamp == began
    assert list(run_logs.new_lines()) == []
    # It has taken longer on its way than a newer line.
    log(first, 20, "late")
    log(second, 31, "e")
    assert [line.message for _, line in run_logs.new_lines()] == ["late", "e"]
    assert list(RunLogs(client, "unknown").new_lines()) == []


def test_an_alert_is_set_once_and_removed_with_its_address(client: SyncPrefectClient) -> None:
    deployment = deployments.find_deployment(client).id
    for url in ("http://127.0.0.1:1/first", "http://127.0.0.1:1/second"):
        deployments.set_alert(client, deployment, url)
    (found,) = client.read_automations_by_name(deployments.ALERT_NAME)
    assert isinstance(found.trigger, EventTrigger)
    assert str(deployment) in str(found.trigger.match_related)
    block = client.read_block_document_by_name("eigen-alert", "webhook", include_secrets=True)
    assert block.data["url"] == "http://127.0.0.1:1/second"
    with pytest.raises(InputError, match="'nonsense' cannot be called"):
        deployments.set_alert(client, deployment, "nonsense")
    for _ in range(2):
        deployments.remove_alert(client, deployment)
        assert client.read_automations_by_name(deployments.ALERT_NAME) == []
        with pytest.raises(ObjectNotFound):
            client.read_block_document_by_name("eigen-alert", "webhook")


def test_a_server_that_does_not_answer_is_a_sentence() -> None:
    with (
        pytest.raises(Stopped, match=r"The server at http://127\.0\.0\.1:1/api does not answer"),
        deployments.client_of("http://127.0.0.1:1/api") as client,
    ):
        client.read_work_pools()
