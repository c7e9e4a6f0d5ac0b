"""How well agents play a Gymnasium environment after so many steps of it, over seeds.

`python -m benchmarks.control Pendulum-v1 --steps 25000 --seeds 3` trains the environment's preset once for each seed,
prints what the champion reached, and keeps what all runs in `runs/control` have reached in `RESULTS.md`. What was
stopped goes on where it was, and what is done is not done again. Steps are those of all agents together, of validation
too, whose episodes count at their full length.
"""

import argparse
import csv
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.__main__ import ALL_SECTIONS
from benchmarks.results import Section, keep
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.common.text import count
from eigen_core.config import PRESET_NAMES, Config, preset_values
from eigen_core.config.loading import load_config
from eigen_core.config.stored import stored_values
from eigen_core.generation import (
    TrainingState,
    evaluate,
    evolve,
    restore,
    snapshot,
    snapshot_form,
    start_training,
    train,
)
from eigen_core.learning.method import spread_starts
from eigen_core.task import open_data

_RUNS = Path("runs/control")
_EPISODES = 20
_EPISODES_OF_EACH = 4
_POINTS = 20
_SAVED_EVERY_SECONDS = 60.0
_RESAMPLES = 2_000
_CONFIDENCE = 0.95
MARKS = {
    "Pendulum-v1": -200.0,
    "CartPole-v1": 475.0,
    "HalfCheetah-v5": 9_656.0,
    "Hopper-v5": 3_606.0,
    "Walker2d-v5": 4_718.0,
    "Swimmer-v5": 359.0,
}
"""Rewards to be reached. CartPole: from which on Gymnasium calls it solved; MuJoCo: TD3's after a million steps in the
RL Baselines3 Zoo."""


@dataclass(frozen=True)
class Reached:
    """What a run had reached after some generations.

    Attributes:
        generation: number of the last one.
        training_steps: steps of the episodes that were learned from.
        steps: these and those of validation.
        cpu_seconds: of the process, without measuring.
        champion: mean reward of the champion in 20 episodes that neither training nor validation knows.
        population: mean reward of all agents in 4 such episodes of each.
    """

    generation: int
    training_steps: int
    steps: int
    cpu_seconds: float
    champion: float
    population: float


def preset_of(environment: str) -> str:
    """Return the preset that plays an environment.

    Raises:
        InputError: none does.
    """
    for name in PRESET_NAMES:
        if preset_values(name).get("task") == f"gym:{environment}":
            return name
    raise InputError(f"no preset plays {environment}: give one with --preset, and its task is replaced.")


def curve(config: Config, steps: int, folder: Path) -> Iterator[Reached]:
    """Train until so many steps were taken; yield what was reached on the way, also in an earlier call.

    Measuring many agents takes longer than a generation, so it is done 20 times at most.
    """
    state = start_training(config, open_data(config).content)
    run, known = _opened(config, state, folder)
    reached = known
    yield from known
    done = known[-1] if known else Reached(0, 0, 0, 0.0, -np.inf, -np.inf)
    saved = time.monotonic()
    while done.steps < steps:
        started = time.process_time()
        due = min(steps, done.steps + steps / _POINTS)
        while _steps_of(state) < due:
            evaluate(state)
            train(state)
            evolve(state)
        done = _measured(state, done.cpu_seconds + time.process_time() - started)
        reached.append(done)
        yield done
        if done.steps >= steps or time.monotonic() - saved > _SAVED_EVERY_SECONDS:
            _save(run, state, reached)
            saved = time.monotonic()


def _steps_of(state: TrainingState) -> int:
    evaluation = state.config.evaluation
    fixed = state.population.size * evaluation.fixed_episodes * state.task.episode_steps
    return state.replay.written + state.generation * fixed


def _measured(state: TrainingState, cpu_seconds: float) -> Reached:
    champion = state.champion
    assert champion is not None

    def mean_reward(weights: torch.Tensor, task_state: Mapping[str, torch.Tensor], episodes: int) -> float:
        state.task.state = task_state
        starts = spread_starts(state.task.holdout_starts, episodes)
        return float(state.task.roll_out(weights, np.tile(starts, (len(weights), 1))).rewards.mean())

    return Reached(
        state.generation,
        state.replay.written,
        _steps_of(state),
        cpu_seconds,
        mean_reward(champion.weights[None], champion.task_state, _EPISODES),
        mean_reward(state.population.weights, state.task_state, _EPISODES_OF_EACH),
    )


def _opened(config: Config, state: TrainingState, folder: Path) -> tuple[RunDirectory, list[Reached]]:
    """Return the run of a configuration, with what it had reached; the state becomes its newest."""
    name = f"seed{config.seed}"
    if not (folder / name).exists():
        return RunDirectory.create(folder, name, stored_values(config)), []
    run = RunDirectory.open(folder, name)
    if run.config != stored_values(config):
        raise InputError(f"{folder / name} was begun with other settings: give another --out.")
    loaded = run.load_newest(snapshot_form(state))
    if loaded is None:
        return run, []
    restore(state, loaded.snapshot, take_memory=True)
    return run, [row for row in _reached_in(run.path) if row.generation <= state.generation]


def _reached_in(run: Path) -> list[Reached]:
    with (run / "reached.csv").open(newline="") as file:
        return [
            Reached(
                int(row["generation"]),
                int(row["training_steps"]),
                int(row["steps"]),
                *(float(row[name]) for name in ("cpu_seconds", "champion", "population")),
            )
            for row in csv.DictReader(file)
        ]


