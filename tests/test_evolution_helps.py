"""Where reward is sparse, what evolution finds is learned from: the commands of docs/training.md on two seeds."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.sparse_pendulum import SparsePendulum

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = (
    "exploration.decay=1",
    "evaluation.validation_slices=1",
    "evaluation.validation_lowest=1",
    "population.size=11",
    "evolution.method=erl",
    "evolution.elite_share=0.2",
    "evolution.mutation_std=0.3",
    "evolution.mutation_std_limit=0.3",
    "evolution.mutation_growth=1",
)


def champions(gradient_steps: int, out: Path) -> list[float]:
    given = [*SETTINGS, f"learner.gradient_steps={gradient_steps}"]
    command = [sys.executable, "-m", "benchmarks.control", f"{SparsePendulum.__module__}:SparsePendulum-v0"]
    command += ["--preset", "pendulum", "--steps", "240000", "--seeds", "2", "--name", "run", "--out", str(out)]
    subprocess.run([*command, *(part for one in given for part in ("--set", one))], check=True, cwd=ROOT)
    found = []
    for path in sorted(out.glob("*/run/seed*/reached.csv")):
        with path.open(newline="") as file:
            found.append(float(list(csv.DictReader(file))[-1]["champion"]))
    return found


@pytest.mark.slow
def test_erl_learns_what_evolution_alone_does_not(tmp_path: Path) -> None:
    alone, both = champions(0, tmp_path / "alone"), champions(300, tmp_path / "both")
    assert len(alone) == len(both) == 2
    assert sum(both) > sum(alone)
