"""`eigen memory`, and trainings that memory ends: exit code, why, what is safe, what next."""

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from cli_cases import document, eigen, refused
from memory_cases import bare_report
from record_cases import save_records, telemetry
from store_cases import run_config, save_generations
from upload_cases import locked_by_another_process

from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.common.records import PhaseMemory
from eigen_core.machine.memory_guard import MemoryGuardError
from eigen_core.runs.journals import write_memory_report

MEMORY_KEYS = ["run", "state", "pid", "folder", "report", "files", "older_reports", "generations"]
GENERATION_KEYS = ["generation", "rss_bytes", "rss_peak_bytes", "phases"]
PHASE_KEYS = ["phase", "start_bytes", "peak_bytes", "end_bytes", "device_allocated_peak", "device_reserved_peak"]
MB = 1_000_000


@pytest.fixture
def location(user_folder: Path) -> RunLocation:  # noqa: ARG001 - in that folder
    """A run of five generations in `runs`, whose telemetry knows phases from the fourth on, and a GPU in the fifth."""
    config = run_config("runs", Path("runs")).model_copy(update={"generations": 9})
    evaluated = PhaseMemory(phase="evaluate", start_bytes=300 * MB, peak_bytes=456 * MB, end_bytes=400 * MB)
    trained = PhaseMemory(phase="train", start_bytes=400 * MB, peak_bytes=789 * MB, end_bytes=500 * MB)
    entries = [telemetry(number) for number in range(1, 6)]
    entries[3] = entries[3].model_copy(update={"phases": (evaluated, trained)})
    trained = trained.model_copy(update={"device_reserved_peak": 77 * MB})
    entries[4] = entries[4].model_copy(update={"phases": (evaluated, trained)})
    save_records(config, "run", entries)
    return RunLocation.of(config.checkpoint, "run")


def memory_of(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = document("memory", *arguments)
    assert list(found) == MEMORY_KEYS
    assert all(list(entry) == GENERATION_KEYS for entry in found["generations"])
    assert all(list(phase) == PHASE_KEYS for entry in found["generations"] for phase in entry["phases"])
    return found


def report_in(location: RunLocation, reason: str, generation: int) -> Path:
    return write_memory_report(location, bare_report(reason), generation, "train")


@pytest.mark.usefixtures("location")
def test_without_a_report_the_phases_of_the_newest_generations_are_shown(tmp_path: Path) -> None:
    found = memory_of("run")
    assert (found["report"], found["files"], found["older_reports"]) == (None, [], 0)
    assert found["folder"] == str(tmp_path / "runs" / "run" / "memory")
    assert [entry["generation"] for entry in found["generations"]] == [3, 4, 5]
    assert [len(entry["phases"]) for entry in found["generations"]] == [0, 2, 2]
    text = eigen("memory", "run").stdout
    lines = [line.split() for line in text.splitlines()]
    assert ["3", "all", "200", "MB", "100", "MB"] in lines
    assert ["4", "evaluate", "300", "MB", "456", "MB", "400", "MB"] in lines
    assert ["train", "400", "MB", "789", "MB", "500", "MB", "77", "MB"] in lines
    assert "held on GPU" in text
    assert "tensors on GPU" not in text
    assert "Run run has no memory report on this machine." in text


def test_the_newest_report_is_shown_with_its_files(location: RunLocation) -> None:
    report_in(location, "the first", 2)
    newest = report_in(location, "the second | of *two*", 3)
    found = memory_of("run")
    assert found["report"]["reason"] == "the second | of *two*"
    assert found["files"] == [str(newest), str(newest.with_suffix(".json"))]
    assert found["older_reports"] == 1
    text = eigen("memory", "run").stdout
    assert newest.read_text() in text
    assert f"1 report in {newest.parent}" in text
    assert "the first" not in text


def test_a_run_that_trains_is_named_by_its_process(location: RunLocation) -> None:
    with locked_by_another_process(location.root) as pid:
        found = memory_of("run")
        assert (found["state"], found["pid"]) == ("running", pid)
        assert f"kill -USR1 {pid}" in eigen("memory", "run").stdout
        lock = location.root / "run" / "lock"
        lock.write_text(json.dumps({"pid": os.getpid(), "host": f"not-{socket.gethostname()}"}))
        assert memory_of("run")["pid"] is None
        assert "kill -USR1 PID" in eigen("memory", "run").stdout
    assert memory_of("run")["pid"] is None


def test_what_cannot_be_shown_is_a_sentence(location: RunLocation) -> None:
    report_in(location, "before", 2)
    newest = report_in(location, "a reason", 3)
    newest.with_suffix(".json").write_text("{half")
    said = refused("memory", "run", "--json")
    assert f"{newest.with_suffix('.json')} is damaged" in said
    named = [newest.with_name(name) for name in re.findall(r"(\S+\.md) and (\S+\.json)", said)[0]]
    for path in named:
        path.unlink()
    assert memory_of("run")["report"]["reason"] == "before"
    report_in(location, "a reason", 3).with_suffix(".json").unlink()
    assert "cannot be read" in refused("memory", "run", "--json")


@pytest.fixture
def stopped_run(user_folder: Path) -> RunLocation:  # noqa: ARG001 - in that folder
    """A run with two of nine generations, in a process that would start no Prefect."""
    config = run_config("runs", Path("runs")).model_copy(update={"generations": 9})
    return save_generations(config, "run", 1, 2)


def test_the_guards_end_says_why_where_the_report_is_and_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, stopped_run: RunLocation, tmp_path: Path
) -> None:
    written = []

    def train(*_: object, **__: object) -> bool:
        written.append(write_memory_report(stopped_run, bare_report(), 3, "train"))
        raise MemoryGuardError("memory: 4.00 GB of 4.20 GB in train of generation 3.", bare_report(), "train", 3)

    monkeypatch.setattr("eigen_core.run.train_run", train)
    said = eigen("resume", "run", code=3).stderr
    assert said.count("\n") == 1
    assert said.startswith("eigen: memory: 4.00 GB of 4.20 GB in train of generation 3. The memory report is ")
    assert str(written[0]) in said
    assert "(eigen memory run shows it)" in said
    assert f"The last checkpoint is generation 2 in {tmp_path / 'runs' / 'run'}." in said
    assert said.endswith("Go on with: eigen resume run\n")


@pytest.mark.usefixtures("stopped_run")
@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"), OSError(12, "ENOMEM")]
)
def test_memory_that_cannot_be_had_to_prepare_a_run_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def start_training(*_: object) -> None:
        raise error

    monkeypatch.setattr("eigen_core.generation.start_training", start_training)
    ended = eigen("resume", "run", code=3)
    assert ended.stderr.startswith("eigen: memory: an allocation failed (")
    assert "in start of generation 3." in ended.stderr