def _save(run: RunDirectory, state: TrainingState, reached: Sequence[Reached]) -> None:
    beside = run.path / "reached.csv.part"
    with beside.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in fields(Reached))
        writer.writerows(astuple(row) for row in reached)
    # Before the generation: rows that are ahead of it are dropped, missing ones could not be measured again.
    os.replace(beside, run.path / "reached.csv")
    run.save(snapshot(state))
    run.clean(keep_last=1, keep_every=0)


def interquartile_mean(values: NDArray[np.float64]) -> float:
    """Mean of the values between the quartiles: a quarter of them, rounded down, is left out at each end."""
    ordered = np.sort(values, axis=None)
    left_out = len(ordered) // 4
    return float(ordered[left_out : len(ordered) - left_out].mean())


def bootstrap_interval(scores: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of the interquartile mean of scores, float64 `[runs, environments]`.

    Runs are drawn again with replacement within each environment (Agarwal et al. 2021, arXiv:2108.13264, section 4.1).
    """
    runs, environments = scores.shape
    generator = keyed_generator(0, 0, "control", "bootstrap")
    drawn = generator.integers(0, runs, (_RESAMPLES, runs, environments))
    means = [interquartile_mean(np.take_along_axis(scores, sample, axis=0)) for sample in drawn]
    low, high = np.quantile(means, [(1.0 - _CONFIDENCE) / 2.0, (1.0 + _CONFIDENCE) / 2.0])
    return float(low), float(high)


def section(environment: str, steps: int, curves: Sequence[Sequence[Reached]], mark: float | None) -> Section:
    columns = ["seed", "champion", "population", "steps", "training steps", "CPU seconds"]
    if mark is not None:
        columns.append(f"steps to {mark:g}")
    rows = []
    for seed, reached in enumerate(curves, start=1):
        last = reached[-1]
        row = [f"{seed}", f"{last.champion:,.0f}", f"{last.population:,.0f}", f"{last.steps:,}"]
        row += [f"{last.training_steps:,}", f"{last.cpu_seconds:,.0f}"]
        if mark is not None:
            row.append(_steps_to(reached, mark))
        rows.append(row)
    scores = np.array([[reached[-1].champion] for reached in curves])
    low, high = bootstrap_interval(scores)
    remark = (
        f"Champion, interquartile mean of {count(len(curves), 'seed')}: {interquartile_mean(scores):,.0f} "
        f"(95 % interval {low:,.0f} to {high:,.0f})."
    )
    return Section(
        f"{environment} after {steps:,} steps",
        f"Mean reward of {_EPISODES} episodes without noise; steps of all agents, validation included.",
        columns,
        rows,
        (remark,),
    )


def summary(out: Path) -> Section:
    rows = []
    for folder in sorted(path for path in out.glob("*/*") if any(path.glob("seed*/reached.csv"))):
        curves = [_reached_in(run.parent) for run in sorted(folder.glob("seed*/reached.csv"))]
        mark = MARKS.get(folder.parent.name)
        last = [reached[-1] for reached in curves]
        scores = np.array([[one.champion] for one in last])
        low, high = bootstrap_interval(scores)
        rows.append(
            (
                f"{folder.parent.name}, {folder.name}",
                f"{len(curves)}",
                f"{min(one.steps for one in last):,}",
                f"{interquartile_mean(scores):,.0f} ({low:,.0f} to {high:,.0f})",
                "-" if mark is None else f"{mark:,.0f}",
                "-" if mark is None else ", ".join(_steps_to(reached, mark) for reached in curves),
                f"{np.mean([one.cpu_seconds for one in last]):,.0f}",
            )
        )
    return Section(
        "Control",
        f"Mean reward of the champion in {_EPISODES} episodes that neither training nor validation knows: "
        "interquartile mean over seeds, 95 % interval by bootstrap over them. Steps are those of all agents, of "
        "validation too.",
        ("", "seeds", "steps", "champion", "mark", "steps to the mark, each seed", "CPU seconds a seed"),
        rows,
    )


def _steps_to(reached: Sequence[Reached], mark: float) -> str:
    first = next((one for one in reached if one.champion >= mark), None)
    return "-" if first is None else f"{first.steps:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environment", help="id of a Gymnasium environment")
    parser.add_argument("--steps", type=int, required=True, help="steps of the environment, of all agents together")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 1 to this")
    parser.add_argument("--preset", help="preset to train; the environment's own if it has one")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting")
    parser.add_argument("--name", help="name of these runs in the results; else preset and settings")
    parser.add_argument("--out", type=Path, default=_RUNS, help="folder of the runs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    preset = given.preset or preset_of(given.environment)
    folder = given.out / given.environment.replace("/", "-") / (given.name or " ".join([preset, *given.set]))
    curves = []
    for seed in range(1, given.seeds + 1):
        settings = [f"task=gym:{given.environment}", f"seed={seed}", *given.set]
        reached = []
        for one in curve(load_config(preset, settings), given.steps, folder):
            reached.append(one)
            print(f"seed {seed}, {one.steps:,} steps: champion {one.champion:,.0f}, population {one.population:,.0f}")
        curves.append(reached)
    section(given.environment, given.steps, curves, MARKS.get(given.environment)).show(Console())
    if given.out == _RUNS:
        keep({"control": summary(given.out)}, ALL_SECTIONS)


if __name__ == "__main__":
    main()
