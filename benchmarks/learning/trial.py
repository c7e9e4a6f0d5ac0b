"""The compared methods, one training on a market with a known edge, and the files of results."""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from benchmarks.learning.judgement import judged, score_judged
from benchmarks.learning.markets import HOLDOUT_DAYS, MARKETS, known_market
from benchmarks.learning.scores import Fit, boosted_trees, ridge, second_order_ridge
from eigen_core.common.errors import InputError
from eigen_core.common.files import explained, replacing
from eigen_core.config import Config, preset_values
from eigen_core.config.loading import load_config
from eigen_core.config.stored import stored_values
from eigen_core.generation import evaluate, evolve, start_training, train
from eigen_core.judging.ridge import tuned_buying, tuned_holding
from eigen_core.judging.verdicts import Claim


@dataclass(frozen=True)
class Method:
    """A preset, settings over it, and generations; with a `score`, no agents are trained, and a rule trades by it.

    Methods of the market get at most the CPU time of 10 generations of preset ddpg; those of a portfolio do not.
    """

    preset: str
    settings: tuple[str, ...] = ()
    generations: int = 10
    score: Fit | None = None


_LINEAR = (
    "network.linear_scales=[1,5,20,60]",
    "network.linear_degree=2",
    "network.linear_standardised=true",
    "network.scales=[1]",
    "evolution.evolves=genes",
)
_KNOWN_RETURNS = ("learner.known_return_weight=1", "learner.critic_learning_rate=0.003")
_COUNTERFACTUAL = (
    "learner.algorithm=counterfactual",
    "learner.gradient_steps=48",
    "learner.batch_size=32",
    "learner.reward_scale=0.05",
    "learner.weight_decay=1",
    "evolution.offspring_share=0.375",
)
SCORES = {"ridge": ridge, "ridge2": second_order_ridge, "trees": boosted_trees}
"""Rows that train no agents."""
MARKET_METHODS = {
    "quickstart": Method("quickstart"),
    "quickstart-evolution": Method("quickstart", ("evolution.enabled=true",)),
    "ddpg": Method("ddpg"),
    **{name: Method("ddpg", score=score) for name, score in SCORES.items()},
}
"""Methods of the task `market` that are compared on every market. `ddpg` was the default preset."""
LEARNERS = {
    "counterfactual": Method("ddpg", _COUNTERFACTUAL),
    "ddpg-no-evolution": Method("ddpg", ("evolution.enabled=false",)),
    "evolution-alone": Method("ddpg", ("learner.gradient_steps=0",), generations=50),
    "ddpg-known": Method("ddpg", ("network.scales=[1]", *_KNOWN_RETURNS)),
    "ddpg-linear": Method("ddpg", (*_LINEAR, *_KNOWN_RETURNS)),
    "td3": Method("ddpg", ("learner.algorithm=td3",)),
    "td3-linear": Method("ddpg", ("learner.algorithm=td3", *_LINEAR, *_KNOWN_RETURNS)),
    "sac": Method("ddpg", ("learner.algorithm=sac",)),
    "sac-linear": Method("ddpg", ("learner.algorithm=sac", *_LINEAR, *_KNOWN_RETURNS)),
    "ppo": Method("ppo"),
    "ppo-linear": Method("ppo", _LINEAR),
}
"""Other learners of the task `market`, without and with a linear part; critics then learn known returns too.
`ddpg-known` learns these without a linear part."""
_DIRECT_GENERATIONS = int(preset_values("portfolio")["generations"])
PORTFOLIO_METHODS = {
    "portfolio_direct": Method("portfolio", (), _DIRECT_GENERATIONS),
    "portfolio_direct-linear": Method("portfolio", _LINEAR, _DIRECT_GENERATIONS),
    "portfolio_restarts": Method("portfolio", ("evolution.enabled=false",), _DIRECT_GENERATIONS),
    "portfolio_ddpg": Method("ddpg", ("task=portfolio",)),
    "portfolio_ppo": Method("ppo", ("task=portfolio",)),
    "portfolio_ridge": Method("portfolio", score=ridge),
}
"""Methods of the task `portfolio`: the direct one, with a linear part, and without evolution; the others with the
network and population of preset ddpg."""
METHODS = MARKET_METHODS | LEARNERS | PORTFOLIO_METHODS


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
    """Return the configuration of a method on a market, with `assignments`.

    `generations` None: those of the method.
    """
    holding = MARKETS[market].holding_bars
    settings = {
        "seed": str(seed),
        "generations": str(generations or METHODS[method].generations),
        "device": "cpu",
        "market.holdout": str(HOLDOUT_DAYS),
        "trading.holding_bars": str(holding),
        "trading.settlement_bars": str(holding),
    }
    settings |= {
        key: value for key, _, value in (given.partition("=") for given in (*METHODS[method].settings, *assignments))
    }
    return load_config(METHODS[method].preset, [f"{key}={value}" for key, value in settings.items()])


