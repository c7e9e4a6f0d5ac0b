"""The commands up, down, status, launch, deploy: sentences and exit codes without a server, and what they print."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from cli_cases import document, eigen, refused
from flow_cases import small_flow_config, small_settings
from operation_cases import answering, digest, record_of, sleeping
from record_cases import save_records, telemetry
from rich.console import Console

from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.errors import InputError
from eigen_core.common.process import default_cache_root
from eigen_core.runs.handle import status_of
from flows.cli.server import print_down, print_run_page, print_status, print_up
from flows.server import deployments
from flows.server.deployments import code_version
from flows.server.state_directory import StateDirectory, as_worker_sees, store_here
from flows.server.status import FlowRunStatus, ScheduleStatus, ServerStatus, Status, WorkerStatus, status_here
from flows.server.up import DownResult, UpResult


@pytest.fixture(autouse=True)
def folder(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr("flows.server.servers._prefects_api", lambda: None)
    return user_folder


@pytest.fixture
def home(folder: Path) -> StateDirectory:
    path = folder / ".eigen"
    path.mkdir()
    return StateDirectory(path)


@pytest.fixture
def api(home: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that answers and has nothing to do, and its worker."""
    monkeypatch.setattr(deployments, "require_free", lambda *_: None)
    with answering() as api, sleeping() as process:
        home.write("server", record_of(home, process.pid, api))
        home.write("worker", record_of(home, process.pid, api))
        yield api


def begun(folder: Path, name: str, **sections: Any) -> RunDirectory:
    """Make a run without a checkpoint in `runs` of a folder."""
    config = small_flow_config(Path("runs"), **sections)
    return RunDirectory.create(folder / "runs", name, config.model_dump(mode="json"))


