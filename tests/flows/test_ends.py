"""How a run ended early, and what follows inside a sweep, a walk, `eigen trust` and flow runs."""

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from cli_cases import document, eigen
from flow_cases import small_flow_config, small_settings, train
from memory_cases import bare_report
from prefect.exceptions import TerminationSignal
from record_cases import save_records, telemetry

from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.common.errors import FOLLOWS, End, InputError, Next, Stopped, end_of
from eigen_core.common.files import explained
from eigen_core.config.market import MarketConfig
from eigen_core.judging.trust import Trial, TrustTrials
from eigen_core.machine.memory_guard import MemoryGuardError
from eigen_core.market.reading import find_source
from eigen_core.planning.run_plan import RunPlan, RunTooLargeError
from eigen_core.runs.handle import Run
from eigen_core.workers import connected
from flows.cli.common import END_PIPE
from flows.cli.run_jobs import IsStopped, JobResult, RunJob
from flows.server import flow_runs, training_flow
from flows.server.pages import RunPages


def plan(*, fits_memory: bool) -> RunPlan:
    return cast(RunPlan, SimpleNamespace(fits_memory=fits_memory, sentence=lambda: "It does not fit."))


def error_of(call: Callable[[], object]) -> InputError:
    with pytest.raises(InputError) as raised:
        call()
    return raised.value


def full_disk() -> None:
    with explained("write", Path("here")):
        raise OSError(errno.ENOSPC, "no space")


# A call, since an error that was raised once keeps its cause.
ERRORS: dict[str, tuple[End, Callable[[], BaseException]]] = {
    "prices away": (End.OTHER, lambda: error_of(PASSING[0])),
    "refused": (End.REFUSED, lambda: InputError("No such prices.")),
    "diverged": (End.DIVERGED, lambda: FloatingPointError("learning diverged.")),
    "does not fit": (End.TOO_LARGE, lambda: RunTooLargeError(plan(fits_memory=False))),
    "guard": (End.GUARD, lambda: MemoryGuardError("memory: all taken.", bare_report(), "train", 1)),
    "disk too small": (End.DISK_FULL, lambda: RunTooLargeError(plan(fits_memory=True))),
    "disk full": (End.DISK_FULL, lambda: error_of(full_disk)),
    "disk full for the system": (End.DISK_FULL, lambda: OSError(errno.ENOSPC, "no space")),
    "interrupted": (End.INTERRUPTED, KeyboardInterrupt),
    "store lost": (End.OTHER, lambda: StoreUnavailableError("No answer.")),
    "crash": (End.OTHER, lambda: RuntimeError("a mistake")),
}
PASSING: list[Callable[[], object]] = [
    lambda: find_source(MarketConfig(data="a-disk-that-is-away")),
    lambda: connected("tcp://127.0.0.1:9"),
]
each_end = pytest.mark.parametrize("end", End)
each_error = pytest.mark.parametrize(("end", "error"), ERRORS.values(), ids=ERRORS)
SETTINGS = small_settings(market={"holdout": 60, "first_date": "2018-01-01"})
VARIED = ["--vary", "learner.gamma=0.9:0.99", "--trials", "2"]


