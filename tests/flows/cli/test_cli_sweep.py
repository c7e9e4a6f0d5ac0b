"""Whole runs as processes: how they end and are stopped; sweeps and walks of them, killed, refused, by workers."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_cases import document, eigen, refused
from flow_cases import eigen_environment, run_eigen, small_settings, started, wait_for_generation
from gcs_emulator import GcsEmulator
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling
from record_cases import save_records, telemetry
from training_cases import history_of
from worker_cases import WAIT_SECONDS, dask, dask_worker, free_address, wait_until

from eigen_core.checkpoint.run_contents import RunContents
from eigen_core.checkpoint.store_location import open_store
from eigen_core.common.errors import End, InputError, Stopped, StoppedByMemory
from eigen_core.common.process import MKL_MODE, STRICT, TORCH_CAPABILITY, use_instructions
from eigen_core.config import preset_space
from eigen_core.config.loading import load_config
from eigen_core.config.model import CheckpointConfig
from eigen_core.judging.walk_forward import plan_walk, with_purge
from eigen_core.market import build_panel
from eigen_core.runs.handle import Run, runs_in, status_of
from flows.cli.run_jobs import (
    IsStopped,
    JobResult,
    RunJob,
    Train,
    job_executor,
    require_trained,
    run_job,
    train_in_subprocess,
)


@pytest.mark.usefixtures("user_folder")
def test_a_sweep_that_was_stopped_goes_on_and_prunes_a_trial_that_falls_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    stops = [Stopped("Stopped.")]

    def train(run: RunJob, _: Path, is_stopped: IsStopped) -> JobResult:
        if stops:
            raise stops.pop()
        if is_stopped():
            return JobResult(-signal.SIGTERM, "", End.INTERRUPTED)
        save_records(run.config, run.name, [telemetry(1), telemetry(2)])
        return JobResult(0, "")

    monkeypatch.setattr("flows.cli.run_jobs.train_in_subprocess", train)
    monkeypatch.setattr("eigen_core.judging.sweeps.Study.is_behind", lambda _, number, __: number == 1)
    options = ["--trials", "3", "--jobs", "2", "--seeds", "2", "--generations", "2", "--set", "market.holdout=0"]
    command = ["sweep", "mine", "--vary", "learner.weight_decay=0.1:1", *options]
    eigen(*command, code=1)
    found = document(*command)
    states = [(trial["number"], trial["state"], trial["value"], trial["spread"]) for trial in found["trials"]]
    # The validation of the made-up champions.
    assert states == [(0, "finished", 0.5, 0.0), (2, "finished", 0.5, 0.0), (1, "pruned", None, None)]
    assert [run["run"] for run in found["trials"][0]["runs"]] == ["mine-000-s1", "mine-000-s2"]


@pytest.mark.usefixtures("user_folder")
def test_a_sweep_that_names_nothing_to_vary_varies_what_its_preset_does(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")

    def train(run: RunJob, _: Path, __: IsStopped) -> JobResult:
        save_records(run.config, run.name, [telemetry(1)])
        return JobResult(0, "")

    monkeypatch.setattr("flows.cli.run_jobs.train_in_subprocess", train)
    command = ["sweep", "coins", "--preset", "crypto", "--generations", "1", "--set", "market.holdout=0"]
    said = eigen(*command, "--trials", "1", code=0).stdout
    assert all(key in said.partition("trial 0 begins")[0] for key in preset_keys("crypto"))
    found = document(*command, "--trials", "10")
    settings = [trial["settings"] for trial in found["trials"]]
    assert len({json.dumps(one) for one in settings}) == 10
    assert all(set(one) == set(preset_keys("crypto")) for one in settings)
    assert "--vary differs" in refused(*command, "--vary", "learner.weight_decay=0.3:3:log")
    given = document("sweep", "own", *command[2:], "--set", "trading.decide_every=2h", "--trials", "1")
    assert set(given["trials"][0]["settings"]) == set(preset_keys("crypto")) - {"trading.decide_every"}
    plain = document("sweep", "plain", "--generations", "1", "--set", "market.holdout=0", "--trials", "4")
    assert [trial["settings"] for trial in plain["trials"]] == [{}]


def preset_keys(preset: str) -> list[str]:
    return [text.partition("=")[0] for text in preset_space(preset)]


def test_without_its_package_a_sweep_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "eigen_core.judging.sweeps", raising=False)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "pip install 'eigen-trader[sweep]'" in refused("sweep", "mine", "--vary", "learner.weight_decay=0.1:1")


MARKET = {"holdout": 60, "first_date": "2018-01-01"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("generations", "gradient_steps", "killed"),
    [pytest.param(2, 2, False, id="undisturbed"), pytest.param(8, 40, True, id="killed", marks=pytest.mark.slow)],
)
def test_folds_that_workers_train_end_with_the_bits_of_one_machine(
    gcs_bucket: str,
    gcs_emulator: GcsEmulator,
    session_folder: Path,
    tmp_path: Path,
    prefect_api_url: str,
    monkeypatch: pytest.MonkeyPatch,
    generations: int,
    gradient_steps: int,
    killed: bool,
) -> None:
    """Slow: a worker, the command and the scheduler are killed, each once."""
    assert gcs_emulator.url
    store = f"{gcs_bucket}/eigen"
    environment = eigen_environment(session_folder / "cli", PREFECT_API_URL=prefect_api_url)
    settings = [
        *small_settings(market=MARKET, learner={"gradient_steps": gradient_steps}),
        *("--set", f"generations={generations}", "--set", f"checkpoint.store={store}"),
        *("--set", "checkpoint.lease_seconds=10"),
    ]
    options = ["--folds", "2", *settings, "--json", "--jobs", "2"]
    address = free_address()
    command = ["walk", "led", *options, "--runs-on", address]
    runs = [f"led-fold-{fold}-seed-1" for fold in (1, 2)]

    def generation(run: str) -> int:
        newest = RunContents(open_store(store), run).newest_manifest()
        return 0 if newest is None else newest.generation

    def is_trained(run: str) -> bool:
        return Run(CheckpointConfig(store=store, local=str(tmp_path / "none")), run).is_running()

    monkeypatch.setenv("PREFECT_API_URL", prefect_api_url)
    monkeypatch.chdir(tmp_path)
    with (
        dask(tmp_path, "scheduler", "--host", address) as scheduler,
        dask_worker(tmp_path / "one", address) as one,
        dask_worker(tmp_path / "two", address),
    ):
        if killed:
            with started(command, environment, tmp_path) as leader:
                wait_until(lambda: all(generation(run) >= 1 for run in runs), leader)
                one.kill()
                os.killpg(leader.pid, signal.SIGKILL)
            # Nothing trains on for a process that leads no more.
            wait_until(lambda: not any(is_trained(run) for run in runs), scheduler)
            assert all(generation(run) < generations for run in runs)
            with started(command, environment, tmp_path) as leader:
                wait_until(lambda: any(is_trained(run) for run in runs), leader)
                scheduler.kill()
                said = leader.communicate(timeout=WAIT_SECONDS)
            assert leader.returncode == 1, said
            assert "The Dask scheduler of --runs-on cannot be reached any more. Run the same command again" in "".join(
                said
            )
            command = ["walk", "led", *options]
        ended = run_eigen(command, environment=environment, folder=tmp_path, timeout=300.0)
    assert ended.returncode == 0, ended.stderr
    assert [row["run"] for row in json.loads(ended.stdout)["folds"]] == runs
    # In this process, which need not begin as several others must.
    given = with_purge(load_config(None, settings[1::2]), None)
    for run, config in plan_walk("led", given, build_panel(given)[0].dates, 2).runs():
        assert run in runs_in(store)
        assert status_of(store, run).config == config
        assert status_of(store, run).history == history_of(config)


WALK = ["walk", "mine", "--folds", "2", "--generations", "2", *small_settings(market=MARKET), "--json"]


@pytest.mark.thorough
def test_a_walk_that_was_killed_goes_on_and_trains_nothing_twice(with_server: dict[str, str], tmp_path: Path) -> None:
    store = tmp_path / "runs"
    with started(WALK, with_server, tmp_path) as process:
        wait_for_generation(process, store, "mine-fold-2-seed-1", 1)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
    first = status_of(str(store), "mine-fold-1-seed-1")
    assert first.state == "finished"
    ended = run_eigen(WALK, environment=with_server, folder=tmp_path, timeout=400.0, code=0)
    document = json.loads(ended.stdout)
    assert runs_in(str(store)) == ["mine-fold-1-seed-1", "mine-fold-2-seed-1"]
    assert status_of(str(store), "mine-fold-1-seed-1").history == first.history
    second = status_of(str(store), "mine-fold-2-seed-1")
    assert (second.generation, second.config.market.last_date) == (2, document["last"])
    assert [row["run"] for row in document["folds"]] == ["mine-fold-1-seed-1", "mine-fold-2-seed-1"]
    assert (tmp_path / "runs" / "walks" / "mine" / "report.html").exists()


@pytest.mark.thorough
def test_a_walk_that_is_cancelled_in_its_page_ends_with_a_sentence(
    with_server: dict[str, str], tmp_path: Path, prefect_api_url: str
) -> None:
    store = tmp_path / "runs"
    command = ["walk", "long", "--folds", "2", "--generations", "1000", *small_settings(market=MARKET), "--json"]
    with started(command, with_server, tmp_path) as process:
        wait_for_generation(process, store, "long-fold-1-seed-1", 1)
        with temporary_settings({PREFECT_API_URL: prefect_api_url}), get_client(sync_client=True) as client:
            named = FlowRunFilter(name=FlowRunFilterName(like_="long-fold-1"))
            [flow_run] = client.read_flow_runs(flow_run_filter=named)
            client.set_flow_run_state(flow_run.id, Cancelling())
            _, error = process.communicate(timeout=60)
            after = client.read_flow_run(flow_run.id).state
    assert process.returncode == 1
    said = " ".join(error.split())
    assert "It was cancelled. The last checkpoint is generation" in said
    assert "Run the same command again to continue." in said
    assert "Traceback" not in error
    assert after is not None
    assert after.is_cancelled()
    assert runs_in(str(store)) == ["long-fold-1-seed-1"]


@pytest.fixture
def run(tmp_path: Path) -> RunJob:
    return run_job("mine", None, ["seed=1", f"checkpoint.store={tmp_path / 'runs'}", "generations=2", "seed=7"])


def test_of_what_is_given_twice_the_last_counts(run: RunJob) -> None:
    assert run.config.seed == 7
    assert [given for given in run.arguments if given.startswith("seed")] == ["seed=7"]
    with pytest.raises(InputError, match=r"learner\.tau"):
        run_job("mine", None, ["learner.tau=7"])


def test_a_run_that_is_refused_ends_with_its_sentence(
    run: RunJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", eigen_environment(tmp_path))
    refused = RunJob(run.name, run.config, [*run.arguments, "--set", "learner.tau=7"])
    end = train_in_subprocess(refused, tmp_path / "run.log", lambda: False)
    assert end.end is End.REFUSED
    assert "learner.tau" in end.sentence
    assert "learner.tau" in (tmp_path / "run.log").read_text()
    assert not (tmp_path / "runs").exists()


def test_a_run_that_is_stopped_leaves_no_process(run: RunJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", eigen_environment(tmp_path))
    end = train_in_subprocess(run, tmp_path / "run.log", lambda: True)
    assert end.code not in (0, None)
    assert end.end is End.INTERRUPTED


def failing() -> None:
    raise StoppedByMemory("Too large.")


@pytest.mark.parametrize(
    ("ending", "error", "sentence"),
    [
        (failing, StoppedByMemory, "Too large."),
        (lambda: os.kill(os.getpid(), signal.SIGINT), Stopped, "Stopped. Run the same command again to continue."),
    ],
)
def test_what_ends_one_run_stops_the_others(ending: Callable[[], None], error: type[Stopped], sentence: str) -> None:
    ended, begun = [], threading.Event()

    def other(_: Train, is_stopped: IsStopped) -> None:
        begun.set()
        while not is_stopped():
            time.sleep(0.01)
        ended.append("other")

    def first(*_: object) -> None:
        begun.wait()
        ending()

    with pytest.raises(Stopped) as raised, job_executor(2, None) as in_threads:
        in_threads([other, first])
    assert (type(raised.value), str(raised.value)) == (error, sentence)
    assert ended == ["other"]


def test_a_run_is_not_given_the_instructions_that_this_process_computes_with(
    run: RunJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nenv\nexit 1\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr("eigen_core.common.process._before", {})
    monkeypatch.setenv(MKL_MODE, STRICT)
    # Set first, so that it is removed after the test.
    monkeypatch.setenv(TORCH_CAPABILITY, "")
    monkeypatch.delenv(TORCH_CAPABILITY)

    def given() -> list[str]:
        printed = train_in_subprocess(run, tmp_path / "run.log", lambda: False).output.splitlines()
        return [line for line in printed if line.startswith((MKL_MODE, TORCH_CAPABILITY))]

    before = given()
    use_instructions("avx2")
    assert given() == before == [f"{MKL_MODE}={STRICT}"]


@pytest.mark.parametrize(
    ("end", "error", "sentence"),
    [
        (JobResult(0, ""), Stopped, "runs does not have it: give --store a bucket"),
        (JobResult(1, "x", End.OTHER, "No luck."), Stopped, r"exit code 1\. No luck\. Its output is in .*mine\.log"),
        (JobResult(3, "x", End.GUARD, "Too large."), StoppedByMemory, r"Too large\."),
    ],
)
def test_what_is_not_trained_to_its_end_is_refused(
    run: RunJob, tmp_path: Path, end: JobResult, error: type[Stopped], sentence: str
) -> None:
    with pytest.raises(error, match=sentence) as raised:
        require_trained(run, end, tmp_path / "mine.log", "sweep")
    assert type(raised.value) is error
    assert str(raised.value).endswith("Run the same command again to continue.")