def printed(show: Any, *arguments: Any) -> str:
    console = Console(file=StringIO(), width=120)
    show(console, *arguments)
    text = console.file.getvalue()  # type: ignore[attr-defined] # it is the buffer above
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("command", ["launch", "deploy", "up", "train"])
def test_a_server_that_does_not_answer_is_a_sentence(
    command: str, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://elsewhere.invalid/api")
    ended = eigen(command, code=2)
    assert "Prefect's API at http://elsewhere.invalid/api does not answer" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (folder / "runs").exists()


@pytest.mark.usefixtures("api")
def test_launch_refuses_what_its_worker_here_could_not_train(
    home: StateDirectory, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    begun(folder, "other", seed=9)
    locked = begun(folder, "busy")
    (folder / "empty.csv").write_text("")
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("EIGEN_HOME", str(home.path))
    monkeypatch.setattr(deployments, "_create", lambda *_: pytest.fail("a flow run was created"))
    with locked.lock():
        assert "empty.csv" in refused("launch", "--data", str(folder / "empty.csv"))
        assert "begun with other settings: seed differs" in refused("launch", "--run", "other", *small_settings())
        assert "is being trained by another process" in refused(
            "launch", "--run", "busy", "--generations", "3", *small_settings()
        )
        eigen("launch", "--set", "memory.limit_gb=0.1", *small_settings(), code=3)


def test_a_launch_names_places_so_that_the_worker_means_the_same(
    home: StateDirectory, monkeypatch: pytest.MonkeyPatch, folder: Path, api: str
) -> None:
    launches: list[Any] = []

    def remember(api: str, values: dict[str, Any], run: str, _: Any, *, as_configured: bool) -> str:
        launches.append((api, values, run, as_configured))
        return f"{api}/1"

    monkeypatch.setattr("flows.server.deployments.launch", remember)
    ended = eigen("launch", *small_settings(), code=0)
    assert "The run fits" in ended.stdout
    (_, values, run, as_configured) = launches.pop()
    assert (run.startswith("ddpg-"), as_configured) == (True, False)
    assert "checkpoint" not in values
    assert not (folder / "runs").exists()
    tracked = ("--set", "reporting.trackers=tensorboard")
    eigen("launch", "--store", "mine", "--run", "kept", *tracked, *small_settings(), code=0)
    (_, values, _, _) = launches.pop()
    assert ("checkpoint" in values, values["reporting"]) == (False, {"plot_every": 0})
    launched = {"checkpoint": {"store": str(folder / "mine")}, "reporting": {"trackers": ["tensorboard"]}}
    assert home.launch_settings("kept") == launched
    begun(folder, "mine", seed=5)
    eigen("launch", "--run", "mine", code=0)
    assert launches.pop() == (api, {}, "mine", True)
    assert "begun with other settings" in refused("launch", "--run", "mine", "--seed", "6")
    home.forget("worker")
    ended = eigen("launch", "--preset", "eigen2", "--data", "prices", "--run", "long", code=0)
    assert "The worker is elsewhere" in ended.stdout
    values = {"preset": "eigen2", "market": {"data": str(folder / "prices")}}
    assert launches.pop() == (api, values, "long", False)
    # They are that machine's own, and no parameter gives them.
    assert "set EIGEN_STORE among the worker's environment variables" in refused("launch", "--store", "mine")
    assert "set EIGEN_TASK and EIGEN_SCHEDULER among" in refused(
        "launch", "--preset", "pendulum", "--set", "scheduler=tcp://a:1", "--set", "task=gym:module:Class"
    )
    assert launches == []


@pytest.mark.usefixtures("api")
def test_a_launch_that_the_server_refuses_leaves_nothing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    refusing: list[bool] = []
    kept = default_cache_root() / "launched"

    def launch(api: str, *_: Any, **__: Any) -> Any:
        if refusing:
            raise InputError("The server refuses the run.")
        return f"{api}/1"

    monkeypatch.setattr("flows.server.deployments.launch", launch)
    for run, store in (("new", "first"), ("known", "second")):
        before, refusing[:] = (digest(folder), digest(kept)), [True]
        options = ["--store", store, *small_settings()]
        assert "The server refuses the run." in refused("launch", "--run", run, *options)
        assert (digest(folder), digest(kept)) == before
        refusing.clear()
        eigen("launch", "--run", "known", *options, code=0)
        assert (digest(folder), digest(kept)) != before


def test_a_worker_that_has_ended_is_not_stopped_again(home: StateDirectory) -> None:
    with sleeping() as process:
        home.write("worker", record_of(home, process.pid))
        process.kill()
        process.wait()
    assert eigen("down").stdout.startswith("No server or worker of `eigen up` runs")
    assert home.read("worker") is None


def test_status_and_health_without_anything_and_with_both() -> None:
    assert "none: start one with `eigen up`" in eigen("status", code=1).stdout
    found = document("status", code=1)
    assert found["up"] is False
    assert found["server"] is found["flow_run"] is found["run"] is found["schedule"] is None
    assert eigen("status", "--healthy", code=1).output == ""


@pytest.mark.usefixtures("api")
def test_what_runs_is_healthy() -> None:
    assert eigen("status", "--healthy", code=0).output == ""


def test_status_tells_of_the_last_run_though_nothing_runs(folder: Path) -> None:
    begun(folder, "first")
    ended = eigen("status")
    assert "first is unfinished: it has no checkpoint yet, of 3 generations" in ended.stdout
    (folder / "runs" / "first" / "config.json").write_text("{}")
    found = status_here(StateDirectory.of({}))
    assert found.run is None
    assert found.problem is not None


def test_stores_mean_what_they_mean_to_the_worker(
    home: StateDirectory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    with sleeping() as process:
        worker, named = record_of(home, process.pid), record_of(home, process.pid, store="gs://bucket/runs")
    config = small_flow_config(Path("runs"))
    places = [as_worker_sees(config, one).checkpoint for one in (worker, named)]
    runs = str(folder / "runs")
    assert [(place.store, place.local) for place in places] == [(runs, runs), ("gs://bucket/runs", runs)]
    assert as_worker_sees(small_flow_config(Path("/data/runs")), named).checkpoint.store == "/data/runs"
    assert store_here(named, "mine") == str(folder / "mine")
    monkeypatch.setenv("EIGEN_STORE", "/data")
    assert (store_here(None), store_here(worker)) == ("/data", runs)


def test_up_and_down_say_what_they_started_or_stopped(home: StateDirectory) -> None:
    with sleeping() as process:
        here, far = record_of(home, process.pid), record_of(home, process.pid, "http://far/api")
    text = printed(print_up, home, UpResult(here.api, here, here, ("server",)), "http://page")
    for said in ("(started, process", "runs already", "http://page", f"export PREFECT_API_URL={here.api}"):
        assert said in text
    assert "PREFECT_API_URL" not in printed(print_up, home, UpResult("http://far/api", None, here, ("worker",)))
    assert "other code of Eigen has started it: call `eigen down`, then" in text
    today = here.model_copy(update={"code": code_version()})
    assert "other code" not in printed(print_up, home, UpResult(here.api, here, today))
    text = printed(print_down, home, DownResult(far, far, 1, ("worker",)))
    for said in ("killed: it did not stop in time", "server         stopped", "was asked to stop", "eigen up resumes"):
        assert said in text


@pytest.mark.usefixtures("api")
def test_a_launch_begins_no_second_run_beside_that_of_its_folder(
    home: StateDirectory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = folder / "elsewhere"
    begun(elsewhere, "mine")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("EIGEN_HOME", str(home.path))
    monkeypatch.setattr(deployments, "launch", lambda api, *_, **__: api)
    assert f"add --store {elsewhere / 'runs'} to continue it" in refused("launch", "--run", "mine", *small_settings())
    assert f"in {folder / 'runs'}" in eigen("launch", "--run", "other", *small_settings(), code=0).stdout
    assert "mine, in " in eigen("launch", "--run", "mine", "--store", "runs", code=0).stdout


def flow_run_status(state: str, ago: timedelta, **more: Any) -> FlowRunStatus:
    given = {"name": "mine", "run": "mine", **more}
    return FlowRunStatus(id="42", state=state, since=datetime.now(UTC) - ago, page="http://page", **given)


def test_everything_is_shown(home: StateDirectory, folder: Path) -> None:
    save_records(small_flow_config(folder / "runs"), "first", [telemetry(generation) for generation in range(1, 11)])
    with sleeping() as process:
        record = record_of(home, process.pid)
    now, pid = datetime.now(UTC), record.process.pid
    server = {"api": record.api, "ui": "http://127.0.0.1:4200", "answers": True, "version": "3.8.8"}
    worker = {"name": "machine-abc", "running": True, "folder": record.folder, "heard_of": now - timedelta(seconds=5)}
    status = Status(
        server=ServerStatus(**server, pid=pid, log=record.log),
        worker=WorkerStatus(**worker, pid=pid, log=record.log),
        flow_run=flow_run_status("Failed", timedelta(hours=3), name="first gen [1]-3", run="first", message="why"),
        schedule=ScheduleStatus(active=True, next=now + timedelta(minutes=5)),
        run=status_of(str(folder / "runs"), "first"),
        run_page="http://artifacts/first",
    )
    text = printed(print_status, status)
    champion = "agent 0 of generation 1, score 0.75, validation 0.50, found 9 generations ago"
    assert champion in text
    assert "no clear rise" in text
    for said in ("http://artifacts/first", "Prefect 3.8.8", "Failed 3 h ago: why", "every 10 minutes, next in 5 min"):
        assert said in text
    found = status.document()
    assert json.loads(json.dumps(found)) == found
    assert list(found) == ["up", "server", "worker", "flow_run", "schedule", "run", "problem"]
    assert list(found["server"]) == ["api", "ui", "answers", "version", "pid", "log"]
    assert list(found["worker"]) == ["name", "running", "pid", "folder", "log", "heard_of"]
    keys = ("id", "name", "run", "state", "message", "since", "active", "waiting", "suspended", "page")
    assert tuple(found["flow_run"]) == keys
    assert found["worker"]["heard_of"] == f"{now - timedelta(seconds=5):%Y-%m-%dT%H:%M:%SZ}"
    assert (found["up"], found["run"]["generations"]) == (True, 3)


@pytest.mark.parametrize(
    ("state", "flag", "words"),
    [
        ("Running", "active", "Running for 40 min\n"),
        ("Failed", None, "last flow run  mine, Failed 40 min ago"),
        ("Scheduled", "waiting", "mine has not begun\n"),
        ("Suspended", "suspended", "resume or cancel it in its page\n"),
    ],
)
def test_status_says_what_a_flow_run_does_and_for_how_long(state: str, flag: str | None, words: str) -> None:
    schedule = ScheduleStatus(active=True, next=datetime.now(UTC) - timedelta(hours=3))
    worker, shown = (
        WorkerStatus(name="machine-abc"),
        flow_run_status(state, timedelta(minutes=40), **({flag: True} if flag else {})),
    )
    text = printed(print_status, Status(server=None, worker=worker, flow_run=shown, schedule=schedule))
    assert words in text
    assert ("it waits for the worker" in text) == (flag == "waiting")
    assert "the next one waits for the worker" in text


def test_a_training_prints_its_page_if_a_server_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "run_page_of", lambda _client, api, run: f"{api}/{run}")
    assert printed(print_run_page, "mine") == ""
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    assert printed(print_run_page, "mine") == "  page        http://127.0.0.1:1/api/mine\n"