@each_error
def test_a_training_tells_the_process_that_started_it_how_it_ended(
    end: End, error: Callable[[], BaseException], user_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by its words, which a user reads, and not if Python crashes."""
    monkeypatch.setattr("eigen_core.run.train_run", Mock(side_effect=error()))
    monkeypatch.setattr("flows.cli.plan.print_plan", Mock())
    reading, writing = os.pipe()
    monkeypatch.setenv(END_PIPE, str(writing))
    ended = eigen("train", "--run", "mine", *SETTINGS)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = JobResult.of(ended.exit_code, ended.stderr, pipe.read())
    assert ended.exit_code != 0
    assert told.end is end
    assert told.sentence in (" ".join(ended.stderr.split()) or "It printed nothing.")
    assert list(user_folder.iterdir()) == []


def test_a_process_that_says_nothing_has_failed_or_was_stopped() -> None:
    assert JobResult.of(0, "", b"").end is None
    crash = JobResult.of(1, "Traceback\nModuleNotFoundError: No module named 'x'\n\n", b"")
    assert (crash.end, crash.sentence) == (End.OTHER, "ModuleNotFoundError: No module named 'x'")
    assert JobResult.of(-signal.SIGKILL, "", b"").end is End.OTHER
    assert JobResult.of(-signal.SIGTERM, "", b"").end is End.INTERRUPTED


def test_what_is_away_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigen_core.workers.connection._CONNECTING_SECONDS", 0.5)
    assert [end_of(error_of(call)) for call in PASSING] == [End.OTHER, End.OTHER]
    assert end_of(error_of(lambda: connected("nonsense://"))) is End.REFUSED


def test_what_a_run_was_given_is_not_to_blame_once_it_has_begun() -> None:
    with pytest.raises(Stopped) as stopped:
        raise Stopped("It stands at generation 3.") from InputError("Permission is denied.")
    assert end_of(stopped.value) is End.OTHER


class Trainer:
    """Stands in for the process of a run: the first one ends as it is told to, the others train."""

    def __init__(self, end: End) -> None:
        self._ends = [end]
        self.begun: list[str] = []
        self.trained: list[str] = []

    def __call__(self, run: RunJob, _: Path, is_stopped: IsStopped) -> JobResult:
        self.begun.append(run.name)
        if self._ends:
            return JobResult(1, "", self._ends.pop(), "Because of that.")
        if is_stopped():
            return JobResult(-signal.SIGTERM, "", End.INTERRUPTED)
        save_records(run.config, run.name, [telemetry(1)])
        self.trained.append(run.name)
        return JobResult(0, "")


@pytest.fixture
def trainer(end: End, user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:  # noqa: ARG001
    found = Trainer(end)
    monkeypatch.setattr("flows.cli.run_jobs.train_in_subprocess", found)
    return found


@each_end
def test_what_follows_in_a_sweep(end: End, trainer: Trainer) -> None:
    pytest.importorskip("optuna")
    command = ["sweep", "mine", *VARIED, "--generations", "1", *small_settings()]
    is_recorded = FOLLOWS[end]["sweep"] is Next.RECORD
    first = eigen(*command, code=0 if is_recorded else 1)
    assert (f"Trial 0, {end}: Because of that." in first.stdout) is is_recorded
    assert first.stderr.endswith("Run the same command again to continue.\n") is not is_recorded
    assert trainer.begun == ["mine-000-s1", "mine-001-s1"][: 1 + is_recorded]
    trainer.begun.clear()
    trials = {trial["number"]: trial["state"] for trial in document(*command)["trials"]}
    assert trials == {0: str(end) if is_recorded else "finished", 1: "finished"}
    assert trainer.begun == ([] if is_recorded else ["mine-000-s1", "mine-001-s1"])


@each_end
def test_what_follows_in_a_walk(end: End, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigen_core.judging.walk_forward.play_walk", Mock(side_effect=InputError("All are trained.")))
    monkeypatch.setattr(Run, "is_finished", lambda run, _: run.name in trainer.trained)
    command = ["walk", "mine", "--folds", "2", "--generations", "1", *SETTINGS]
    first = eigen(*command, code=1)
    again = "Run the same command again to continue." in first.stderr
    assert again is (FOLLOWS[end]["walk"] is Next.RETRY)
    assert ("would end in the same way again" in first.stderr) is not again
    assert trainer.begun[0] == "mine-fold-1-seed-1" not in trainer.trained
    assert "All are trained." in eigen(*command, code=2).stderr
    assert sorted(trainer.trained) == ["mine-fold-1-seed-1", "mine-fold-2-seed-1"]


@each_error
def test_what_follows_in_trials_of_trust(
    end: End, error: Callable[[], BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"claim": "none", "matched_pvalue": 0.5, "trades": 3, "excess": None, "excess_pvalue": None}
    trials = Mock(side_effect=[error(), *(Trial.model_validate({"edge": None, "seed": 1 + n, **made}) for n in (0, 1))])
    monkeypatch.setattr(TrustTrials, "_run_trial", trials)
    command = ["trust", "us5", "--edges", "", "--trials", "2", "--out", str(tmp_path)]
    is_recorded = FOLLOWS[end]["trust"] is Next.RECORD
    first = eigen(*command, "--json")
    assert (first.exit_code == 0) is is_recorded
    known = [path.name for path in sorted(tmp_path.glob("noise-*.json"))]
    assert known == (["noise-1.json", "noise-2.json"] if is_recorded else [])
    ended = json.loads(eigen(*command, "--json", code=0).stdout)
    assert trials.call_count == 2 if is_recorded else 3
    assert (ended["false_alarms"]["trials"], ended["false_alarms"]["claimed"]) == (2, 0)
    assert ("1 trial diverged" in " ".join(ended["sentences"])) is is_recorded


@each_error
@pytest.mark.usefixtures("prefect_api", "sigterm_ignored")
def test_what_follows_for_the_schedule(
    end: End, error: Callable[[], BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: Any = TerminationSignal(signal.SIGTERM) if end is End.INTERRUPTED else error()
    monkeypatch.setattr(training_flow, "train_run", Mock(side_effect=raised))
    monkeypatch.setattr(RunPages, "show_plan", Mock())
    switch = Mock()
    monkeypatch.setattr(flow_runs, "switch_schedule", switch)
    if end is End.INTERRUPTED:
        with pytest.raises(TerminationSignal):
            train(small_flow_config(tmp_path))
    else:
        assert train(small_flow_config(tmp_path)).is_failed()
    assert [call.args for call in switch.call_args_list] == ([] if FOLLOWS[end]["flow"] is Next.RETRY else [(False,)])


@pytest.mark.parametrize("end", [End.REFUSED, End.TOO_LARGE, End.DIVERGED])
@pytest.mark.usefixtures("trainer")
def test_a_sweep_without_a_finished_trial_is_no_success(end: End) -> None:
    pytest.importorskip("optuna")
    command = ["sweep", "mine", "--vary", "learner.gamma=0.9", "--trials", "2", *small_settings()]
    ended = eigen(*command, code=2)
    assert f"No trial of sweep 'mine' finished (1 {end})" in " ".join(ended.stderr.split())
    assert "best of" not in ended.stdout
