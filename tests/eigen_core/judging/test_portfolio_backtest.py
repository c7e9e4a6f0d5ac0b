"""Portfolios of weights over a span: what agents decide, earn, and order next."""

from dataclasses import replace

import numpy as np
import pytest
import science_cases
from science_cases import small_config
from trading_cases import CPU, panel_of, prices_of, random_panel

from eigen_core.config import Config
from eigen_core.judging.backtest import (
    NextOrders,
    PortfolioBacktest,
    SpanResult,
    decide_weights,
    decision_of,
    orders_of_days,
)
from eigen_core.market import Panel
from eigen_core.networks import AgentNetwork, Heads, portfolio_actions
from eigen_core.networks.population import initial_weights

PANEL = random_panel(11, days=260, assets=8)
SPAN = range(120, 220)
CONFIG = Config(account={"interest": 0.02})


def weights_of(agents: int, panel: Panel = PANEL, seed: int = 0) -> np.ndarray:
    tradable = prices_of(panel).tradable.numpy()[SPAN.start : SPAN.stop]
    drawn = np.random.default_rng(seed).dirichlet(np.full(panel.assets, 0.3), (agents, len(SPAN))) * tradable
    return np.asarray(0.9 * drawn)


def played(weights: np.ndarray, panel: Panel = PANEL, config: Config = CONFIG) -> SpanResult:
    market, agents = PortfolioBacktest(config, panel, CPU), len(weights)
    initial = market.accounts(weights, SPAN).combined_curve(1.0 / agents)
    return market.played(weights, agents, SPAN, initial, "champion", draws=40)


def test_equal_weight_has_no_excess_and_is_its_own_permutation() -> None:
    tradable = prices_of(PANEL).tradable.numpy()[SPAN.start : SPAN.stop]
    found = played((tradable / tradable.sum(axis=1, keepdims=True))[None])
    assert found.excess is not None
    assert (found.excess.mean, found.excess.standard_error) == (0.0, 0.0)
    assert (found.excess.per, found.excess.trades) == ("year", len(SPAN))
    assert found.active_share == pytest.approx(0.0)
    np.testing.assert_allclose(found.matched.total_returns, found.curve.equity[-1] / found.curve.capital - 1.0)


def test_nothing_depends_on_days_after_it() -> None:
    weights, last = weights_of(1), 60
    whole = played(weights)
    known = np.arange(PANEL.days)[:, None] < SPAN.start + last
    opens, highs, closes = (np.where(known, prices, np.nan) for prices in (PANEL.open, PANEL.high, PANEL.close))
    cut = played(weights, replace(panel_of(opens, highs, closes), dates=PANEL.dates))
    np.testing.assert_array_equal(whole.curve.equity[:last], cut.curve.equity[:last])
    early = whole.trades[whole.trades["fill"] < str(PANEL.dates[SPAN.start + last])]
    assert early["shares"].tolist() == cut.trades["shares"][: len(early)].tolist()


def orders_on(day: int, weights: np.ndarray, config: Config = CONFIG) -> NextOrders:
    span = range(SPAN.start, SPAN.start + day)
    accounts = PortfolioBacktest(config, PANEL, CPU).accounts(weights[:, :day], span)
    closes = PANEL.close[SPAN.start : SPAN.start + day]
    return orders_of_days(weights[0, :day], accounts, closes, PANEL.symbols, config)


def test_orders_are_the_changes_of_shares_to_the_target_weights() -> None:
    weights = weights_of(1)
    found = orders_on(50, weights)
    shares = {position.symbol: position.size for position in found.positions}
    for order in found.orders:
        shares[order.symbol] = shares.get(order.symbol, 0.0) + (order.size if order.side == "buy" else -order.size)
        assert (order.target, order.latest_exit) == (None, None)
    closes = PANEL.close[SPAN.start + 49]
    traded = np.flatnonzero(closes > 0.0)
    worth = np.array([shares.get(PANEL.symbols[asset], 0.0) * closes[asset] for asset in traded])
    # What all of them pay for the costs is the same share.
    reached = worth / (weights[0, 49, traded] * found.equity)
    np.testing.assert_allclose(reached, reached[0], rtol=1e-6)
    assert 0.998 < reached[0] < 1.0
    invested = sum(position.worth for position in found.positions)
    assert found.cash == pytest.approx(found.equity - invested, abs=1e-12 * found.equity)
    assert found.decided[found.date] == decision_of(found.orders)


@pytest.mark.parametrize("observe", [True, False])
def test_agents_decide_on_weights_of_what_has_a_price(observe: bool) -> None:
    config = small_config(trading={"observe_portfolio": observe})
    panel, span = science_cases.random_panel(config), range(30, 70)
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
