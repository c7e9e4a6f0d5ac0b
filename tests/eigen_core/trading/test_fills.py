"""Which assets a decision buys, and that a fill needs a market: beside a loop that walks the days."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from trading_cases import (
    CPU,
    SlowEpisode,
    decided_trades,
    panel_of,
    prices_of,
    random_panel,
    slow_market_gain,
    with_instruments,
)

from eigen_core.common.errors import InputError
from eigen_core.config import TradingConfig
from eigen_core.market.trading_days import sessions_of
from eigen_core.trading import order_fills
from eigen_core.trading.environment import trade_whole_episodes
from eigen_core.trading.excess import excess_of_trades
from eigen_core.trading.orders import choose_assets
from eigen_core.trading.prices import Prices, prices_of_span

FILLS = st.sampled_from(["next_open", "next_close", "same_close"])


@pytest.mark.parametrize("bookkeeping", ["exact", "classic"])
def test_fills_of_some_assets_at_a_time_are_those_of_all(bookkeeping: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trading = TradingConfig(holding_bars=7, settlement_bars=7, bookkeeping=bookkeeping)
    panel = random_panel(5, 150, 7)
    whole = prices_of(panel).fills(trading)
    for cells in (1, 2 * 150):
        monkeypatch.setattr(order_fills, "_CELLS_AT_A_TIME", cells)
        for name, values in vars(prices_of(panel).fills(trading)).items():
            np.testing.assert_array_equal(values, getattr(whole, name), err_msg=name)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    fill=FILLS,
    holding=st.integers(1, 8),
    delisting_bars=st.sampled_from([1, 4, 15, 60]),
    purchases=st.integers(1, 3),
)
def test_trades_and_excess_of_a_span_equal_a_loop_over_its_days(
    seed: int, fill: Any, holding: int, delisting_bars: int, purchases: int
) -> None:
    trading = TradingConfig(
        trading_bars=40,
        holding_bars=holding,
        settlement_bars=holding,
        fill=fill,
        delisting_bars=delisting_bars,
        purchases_per_bar=purchases,
        min_target=0.02,
        max_target=0.1,
        loss_multiplier=1.0,
    )
    panel, span = random_panel(seed, 90, 6), range(20, 80)
    panel = with_instruments(panel, seed) if seed % 2 else panel
    known = prices_of_span(prices_of(panel), span, holding)
    actions = np.random.default_rng(seed).uniform(0.0, 3.0, (2, len(span), 6))
    actions[1] /= 30.0
    trades = decided_trades(known, trading, actions[:1], actions[1:])
    until = {name: getattr(panel, name)[: span.stop] for name in ("open", "high", "low", "close", "valid", "dates")}
    rules = trading.model_copy(update={"trading_bars": len(span) - 1, "settlement_bars": 1})
    ending = replace(panel, features=panel.features[: span.stop], **until)
    slow = SlowEpisode(ending, rules, span.start, calendar=panel)
    expected = {
        (trade["decision_day"] - span.start, trade["asset"]): trade for trade in slow.run(actions[0], actions[1]).trades
    }
    made = [tuple(index) for index in np.argwhere(trades.asset[0] >= 0).tolist() if index[0] < len(span) - 1]
    assert {(day, int(trades.asset[0, day, order])) for day, order in made} == set(expected)
    for day, order in made:
        trade, at = expected[day, int(trades.asset[0, day, order])], (0, day, order)
        sold = min(trade["exit_day"] - span.start, len(span))
        assert min(int(trades.exit_day[at]), len(span)) == sold
        assert trades.entry[at] == pytest.approx(trade["entry"], rel=1e-12)
        assert sold == len(span) or trades.exit[at] == pytest.approx(trade["exit"], rel=1e-12)
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


def test_closes_that_are_repeated_on_weekends_without_volume_are_no_sessions() -> None:
    close = np.full((60, 2), 10.0)
    panel = panel_of(close, close, close)
    weekend = np.arange(60) % 7 > 4  # The first day is a Monday.
    close[weekend, 0] = np.nan
    close[36:40, 0] = np.nan  # Suspended from a Tuesday to a Friday: its market is open.
    assert panel.valid.all()
    assert np.array_equal(prices_of(panel).session[:, 0], ~weekend)
    assert prices_of(panel).session[:, 1].all()


def test_sessions_follow_a_week_that_moves_on_its_day() -> None:
    """An exchange moves from Sunday to Thursday to Monday to Friday, beside one of each kind, and coins."""
    dates = np.arange("2021-10-03", "2022-04-03", dtype="datetime64[D]")  # It begins on a Sunday.
    weekday = (np.arange(len(dates)) - 1) % 7
    old, new = (weekday != 4) & (weekday != 5), weekday < 5
    moved = np.where(dates < np.datetime64("2022-01-02"), old, new)
    open_days = np.stack([moved, moved, old, new, np.full(len(dates), True)], axis=1)
    # A holiday, a halt, and a file that repeats the last close of the second asset.
    open_days[110, :4] = False
    traded = open_days.copy()
    traded[40:55, 1] = False
    priced = traded | ((np.arange(5) == 1) & (np.arange(len(dates)) != 110)[:, None])
    assert np.array_equal(sessions_of(priced, traded, dates), open_days)


def test_the_end_of_a_split_is_as_far_as_a_sale_looks() -> None:
    """The reward of a training episode whose sale waits does not know the prices of validation."""
    close, coefficients = np.full((100, 2), 10.0), torch.tensor([3.0, 0.0]).expand(1, 10, 2)
    trading = TradingConfig(trading_bars=10, holding_bars=5, settlement_bars=5, min_target=5.0, max_target=6.0)
    close[50:60, 0] = np.nan
    rewards = []
    for later in (5.0, 50.0):
        close[60:, 0] = later
        panel = panel_of(close, close, close)
        assert panel.splits.train.stop == 60
        prices, first = Prices.of_panel(panel, CPU), torch.tensor([45])
        found, summary = trade_whole_episodes(prices, trading, first, coefficients, torch.full((1, 10, 2), 5.5))
        rewards.append(found)
    assert torch.equal(*rewards)
    assert int(summary.trades) > 0


def test_a_run_from_before_is_refused_where_some_symbol_does_not_trade() -> None:
    old = TradingConfig(delisting_loss=None)
    close = np.full((80, 2), 10.0)
    close[:20, 1] = np.nan
    late = prices_of(panel_of(close, close, close))
    found, now = late.fills(old), late.fills(TradingConfig())
    assert torch.equal(found.exit_offset, now.exit_offset)
    close[50, 1] = np.nan
    with pytest.raises(InputError, match=r"column 1 does not trade on day 50 .*Train a new run"):
        prices_of(panel_of(close, close, close)).fills(old)


@pytest.mark.parametrize("among", [[0, 1], [2, 5, 6], list(range(7))])
@pytest.mark.parametrize(("apart", "purchases"), [(1, 1), (7, 1), (1, 2)])
def test_no_column_is_favoured_where_coefficients_are_equal(among: list[int], apart: int, purchases: int) -> None:
    """Each of n columns has each place on one day in n, within four standard deviations, also of weekly dates."""
    close = np.full((2_000, 7), 10.0)
    panel = panel_of(close, close, close)
    panel = replace(panel, dates=np.datetime64("1990-01-01") + apart * np.arange(panel.days))
    wanted = torch.full((panel.days, 7), 1.0)
    wanted[:, among] = 2.0
    trading = TradingConfig(purchases_per_bar=purchases)
    asset, coefficient = choose_assets(prices_of(panel), trading, torch.arange(panel.days), wanted)
    assert (coefficient == 2.0).all()
    assert all(len(set(chosen)) == purchases for chosen in asset.tolist())
    share = 1.0 / len(among)
    for place in range(purchases):
        counts = np.bincount(asset[:, place], minlength=7)
        assert set(np.flatnonzero(counts)) == set(among)
        deviations = counts[among] / panel.days - share
        assert (np.abs(deviations) < 4.0 * np.sqrt(share * (1.0 - share) / panel.days)).all()


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    limit=st.sampled_from([None, 0.1, 0.7, 1.5, 3.0]),
    purchases=st.integers(1, 4),
    dtype=st.sampled_from([torch.float16, torch.float32]),
)
def test_choice_equals_the_sorted_order(seed: int, limit: float | None, purchases: int, dtype: torch.dtype) -> None:
    """By value within the bounds, then by precedence; zeros of both signs are equal, and huge values have an order."""
    random = np.random.default_rng(seed)
    prices = prices_of(random_panel(seed, 30, 7))
    some = np.array([0.0, -0.0, -1.0, 0.1, 0.7, 0.70000005, 1.5, 3.0, 6e4, np.inf])
    wanted = torch.tensor(random.choice(some, (30, 7))).to(dtype)
    trading = TradingConfig(max_coefficient=limit, buy_threshold=0.0, purchases_per_bar=purchases)
    asset, coefficient = choose_assets(prices, trading, torch.arange(30), wanted)
    for day in range(30):
        bounded = wanted[day].double().clamp(min=0.0, max=limit).tolist()
        order = sorted(
            (bounded[column], float(prices.precedence[day, column]), column)
            for column in range(7)
            if prices.tradable[day, column]
        )
        expected = [(column, value) for value, _, column in order[::-1][:purchases]]
        chosen = list(zip(asset[day].tolist(), coefficient[day].tolist(), strict=True))
        assert chosen[: len(expected)] == expected
        assert all(value == -1.0 for _, value in chosen[len(expected) :])


def test_what_is_not_a_number_counts_only_where_it_can_be_bought() -> None:
    close = np.full((5, 3), 10.0)
    close[:, 1] = np.nan
    prices = prices_of(panel_of(close, close, close))
    for sign in (1.0, -1.0):
        wanted = torch.ones(5, 3)
        wanted[:, 1] = sign * torch.nan
        _, coefficient = choose_assets(prices, TradingConfig(), torch.arange(5), wanted)
        assert (coefficient == 1.0).all()
        wanted[:, 2] = torch.copysign(torch.tensor(torch.nan), torch.tensor(sign))
        _, coefficient = choose_assets(prices, TradingConfig(), torch.arange(5), wanted)
        assert coefficient.isnan().all()
