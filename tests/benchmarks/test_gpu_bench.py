"""The benchmark of a GPU, in its small size on the CPU."""

import pytest

from benchmarks import gpu
from benchmarks.results import RESULTS


@pytest.mark.slow
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
