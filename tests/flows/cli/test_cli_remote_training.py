"""A run kept in a bucket, as a user trains it: killed, its machine or workers lost, ending without the store."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from cli_cases import document, eigen
from fault_proxy import Fault, FaultProxy
from flow_cases import eigen_environment, run_eigen, small_flow_config, small_settings, started
from gcs_emulator import GcsEmulator
from known import known
from record_cases import snapshot_of_records, telemetry
from rich.console import Console
from training_cases import history_of
from worker_cases import WAIT_SECONDS, dask, dask_worker, free_address, wait_until

from eigen_core.checkpoint.run_contents import RunContents, RunLocation
from eigen_core.checkpoint.session import create_run, open_session
from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.checkpoint.store_location import open_store
from eigen_core.common.errors import Stopped, WorkerLostError
from eigen_core.config import Config
from eigen_core.runs.handle import Run, status_of
from flows.cli.console import Display
from flows.cli.training import errors_as_stops

GENERATIONS = 6
UPLOADS = Fault("status", method="POST|PUT", path="upload", times=None)


@pytest.mark.thorough
def test_a_run_whose_machine_is_lost_goes_on_from_the_store_alone(
    gcs_bucket: str, session_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"{gcs_bucket}/eigen"
    environment = eigen_environment(session_folder / "cli")
    arguments = ["train", "--store", store, "--run", "cloudy", "--generations", str(GENERATIONS), *small_settings()]
    contents = RunContents(open_store(store), "cloudy")
    with started(arguments, environment, tmp_path) as process:
        wait_until(lambda: (newest := contents.newest_manifest()) is not None and newest.generation >= 2, process)
        assert status_of(store, "cloudy").state == "running"
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
    interrupted = known(contents.newest_manifest())
    assert interrupted.generation < GENERATIONS
    assert status_of(store, "cloudy").state == "unfinished"

    shutil.rmtree(tmp_path / "runs" / ".remote")
    resumed = run_eigen(["resume", "cloudy", "--store", store], environment=environment, folder=tmp_path, code=0)
    assert f"continuing after generation {interrupted.generation}/{GENERATIONS}" in resumed.stdout

    monkeypatch.chdir(tmp_path)
    shown = document("show", "cloudy", "--store", store)
    assert (shown["state"], shown["generation"], shown["store"]) == ("finished", GENERATIONS, store)
    assert shown["uploads"]["pending"] == shown["uploads"]["pending_files"] == 0
    assert shown["uploads"]["state"] == "ended"
    assert shown["uploads"]["done"] >= GENERATIONS - interrupted.generation
    assert shown["uploads"]["last_error"] is None
    assert status_of(store, "cloudy").history == history_of(Config(**shown["config"]))
    newest = known(contents.newest_manifest())
    assert (newest.generation, newest.epoch) == (GENERATIONS, interrupted.epoch + 1)

    # The store is found by the environment too, and nothing in it is damaged.
    monkeypatch.setenv("EIGEN_STORE", store)
    assert document("verify", "cloudy", "--deep")["whole"]
    assert [run["run"] for run in document("runs")] == ["cloudy"]
    plots = {stored.name for stored in contents.store.objects("cloudy/plots/")}
    here = tmp_path / "runs" / ".remote" / "gs" / store.removeprefix("gs://") / "cloudy" / "plots"
    assert plots == {f"cloudy/plots/{path.name}" for path in here.iterdir()} != set()


@pytest.mark.thorough
def test_whatever_is_killed_the_run_ends_with_the_bits_of_one_process(
    gcs_bucket: str, session_folder: Path, tmp_path: Path
) -> None:
    store = f"{gcs_bucket}/eigen"
    environment = eigen_environment(session_folder / "cli")
    learner = {"gradient_steps": 30}
    settings = [*small_settings(learner=learner), "--store", store, "--generations", str(GENERATIONS)]

    address = free_address()
    contents = RunContents(open_store(store), "led")

    def generation() -> int:
        newest = contents.newest_manifest()
        return 0 if newest is None else newest.generation

    arguments = ["train", "--run", "led", *settings, "--set", f"scheduler={address}"]
    with (
        dask(tmp_path, "scheduler", "--host", address) as scheduler,
        dask_worker(tmp_path / "one", address) as one,
        dask_worker(tmp_path / "two", address),
    ):
        with started(arguments, environment, tmp_path) as leader:
            wait_until(lambda: generation() >= 1, leader)
            one.kill()
            wait_until(lambda: generation() >= 2, leader)
            os.killpg(leader.pid, signal.SIGKILL)
        with started(arguments, environment, tmp_path) as leader:
            reached = generation()
            wait_until(lambda: generation() > reached, leader)
            scheduler.kill()
            said = leader.communicate(timeout=WAIT_SECONDS)
    assert leader.returncode == 1, said
    assert f"scheduler {address} cannot be reached any more" in "".join(said)
    assert "Traceback" not in "".join(said)
    assert generation() < GENERATIONS

    run_eigen(
        ["resume", "led", "--store", store, "--set", "scheduler=", "--set", "workers=1"],
        environment=environment,
        folder=tmp_path,
        code=0,
    )
    led = status_of(store, "led")
    assert led.history == history_of(small_flow_config(tmp_path, generations=GENERATIONS, learner=learner))
    assert any(entry.exchanged_bytes for entry in led.telemetry)


@pytest.fixture
def finished_here(
    fault_proxy: FaultProxy,
    gcs_emulator: GcsEmulator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quick_retries: list[float],  # noqa: ARG001 - the store's client waits for nothing
) -> Config:
    """A run of two generations, both on this machine, of which the store has the first."""
    monkeypatch.chdir(tmp_path)
    url = f"gs://{gcs_emulator.make_bucket()}/eigen"
    config = small_flow_config(tmp_path, generations=2)
    settings = config.checkpoint.model_copy(update={"store": url, "local": "runs", "upload_mb_per_second": 0.0})
    config = config.model_copy(update={"checkpoint": settings})
    create_run(RunLocation.of(settings, "run"), config.model_dump(mode="json"))
    with open_session(RunLocation.of(settings, "run"), settings) as session:
        for generation in (1, 2):
            entries = [telemetry(number) for number in range(1, generation + 1)]
            session.save(snapshot_of_records(entries), config.model_dump(mode="json"))
            if generation == 1:
                session.finish()
                fault_proxy.add(UPLOADS)
    fault_proxy.clear()
    return config


def test_a_run_with_all_its_generations_here_alone_is_not_finished(
    finished_here: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WentOnError(Exception):
        pass

    def went_on(*_: object) -> None:
        raise WentOnError

    monkeypatch.setattr("flows.cli.training.train_here", went_on)
    store = finished_here.checkpoint.store
    ended = eigen("resume", "run", "--store", store)
    assert isinstance(ended.exception, WentOnError), ended.output
    with open_session(RunLocation.of(finished_here.checkpoint, "run"), finished_here.checkpoint) as session:
        session.finish()
    ended = eigen("resume", "run", "--store", store, code=0)
    assert "is finished: generation 2 of 2" in ended.stdout


def test_a_resume_works_in_the_folder_that_it_is_given(finished_here: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[Run, Config]] = []
    monkeypatch.setattr("flows.cli.training.train_here", lambda run, config, _: begun.append((run, config)))
    monkeypatch.setattr("flows.cli.training.print_ending", lambda *_: None)
    command = ["resume", "run", "--store", finished_here.checkpoint.store]
    eigen(*command, code=0)
    eigen(*command, "--set", "checkpoint.local=elsewhere", code=0)
    # The generation that was not uploaded is in the former folder alone.
    assert [(config.checkpoint.local, run.generation) for run, config in begun] == [("runs", 2), ("elsewhere", 1)]
    assert begun[1][0].location.root.is_relative_to(Path("elsewhere").absolute())


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("Not whole."), WorkerLostError("Not whole."), KeyboardInterrupt()]
)
def test_what_stopped_a_run_is_said_though_the_store_is_away(
    finished_here: Config, fault_proxy: FaultProxy, error: BaseException
) -> None:
    fault_proxy.add(Fault("status", times=None))
    run = Run.of(finished_here, "run")
    with pytest.raises(Stopped) as stopped, errors_as_stops(Display(Console()), run):
        raise error
    said = str(stopped.value)
    assert said.startswith("Stopped. " if isinstance(error, KeyboardInterrupt) else "Not whole. ")
    assert "The last checkpoint is generation 2 in " in said
    assert f"eigen resume run --store {finished_here.checkpoint.store}" in said
