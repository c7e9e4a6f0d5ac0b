"""A fill needs a market: halts, suspended days, closed markets and ends, beside a loop that walks the days."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trading_cases import CPU, SlowEpisode, panel_of, prices_of, random_panel, slow_market_gain

from eigen_core.common.errors import InputError
from eigen_core.config import AccountConfig, TradingConfig
from eigen_core.market.panel import Panel
from eigen_core.trading import Prices, TradingEnvironment
from eigen_core.trading.excess import excess_of_trades
from eigen_core.trading.prices import prices_of_span
from eigen_core.trading.trades import trade_accounts, trade_day_by_day

FILLS = st.sampled_from(["next_open", "next_close", "same_close"])


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    fill=FILLS,
    holding=st.integers(1, 8),
    delisting_days=st.sampled_from([1, 4, 15, 60]),
    purchases=st.integers(1, 3),
)
def test_account_and_excess_equal_a_loop_over_the_days(
    seed: int, fill: Any, holding: int, delisting_days: int, purchases: int
) -> None:
    """What is decided over a span is bought and sold as by the rules of an episode, and the account adds it up."""
    trading = TradingConfig(
        trading_days=40,
        holding_days=holding,
        settlement_days=holding,
        fill=fill,
        delisting_days=delisting_days,
        purchases_per_day=purchases,
        min_target=0.02,
        max_target=0.1,
        loss_multiplier=1.0,
    )
    panel, span = random_panel(seed, 90, 6), range(20, 80)
    known = prices_of_span(prices_of(panel), span, holding)
    actions = np.random.default_rng(seed).uniform(0.0, 3.0, (2, len(span), 6))
    actions[1] /= 30.0

    def decide(day: int, _: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.tensor(values[day][None]) for values in actions)

    trades = trade_day_by_day(known, trading, len(span), 1, decide)
    until = {name: getattr(panel, name)[: span.stop] for name in ("open", "high", "low", "close", "valid", "dates")}
    rules = trading.model_copy(update={"trading_days": len(span) - 1, "settlement_days": 1})
    slow = SlowEpisode(replace(panel, features=panel.features[: span.stop], **until), rules, span.start)
    expected = {
        (trade["decision_day"] - span.start, trade["asset"]): trade for trade in slow.run(actions[0], actions[1]).trades
    }
    made = [tuple(index) for index in np.argwhere(trades.asset[0] >= 0).tolist() if index[0] < len(span) - 1]
    assert {(day, int(trades.asset[0, day, order])) for day, order in made} == set(expected)
    for day, order in made:
        trade, at = expected[day, int(trades.asset[0, day, order])], (0, day, order)
        assert trades.entry[at] == pytest.approx(trade["entry"], rel=1e-12)
        sold = trade["exit_day"] - span.start
        if sold < len(span):
            assert (int(trades.exit_day[at]), trades.exit[at]) == (sold, pytest.approx(trade["exit"], rel=1e-12))
        else:
            assert trades.exit_day[at] >= len(span)
    closes = known.last_close[: len(span)].numpy()
    account = trade_accounts(trades, closes, panel.dates[span.start : span.stop], trading, AccountConfig())
    assert account.gain.sum() == pytest.approx(account.equity[0, -1] - account.capital, abs=1e-6)
    for day, order in made:
        trade, at = expected[day, int(trades.asset[0, day, order])], (0, day, order)
        if account.shares[at] > 0.0 and trade["exit_day"] < span.stop:
            assert account.gain[at] / account.paid[at] == pytest.approx(trade["gain"], abs=1e-12)
    # The market sells on the day on which a sale was due, and waits as the trade does.
    beyond = []
    for trade in expected.values():
        decision, asset = trade["decision_day"], trade["asset"]
        due = slow.due_day(decision, asset, trade["exit_day"])
        beyond.append(trade["gain"] - slow_market_gain(slow, decision, due - decision))
    trades.asset[:, -1] = -1
    excess, _ = excess_of_trades(trades, known, trading)
    assert (excess is None) == (len(beyond) < 2)
    assert excess is None or excess.mean == pytest.approx(100.0 * np.mean(beyond), abs=1e-9)


def ramps_with_halts() -> Panel:
    """Four assets that rise by 0.9 % a day for 20 days, then are halted for 8 and begin again 15 % lower, in turn."""
    days, assets = 400, 4
    shift = np.arange(assets) * 7
    day = np.arange(days)[:, None] + shift
    halted, cycle = day % 28 >= 20, day // 28
    close = 100.0 * np.exp(0.009 * (day % 28 + 20 * cycle - 20 * (shift // 28)) - 0.1625 * cycle)
    open_ = close * np.exp(-0.004)
    for prices in (open_, close):
        prices[halted] = np.nan
    return panel_of(open_, close, close)


@pytest.mark.parametrize("observe", [True, False])
def test_random_traders_earn_nothing_by_halts(observe: bool) -> None:
    """Who could sell at the last price before a fall, while nothing trades, would gain with every trade."""
    panel = ramps_with_halts()
    trading = TradingConfig(loss_multiplier=1.0, observe_portfolio=observe, cost_bps=0.0, slippage_bps=0.0)
    environment = TradingEnvironment(prices_of(panel), trading, record_trades=True)
    environment.reset(torch.arange(0, 240, 10))
    random = np.random.default_rng(1)
    while not environment.done:
        actions = random.uniform(0.0, 3.0, (2, 24, 4))
        environment.step(torch.tensor(actions[0]), torch.tensor(actions[1] / 3.0))
    table = environment.trades()
    market = table["reason"] == "time"
    close, exits = panel.close, table.loc[market, ["exit_day", "asset"]].to_numpy()
    assert not np.isnan(close[tuple(exits.T)]).any()
    late = market & (table["exit_day"] > table["decision_day"] + trading.holding_days)
    assert late.sum() > 50
    first = panel.open[table.loc[late, "exit_day"], table.loc[late, "asset"]]
    np.testing.assert_allclose(table.loc[late, "exit"], first)
    # A cycle is a gain of 2 %, and each trade of it takes a fall or sells at its target.
    assert abs(table["gain"].mean()) < 0.03
    assert (table["gain"] < 0.0).mean() > 0.2


def test_stocks_beside_coins_are_held_for_their_own_sessions() -> None:
    days = 120
    close = np.exp(np.cumsum(np.random.default_rng(2).normal(0.0, 0.01, (days, 3)), axis=0))
    weekend = np.arange(days) % 7 > 4
    holiday = np.arange(days) == 60
    close[weekend | holiday, :2] = np.nan
    panel = panel_of(close, close, close)
    fills = prices_of(panel).fills(TradingConfig(holding_days=10, settlement_days=10))
    for day in range(30, 90):
        stock, coin = (int(fills.exit_offset[day, asset]) for asset in (0, 2))
        assert coin == 10
        own = np.flatnonzero(~np.isnan(close[day + 1 :, 0]))
        assert stock == own[9] + 1
        assert float(fills.exit[day, 0]) == close[day + stock, 0]
        assert bool(fills.entry[day, 0].isnan()) == bool(np.isnan(close[day, 0]) or np.isnan(close[day + 1, 0]))


def test_the_end_of_a_split_is_as_far_as_a_sale_looks() -> None:
    """The reward of a training episode whose sale waits does not know the prices of validation."""
    close = np.full((100, 2), 10.0)
    close[:, 1] = 11.0
    close[75:84, 0] = np.nan
    panel = panel_of(close, close, close)
    train = panel.splits.train
    assert train.stop == 60
    halted = {name: getattr(panel, name).copy() for name in ("open", "high", "low", "close")}
    rewards = []
    for later in (5.0, 50.0):
        for prices in halted.values():
            prices[50:60, 0] = np.nan
            prices[60:, 0] = later
        changed = replace(panel, valid=~np.isnan(halted["close"]), **halted)
        trading = TradingConfig(trading_days=10, holding_days=5, settlement_days=5, min_target=5.0, max_target=6.0)
        environment = TradingEnvironment(Prices.of_panel(changed, CPU), trading)
        environment.reset(torch.tensor([45]))
        while not environment.done:
            environment.step(torch.tensor([[3.0, 0.0]]), torch.full((1, 2), 5.5))
        rewards.append(environment.rewards())
    assert torch.equal(*rewards)
    assert int(environment.summary().trades) > 0


def test_a_run_from_before_is_refused_where_some_symbol_does_not_trade() -> None:
    old = TradingConfig(delisting_loss=None)
    close = np.full((80, 2), 10.0)
    close[:20, 1] = np.nan
    late = prices_of(panel_of(close, close, close))
    found, now = late.fills(old), late.fills(TradingConfig())
    assert torch.equal(found.exit_offset, now.exit_offset)
    close[50, 1] = np.nan
    with pytest.raises(InputError, match=r"some symbol does not trade.*Train a new run"):
        prices_of(panel_of(close, close, close)).fills(old)
