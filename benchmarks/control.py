"""Rewards that agents reach in a Gymnasium environment after a number of steps, over seeds.

`python -m benchmarks.control Pendulum-v1 --steps 25000 --seeds 3` trains the environment's preset for each seed, and
writes the results of all runs in `runs/control` into `RESULTS.md`. Stopped runs are resumed, and finished ones are not
trained again. Steps are those of all agents together, validation included, whose episodes count at their full length.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.results import Section, publish
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.errors import InputError
from eigen_core.common.files import replacing
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
from eigen_core.judging.statistics import interquartile_mean
from eigen_core.learning.fitness import spread_starts
from eigen_core.task import open_data

_RUNS = Path("runs/control")
_EPISODES = 20
_EPISODES_OF_EACH = 4
_POINTS = 20
_SAVED_EVERY_SECONDS = 60.0
MARKS = {
    "Pendulum-v1": -200.0,
    "CartPole-v1": 475.0,
    "HalfCheetah-v5": 9_656.0,
    "Hopper-v5": 3_606.0,
    "Walker2d-v5": 4_718.0,
    "Swimmer-v5": 359.0,
}
"""Rewards to reach. CartPole: where Gymnasium calls it solved; MuJoCo: TD3's after a million steps in the RL Baselines3
Zoo."""


@dataclass(frozen=True)
class Reached:
    """State of a run after a generation.

    Attributes:
        training_steps: steps of the episodes that were learned from; `steps` includes those of validation.
        cpu_seconds: of training, without measuring.
        champion, population: mean reward in 20 unseen episodes of the champion, and in 4 of each agent.
    """

    generation: int
    training_steps: int
    steps: int
    cpu_seconds: float
    champion: float
    population: float


def preset_of(environment: str) -> str:
    """Return the preset of an environment; raise `InputError` if it has none."""
    for name in PRESET_NAMES:
        if preset_values(name).get("task") == f"gym:{environment}":
            return name
    raise InputError(f"no preset has the task gym:{environment}: give one with --preset, and its task is replaced.")


def curve(config: Config, steps: int, folder: Path) -> Iterator[Reached]:
    """Train for this number of steps; yield the results on the way, also those of an earlier call.

    Measuring takes longer than a generation, so it is done at most 20 times.
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
        starts = spread_starts(state.task.holdout_starts, episodes)
        with state.task.at(task_state):
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
    """Return the run of a configuration and its results so far; the state becomes its newest."""
    name = f"seed{config.seed}"
    if not (folder / name).exists():
        return RunDirectory.create(folder, name, stored_values(config)), []
    run = RunDirectory.open(folder, name)
    if run.config != stored_values(config):
        raise InputError(f"{folder / name} has other settings: give another --out.")
    loaded = run.load_newest(snapshot_form(state))
    if loaded is None:
        return run, []
    restore(state, loaded.snapshot)
    return run, [row for row in _reached_in(run.path) if row.generation <= state.generation]


def _reached_in(run: Path) -> list[Reached]:
    return [Reached(*row) for row in pd.read_csv(run / "reached.csv").itertuples(index=False)]


def _save(run: RunDirectory, state: TrainingState, reached: Sequence[Reached]) -> None:
    # Before the generation: rows that are ahead of it are dropped, missing ones could not be measured again.
    with replacing(run.path / "reached.csv") as file:
        pd.DataFrame(reached).to_csv(file, index=False)
    run.save(snapshot(state))
    run.contents.clean(keep_last=1, keep_every=0)


def summary(out: Path) -> Section:
    rows = []
    for folder in sorted(path for path in out.glob("*/*") if any(path.glob("seed*/reached.csv"))):
        curves = [_reached_in(run.parent) for run in sorted(folder.glob("seed*/reached.csv"))]
        mark = MARKS.get(folder.parent.name)
        last = [reached[-1] for reached in curves]
        middle, low, high = interquartile_mean(np.array([one.champion for one in last]), 0)
        rows.append(
            (
                f"{folder.parent.name}, {folder.name}",
                f"{len(curves)}",
                f"{min(one.steps for one in last):,}",
                f"{middle:,.0f} ({low:,.0f} to {high:,.0f})",
                "-" if mark is None else f"{mark:,.0f}",
                "-" if mark is None else ", ".join(_steps_to(reached, mark) for reached in curves),
                f"{np.mean([one.cpu_seconds for one in last]):,.0f}",
            )
        )
    return Section(
        "Control",
        f"Mean reward of the champion in {_EPISODES} episodes of neither training nor validation: interquartile mean "
        "over seeds, 95 % interval by bootstrap over them. Steps are those of all agents, validation included.",
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
    for seed in range(1, given.seeds + 1):
        settings = [f"task=gym:{given.environment}", f"seed={seed}", *given.set]
        for one in curve(load_config(preset, settings), given.steps, folder):
            print(f"seed {seed}, {one.steps:,} steps: champion {one.champion:,.0f}, population {one.population:,.0f}")
    if given.out == _RUNS:
        publish("control", summary(given.out))


if __name__ == "__main__":
    main()
