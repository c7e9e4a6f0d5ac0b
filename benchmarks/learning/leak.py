"""Do the learners learn? Evolution, gradients and both on a market that leaks the return after the fill.

`python -m benchmarks.learning.leak` runs all of it (about ten minutes on one core) and writes leak.csv and leak.png
beside this file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.synthetic import leaking_market
from eigen_core.config import Config, merge
from eigen_core.generation import TrainingState, evaluate, evolve, start_training, train
from eigen_core.generation.phases import validation_slices
from eigen_core.judging.ridge import play_rules, tuned_buying
from eigen_core.networks.population import initial_weights
from eigen_core.task.market import MarketTask

Learning = Literal["evolution alone", "gradients alone", "both"]
Credit = Literal["decision", "realized"]

LEARNING: tuple[Learning, ...] = ("evolution alone", "gradients alone", "both")
SEEDS = (1, 2, 3, 4)
GENERATIONS = 10
DAYS, ASSETS = 1_500, 20
RANDOM_AGENTS = 256

_FOLDER = Path(__file__).parent
_COLOURS = {"evolution alone": "#0072B2", "gradients alone": "#D55E00", "both": "#009E73"}


def trial_config(learning: Learning, credit: Credit, seed: int) -> Config:
    """Preset quickstart with the reference's rewards, on a market of three features without a past."""
    values: dict[str, Any] = {
        "preset": "quickstart",
        "seed": seed,
        "device": "cpu",
        "market": {"window": 2},
        "trading": {"credit": credit, "loss_multiplier": 10.0, "holding_days": 20, "settlement_days": 20},
        "network": {"scales": [1]},
        "replay": {"capacity": 150_000},
        "learner": {"gradient_steps": 32},
    }
    if learning == "evolution alone":
        values = merge(values, {"learner": {"gradient_steps": 0}})
    if learning == "gradients alone":
        values = merge(values, {"evolution": {"enabled": False}})
    return Config(**values)


def mean_reward(state: TrainingState, weights: torch.Tensor) -> float:
    """Mean reward of agents without exploration noise over the validation episodes."""
    starts = np.tile(validation_slices(state), (len(weights), 1))
    return float(state.task.roll_out(weights, starts).rewards.mean())


def begin_trial(learning: Learning, credit: Credit, seed: int) -> TrainingState:
    config = trial_config(learning, credit, seed)
    return start_training(config, leaking_market(config, DAYS, ASSETS, seed))


def random_reward(seed: int) -> float:
    """Mean reward of agents with random weights on the market of `seed`."""
    state = begin_trial("both", "decision", seed)
    return mean_reward(
        state, initial_weights((state.task.critic_layout, state.task.actor_layout), RANDOM_AGENTS, seed, state.device)
    )


def oracle_reward(seed: int) -> float:
    """Mean reward of an oracle of the leak on the market of `seed`; see `tuned_buying`."""
    state = begin_trial("both", "decision", seed)
    assert isinstance(state.task, MarketTask)
    panel = state.task.panel
    leak = panel.features[:, : panel.assets, panel.feature_names.index("leak")].astype(np.float64)
    oracle = tuned_buying(leak, panel, state.config)
    return float(play_rules([oracle], leak, panel, state.config, validation_slices(state)).reward.mean())


def learning_curve(learning: Learning, credit: Credit, seed: int, generations: int = GENERATIONS) -> Iterator[float]:
    state = begin_trial(learning, credit, seed)
    for _ in range(generations):
        evaluate(state)
        train(state)
        evolve(state)
        yield mean_reward(state, state.population.weights)


def run_trials() -> pd.DataFrame:
    rows = []
    for seed in SEEDS:
        floor = random_reward(seed)
        for credit in ("decision", "realized"):
            for learning in LEARNING:
                rows.append((credit, learning, seed, 0, floor))
                for generation, reward in enumerate(learning_curve(learning, credit, seed), start=1):
                    rows.append((credit, learning, seed, generation, reward))
                print(f"seed {seed}, credit {credit}, {learning}: random {floor:.0f}, at last {rows[-1][-1]:.0f}")
    return pd.DataFrame(rows, columns=["credit", "learning", "seed", "generation", "reward"])


def draw_trials(trials: pd.DataFrame, path: Path) -> None:
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    titles = {
        "decision": "reward booked to the decision (ours)",
        "realized": "reward booked when the position closes (classic)",
    }
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (credit, title) in zip(panels, titles.items(), strict=True):
        panel.set_title(title, fontsize=11)
        panel.set_xlabel("generation (32 gradient steps each)")
        panel.axhline(0.0, color="0.85", linewidth=0.8)
        for learning in LEARNING:
            chosen = trials[(trials["credit"] == credit) & (trials["learning"] == learning)]
            curves = chosen.pivot(index="generation", columns="seed", values="reward")
            panel.plot(curves.index, curves.to_numpy(), color=_COLOURS[learning], linewidth=0.7, alpha=0.45)
            panel.plot(curves.index, curves.mean(axis=1), color=_COLOURS[learning], linewidth=2.4, label=learning)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("mean reward of an episode, whole population")
    panels[0].legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=144)


def main() -> None:
    torch.set_num_threads(1)
    trials = run_trials()
    trials.to_csv(_FOLDER / "leak.csv", index=False, float_format="%.1f")
    draw_trials(trials, _FOLDER / "leak.png")


if __name__ == "__main__":
    main()
