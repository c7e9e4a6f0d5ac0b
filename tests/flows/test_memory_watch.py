"""A training under the memory guard: aborted in any phase, with a report; resumed exactly."""

import os
import signal
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from flow_cases import NoDrawing, records, small_flow_config, train
from memory_cases import host_bytes
from prefect.artifacts import Artifact
from prefect.client.schemas.objects import Artifact as StoredArtifact

import eigen_core.run
from benchmarks.limits import BEGUN, RUN, Limiter, with_appetite
from eigen_core import generation as phases
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.progress import report_progress
from eigen_core.common.randomness import keyed_generator
from eigen_core.common.records import GenerationRecord
from eigen_core.config import Config
from eigen_core.machine.memory_guard import MemoryGuardError
from eigen_core.runs.handle import status_of
from eigen_core.runs.journals import memory_reports
from flows.server.artifacts import artifact_key
from flows.server.flow_runs import GUARD_NAME

MB = 1_000_000
ROOM_GB = 0.25
HOARDED = "tensors of no known owner"
_STEP = 20 * MB
_STEPS = 200
# Resident and address peaks of the small training without Prefect's server, well below what was measured.
LEAST_RESIDENT = 450 * MB
# The libraries of a torch for GPUs take 2.6 GB of addresses more.
LEAST_ADDRESSES = (1_200 if torch.version.cuda is None else 3_800) * MB

pytestmark = pytest.mark.usefixtures("prefect_api", "_quick")


class Hoard:
    """Something that leaks: it takes memory step by step and gives none back while it lives."""

    kept: ClassVar[list["Hoard"]] = []

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def take(self) -> None:
        """Take much more than any test allows, telling of each step."""
        Hoard.kept.append(self)
        for step in range(_STEPS):
            self.tensors.append(torch.ones(_STEP, dtype=torch.uint8))
            report_progress("hoard", step + 1, _STEPS)


@pytest.fixture
def _quick(no_pauses: None) -> Iterator[None]:  # noqa: ARG001
    """Nothing that was hoarded outlives a test."""
    yield
    Hoard.kept.clear()


def limited(config: Config) -> Config:
    """The configuration under a limit whose hard line is a little above what this process takes and its plan needs."""
    hard = config.memory.hard
    needed = max(host_bytes() / 1e9, 1.1)
    memory = {"limit_gb": (needed + ROOM_GB) / hard, "sample_seconds": 0.05}
    return config.model_copy(update={"memory": config.memory.model_copy(update=memory)})


def hoarding(monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    """Let a phase leak from its second call on."""
    module, name = {
        "train": (phases, "train"),
        "checkpoint": (eigen_core.run, "snapshot"),
    }[phase]
    run_phase, calls = getattr(module, name), count(1)

    def hoard_first(*args: Any) -> Any:
        if next(calls) >= 2:
            Hoard().take()
        return run_phase(*args)

    monkeypatch.setattr(module, name, hoard_first)


@pytest.mark.parametrize("phase", ["train", "checkpoint"])
@pytest.mark.thorough
def test_a_leaking_phase_is_ended_named_and_gone_on_with_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: tuple[GenerationRecord, ...], phase: str
) -> None:
    config = small_flow_config(tmp_path)
    with monkeypatch.context() as patch:
        hoarding(patch, phase)
        ended = train(limited(config))
    assert (ended.is_failed(), ended.name) == (True, GUARD_NAME)
    error = ended.result(raise_on_failure=False)
    assert isinstance(error, MemoryGuardError)
    assert (error.phase, error.generation) == (phase, 2)
    # The test process itself may be larger.
    hoard = next(part for part in error.report.parts if part.name == HOARDED)
    assert hoard.host > 0.5 * ROOM_GB * 1e9
    assert len(Hoard.kept) == 1, "it was tried again"
    assert ended.message == str(error)

    (markdown,) = memory_reports(tmp_path / "run")
    assert markdown.name.endswith(f"-000002-{phase}.md")
    assert HOARDED in markdown.read_text()
    assert {"replay", "population", "data and task"} <= {part.name for part in error.report.parts}
    shown, page = (Artifact.get(artifact_key("run", kind)) for kind in ("memory", ""))
    assert isinstance(shown, StoredArtifact)
    assert HOARDED in str(shown.data)
    assert isinstance(page, StoredArtifact)
    assert error.report.headline in str(page.data)

    Hoard.kept.clear()
    run = RunDirectory.open(tmp_path, "run")
    assert run.contents.verify() == []
    status = status_of(str(tmp_path), "run")
    assert (status.state, status.generation) == ("unfinished", 1)
    assert train(config).is_completed()
    assert records(config) == expected


