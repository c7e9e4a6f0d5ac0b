"""The result of a training in the holdout, compared with an oracle and random traders."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.learning.markets import YEAR, KnownMarket, known_market
from benchmarks.learning.scores import Score, agent_scores, information_coefficient
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.generation import TrainingState
from eigen_core.judging.backtest import backtest_class, decide_weights
from eigen_core.judging.ridge import BuyingRule, HoldingRule, play_rules, tuned_buying
from eigen_core.judging.verdicts import Claim, verdict_on
from eigen_core.learning.fitness import spread_starts
from eigen_core.networks.actions import portfolio_actions
from eigen_core.networks.agent import AgentNetwork
from eigen_core.trading.baselines import trades_by_score
from eigen_core.trading.environment import trade_whole_episodes
from eigen_core.trading.equity import Values
from eigen_core.trading.portfolio import Rebalancing
from eigen_core.trading.prices import Prices, prices_of_span
from eigen_core.trading.trades import DecidedTrades

_SHARPNESS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_SPEEDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_TUNING_SEEDS = range(1_000_001, 1_000_009)


@dataclass(frozen=True)
class WeightsOracle(HoldingRule):
    """`expected`: mean growth over equal weights on the markets that it was tuned on (percent a year)."""

    expected: float = 0.0


def held_by(rule: HoldingRule, scores: NDArray[np.float64], market: KnownMarket, span: range) -> Tensor:
    """Return the target weights of a rule after the close of each day; `scores`: those of all days of the market."""
    days = slice(span.start, span.stop)
    return rule.weights(scores[days], market.panel.close[days])


def tuned_weights_oracle(name: str, edge: float, config: Config) -> WeightsOracle:
    """Return the oracle whose accounts grow most in the mean over several markets of the same kind and edge.

    On one market, the best is the one whose few assets rose by chance.
    """
    return _tuned(name, edge, Config(market=config.market, trading=config.trading, account=config.account))


@cache
def _tuned(name: str, edge: float, config: Config) -> WeightsOracle:
    oracles = [WeightsOracle(sharpness, speed) for sharpness, speed in product(_SHARPNESS, _SPEEDS)]
    growth = np.zeros(len(oracles))
    for seed in _TUNING_SEEDS:
        market = known_market(name, config, edge, seed)
        span = range(market.panel.days)
        every = [held_by(oracle, market.signal, market, span) for oracle in oracles]
        growth += yearly_excess(market, config, span, torch.stack(every))
    best = int(growth.argmax())
    return replace(oracles[best], expected=float(growth[best]) / len(_TUNING_SEEDS))


def yearly_excess(market: KnownMarket, config: Config, span: range, weights: Tensor) -> NDArray[np.float64]:
    """Return the log growth of accounts over that of equal weights, both after costs, `[accounts]` (percent a year).

    Args:
        market, config: prices, costs and fills.
        span: days of the decisions; the last is left out if its growth would reach beyond the prices.
        weights: target weights, `[accounts, days, assets]`.
    """
    table = Rebalancing.of(Prices.of_panel(market.panel, torch.device("cpu")), config.trading)
    last = min(span.stop, len(table.returns))
    table = table.on(slice(span.start, last))
    tradable = torch.from_numpy(market.panel.close[span.start : last] > 0.0).double()
    equal = tradable / tradable.sum(dim=1, keepdim=True).clamp(min=1.0)
    daily, _ = table.growth(torch.cat([equal[None], weights.double()[:, : last - span.start]]))
    growth = daily.mean(dim=1).numpy()
    excess: NDArray[np.float64] = YEAR * (growth[1:] - growth[0])
    return excess


_RANDOM_TRADERS = 32


def random_reward(market: KnownMarket, config: Config, starts: NDArray[np.int64], trades: NDArray[np.float64]) -> float:
    """Return the mean reward of traders who buy random assets on random days, as often as given (`[episodes]`).

    They buy at full size, with the middle of the sale targets; an asset that is held already is not bought again.
    """
    trading, assets, purchases = config.trading, market.panel.assets, config.trading.purchases_per_bar
    generator = keyed_generator(config.seed, 0, "bench", "random traders")
    episodes = _RANDOM_TRADERS * len(starts)
    often = np.tile(trades, _RANDOM_TRADERS)[:, None, None] / (trading.trading_bars * purchases)
    buys = generator.random((episodes, trading.episode_bars, purchases)) < often
    asset = generator.integers(0, assets, buys.shape)
    size = trading.max_coefficient or 1.0
    wanted = ((np.arange(assets) == asset[..., None]) & buys[..., None]).any(axis=2)
    coefficients = size * torch.from_numpy(wanted).float()
    targets = torch.full_like(coefficients, (trading.min_target + trading.max_target) / 2.0)
    first_days = torch.from_numpy(np.tile(starts, _RANDOM_TRADERS))
    prices = Prices.of_panel(market.panel, torch.device("cpu"))
    rewards, _ = trade_whole_episodes(prices, trading, first_days, coefficients, targets)
    return float(rewards.sum(dim=1).mean())


HOLDOUT_EPISODES = 20
_DRAWS = 400
_FURTHER_SEEDS = range(2_000_001, 2_000_005)
"""Seeds of markets that neither agents nor oracles were tuned on."""


def judged(state: TrainingState, market: KnownMarket) -> dict[str, Any]:
    """Return the results of champion and population in the holdout, for JSON.

    `score`: mean reward of an episode; with the task `portfolio` growth over equal weights on further markets of the
    same kind (percent a year). `share`: percent of the oracle's score. `excess`: mean excess of the champion's trades
    (%), or growth over equal weights in the holdout, also of the oracle. `claim`: that of the verdict on a market
    without an edge. `ic`, `oracle_ic`: see `coefficients`.
    """
    champion = state.champion
    assert champion is not None
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
        **coefficients(agent_scores(state, champion.weights), market, state.config),
        "chosen": {"generation": champion.generation, "validation": round(champion.validation, 1)},
        "claim": None if market.edge else _claim(state, market, champion.weights),
    }


def _in_episodes(
    state: TrainingState, champion: Tensor, market: KnownMarket
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return mean rewards of holdout episodes, and facts about champion and oracle."""
    config = state.config
    starts = spread_starts(state.task.holdout_starts, HOLDOUT_EPISODES)
    oracle = tuned_buying(market.signal, market.panel, config)
    account = play_rules([oracle], market.signal, market.panel, config, starts)
    played = state.task.roll_out(champion[None], starts[None])
    population = state.population.weights
    agents = state.task.roll_out(population, np.tile(starts, (len(population), 1))).rewards.mean(axis=1)
    scores = {
        "oracle": float(account.reward.mean()),
        "champion": float(played.rewards.mean()),
        "mean": float(agents.mean()),
        "best": float(agents.max()),
        "random": random_reward(market, config, starts, played.counts["trades"].ravel()),
    }
    excess = state.task.excess(played)
    return scores, {
        "agents": agents,
        "excess": None if excess is None else round(excess.mean, 3),
        "oracle": asdict(oracle) | {"trades": round(float(account.trades.double().mean()), 1)},
        "champion": {name: round(value, 2) for name, value in state.task.statistics(played).items()},
    }


