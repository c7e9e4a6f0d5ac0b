"""Methods that are compared, one training on a market whose edge is known, and the files that keep its result."""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from benchmarks.learning.judgement import judged
from benchmarks.learning.markets import HOLDOUT_DAYS, MARKETS, known_market
from eigen_core.common.errors import InputError
from eigen_core.common.files import explained, replacing
from eigen_core.config import Config, preset_values
from eigen_core.config.loading import load_config
from eigen_core.config.stored import stored_values
from eigen_core.generation import evaluate, evolve, start_training, train
from eigen_core.judging.verdicts import Claim


@dataclass(frozen=True)
class Method:
    """A way to learn.

    Attributes:
        settings: over the preset's, as `key=value`.
        generations: of the methods of the market, how many take about as many processor seconds as 10 of the preset's
            own. Those of a portfolio are not made equal: the direct one takes as many as its preset.
    """

    settings: tuple[str, ...] = ()
    generations: int = 10


_OF_THE_MARKET = ("trading.holding_days", "trading.settlement_days")


def _settings_of(preset: str, *sections: str) -> tuple[str, ...]:
    values = preset_values(preset)
    settings = {f"{section}.{name}": value for section in sections for name, value in values[section].items()}
    shown = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
    return tuple(f"{name}={value}" for name, value in shown.items() if name not in _OF_THE_MARKET)


COUNTERFACTUAL = _settings_of("counterfactual", "learner", "evolution")
DIRECT = (
    "task=portfolio",
    *_settings_of(
        "portfolio",
        *(
            "trading",
            "portfolio",
            "network",
            "population",
            "exploration",
            "replay",
            "learner",
            "evolution",
            "evaluation",
        ),
    ),
)
MARKET_METHODS = {
    "both": Method(),
    "counterfactual": Method(COUNTERFACTUAL),
    "gradients": Method(("evolution.enabled=false",)),
    "evolution": Method(("learner.gradient_steps=0",), generations=50),
}
"""Those of the market, by name. `both` is the preset: gradients (DDPG) and evolution."""
_DIRECT_GENERATIONS = int(preset_values("portfolio")["generations"])
PORTFOLIO_METHODS = {
    "portfolio_direct": Method(DIRECT, _DIRECT_GENERATIONS),
    "portfolio_restarts": Method((*DIRECT, "evolution.enabled=false"), _DIRECT_GENERATIONS),
    "portfolio_ddpg": Method(("task=portfolio",)),
    "portfolio_ppo": Method(("task=portfolio", *_settings_of("ppo", "replay", "learner"))),
}
"""Those of the task `portfolio`, by name: the direct one with its preset's own network and population, the same without
evolution, so that its agents are restarts of the gradient alone, and the others with quickstart's network and
population. Counterfactual learning plays the task `market` alone."""
METHODS = MARKET_METHODS | PORTFOLIO_METHODS


@dataclass
class CpuTime:
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - began

    @property
    def training(self) -> float:
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


_OF_NO_EFFECT = ("checkpoint", "reporting", "memory", "threads")
_FORMAT = 2
"""Raised when markets or judgement change: kept trials are then made again."""


class TrialFound(BaseModel):
    """What a trial found; see `run_trial`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    market: str
    edge: float
    seed: int
    share: dict[str, float | None]
    score: dict[str, float]
    excess: float | None
    oracle_excess: float | None = None
    claim: Claim | None
    cpu_s: float


@dataclass(frozen=True)
class Trial:
    """What a trial is of: a market, its edge, a method and a seed."""

    market: str
    edge: float
    method: str
    seed: int

    @property
    def config(self) -> Config:
        """Of the training.

        Raises:
            InputError: the settings cannot be used.
        """
        return trial_config(self.market, self.seed, self.method)

    def path(self, folder: Path) -> Path:
        """File of what it found; its name depends on all that determines it but the program's code."""
        values = {name: value for name, value in stored_values(self.config).items() if name not in _OF_NO_EFFECT}
        definition = json.dumps([_FORMAT, self.market, self.edge, values], sort_keys=True)
        digest = hashlib.sha256(definition.encode()).hexdigest()[:12]
        return folder / f"{self.market}-{self.edge:g}-{self.method}-{self.seed}-{digest}.json"

    def kept(self, folder: Path) -> TrialFound | None:
        """Return what it found; None if it was not made.

        Raises:
            InputError: the file cannot be read.
        """
        path = self.path(folder)
        with explained("read", path):
            if not path.exists():
                return None
            content = path.read_bytes()
        try:
            return TrialFound.model_validate_json(content)
        except ValidationError:
            raise InputError(f"{path} holds no trial: remove it, and the trial is made again.") from None

    def make(self, folder: Path) -> None:
        found = run_trial(self.market, self.edge, self.config) | {"method": self.method}
        folder.mkdir(parents=True, exist_ok=True)
        path = self.path(folder)
        with explained("write", path), replacing(path) as file:
            file.write((json.dumps(found) + "\n").encode())
