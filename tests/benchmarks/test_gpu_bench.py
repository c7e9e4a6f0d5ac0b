"""The benchmark of a GPU, in its small size on the CPU."""

import multiprocessing
import threading
import time

import pytest
import torch

from benchmarks import gpu, gpu_case
from benchmarks.gpu_case import Case
from benchmarks.results import RESULTS

CPU = torch.device("cpu")


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
    # Operators, which graphs take from the first case, do not depend on how busy the machine is; shares do.
    assert rows[0][-4:-2] == rows[1][-4:-2]
    assert all(int(cell.partition("(")[2].rstrip(")")) > 0 for row in rows for cell in row[-4:-2])
    assert all(float(cell) >= 0.0 for row in rows for cell in row[-2:])
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


def test_operators_and_what_they_touch_are_counted() -> None:
    with gpu_case.TouchedBytes() as counted:
        values = torch.ones(10)
        values[2:5].add_(1.0)
        torch.bmm(torch.ones(1, 2, 3), torch.ones(1, 3, 4))
    assert counted.operators == 1 + 1 + 3
    assert counted.bytes == 4 * (10 + (3 + 3) + (6 + 12 + 6 + 12 + 8))
