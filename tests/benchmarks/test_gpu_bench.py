"""The bench of a GPU runs in small on the processor, and says so where there is no GPU."""

import pytest
import torch

from benchmarks import gpu, gpu_case
from benchmarks.results import RESULTS


@pytest.mark.thorough
def test_it_runs_in_small_on_the_processor(capsys: pytest.CaptureFixture[str]) -> None:
    kept = RESULTS.read_bytes()
    section = gpu.run(torch.device("cpu"), small=True)
    assert len(section.rows) == 8
    assert section.remarks[-1] == "Captured as CUDA graphs generations have the same bits."
    shares = [[float(cell) for cell in row[-2:]] for row in section.rows]
    assert all(bandwidth > 0.0 and flop > 0.0 for bandwidth, flop in shares)
    assert all(len(row) == len(section.columns) for row in section.rows)
    assert RESULTS.read_bytes() == kept
    assert capsys.readouterr().out == ""


def test_operators_and_what_they_touch_are_counted() -> None:
    with gpu_case.TouchedBytes() as counted:
        values = torch.ones(10)
        values[2:5].add_(1.0)
        torch.bmm(torch.ones(1, 2, 3), torch.ones(1, 3, 4))
    assert counted.operators == 1 + 1 + 3
    assert counted.bytes == 4 * (10 + (3 + 3) + (6 + 12 + 6 + 12 + 8))


@pytest.mark.cpu
@pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without a GPU")
def test_without_a_gpu_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu.main([])
    assert ended.value.code == 2
    assert "torch finds no GPU" in capsys.readouterr().err
