"""Agents that trade a market or hold portfolios day after day; nothing of it knows the future, one asset is timed.

The baseline `ridge`: what it fits, that it finds an edge, and that it knows nothing of the holdout.
"""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from science_cases import random_panel, small_config
from sklearn.linear_model import Ridge
from trading_cases import CPU, panel_of, random_panel as panel_with_gaps

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import AccountConfig, Config
from eigen_core.config.instruments import Instrument
from eigen_core.judging.backtest import (
    MarketBacktest,
    PortfolioBacktest,
    SpanResult,
    backtest_class,
    decide_trades,
    decide_weights,
)
from eigen_core.judging.orders import NextOrders, decision_of, decisions_among, orders_of_days
from eigen_core.judging.ridge import tuned_buying, tuned_holding
from eigen_core.judging.verdicts import verdict_on
from eigen_core.learning import learner_class
from eigen_core.market import Panel
from eigen_core.networks.actions import portfolio_actions
from eigen_core.networks.agent import AgentNetwork
from eigen_core.networks.policies import Heads
from eigen_core.networks.population import initial_weights
from eigen_core.task.market import MarketTask
from eigen_core.trading.baselines import baseline_curves, matched_traders
from eigen_core.trading.environment import EpisodeSummary
from eigen_core.trading.portfolio import target_weights
from eigen_core.trading.prices import Prices, prices_of_span
from eigen_core.trading.ridge import PENALTIES, fit_ridge
from eigen_core.trading.synthetic import with_planted_edge
from eigen_core.trading.trades import DecidedTrades, TradedAccounts, trade_accounts, trade_day_by_day

AGENTS = 3


def played(
    panel: Panel, config: Config, span: range, *, ensemble: bool = False
) -> tuple[DecidedTrades, Prices, TradedAccounts]:
    network = AgentNetwork(panel, config, CPU, Heads())
    weights = initial_weights(network.layouts, AGENTS, config.seed, CPU)
    known = prices_of_span(Prices.of_panel(panel, CPU), span, config.trading.holding_bars)
    trades = decide_trades(network, known, config, weights, span, ensemble=ensemble)
    dates = np.asarray(panel.dates)[span.start : span.stop]
    return trades, known, trade_accounts(trades, known, dates, config.trading, config.account)


def played_twice(config: Config) -> tuple[tuple[DecidedTrades, Prices, TradedAccounts], EpisodeSummary]:
    """The same agents on the days of an episode, as in a backtest and as in training."""
    panel, start = random_panel(config), 60
    network = AgentNetwork(panel, config, CPU, Heads())
    weights = initial_weights(network.layouts, AGENTS, config.seed, CPU)
    summary = MarketTask(config, panel, CPU, Heads()).play(weights, np.full((AGENTS, 1), start))[1]
    # Settlement follows the last decision, so that all trades end inside the span.
    return played(panel, config, range(start, start + config.trading.episode_bars)), summary