@pytest.mark.thorough
def test_a_plot_that_takes_too_much_ends_the_run_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hoarding(NoDrawing):
        def write(self, folder: Path) -> list[Path]:
            Hoard().take()
            return super().write(folder)

    monkeypatch.setattr("eigen_core.run.Drawing", Hoarding)
    config = small_flow_config(tmp_path, generations=1)
    ended = train(limited(config))
    assert ended.name == GUARD_NAME
    assert status_of(str(tmp_path), "run").generation == 1


@pytest.mark.thorough
def test_sigusr1_makes_a_report_and_disturbs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: tuple[GenerationRecord, ...]
) -> None:
    run_phase = phases.train
    written: list[Path] = []

    def signalled(state: phases.TrainingState) -> Any:
        if state.generation == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
            end = time.monotonic() + 60
            while not list((tmp_path / "run" / "memory").glob("*.json")) and time.monotonic() < end:
                time.sleep(0.05)
            written.extend(memory_reports(tmp_path / "run"))
        return run_phase(state)

    monkeypatch.setattr(phases, "train", signalled)
    config = small_flow_config(tmp_path)
    assert train(config).is_completed()
    assert [path.name.split("-", 1)[1] for path in written] == ["000002-train.md"]
    assert "SIGUSR1 was received" in written[0].read_text()
    assert records(config) == expected


def test_every_phase_of_every_generation_is_measured(tmp_path: Path) -> None:
    config = small_flow_config(tmp_path, reporting={"plot_every": 1})
    assert train(config).is_completed()
    telemetry = status_of(str(tmp_path), "run").telemetry
    names = [[phase.phase for phase in entry.phases] for entry in telemetry]
    # What came after the last checkpoint is not in it.
    generation = ["evaluate", "train", "evolve", "checkpoint"]
    assert names == [["start", *generation], generation, generation[:3]]
    for entry in telemetry:
        assert entry.rss_peak_bytes == max(phase.peak_bytes for phase in entry.phases)
        for phase in entry.phases:
            assert 50 * MB < max(phase.start_bytes, phase.end_bytes) <= phase.peak_bytes < 100_000 * MB


@pytest.mark.cpu
@pytest.mark.thorough
def test_a_process_whose_phase_takes_what_no_plan_knows_is_ended_by_the_guard(
    tmp_path: Path, prefect_api_url: str
) -> None:
    """A real process of `eigen train`; `make limits` has more."""
    limiter = Limiter(tmp_path, {"PREFECT_API_URL": prefect_api_url})
    assert train(limiter.config("begun").model_copy(update={"generations": BEGUN}), RUN).is_completed()
    limiter.copy("undisturbed")
    assert train(limiter.config("undisturbed"), RUN).is_completed()
    need = limiter.plan((LEAST_RESIDENT, LEAST_RESIDENT), LEAST_ADDRESSES)
    case = with_appetite("train", "RLIMIT_AS", need, keyed_generator(3, 0, "test", "train", "limits"))
    outcome = limiter.run(case, "train", need)
    limiter.compare(outcome, "train", limiter.facts("undisturbed"))
    assert (outcome.by, outcome.phase, outcome.faults) == ("guard", "train", [])
