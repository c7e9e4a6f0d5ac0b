"""What holds of a training with each learner: the same commands and files; killed, it goes on to the same bits."""

import os
import re
import signal
from pathlib import Path

import pytest
from flow_cases import run_eigen, small_flow_config, small_settings, started, wait_for_generation
from science_cases import LEARNER_OF_TASK

from benchmarks.kill_training import facts_of
from eigen_core.config import registry
from eigen_core.training.runs import status_of

# Other tests of commands kill runs with DDPG, and each learner is resumed in one process.
pytestmark = pytest.mark.slow

GENERATIONS = 4
FILES = {
    *("config.json", "starts.json", "lock", "attachments/list.json", "holdout/000004.json"),
    *(f"manifests/{generation:06d}-*.json" for generation in (2, 3, 4)),
    *(f"plots/{name}.png" for name in ("diversity", "fitness", "learning", "lineage", "memory", "replay", "resources")),
}
"""Of a run with any learner, whether it was killed or not."""


def kinds_of_files(run: Path) -> set[str]:
    """The files of a run, without hashes in their names; blobs are named by theirs, leases counted by process."""
    paths = (str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    return {re.sub(r"[0-9a-f]{8,}", "*", path) for path in paths if not path.startswith(("blobs/", "lease/"))}


@pytest.mark.parametrize(
    "learner",
    registry.LEARNERS,
)
def test_a_killed_run_goes_on_to_the_end_of_an_uninterrupted_one(
    learner: str, with_server: dict[str, str], tmp_path: Path
) -> None:
    task = {"task": LEARNER_OF_TASK[learner]} if learner in LEARNER_OF_TASK else {}
    sections = task | {
        "learner": {"algorithm": learner},
        "market": {"holdout_days": 60},
        "reporting": {"plot_every": 1},
    }
    config = small_flow_config(tmp_path / "runs", generations=GENERATIONS, **sections)

    def command(name: str) -> list[str]:
        return ["train", "--run", name, "--generations", str(GENERATIONS), *small_settings(**sections)]

    whole = run_eigen(command("whole"), environment=with_server, folder=tmp_path, timeout=300.0)
    assert whole.returncode == 0, whole.stderr
    with started(command("killed"), with_server, tmp_path) as process:
        wait_for_generation(process, tmp_path / "runs", "killed", 2)
        os.killpg(process.pid, signal.SIGKILL)
    resumed = run_eigen(["resume", "killed"], environment=with_server, folder=tmp_path, timeout=300.0)
    assert resumed.returncode == 0, resumed.stderr
    ends = [facts_of(config.model_dump(mode="json"), name, {}) for name in ("whole", "killed")]
    assert ends[0] == ends[1]
    statuses = [status_of(str(tmp_path / "runs"), name) for name in ("whole", "killed")]
    assert statuses[0].history[-1].learning is not None
    assert statuses[0].holdout is not None
    assert statuses[0].holdout == statuses[1].holdout
    files = [kinds_of_files(tmp_path / "runs" / name) for name in ("whole", "killed")]
    assert files[0] == files[1]
    # The champion's generation is kept too.
    assert files[0] - {"manifests/000001-*.json"} == FILES