@pytest.mark.parametrize("rank", ["coefficient", "separate"])
@pytest.mark.parametrize(
    ("observe", "purchases", "every"), [(True, 1, None), (False, 1, "3d"), (True, 3, "2d"), (False, 2, None)]
)
def test_on_the_days_of_an_episode_agents_trade_as_in_training(
    observe: bool, purchases: int, every: str | None, rank: str
) -> None:
    """Where agents decide on some days alone, a backtest computes no others."""
    trading = {"observe_portfolio": observe, "purchases_per_bar": purchases, "rank": rank, "decide_every": every}
    config = small_config(trading=trading)
    (trades, _, _), summary = played_twice(config)
    day = trades.day[0][trades.day[0] < config.trading.trading_bars]
    assets, decided = trades.asset[:, : len(day)], trades.asset[:, : len(day)] >= 0
    offsets = np.where(decided, trades.exit_day[:, : len(day)] - day[:, None], 0)
    # In the order of columns: an order of a day that buys nothing leaves a gap in the summary alone.
    for found, expected in ((assets, summary.asset), (offsets, summary.exit_offset)):
        np.testing.assert_array_equal(
            np.take_along_axis(found, assets.argsort(axis=2, kind="stable"), axis=2),
            expected.gather(2, summary.asset.argsort(dim=2, stable=True))[:, day].numpy(),
        )
    assert decided.all(axis=2).any()
    assert summary.bought.sum() == decided.sum()


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
        trading={"fill": fill, "min_target": 0.01, "max_target": 0.2, "purchases_per_bar": 2 - seed % 2, "rank": rank},
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
    config = small_config(trading={"loss_multiplier": 1.0, "purchases_per_bar": purchases})
    trading, (trades, _, accounts), summary = config.trading, *played_twice(config)
    penalties = (
        summary.idle_days.numpy() * trading.idle_penalty + (summary.trades.numpy() == 0) * trading.no_trade_penalty
    )
    made = accounts.shares > 0.0
    made[:, trading.trading_bars :] = False
    # Each trade takes this share of the capital, if what was gained before is not invested again.
    full = (trading.max_coefficient or 1.0) * trading.holding_bars * purchases
    share = trades.coefficient / full
    gain = np.divide(accounts.gain, accounts.paid, out=np.zeros_like(share), where=made)
    percent = (summary.reward.numpy() + penalties) / full
    np.testing.assert_allclose(100.0 * (share * gain).sum(axis=(1, 2)), percent, rtol=1e-9, atol=1e-9)


PANEL = panel_with_gaps(11, days=260, assets=8)
DAYS = range(120, 220)
CONFIG = Config(account={"interest": 0.02})
TRADABLE = PANEL.close[DAYS.start : DAYS.stop] > 0.0


def drawn_weights() -> np.ndarray:
    drawn = np.random.default_rng(0).dirichlet(np.full(PANEL.assets, 0.3), (1, len(DAYS)))
    return np.asarray(0.9 * drawn * TRADABLE)


def portfolio_played(weights: np.ndarray, panel: Panel = PANEL) -> SpanResult:
    market = PortfolioBacktest(CONFIG, panel, CPU)
    return market.played(weights, 1, DAYS, market.accounts(weights, DAYS).curve(0), "champion", draws=40)


def test_equal_weight_has_no_excess_and_is_its_own_permutation() -> None:
    found = portfolio_played((TRADABLE / TRADABLE.sum(axis=1, keepdims=True))[None])
    assert found.excess is not None
    assert (found.excess.mean, found.excess.standard_error) == (0.0, 0.0)
    assert (found.excess.per, found.excess.trades) == ("year", len(DAYS))
    assert found.active_share == pytest.approx(0.0)
    np.testing.assert_allclose(found.matched.total_returns, found.curve.equity[-1] / found.curve.capital - 1.0)


def test_nothing_depends_on_days_after_it() -> None:
    weights, last = drawn_weights(), 60
    whole = portfolio_played(weights)
    known = np.arange(PANEL.days)[:, None] < DAYS.start + last
    opens, highs, closes = (np.where(known, prices, np.nan) for prices in (PANEL.open, PANEL.high, PANEL.close))
    cut = portfolio_played(weights, replace(panel_of(opens, highs, closes), dates=PANEL.dates))
    np.testing.assert_array_equal(whole.curve.equity[:last], cut.curve.equity[:last])
    early = whole.trades[whole.trades["fill"] < str(PANEL.dates[DAYS.start + last])]
    assert early["shares"].tolist() == cut.trades["shares"][: len(early)].tolist()


def orders_on(day: int, weights: np.ndarray, panel: Panel = PANEL) -> NextOrders:
    span = range(DAYS.start, DAYS.start + day)
    accounts = PortfolioBacktest(CONFIG, panel, CPU).accounts(weights[:, :day], span)
    known = prices_of_span(Prices.of_panel(panel, CPU), span, 0)
    return orders_of_days(weights[0, :day], accounts, known, PANEL.symbols, CONFIG)


