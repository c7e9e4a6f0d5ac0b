"""The bench of a GPU: its cases, each in a process of its own, run in small on the processor."""

import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import psutil
import pytest
import torch
from stand_in_gpu import stand_in_gpu

from benchmarks import gpu, gpu_case
from benchmarks.gpu_case import Case
from benchmarks.results import RESULTS, Section

CPU = torch.device("cpu")
SECTION = Section("title", "method", ("case", "s"), [("first", "1.5")])


def kill_next_process() -> None:
    while not (processes := multiprocessing.active_children()):
        time.sleep(0.01)
    processes[0].kill()


@pytest.mark.thorough
def test_it_runs_in_small_on_the_processor(capsys: pytest.CaptureFixture[str]) -> None:
    kept = RESULTS.read_bytes()
    gpu.main(["--device", "cpu", "--small", "--encoders", "filter_bank"])
    _, *rows, _, remark = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 4
    assert remark == ["Captured as CUDA graphs generations have the same bits."]
    shares = [[float(cell) for cell in row[-2:]] for row in rows]
    assert all(bandwidth > 0.0 and flop > 0.0 for bandwidth, flop in shares)
    assert RESULTS.read_bytes() == kept


@pytest.mark.thorough
def test_a_case_that_fails_has_a_row_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    # Called in this process it would fail.
    monkeypatch.setattr(gpu_case, "seconds_of", None)
    sections = gpu.run(CPU, [Case("tcn", graphs=True), Case("none"), Case("filter_bank"), Case("tcn")], small=True)
    first = next(sections)
    assert [row[0] for row in first.rows] == ["tcn, float32, deterministic, graphs"]
    # Operators are counted without graphs.
    assert first.rows[0][-4:] == ["0", "0", "", ""]
    assert next(sections).rows[1][1].startswith("failed: eigen_core.common.errors.InputError: ")
    threading.Thread(target=kill_next_process, daemon=True).start()
    assert next(sections).rows[2][1] == "failed: its process ended with exit code -9"
    (last,) = sections
    assert all(len(row) == len(last.columns) for row in last.rows)
    assert [row[1].startswith("failed") for row in last.rows] == [False, True, True, False]
    assert len(first.remarks) == 1
    assert last.remarks[1:] == ["Captured as CUDA graphs generations have the same bits."]


@pytest.mark.thorough
def test_no_process_is_left_behind_when_it_is_stopped() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--small"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as bench:
        assert bench.stdout is not None
        bench.stdout.readline()
        while not (started := psutil.Process(bench.pid).children()):
            time.sleep(0.01)
        bench.terminate()
        assert bench.wait() == 128 + 15
    assert psutil.wait_procs(started, timeout=60)[1] == []


@pytest.mark.thorough
@pytest.mark.cpu
def test_times_are_taken_before_the_profiler_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def seconds_of(work: Callable[[], object]) -> float:
        done.append("time")
        work()
        return 1.0

    @contextmanager
    def profile(**_: object) -> Iterator[SimpleNamespace]:
        done.append("profile")
        yield SimpleNamespace(events=list)

    monkeypatch.setattr(gpu_case, "seconds_of", seconds_of)
    monkeypatch.setattr(gpu_case, "profile", profile)
    for name in ("reset_peak_memory_stats", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda _: 0)
    with stand_in_gpu():
        gpu_case.measured(torch.device("cuda"), Case("filter_bank"), small=True)
    assert done == ["time"] * 3 + ["profile"] * 3


def test_operators_and_what_they_touch_are_counted() -> None:
    with gpu_case.TouchedBytes() as counted:
        values = torch.ones(10)
        values[2:5].add_(1.0)
        torch.bmm(torch.ones(1, 2, 3), torch.ones(1, 3, 4))
    assert counted.operators == 1 + 1 + 3
    assert counted.bytes == 4 * (10 + (3 + 3) + (6 + 12 + 6 + 12 + 8))
