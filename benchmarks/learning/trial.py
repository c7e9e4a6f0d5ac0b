"""One training on a market whose edge is known, and what it reaches of what an oracle earns."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.learning.markets import HOLDOUT_DAYS, MARKETS, KnownMarket, known_market
from benchmarks.learning.oracle import play_oracles, tuned_oracle
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.evaluation import spread_starts
from eigen_core.generation import TrainingState, evaluate, evolve, start_training, train

METHODS: Mapping[str, tuple[str, ...]] = {
    "both": (),
    "evolution": ("learner.gradient_steps=0",),
    "gradients": ("evolution.enabled=false",),
}
"""Which half learns, as settings."""
GENERATIONS = 10
HOLDOUT_EPISODES = 20


@dataclass
class CpuTime:
    """Processor seconds of this process, by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add what the block takes to a phase."""
        began = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - began

    @property
    def training(self) -> float:
        """Seconds of evaluate, train and evolve."""
        return sum(self.seconds.get(name, 0.0) for name in ("evaluate", "train", "evolve"))


def trial_config(market: str, seed: int, generations: int, method: str, assignments: Sequence[str]) -> Config:
    """Return quickstart's configuration on a market, with the settings of a method and those that are given."""
    holding = MARKETS[market].holding_days
    settings = {
        "seed": str(seed),
        "generations": str(generations),
        "device": "cpu",
        "market.holdout_days": str(HOLDOUT_DAYS),
        "trading.holding_days": str(holding),
        "trading.settlement_days": str(holding),
    }
    settings |= dict(assignment.split("=", 1) for assignment in (*METHODS[method], *assignments))
    return load_config("quickstart", [f"{key}={value}" for key, value in settings.items()])


def run_trial(market: str, edge: float, config: Config) -> dict[str, Any]:
    """Train on a market and return what was reached, as JSON has it.

    Shares are percent of the mean reward that the oracle earns in the holdout episodes.
    """
    cpu = CpuTime()
    with cpu.phase("market"):
        known = known_market(MARKETS[market], config, edge, config.seed)
    state = start_training(config, known.panel)
    for _ in range(config.generations):
        for phase in (evaluate, train, evolve):
            with cpu.phase(phase.__name__):
                phase(state)
    with cpu.phase("judge"):
        found = judged(state, known)
    seconds = {name: round(value, 2) for name, value in cpu.seconds.items()}
    return {
        "market": market,
        "edge": edge,
        "seed": config.seed,
        "generations": config.generations,
        **found,
        "cpu_s": round(cpu.training, 2),
        "cpu_s_by_phase": seconds,
    }


def judged(state: TrainingState, market: KnownMarket) -> dict[str, Any]:
    """Return what champion, population and oracle earn in the holdout episodes."""
    config, champion = state.config, state.champion
    assert champion is not None
    starts = spread_starts(state.task.holdout_starts, HOLDOUT_EPISODES)
    oracle = tuned_oracle(market, config)
    account = play_oracles([oracle], market, config, starts)
    earned = float(account.reward.mean())

    def share(reward: float) -> float | None:
        return round(100.0 * reward / earned, 1) if earned > 0.0 else None

    state.task.state = champion.task_state
    played = state.task.roll_out(champion.weights[None], starts[None])
    population = state.population.weights
    agents = state.task.roll_out(population, np.tile(starts, (len(population), 1))).rewards.mean(axis=1)
    excess = state.task.excess([played])
    rewards = {
        "oracle": earned,
        "champion": float(played.rewards.mean()),
        "mean": float(agents.mean()),
        "best": float(agents.max()),
    }
    return {
        "share": {name: share(reward) for name, reward in rewards.items() if name != "oracle"},
        "reward": {name: round(reward, 1) for name, reward in rewards.items()},
        "agents": [round(float(reward), 1) for reward in agents],
        "oracle": {
            "threshold": oracle.threshold if np.isfinite(oracle.threshold) else None,
            "target": round(oracle.target, 3),
            "trades": round(float(account.trades.double().mean()), 1),
        },
        "champion": {name: round(value, 2) for name, value in state.task.statistics([played]).items()}
        | {"generation": champion.generation, "validation": round(champion.validation, 1)},
        "excess": None if excess is None else {"mean": excess.mean, "standard_error": excess.standard_error},
    }
