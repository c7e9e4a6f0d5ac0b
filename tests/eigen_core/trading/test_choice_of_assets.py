"""Which assets a decision buys: those ranked highest, whose coefficient is enough, and no column before another."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trading_cases import panel_of, prices_of, random_panel

from eigen_core.config import TradingConfig
from eigen_core.trading.environment import TradingEnvironment, trade_whole_episodes
from eigen_core.trading.orders import choose_assets


@pytest.mark.parametrize("among", [[0, 1], [2, 5, 6], list(range(7))])
@pytest.mark.parametrize("apart", [1, 7])
def test_no_column_is_favoured_where_coefficients_are_equal(among: list[int], apart: int) -> None:
    """Each of n columns is chosen on one day in n, within four standard deviations, also of weekly dates."""
    close = np.full((2_000, 7), 10.0)
    panel = panel_of(close, close, close)
    panel = dataclasses.replace(panel, dates=np.datetime64("1990-01-01") + apart * np.arange(panel.days))
    wanted = torch.full((panel.days, 7), 1.0)
    wanted[:, among] = 2.0
    asset, coefficient = choose_assets(prices_of(panel), TradingConfig(), torch.arange(panel.days), wanted)
    assert (coefficient == 2.0).all()
    counts = np.bincount(asset[:, 0], minlength=7)
    share = 1.0 / len(among)
    assert set(np.flatnonzero(counts)) == set(among)
    assert (np.abs(counts[among] / panel.days - share) < 4.0 * np.sqrt(share * (1.0 - share) / panel.days)).all()


def test_no_column_is_favoured_where_some_of_equals_are_bought() -> None:
    """Each of 5 columns is among the three on three days of five, each pair of places by itself as often."""
    close = np.full((2_000, 7), 10.0)
    panel = panel_of(close, close, close)
    wanted = torch.full((panel.days, 7), 1.0)
    wanted[:, 2:] = 2.0
    trading = TradingConfig(purchases_per_day=3)
    asset, coefficient = choose_assets(prices_of(panel), trading, torch.arange(panel.days), wanted)
    assert (coefficient == 2.0).all()
    assert all(len(set(chosen)) == 3 for chosen in asset.tolist())
    for place in range(3):
        counts = np.bincount(asset[:, place], minlength=7)[2:]
        assert (np.abs(counts / panel.days - 0.2) < 4.0 * np.sqrt(0.2 * 0.8 / panel.days)).all()


def test_what_is_ranked_highest_is_bought_only_if_its_coefficient_is_enough() -> None:
    close = np.full((8, 4), 10.0)
    prices = prices_of(panel_of(close, close, close))
    trading = TradingConfig(trading_days=2, settlement_days=2, holding_days=2)
    environment = TradingEnvironment(prices, trading, record_trades=True)
    environment.reset(torch.tensor([1]))
    ranks = torch.tensor([[0.2, 0.9, 0.3, 0.1]])
    targets = torch.full((1, 4), 0.2)
    environment.step(torch.tensor([[3.0, 0.9, 2.0, 3.0]]), targets, ranks)
    environment.step(torch.tensor([[3.0, 1.5, 2.0, 3.0]]), targets, ranks)
    for _ in range(2):
        environment.step(targets, targets, ranks)
    table = environment.trades()
    assert table[["decision_day", "asset", "coefficient"]].to_numpy().tolist() == [[2.0, 1.0, 1.5]]


def test_a_rank_that_is_not_a_number_is_named() -> None:
    prices = prices_of(random_panel(6, 100, 5))
    trading = TradingConfig(trading_days=25, settlement_days=8, holding_days=6)
    coefficients, targets = torch.full((2, 1, 33, 5), 0.5).unbind(0)
    ranks = torch.full_like(coefficients, 0.5)
    ranks[0, 3] = torch.nan
    with pytest.raises(FloatingPointError, match="network has diverged"):
        trade_whole_episodes(prices, trading, torch.tensor([40]), coefficients, targets, ranks)


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
    trading = TradingConfig(max_coefficient=limit, buy_threshold=0.0, purchases_per_day=purchases)
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


def test_classic_bookkeeping_takes_the_first_of_equals() -> None:
    close = np.full((50, 7), 10.0)
    wanted = torch.ones(50, 7)
    wanted[:, [3, 5]] = 2.0
    prices = prices_of(panel_of(close, close, close))
    asset, _ = choose_assets(prices, TradingConfig(bookkeeping="classic"), torch.arange(50), wanted)
    assert (asset == 3).all()
