"""The benchmark of control: it resumes, the marks in the docs are reached, evolution helps."""

import re
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.control import MARKS, Reached, curve
from benchmarks.sparse_pendulum import SparsePendulum
from eigen_core.config import Config
from eigen_core.config.loading import load_config

STEPS = 4 * (1 + 3) * 20


def pendulum() -> Config:
    settings = ["environment.episode_steps=20", "replay.minimum=80", "learner.gradient_steps=3", "network.head_width=8"]
    return load_config("pendulum", settings)


def found(rows: list[Reached]) -> list[tuple[float, ...]]:
    return [(*astuple(row)[:3], row.champion, row.population) for row in rows]


def test_what_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = list(curve(pendulum(), 4 * STEPS, tmp_path / "whole"))
    assert [row.steps for row in whole] == [STEPS, 2 * STEPS, 3 * STEPS, 4 * STEPS]
    first = list(curve(pendulum(), 2 * STEPS, tmp_path / "stopped"))
    again = list(curve(pendulum(), 4 * STEPS, tmp_path / "stopped"))
    assert again[:2] == first
    assert found(again) == found(whole)
    # Nothing is trained again.
    assert list(curve(pendulum(), 4 * STEPS, tmp_path / "stopped")) == again


ROOT = Path(__file__).parents[1]
COMMAND = re.compile(r"^python -m benchmarks\.control (\S+ .*)--seeds 3\b", flags=re.MULTILINE)
COMMANDS = COMMAND.findall((ROOT / "docs" / "training.md").read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_mark_is_reached(command: str, tmp_path: Path) -> None:
    environment, *options = command.split()
    arguments = [environment, *options, "--seeds", "1", "--out", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "benchmarks.control", *arguments], cwd=ROOT, check=True)
    (reached,) = tmp_path.glob("*/*/seed1/reached.csv")
    assert pd.read_csv(reached)["champion"].iloc[-1] >= MARKS[environment]


EVOLUTION = (
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
    given = [*EVOLUTION, f"learner.gradient_steps={gradient_steps}"]
    command = [sys.executable, "-m", "benchmarks.control", f"{SparsePendulum.__module__}:SparsePendulum-v0"]
    command += ["--preset", "pendulum", "--steps", "240000", "--seeds", "2", "--name", "run", "--out", str(out)]
    subprocess.run([*command, *(part for one in given for part in ("--set", one))], check=True, cwd=ROOT)
    return [pd.read_csv(path)["champion"].iloc[-1] for path in sorted(out.glob("*/run/seed*/reached.csv"))]


@pytest.mark.slow
def test_erl_learns_what_evolution_alone_does_not(tmp_path: Path) -> None:
    alone, both = champions(0, tmp_path / "alone"), champions(300, tmp_path / "both")
    assert len(alone) == len(both) == 2
    assert sum(both) > sum(alone)