def test_orders_are_the_changes_of_shares_to_the_target_weights() -> None:
    weights = drawn_weights()
    found = orders_on(50, weights)
    shares = {position.symbol: position.size for position in found.positions}
    for order in found.orders:
        shares[order.symbol] = shares.get(order.symbol, 0.0) + (order.size if order.side == "buy" else -order.size)
        assert (order.target, order.latest_exit) == (None, None)
    closes = PANEL.close[DAYS.start + 49]
    traded = np.flatnonzero(closes > 0.0)
    worth = np.array([shares.get(PANEL.symbols[asset], 0.0) * closes[asset] for asset in traded])
    # What all of them pay for the costs is the same share.
    reached = worth / (weights[0, 49, traded] * found.equity)
    np.testing.assert_allclose(reached, reached[0], rtol=1e-6)
    assert 0.998 < reached[0] < 1.0
    invested = sum(position.worth for position in found.positions)
    assert found.cash == pytest.approx(found.equity - invested, abs=1e-12 * found.equity)
    assert found.decided[found.date] == decision_of(found.orders)


LOTS = (0.5, 3.0, 10.0, 1.0, 0.0)


def ruled(panel: Panel) -> Panel:
    """Lots of each asset, a smallest fee, and a smallest size of two lots."""
    return replace(
        panel,
        instruments=tuple(
            Instrument(symbol, 40.0, 0.0, minimum_fee=7.0, lot_size=LOTS[index % 5], minimum_size=2.0 * LOTS[index % 5])
            for index, symbol in enumerate(panel.symbols[: panel.assets])
        ),
    )


def assert_exchange_takes(found: NextOrders, panel: Panel) -> None:
    rules = {one.symbol: one for one in panel.instruments}
    held = {position.symbol: position.size for position in found.positions}
    for order in found.orders:
        rule, value = rules[order.symbol], order.size * order.price
        fee = max(0.004 * value, 7.0)
        assert order.money == pytest.approx(value + fee if order.side == "buy" else value - fee, rel=1e-9)
        lots = order.size / (rule.lot_size or order.size)
        assert lots == pytest.approx(round(lots), abs=1e-6)
        assert order.size >= rule.minimum_size * (1.0 - 1e-9) or order.size == held[order.symbol]


def test_orders_of_a_portfolio_are_those_that_an_exchange_takes() -> None:
    panel, weights = ruled(PANEL), drawn_weights()
    found = [orders_on(day, weights, panel) for day in (1, 50, 80)]
    for orders in found:
        assert_exchange_takes(orders, panel)
    sides = [order.side for orders in found for order in orders.orders]
    assert {*sides} == {"buy", "sell"}
    assert any(max(0.004 * order.size * order.price, 7.0) == 7.0 for order in found[1].orders)


def test_orders_of_trades_are_those_that_an_exchange_takes() -> None:
    config = small_config(trading={"purchases_per_bar": 3})
    panel = replace(ruled(random_panel(config)), volume=np.full(random_panel(config).close.shape, 900.0))
    network = AgentNetwork(panel, config, CPU, Heads())
    weights = initial_weights(network.layouts, 1, config.seed, CPU)[0]
    free = MarketBacktest(config, panel, CPU).next_orders(weights, 60)
    assert_exchange_takes(free, panel)
    assert {order.side for order in free.orders} == {"buy", "sell"}
    limited = config.model_copy(update={"account": AccountConfig(participation=0.01)})
    found = MarketBacktest(limited, panel, CPU).next_orders(weights, 60)
    assert_exchange_takes(found, panel)
    assert max(order.size for order in found.orders) <= 9.0 < max(order.size for order in free.orders)