def _by_growth(state: TrainingState, champion: Tensor, market: KnownMarket) -> tuple[dict[str, float], dict[str, Any]]:
    """Return growth over equal weights on further markets, and facts about champion and oracle in the holdout."""
    config, span = state.config, market.panel.splits.holdout
    agents = torch.cat([champion[None], state.population.weights])
    oracle = tuned_weights_oracle(market.name, market.edge, config)
    scored = _on_further_markets(market, config, lambda further, days: _decided(state, agents, further, days))
    held = torch.cat(
        [held_by(oracle, market.signal, market, span)[None], _decided(state, champion[None], market, span)]
    )
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


def _on_further_markets(
    market: KnownMarket, config: Config, decided: Callable[[KnownMarket, range], Tensor]
) -> NDArray[np.float64]:
    """Return the mean growth over equal weights (percent a year) of the oracle and of decisions, `[1 + accounts]`."""
    oracle = tuned_weights_oracle(market.name, market.edge, config)
    growth = []
    for seed in _FURTHER_SEEDS:
        further = known_market(market.name, config, market.edge, seed)
        days = range(config.market.window, further.panel.days)
        weights = torch.cat([held_by(oracle, further.signal, further, days)[None], decided(further, days)])
        growth.append(yearly_excess(further, config, days, weights) / len(_FURTHER_SEEDS))
    total: NDArray[np.float64] = np.sum(growth, axis=0)
    return total