def run_trial(market: str, edge: float, config: Config, method: str) -> dict[str, Any]:
    """Train on a market by a method and return the results (`judged`, `score_judged`) and CPU seconds, for JSON."""
    cpu = CpuTime()
    with cpu.phase("market"):
        known = known_market(market, config, edge, config.seed)
    if (fit := METHODS[method].score) is None:
        state = start_training(config, known.panel)
        for _ in range(config.generations):
            for phase in (evaluate, train, evolve):
                with cpu.phase(phase.__name__):
                    phase(state)
        with cpu.phase("judge"):
            found = {"generations": config.generations, **judged(state, known)}
    else:
        with cpu.phase("train"):
            score = fit(known.panel, config)
            tuned = tuned_holding if config.task == "portfolio" else tuned_buying
            rule = tuned(score(known.panel), known.panel, config)
        with cpu.phase("judge"):
            found = score_judged(score, rule, known, config)
    return {
        "market": market,
        "edge": known.edge,
        "seed": config.seed,
        **found,
        "cpu_s": round(cpu.training, 2),
        "cpu_s_by_phase": {name: round(value, 2) for name, value in cpu.seconds.items()},
    }


_OF_NO_EFFECT = ("checkpoint", "reporting", "memory", "threads")
_FORMAT = 3
"""Version of markets and judgement: kept trials of another version are run again."""


class TrialFound(BaseModel):
    """The result of a trial; see `run_trial`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    market: str
    edge: float
    seed: int
    share: dict[str, float | None]
    score: dict[str, float]
    excess: float | None
    oracle_excess: float | None = None
    ic: float | None
    oracle_ic: float | None
    claim: Claim | None
    cpu_s: float


@dataclass(frozen=True)
class Trial:
    """A training on a market with an edge, by a method and with a seed."""

    market: str
    edge: float
    method: str
    seed: int

    @property
    def config(self) -> Config:
        return trial_config(self.market, self.seed, self.method)

    def path(self, folder: Path) -> Path:
        """Return the file of its result; the name depends on all inputs except the code."""
        values = {name: value for name, value in stored_values(self.config).items() if name not in _OF_NO_EFFECT}
        definition = json.dumps([_FORMAT, self.market, self.edge, values], sort_keys=True)
        digest = hashlib.sha256(definition.encode()).hexdigest()[:12]
        return folder / f"{self.market}-{self.edge:g}-{self.method}-{self.seed}-{digest}.json"

    def kept(self, folder: Path) -> TrialFound | None:
        """Return its result, None if it was not run; raise `InputError` if the file is unreadable."""
        path = self.path(folder)
        with explained("read", path):
            if not path.exists():
                return None
            content = path.read_bytes()
        try:
            return TrialFound.model_validate_json(content)
        except ValidationError:
            raise InputError(f"{path} holds no trial: remove it to run the trial again.") from None

    def make(self, folder: Path) -> None:
        found = run_trial(self.market, self.edge, self.config, self.method) | {"method": self.method}
        folder.mkdir(parents=True, exist_ok=True)
        path = self.path(folder)
        with explained("write", path), replacing(path) as file:
            file.write((json.dumps(found) + "\n").encode())