@pytest.mark.parametrize("task", ["market", "portfolio"])
def test_all_that_are_compared_begin_with_the_same_shares(task: str) -> None:
    config = small_config(task=task, account={"capital": 1_000.0, "start": ["S1 30", "S0 12.5"]})
    panel, span = random_panel(config), range(60, 130)
    backtest = backtest_class(config)(config, panel, CPU)
    weights = torch.randn(2, backtest.parameters, generator=torch.Generator().manual_seed(1)) / 10.0
    found = backtest.play(weights, span, "agents", draws=30)
    closes = Prices.of_panel(panel, CPU).last_close[span.start : span.stop].numpy()
    worth = 12.5 * closes[:, 0] + 30.0 * closes[:, 1]
    curves = {"agents": found.curve, **found.baselines}
    for name, curve in curves.items():
        assert (curve.capital, curve.equity[0]) == pytest.approx((1_000.0 + worth[0],) * 2), name
    # Without an order they stay, and other rules sell them.
    np.testing.assert_allclose(curves["cash"].equity, 1_000.0 + worth)
    gained = found.trades["gain"].sum() + found.interest
    assert found.curve.equity[-1] == pytest.approx(found.curve.capital + gained)
    assert len(found.matched.total_returns) == 30
    assert np.abs(found.matched.total_returns).max() < 0.5


