"""Agents that trade day after day over a span, and that nothing of it knows the future."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from science_cases import random_panel, small_config

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.judging.backtest import decide_trades
from eigen_core.market import Panel
from eigen_core.networks import AgentNetwork, Heads
from eigen_core.networks.population import initial_weights
from eigen_core.task.market import MarketTask
from eigen_core.trading import DecidedTrades, Prices, TradedAccounts, trade_accounts
from eigen_core.trading.baselines import baseline_curves
from eigen_core.trading.environment import EpisodeSummary
from eigen_core.trading.matched_traders import matched_traders
from eigen_core.trading.prices import prices_of_span

CPU = torch.device("cpu")
AGENTS = 3


def played(
    panel: Panel, config: Config, span: range, *, ensemble: bool = False
) -> tuple[DecidedTrades, Prices, TradedAccounts]:
    network = AgentNetwork(panel, config, CPU, Heads())
    weights = initial_weights(network.layouts, AGENTS, config.seed, CPU)
    known = prices_of_span(Prices.of_panel(panel, CPU), span, config.trading.holding_days)
    trades = decide_trades(network, known, config, weights, span, ensemble=ensemble)
    dates = np.asarray(panel.dates)[span.start : span.stop]
    return trades, known, trade_accounts(trades, known, dates, config.trading, config.account)


def played_twice(config: Config) -> tuple[tuple[DecidedTrades, Prices, TradedAccounts], EpisodeSummary]:
    """The same agents on the days of an episode, as in a backtest and as in training."""
    panel, start = random_panel(config), 60
    network = AgentNetwork(panel, config, CPU, Heads())
    weights = initial_weights(network.layouts, AGENTS, config.seed, CPU)
    summary = MarketTask(config, panel, CPU, Heads()).play(weights, np.full((AGENTS, 1), start)).summary
    # Settlement follows the last decision, so that all trades end inside the span.
    return played(panel, config, range(start, start + config.trading.episode_days)), summary


@pytest.mark.parametrize("rank", ["coefficient", "separate"])
@pytest.mark.parametrize(("observe", "purchases"), [(True, 1), (False, 1), (True, 3), (False, 2)])
def test_on_the_days_of_an_episode_agents_trade_as_in_training(observe: bool, purchases: int, rank: str) -> None:
    config = small_config(trading={"observe_portfolio": observe, "purchases_per_day": purchases, "rank": rank})
    days, (trades, _, _), summary = config.trading.trading_days, *played_twice(config)
    decided = trades.asset[:, :days] >= 0
    offsets = np.where(decided, trades.exit_day[:, :days] - np.arange(days)[:, None], 0)
    # In the order of columns: an order of a day that buys nothing leaves a gap in the summary alone.
    for found, expected in ((trades.asset[:, :days], summary.asset), (offsets, summary.exit_offset)):
        np.testing.assert_array_equal(
            np.take_along_axis(found, trades.asset[:, :days].argsort(axis=2, kind="stable"), axis=2),
            expected.gather(2, summary.asset.argsort(dim=2, stable=True)).numpy(),
        )
    assert decided.all(axis=2).any()


def without_future(panel: Panel, day: int, how: str, seed: int) -> Panel:
    """The panel with prices and features after a day shuffled among the days, or cut off: one price for ever."""
    generator = keyed_generator(seed, 0, "test", "shuffle")
    features = panel.features.copy()
    features[day + 1 :] = generator.permutation(features[day + 1 :]) if how == "shuffled" else 0.0
    prices = {name: getattr(panel, name).copy() for name in ("open", "high", "low", "close")}
    for asset in range(panel.assets):
        later = day + 1 + np.flatnonzero(panel.valid[day + 1 :, asset])
        order = generator.permutation(later)
        for values in prices.values():
            values[later, asset] = values[order, asset] if how == "shuffled" else 10.0
    return replace(panel, features=features, **prices)


@pytest.mark.parametrize("how", ["shuffled", "cut off"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))])
def test_nothing_that_is_decided_or_booked_up_to_a_day_knows_what_follows(how: str, seed: int) -> None:
    fill = ["next_open", "next_close", "same_close"][seed]
    encoder = ["filter_bank", "tcn", "filter_bank"][seed]
    rank = "separate" if how == "shuffled" else "coefficient"
    config = small_config(
        trading={"fill": fill, "min_target": 0.01, "max_target": 0.2, "purchases_per_day": 2 - seed % 2, "rank": rank},
        network={"encoder": encoder},
        account={"shares": "whole"} if seed == 1 else {},
    )
    panel = random_panel(config, 220, 4)
    span = range(panel.splits.validation.start, panel.days)
    last = span.start + int(keyed_generator(seed, 0, "test", "day").integers(15, len(span) - 8))
    changed = without_future(panel, last, how, seed)
    assert not np.array_equal(np.asarray(panel.close)[last + 1 :], np.asarray(changed.close)[last + 1 :])
    # The same days are also all that there is: the span that ends on this day.
    spans = ((panel, span), (changed, span), (panel, range(span.start, last + 1)))
    for ensemble in (False, True):
        (trades, known, accounts), *others = [played(held, config, days, ensemble=ensemble) for held, days in spans]
        until = last - span.start + 1
        assert (trades.asset[:, : until - 1] >= 0).any()
        for other_trades, other_known, other in others:
            for name in ("equity", "exposure", "traded", "costs"):
                np.testing.assert_array_equal(getattr(other, name)[:, :until], getattr(accounts, name)[:, :until])
            # The order of the last day is decided on, but may be filled only by what follows.
            decided = until - (fill != "same_close")
            np.testing.assert_array_equal(other_trades.asset[:, :decided], trades.asset[:, :decided])
            first, second = (
                next(matched_traders(held, prices, config.trading, 5, 1, "agent")).asset[:, :decided]
                for held, prices in ((trades, known), (other_trades, other_known))
            )
            np.testing.assert_array_equal(first, second)
    curves = [baseline_curves(Prices.of_panel(held, CPU), np.asarray(held.dates), config, days) for held, days in spans]
    for name, curve in curves[0].items():
        for other_curve in curves[1:]:
            np.testing.assert_array_equal(other_curve[name].equity[:until], curve.equity[:until], err_msg=name)


@pytest.mark.parametrize("purchases", [1, 3])
def test_what_an_account_gains_by_its_trades_is_what_the_reward_counts(purchases: int) -> None:
    config = small_config(trading={"loss_multiplier": 1.0, "purchases_per_day": purchases})
    trading, (trades, _, accounts), summary = config.trading, *played_twice(config)
    penalties = (
        summary.idle_days.numpy() * trading.idle_penalty + (summary.trades.numpy() == 0) * trading.no_trade_penalty
    )
    made = accounts.shares > 0.0
    made[:, trading.trading_days :] = False
    # Each trade takes this share of the capital, if what was gained before is not invested again.
    full = (trading.max_coefficient or 1.0) * trading.holding_days * purchases
    share = trades.coefficient / full
    gain = np.divide(accounts.gain, accounts.paid, out=np.zeros_like(share), where=made)
    percent = (summary.reward.numpy() + penalties) / full
    np.testing.assert_allclose(100.0 * (share * gain).sum(axis=(1, 2)), percent, rtol=1e-9, atol=1e-9)
