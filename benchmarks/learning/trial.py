"""One training on a market whose edge is known, and what it reaches of what an oracle earns."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.learning.judgement import judged
from benchmarks.learning.markets import HOLDOUT_DAYS, MARKETS, known_market
from benchmarks.learning.methods import METHODS
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.generation import evaluate, evolve, start_training, train


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


def trial_config(
    market: str, seed: int, method: str, assignments: Sequence[str] = (), generations: int | None = None
) -> Config:
    """Return quickstart's configuration on a market, with the settings of a method and those that are given.

    Args:
        market: one of `MARKETS`.
        seed: of the training.
        method: one of `METHODS`.
        assignments: settings over those, as `key=value`.
        generations: None: those of the method.

    Raises:
        InputError: the settings cannot be used.
    """
    holding = MARKETS[market].holding_days
    settings = {
        "seed": str(seed),
        "generations": str(generations or METHODS[method].generations),
        "device": "cpu",
        "market.holdout_days": str(HOLDOUT_DAYS),
        "trading.holding_days": str(holding),
        "trading.settlement_days": str(holding),
    }
    settings |= {
        key: value for key, _, value in (given.partition("=") for given in (*METHODS[method].settings, *assignments))
    }
    return load_config("quickstart", [f"{key}={value}" for key, value in settings.items()])


def run_trial(market: str, edge: float, config: Config) -> dict[str, Any]:
    """Train on a market and return what was reached (`judged`), and processor seconds, as JSON has it."""
    cpu = CpuTime()
    with cpu.phase("market"):
        known = known_market(market, config, edge, config.seed)
    state = start_training(config, known.panel)
    for _ in range(config.generations):
        for phase in (evaluate, train, evolve):
            with cpu.phase(phase.__name__):
                phase(state)
    with cpu.phase("judge"):
        found = judged(state, known)
    return {
        "market": market,
        "edge": known.edge,
        "seed": config.seed,
        "generations": config.generations,
        **found,
        "cpu_s": round(cpu.training, 2),
        "cpu_s_by_phase": {name: round(value, 2) for name, value in cpu.seconds.items()},
    }
