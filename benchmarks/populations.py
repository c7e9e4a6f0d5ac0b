"""What each population method reaches with the same learner and as many steps played: Pendulum and a planted market."""

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import torch

from benchmarks.learning.trial import run_trial, trial_config
from benchmarks.results import Section
from eigen_core.config.loading import load_config
from eigen_core.generation import evaluate, evolve, start_training, train
from eigen_core.learning.fitness import spread_starts
from eigen_core.task import open_data

_METHODS: Mapping[str, Sequence[str]] = {
    "gradients alone (DDPG)": ("evolution.enabled=false",),
    "evolution alone": ("learner.gradient_steps=0",),
    "`genetic`": (),
    "`cem`": ("evolution.method=cem", "evolution.elite_share=0.5"),
    "`erl`": ("evolution.method=erl", "evolution.elite_share=0.5", "evolution.sync_generations=2"),
    "`pbt`": ("evolution.method=pbt", "evolution.sync_generations=2"),
}
_SEEDS = (1, 2, 3)
_PENDULUM = ("device=cpu", "generations=12", "evaluation.holdout_slices=20")
_MARKET, _EDGE, _MARKET_GENERATIONS = "unblocked", 0.3, 6


def run() -> Section:
    works: list[Callable[[], float]] = [
        partial(task, tuple(settings), seed)
        for settings in _METHODS.values()
        for task in (pendulum_return, market_share)
        for seed in _SEEDS
    ]
    # Scores, not times: two at once change nothing.
    with ProcessPoolExecutor(2, get_context("spawn"), initializer=_quiet) as pool:
        found = np.array(list(pool.map(operator.call, works))).reshape(len(_METHODS), 2, len(_SEEDS))
    rows = [
        (
            name,
            f"{of_method[0].mean():,.0f}",
            ", ".join(f"{value:,.0f}" for value in of_method[0]),
            f"{of_method[1].mean():.0f} %",
            ", ".join(f"{value:.0f}" for value in of_method[1]),
        )
        for name, of_method in zip(_METHODS, found, strict=True)
    ]
    ridge = [market_share((), seed, "ridge") for seed in _SEEDS]
    each = ", ".join(f"{share:.0f}" for share in ridge)
    rows.append(("ridge regression, no agents", "-", "-", f"{np.mean(ridge):.0f} %", each))
    return Section(
        title="Population methods",
        method=(
            "What the champion reaches with DDPG and the same steps played by each method. Pendulum-v1: preset "
            "pendulum, 4 agents, 12 generations, 9,600 steps that are learned from; mean return of 20 episodes that "
            "neither training nor validation knows. Market: preset ddpg, 16 agents, "
            f"{_MARKET_GENERATIONS} generations, on 20 assets held 5 days, of which a feature knows the return with a "
            f"correlation of {_EDGE:g} (`{_MARKET}`); percent of what an oracle earns in the holdout. Seeds "
            f"{', '.join(map(str, _SEEDS))}."
        ),
        columns=("method", "Pendulum, mean", "each seed", "market, mean", "each seed (%)"),
        rows=rows,
        remarks=(
            "Where all agents learn (gradients alone, `genetic`, `pbt`), each takes the preset's gradient steps in "
            "every generation; of `cem` 1 of 4 and 7 of 16 learn, of `erl` one. Three seeds are too few to rank "
            "methods whose seeds overlap.",
        ),
    )


def pendulum_return(settings: Sequence[str], seed: int) -> float:
    """Return the champion's mean return in episodes that neither training nor validation knows."""
    config = load_config("pendulum", [f"seed={seed}", *_PENDULUM, *settings])
    state = start_training(config, open_data(config).content)
    for _ in range(config.generations):
        evaluate(state)
        train(state)
        evolve(state)
    assert state.champion is not None
    starts = spread_starts(state.task.holdout_starts, config.evaluation.holdout_episodes)
    with state.task.at(state.champion.task_state):
        return float(state.task.roll_out(state.champion.weights[None], starts[None]).rewards.mean())


def market_share(settings: Sequence[str], seed: int, method: str = "ddpg") -> float:
    """Return what the champion earns in the holdout of a planted market, in percent of an oracle."""
    config = trial_config(_MARKET, seed, method, settings, _MARKET_GENERATIONS)
    return float(run_trial(_MARKET, _EDGE, config, method)["share"]["champion"])


def _quiet() -> None:
    os.nice(5)
    torch.set_num_threads(1)