def test_an_agent_sees_what_it_begins_with_as_a_position_and_random_traders_hold_it_too() -> None:
    config = small_config(account={"start": ["S1 30"]})
    trading, panel, days = config.trading, random_panel(config), range(60, 60 + 3 * config.trading.holding_bars)
    known = prices_of_span(replace(Prices.of_panel(panel, CPU), held={"S1": 1}), days, trading.holding_bars)
    seen = []

    def decide(_: int, portfolios: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(portfolios[0].tolist())
        return torch.full((1, panel.assets), 3.0), torch.full((1, panel.assets), 0.5)

    trades = trade_day_by_day(known, trading, len(days), 1, decide)
    until = int(known.fills(trading).exit_offset[0, 1])
    closes = known.last_close[:, 1].tolist()
    for day in range(until):
        age, gain = day / trading.holding_bars, closes[day] / closes[0] - 1.0
        assert seen[day][1] == pytest.approx([1.0, min(age, 1.0), gain, 1.0], abs=1e-3)
    assert seen[0][0] == [0.0] * 4
    drawn = next(matched_traders(trades, known, trading, 50, 1, "agent"))
    for made in (trades, drawn):
        assert made.day[made.asset[..., 0] == 1].min() >= until


def test_a_sale_that_waits_for_a_price_is_no_decision_of_the_day() -> None:
    config = small_config(account={"start": ["S1 30"]})
    panel = random_panel(config)
    prices = {name: getattr(panel, name).copy() for name in ("open", "high", "low", "close")}
    for values in prices.values():
        values[111:, 1] = np.nan
    backtest = MarketBacktest(config, replace(panel, **prices), CPU)
    found = backtest.next_orders(torch.zeros(backtest.parameters), 110)
    [order] = [order for order in found.orders if order.symbol == "S1"]
    assert (order.side, order.target, order.latest_exit) == ("sell", None, found.date)
    assert order not in decisions_among(found.orders)


@pytest.mark.parametrize("observe", [True, False])
def test_agents_decide_on_weights_of_what_has_a_price(observe: bool) -> None:
    config = small_config(trading={"observe_portfolio": observe})
    panel, span = random_panel(config), range(30, 70)
    network = AgentNetwork(panel, config, CPU, Heads(), portfolio_actions(config, CPU))
    rows = initial_weights(network.layouts, 3, config.seed, CPU)
    decided = decide_weights(network, panel, config, rows, span)
    assert decided.shape == (3, 40, panel.assets)
    priced = ~np.isnan(panel.close[span.start : span.stop])
    assert ((decided > 0.0) == priced).all()
    assert (decided.sum(-1) < 1.0).all()
    together = decide_weights(network, panel, config, rows, span, ensemble=True)
    assert together.shape == (1, 40, panel.assets)
    alone = decide_weights(network, panel, config, rows[:1], span, ensemble=True)
    np.testing.assert_allclose(alone[0], decided[0], atol=1e-6)
    alike = decide_weights(network, panel, config, rows[:1].expand(4, -1), span, ensemble=True)
    np.testing.assert_allclose(alike, alone, atol=1e-6)
    assert not np.allclose(together, alone, atol=1e-6)


# One asset is judged by when it was held: whoever knows the coming days has skill, at other times as at none.
LONG = 500
LATE = range(150, 450)
HELD_FIVE_DAYS = {"holding_bars": 5, "settlement_bars": 5}
TIMED = Config.model_validate({"preset": "ddpg", "trading": HELD_FIVE_DAYS, "market": {"window": 64}})
RETURNS = np.random.default_rng(5).normal(0.0004, 0.01, LONG)
RISING = 100.0 * np.exp(np.cumsum(RETURNS))[:, None]
SINGLE = panel_of(RISING, RISING, RISING)


def timed(scores: np.ndarray) -> SpanResult:
    """A portfolio whose share of the asset follows scores, a day each."""
    weights = target_weights(torch.tensor(scores[:, None]), torch.ones(LONG, 1, dtype=torch.bool)).numpy()
    market, own = PortfolioBacktest(TIMED, SINGLE, CPU), weights[None, LATE.start : LATE.stop]
    return market.played(own, 1, LATE, market.accounts(own, LATE).curve(0), "champion", draws=1_000)


def knowing(share: float) -> np.ndarray:
    """Scores that correlate so much with the mean return of two days after the fill."""
    coming = np.convolve(np.append(RETURNS[2:], [0.0, 0.0]), [0.5, 0.5], mode="same")
    noise = np.random.default_rng(6).normal(0.0, coming.std(), LONG)
    mixed: np.ndarray = (share * coming + (1.0 - share**2) ** 0.5 * noise) / coming.std()
    return mixed


def test_who_knows_the_coming_days_of_one_asset_has_skill_and_chance_has_none() -> None:
    found = timed(knowing(0.6))
    verdict = verdict_on(found, TIMED)
    assert found.by_timing
    assert len(found.matched.total_returns) == len(LATE) - 2 * 5 - 1
    assert verdict.claim == "skill", verdict.sentence
    # The same knowledge of a week ago.
    late = verdict_on(timed(np.roll(knowing(0.6), 25)), TIMED)
    assert late.claim != "skill"
    # A look among many needs more.
    assert verdict_on(found, TIMED, looks=1_000).claim != "skill"


def test_a_constant_share_of_one_asset_is_no_timing() -> None:
    found = timed(np.full(LONG, 0.5))
    assert found.excess is not None
    assert found.excess.mean == pytest.approx(0.0, abs=0.05)
    assert verdict_on(found, TIMED).claim == "none"


def test_trades_of_one_asset_are_judged_by_their_times_too() -> None:
    network = AgentNetwork(SINGLE, TIMED, CPU, learner_class(TIMED.learner).heads(TIMED))
    agents = initial_weights(network.layouts, 2, TIMED.seed, CPU)
    found = MarketBacktest(TIMED, SINGLE, CPU).play(agents, LATE, "agents", draws=50)
    assert found.by_timing
    assert found.matched is found.timing
    assert len(found.timing.total_returns) == 50
    assert verdict_on(found, TIMED).claim in ("none", "undecided")


RIDGE_DAYS, ASSETS, HELD = 1_500, 8, 5
TRADING = {"holding_bars": HELD, "settlement_bars": HELD, "trading_bars": 60}


def config_of(task: str) -> Config:
    return Config(task=task, trading=TRADING, market={"window": 60, "validation": 300, "holdout": 300})


def market(assets: int = ASSETS) -> Panel:
    steps = np.random.default_rng(5).normal(0.0, 0.02, (RIDGE_DAYS, assets))
    close = 100.0 * np.exp(np.cumsum(steps, axis=0))
    return panel_of(close, close, close, window=60)


@pytest.mark.parametrize("task", ["market", "portfolio"])
def test_it_earns_a_planted_edge_and_knows_nothing_of_the_holdout(task: str) -> None:
    config, panel = config_of(task), market()
    panel = with_planted_edge(panel, config.trading, 0.3, seed=1)
    holdout, tuned = panel.splits.holdout, tuned_holding if task == "portfolio" else tuned_buying
    backtest = backtest_class(config)(config, panel, CPU)
    earned = backtest.play_ridge(holdout, draws=50)
    np.testing.assert_array_equal(earned.baselines["ridge"].equity, earned.curve.equity)
    assert earned.excess is not None
    assert earned.excess.interval[0] > 0.0

    names = ("open", "high", "low", "close", "features")
    changed: dict[str, Any] = {name: getattr(panel, name).copy() for name in names}
    for values in changed.values():
        values[holdout.start :] = 7.0
    other = replace(panel, **changed)
    fitted, without = fit_ridge(panel, config), fit_ridge(other, config)
    np.testing.assert_array_equal(fitted.coefficients, without.coefficients)
    assert tuned(fitted.of(panel), panel, config) == tuned(without.of(other), other, config)


def test_it_is_the_regression_of_gains_beyond_the_mean_of_the_day_chosen_in_validation() -> None:
    config = config_of("market")
    panel = with_planted_edge(market(), config.trading, 0.1, seed=2)
    cost = (1.0 - config.trading.cost_bps / 1e4) / (1.0 + config.trading.cost_bps / 1e4)
    slip = (1.0 - config.trading.slippage_bps / 1e4) / (1.0 + config.trading.slippage_bps / 1e4)
    gain = cost * slip * panel.close[HELD:] / panel.open[1 : 1 - HELD] - 1.0
    target = gain - gain.mean(axis=1, keepdims=True)

    def rows(days: range) -> tuple[np.ndarray, np.ndarray]:
        decided = slice(max(days.start, 59), days.stop - HELD)
        inputs = panel.features[decided].astype(np.float64)
        return inputs.reshape(-1, inputs.shape[2]), target[decided].ravel()

    (inputs, gained), (tested, expected) = rows(panel.splits.train), rows(panel.splits.validation)
    models = [Ridge(alpha=penalty).fit(inputs, gained) for penalty in PENALTIES]
    best = min(models, key=lambda model: np.square(model.predict(tested) - expected).mean())
    scores = best.predict(inputs) - gained.mean()
    found = fit_ridge(panel, config)
    np.testing.assert_allclose(inputs @ found.coefficients + found.intercept, scores / scores.std(), atol=1e-9)


def test_it_makes_no_copy_of_all_features_in_float64() -> None:
    features = np.random.default_rng(3).normal(size=(RIDGE_DAYS, ASSETS, 500)).astype(np.float32)
    panel = replace(market(), features=features)
    tracemalloc.start()
    score = fit_ridge(panel, config_of("market")).of(panel)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert score.shape == (RIDGE_DAYS, ASSETS)
    assert peak < 0.75 * 8 * features.size


@pytest.mark.parametrize("task", ["market", "portfolio"])
def test_of_one_asset_it_times_and_without_known_outcomes_it_stays_in_cash(task: str) -> None:
    config, single = config_of(task), market(1)
    assert np.isfinite(fit_ridge(single, config).coefficients).all()
    unknown = np.full_like(single.close, np.nan)
    panel = replace(single, open=unknown, high=unknown, low=unknown, close=unknown)
    backtest = backtest_class(config)(config, panel, CPU)
    curve = backtest.accounts(backtest.decided_by_ridge(panel.splits.holdout), panel.splits.holdout).curve(0)
    assert Prices.of_panel(panel, CPU).days == RIDGE_DAYS
    np.testing.assert_array_equal(curve.equity, curve.capital)
