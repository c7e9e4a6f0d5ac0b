"""Figures that another process draws are those that this one would draw."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_run import make_run

from eigen_core.common.records import GenerationRecord, RecordLog, Telemetry
from eigen_core.learning.ddpg import DdpgLearner
from eigen_core.reporting.plots import write_plots
from eigen_core.runs import drawing
from eigen_core.runs.drawing import Drawing, DrawingError


@pytest.mark.thorough
def test_another_process_draws_the_same_figures(tmp_path: Path) -> None:
    history, telemetry = make_run(4, 4)
    under_way = Drawing()
    under_way.begin(RecordLog.of(GenerationRecord, history), RecordLog.of(Telemetry, telemetry), DdpgLearner.curves)
    expected = write_plots(history, telemetry, tmp_path / "here", DdpgLearner.curves)
    paths = under_way.write(tmp_path / "there")
    assert under_way.is_done()
    under_way.stop()
    assert [path.name for path in paths] == [path.name for path in expected]
    for path, other in zip(paths, expected, strict=True):
        assert path.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("killed", "why"), [(False, r"No module named 'eigen_core\.no_such_module'"), (True, "status -9")]
)
def test_a_process_that_fails_says_why_and_leaves_nothing(
    killed: bool, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not killed:
        monkeypatch.setattr(drawing, "_DRAW", "import eigen_core.no_such_module")
    under_way = Drawing()
    if killed:
        os.kill(under_way._process.pid, signal.SIGKILL)
        under_way._process.wait()
    under_way.begin(RecordLog(GenerationRecord), RecordLog(Telemetry), ())
    with pytest.raises(DrawingError, match=why):
        under_way.write(tmp_path / "plots")
    assert not (tmp_path / "plots").exists()


def test_a_drawing_leaves_no_process_if_it_is_stopped_or_its_parent_is_gone() -> None:
    under_way = Drawing()
    under_way.stop()
    assert under_way._process.returncode == -signal.SIGKILL
    orphan = Drawing()
    assert orphan._process.stdin is not None
    orphan._process.stdin.close()
    assert orphan._process.wait() != 0
    orphan.stop()


def test_drawing_loads_neither_torch_nor_pandas() -> None:
    code = "import sys, eigen_core.reporting.plots; print(sorted({'torch', 'pandas', 'prefect'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