def score_judged(score: Score, rule: BuyingRule | HoldingRule, market: KnownMarket, config: Config) -> dict[str, Any]:
    """Return the results of a rule that trades by a score, in the place of the champion's; see `judged`."""
    panel, span = market.panel, market.panel.splits.holdout
    own = score(panel)
    backtest = backtest_class(config)(config, panel, torch.device("cpu"))
    decided: DecidedTrades | Values
    excess: float | None = None
    if isinstance(rule, HoldingRule):
        scores = _on_further_markets(
            market, config, lambda further, days: held_by(rule, score(further.panel), further, days)[None]
        )
        held = held_by(rule, own, market, span)[None]
        decided, excess = held.numpy(), float(yearly_excess(market, config, span, held)[0])
    else:
        starts = spread_starts(panel.starts(span, config), HOLDOUT_EPISODES)
        rules = ((tuned_buying(market.signal, panel, config), market.signal), (rule, own))
        scores = np.array(
            [float(play_rules([one], of_days, panel, config, starts).reward.mean()) for one, of_days in rules]
        )
        prices = prices_of_span(Prices.of_panel(panel, torch.device("cpu")), span, config.trading.holding_bars)
        wanted = np.where(own >= rule.threshold, own, np.nan)[span.start : span.stop]
        decided = trades_by_score(prices, config.trading, wanted, rule.target)
    played = backtest.played(decided, 1, span, backtest.accounts(decided, span).curve(0), "ridge", draws=_DRAWS)
    if isinstance(rule, BuyingRule) and played.excess is not None:
        excess = played.excess.mean
    best, reached = map(float, scores)
    return {
        "share": {"champion": round(100.0 * reached / best, 1) if market.edge and best > 0.0 else None},
        "score": {"oracle": round(best, 1), "champion": round(reached, 1)},
        "excess": None if excess is None else round(excess, 3),
        **coefficients(own, market, config),
        "claim": None if market.edge else verdict_on(played, config).claim,
    }


def coefficients(scores: Values, market: KnownMarket, config: Config) -> dict[str, float | None]:
    """Return the information coefficients in the holdout of scores, `[days, assets]`, and of the market's signal."""
    names = {"ic": scores, "oracle_ic": market.signal}
    found = {
        name: information_coefficient(values, market.panel, config.trading, market.panel.splits.holdout)
        for name, values in names.items()
    }
    return {name: None if value is None else round(value, 4) for name, value in found.items()}


def _decided(state: TrainingState, agents: Tensor, market: KnownMarket, span: range) -> Tensor:
    """Return target weights after the close of each day, float64 `[agents, days, assets]`."""
    config = state.config
    network = AgentNetwork(market.panel, config, state.device, state.heads, portfolio_actions(config, state.device))
    return torch.from_numpy(decide_weights(network, market.panel, config, agents, span))


def _turnover(weights: Tensor) -> float:
    changed = weights.diff(dim=0).abs().sum(dim=-1).mean() / 2.0
    return round(float(changed) * YEAR, 1)


def _claim(state: TrainingState, market: KnownMarket, champion: Tensor) -> Claim:
    backtest = backtest_class(state.config)(state.config, market.panel, state.device)
    played = backtest.play(champion[None], market.panel.splits.holdout, "champion", draws=_DRAWS)
    return verdict_on(played, state.config).claim
