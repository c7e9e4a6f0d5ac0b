"""`eigen plan`, and `eigen train` and `eigen resume` where a run does not fit: exit codes, tables, JSON, no traces."""

import resource
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cli_cases import document, eigen
from flow_cases import eigen_command, eigen_environment, small_settings
from plan_cases import pretended_probe
from store_cases import run_config, save_generations

from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.machine.memory_usage import own_resident_bytes
from eigen_core.market import build_panel
from eigen_core.planning.probe import ProbeResult, Shape, measure
from eigen_core.task import open_data, task_class

pytestmark = pytest.mark.usefixtures("without_api")

PLANNED_KEYS = {
    *("preset", "generations", "panel", "splits", "device", "peak_host_bytes", "peak_device_bytes", "fits", "verdicts"),
    *("phases", "parts", "disk", "measured", "sentence", "limits", "device_limit", "smallest_edges"),
}
PART_KEYS = ["name", "host_bytes", "device_bytes", "phases", "device_holder"]
TOO_LITTLE = ["--set", "memory.limit_gb=0.5"]
ENOUGH = ["--set", "memory.limit_gb=4"]


@pytest.fixture(autouse=True)
def folder(user_folder: Path, session_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EIGEN_CACHE", str(session_folder / "cache"))
    monkeypatch.setattr("eigen_core.planning.run_plan.probe", pretended_probe)
    return user_folder


def _measured_here(config: Config, shape: Shape | None, limit: int) -> ProbeResult:  # noqa: ARG001
    """Measure in this process: a child takes seconds to start."""
    data = open_data(config) if shape is None else task_class(config).data_of_shape(config, *shape)
    return measure(config, data, own_resident_bytes())


def test_the_json_has_these_keys_and_adds_up() -> None:
    planned = document("plan", *ENOUGH)
    assert set(planned) == PLANNED_KEYS
    assert planned["preset"] == "quickstart"
    assert planned["panel"] == {"days": 8_313, "columns": 20, "assets": 20, "features": 13, "unit": "day"}
    assert all(list(part) == PART_KEYS for part in planned["parts"])
    for phase, peak in planned["phases"].items():
        assert peak["host_bytes"] == sum(part["host_bytes"] for part in planned["parts"] if phase in part["phases"])
    assert planned["peak_host_bytes"] == max(peak["host_bytes"] for peak in planned["phases"].values())
    assert planned["limits"][0] == {"bytes": 4_000_000_000, "origin": "memory.limit_gb", "kind": "run"}
    assert planned["fits"] is True
    assert set(planned["measured"]["seconds"]) == {"evaluate", "train", "evolve"}
    # The bundled prices are closes: a purchase at the next close that is sold at the same one gains nothing.
    edges = planned["smallest_edges"]
    assert [row["holding_bars"] for row in edges["rows"]] == [2, 5, 10, 20]
    assert [row["pays"] < row["shown"] < 1.0 for row in edges["rows"]] == [True] * 4
    assert "independent assets" in edges["sentence"]


def test_it_plans_what_is_given_and_asks_no_store_elsewhere(folder: Path) -> None:
    away = document("plan", "--generations", "2", "--store", "gs://bucket-that-is-missing/prefix", *ENOUGH)
    assert away["disk"]["upload_bytes"] > 0
    assert away["disk"]["run_bytes"] < document("plan", *ENOUGH)["disk"]["run_bytes"]
    assert list(folder.iterdir()) == []


@pytest.mark.cpu
def test_what_does_not_fit_is_exit_code_3_with_what_would_make_it_fit(folder: Path) -> None:
    asked = ("plan", "--preset", "eigen2", "--set", "memory.limit_gb=0.8")
    planned = document(*asked, code=3)
    assert planned["fits"] is False
    assert "learner.batch_size" in planned["sentence"]
    lower = ("population.group_size=1", "learner.batch_size=16", "replay.capacity=10000")
    assert document(*asked, *(option for one in lower for option in ("--set", one)))["fits"] is True
    assert list(folder.iterdir()) == []


def test_the_time_of_a_generation_is_estimated_of_what_fits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigen_core.planning.run_plan.probe", _measured_here)
    small = [*small_settings(market={"holdout": 250}), "--generations", "3"]
    assert sum(document("plan", *small, *ENOUGH)["measured"]["seconds"].values()) > 0
    assert document("plan", *small, *TOO_LITTLE, code=3)["measured"] is None
    shown = eigen("plan", *small, *ENOUGH, "--store", "gs://bucket-that-is-missing/prefix", code=0).stdout
    retention, limit = "the newest 3 and every 5th", "4.00 GB (memory.limit_gb)"
    edges = ("\n days held ", "\nBreadth, independent assets (")
    for said in ("\n replay ", "\n checkpoint ", retention, limit, " a generation ", *edges):
        assert said in shown
    assert shown.splitlines()[-1].startswith("The run fits: it needs ")
    assert "not estimated: the run does not fit" in eigen("plan", *small, *TOO_LITTLE).stdout


def test_a_shape_is_planned_without_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigen_core.task.panel.build_panel", lambda _: pytest.fail("data were read"))
    shape = ["--columns", "60", "--assets", "20", "--days", "2000"]
    planned = document("plan", "--preset", "eigen2", "--set", "network.encoder=filter_bank", *shape, *ENOUGH)
    assert planned["panel"] == {"days": 2_000, "columns": 60, "assets": 20, "features": 15, "unit": "day"}
    assert planned["measured"] is not None
    assert planned["smallest_edges"] == {"rows": [], "sentence": ""}
    assert list(folder.iterdir()) == []


def test_a_training_that_does_not_fit_is_refused_with_its_plan_and_leaves_nothing(folder: Path) -> None:
    large = ["--run", "large", "--generations", "5000", "--set", "replay.capacity=60000000"]
    ended = eigen("train", *large, *ENOUGH, code=3)
    assert "\n population " in ended.stdout
    assert ended.stderr.startswith("eigen: The run does not fit: it needs ")
    assert ended.stderr.count("\n") == 1
    assert list(folder.iterdir()) == []


def test_a_run_that_no_longer_fits_is_not_continued_and_stays_as_it_is(folder: Path) -> None:
    config = run_config("runs", Path("runs"))
    # More than pytest itself may take.
    wide = config.replay.model_copy(update={"capacity": 60_000_000})
    memory = config.memory.model_copy(update={"limit_gb": 4.0})
    tight = config.model_copy(update={"memory": memory, "replay": wide, "generations": 500_000})
    save_generations(tight, "run", 1, 2)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    ended = eigen("resume", "run", code=3)
    assert "The run does not fit" in ended.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("command", ["train", "plan"])
def test_where_not_even_torch_can_be_loaded_it_is_a_sentence(session_folder: Path, folder: Path, command: str) -> None:
    ended = subprocess.run(
        eigen_command([command]),
        env=eigen_environment(session_folder / "cli"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (700_000_000, resource.RLIM_INFINITY)),
    )
    assert ended.returncode == 3, ended.stderr
    assert ended.stderr.startswith("eigen: RLIMIT_AS (ulimit -v) is 700 MB of address space")
    assert list(folder.iterdir()) == []


def test_a_plan_says_how_many_bars_a_time_has() -> None:
    times = ["--set", "market.validation=365d", "--set", "market.holdout=365d", "--set", "market.purge=30d"]
    train, validation, holdout = document("plan", *times)["splits"]
    dates = build_panel(load_config(None))[0].dates
    assert holdout["number"] == int((dates > dates[-1] - np.timedelta64(365, "D")).sum())
    assert (train["days"], validation["days"], holdout["last"]) == ("train", "validation", str(dates[-1]))
    for earlier, later in ((train, validation), (validation, holdout)):
        assert 30 < (np.datetime64(later["first"]) - np.datetime64(earlier["last"])) / np.timedelta64(1, "D") < 36
    said = eigen("plan", *times, code=0).stdout
    assert f"holdout {holdout['number']} days, {holdout['first']} to {holdout['last']}" in " ".join(said.split())
