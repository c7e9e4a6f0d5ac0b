"""What a training reached in the holdout, beside an oracle, the bound of hindsight and random traders."""

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.learning.bounds import hindsight_bound, random_reward
from benchmarks.learning.markets import YEAR, KnownMarket, known_market
from benchmarks.learning.oracle import play_oracles, tuned_oracle
from benchmarks.learning.portfolio import tuned_weights_oracle, yearly_excess
from eigen_core.generation import TrainingState
from eigen_core.judging.backtest import task_backtest
from eigen_core.judging.portfolio import decide_weights
from eigen_core.judging.verdicts import Claim, verdict_on
from eigen_core.learning.method import spread_starts
from eigen_core.networks import AgentNetwork, portfolio_actions

HOLDOUT_EPISODES = 20
_DRAWS = 400
_FURTHER_SEEDS = range(2_000_001, 2_000_005)
"""Of markets that neither agents nor oracles were tuned on."""


def judged(state: TrainingState, market: KnownMarket) -> dict[str, Any]:
    """Return what champion and population reach in the holdout, as JSON has it.

    `score`: mean reward of an episode in the holdout; of the task `portfolio` growth over that of equal weights on
    further markets of the same kind (percent a year).
    `share`: percent of the oracle's score; None where nothing is to be known, or the oracle earns nothing.
    `excess`: what a trade of the champion gained beyond the market in the holdout (%); of a portfolio its growth there
    over that of equal weights (percent a year), beside it `oracle_excess`, the oracle's. `claim`: that of the verdict
    on the champion's account over all days of the holdout, where nothing is to be known; else None.
    """
    champion = state.champion
    assert champion is not None
    state.task.state = champion.task_state
    scored = _by_growth if state.config.task == "portfolio" else _in_episodes
    scores, facts = scored(state, champion.weights, market)
    oracle = scores["oracle"] if market.edge else 0.0
    return {
        "share": {
            name: round(100.0 * score / oracle, 1) if oracle > 0.0 else None
            for name, score in scores.items()
            if name != "oracle"
        },
        "score": {name: round(score, 1) for name, score in scores.items()},
        "agents": [round(float(score), 1) for score in facts.pop("agents")],
        **facts,
        "chosen": {"generation": champion.generation, "validation": round(champion.validation, 1)},
        "claim": None if market.edge else _claim(state, market, champion.weights),
    }


def _in_episodes(
    state: TrainingState, champion: Tensor, market: KnownMarket
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return mean rewards of holdout episodes, and what the champion and the oracle did in them."""
    config = state.config
    starts = spread_starts(state.task.holdout_starts, HOLDOUT_EPISODES)
    oracle = tuned_oracle(market, config)
    account = play_oracles([oracle], market, config, starts)
    played = state.task.roll_out(champion[None], starts[None])
    population = state.population.weights
    agents = state.task.roll_out(population, np.tile(starts, (len(population), 1))).rewards.mean(axis=1)
    scores = {
        "oracle": float(account.reward.mean()),
        "champion": float(played.rewards.mean()),
        "mean": float(agents.mean()),
        "best": float(agents.max()),
        "random": random_reward(market, config, starts, played.counts["trades"].ravel()),
        "hindsight": hindsight_bound(market, config, starts),
    }
    excess = state.task.excess([played])
    return scores, {
        "agents": agents,
        "excess": None if excess is None else round(excess.mean, 3),
        "oracle": asdict(oracle) | {"trades": round(float(account.trades.double().mean()), 1)},
        "champion": {name: round(value, 2) for name, value in state.task.statistics([played]).items()},
    }


def _by_growth(state: TrainingState, champion: Tensor, market: KnownMarket) -> tuple[dict[str, float], dict[str, Any]]:
    """Return growth over equal weights on further markets, and what champion and oracle did in the holdout.

    In the few years of one holdout the oracle itself may earn nothing of a weak edge.
    """
    config, span = state.config, market.panel.splits.holdout
    agents = torch.cat([champion[None], state.population.weights])
    oracle = tuned_weights_oracle(market.name, market.edge, config)
    scored = np.zeros(1 + len(agents))
    for seed in _FURTHER_SEEDS:
        further = known_market(market.name, config, market.edge, seed)
        days = range(config.market.window, further.panel.days)
        weights = torch.cat([oracle.weights(further, days)[None], _decided(state, agents, further, days)])
        scored += yearly_excess(further, config, days, weights) / len(_FURTHER_SEEDS)
    held = torch.cat([oracle.weights(market, span)[None], _decided(state, champion[None], market, span)])
    excess = yearly_excess(market, config, span, held)
    scores = {
        "oracle": float(scored[0]),
        "champion": float(scored[1]),
        "mean": float(scored[2:].mean()),
        "best": float(scored[2:].max()),
    }
    return scores, {
        "agents": scored[2:],
        "excess": round(float(excess[1]), 3),
        "oracle_excess": round(float(excess[0]), 3),
        "oracle": asdict(oracle) | {"turnover": _turnover(held[0])},
        "champion": {
            "turnover": _turnover(held[1]),
            "cash": round(float(1.0 - held[1].sum(-1).mean()), 3),
        },
    }


def _decided(state: TrainingState, agents: Tensor, market: KnownMarket, span: range) -> Tensor:
    """Return target weights after the close of each day, float64 `[agents, days, assets]`."""
    config = state.config
    network = AgentNetwork(market.panel, config, state.device, state.heads, portfolio_actions(config, state.device))
    return torch.from_numpy(decide_weights(network, market.panel, config, agents, span))


def _turnover(weights: Tensor) -> float:
    """Return how often a portfolio is changed for another in a year, by its target weights."""
    changed = weights.diff(dim=0).abs().sum(dim=-1).mean() / 2.0
    return round(float(changed) * YEAR, 1)


def _claim(state: TrainingState, market: KnownMarket, champion: Tensor) -> Claim:
    backtest = task_backtest(state.config, market.panel, state.device)
    played = backtest.play(champion[None], market.panel.splits.holdout, "champion", draws=_DRAWS)
    return verdict_on(played, state.config).claim
