"""What a training reached in the holdout, beside an oracle, the bound of hindsight and random traders."""

from dataclasses import asdict
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.learning.bounds import hindsight_bound, random_reward
from benchmarks.learning.markets import KnownMarket
from benchmarks.learning.oracle import play_oracles, tuned_oracle
from eigen_core.backtest.interface import task_backtest
from eigen_core.evaluation import spread_starts
from eigen_core.generation import TrainingState
from flows.verdicts import verdict_on

HOLDOUT_EPISODES = 20
_DRAWS = 400


def judged(state: TrainingState, market: KnownMarket) -> dict[str, Any]:
    """Return what champion and population reach in the holdout, as JSON has it.

    `score`: mean reward of an episode. `share`: percent of the oracle's score; None where nothing is to be known, or
    the oracle earns nothing.
    `verdict`: what is claimed of the champion's account over all days of the holdout.
    """
    champion = state.champion
    assert champion is not None
    state.task.state = champion.task_state
    scores, facts = _in_episodes(state, champion.weights, market)
    oracle = scores["oracle"] if market.edge else 0.0
    return {
        "share": {
            name: round(100.0 * scores[name] / oracle, 1) if oracle > 0.0 else None
            for name in ("champion", "mean", "best", "random", "hindsight")
        },
        "score": {name: round(score, 1) for name, score in scores.items()},
        **facts,
        "chosen": {"generation": champion.generation, "validation": round(champion.validation, 1)},
        "verdict": _verdict(state, market, champion.weights),
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
    return scores, {
        "agents": [round(float(reward), 1) for reward in agents],
        "oracle": asdict(oracle) | {"trades": round(float(account.trades.double().mean()), 1)},
        "champion": {name: round(value, 2) for name, value in state.task.statistics([played]).items()},
    }


def _verdict(state: TrainingState, market: KnownMarket, champion: Tensor) -> dict[str, Any]:
    backtest = task_backtest(state.config, market.panel, state.device)
    played = backtest.play(champion[None], market.panel.splits.holdout, "champion", draws=_DRAWS)
    verdict = verdict_on(played, state.config)
    return {
        "claim": verdict.claim,
        "matched_pvalue": verdict.matched_pvalue,
        "excess": None if played.excess is None else played.excess.mean,
        "standard_error": None if played.excess is None else played.excess.standard_error,
    }
