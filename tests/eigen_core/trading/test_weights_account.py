"""Accounts that hold target weights, beside one that is kept asset by asset."""

import math
from typing import Any

import numpy as np
import pytest
from trading_cases import SlowEpisode, panel_of, prices_of

from eigen_core.config import AccountConfig, TradingConfig
from eigen_core.market import Panel
from eigen_core.trading import DecidedTrades, trade_accounts
from eigen_core.trading.metrics import compute_metrics, gain_by_asset
from eigen_core.trading.weights import weights_accounts

SYMBOLS = tuple("ABCDE")
DATES = np.datetime64("2020-01-01") + np.arange(40)


def slow_equity(
    weights: Any, panel: Panel, trading: TradingConfig, settings: AccountConfig
) -> tuple[list[float], list[float], list[float]]:
    cost, slippage = trading.cost_bps / 1e4, trading.slippage_bps / 1e4
    rate = {1: (1 + slippage) * (1 + cost) - 1, -1: 1 - (1 - slippage) * (1 - cost)}
    rules, offset = SlowEpisode(panel, trading, 0), 0 if trading.fill == "same_close" else 1
    assets = range(panel.assets)
    cash, shares = settings.capital, [0.0] * panel.assets
    equity: list[float] = []
    traded, costs = [0.0] * len(weights), [0.0] * len(weights)

    def worth_at_close(day: int) -> float:
        return float(sum(number * rules.close_known(day, asset) for asset, number in enumerate(shares) if number))

    for day in range(len(weights)):
        elapsed = (DATES[day] - DATES[max(day - 1, 0)]).item().days
        cash *= (1 + settings.interest) ** (elapsed / 365.25)
        decided = day - offset
        if decided >= 0:
            fills = [rules.fill_price(day, asset)[0] for asset in assets]
            prices = [rules.close_known(day, asset) if math.isnan(fills[asset]) else fills[asset] for asset in assets]
            held = [number * price for number, price in zip(shares, prices, strict=True)]
            filled = [
                asset
                for asset in assets
                if not math.isnan(fills[asset] + panel.close[decided, asset] + weights[decided][asset])
            ]
            before = cash + sum(held)
            wanted = {asset: weights[decided][asset] * before for asset in filled}
            bought = sum(max(wanted[asset] - held[asset], 0.0) for asset in filled)
            left = cash + sum(max(held[asset] - wanted[asset], 0.0) for asset in filled)
            if bought > left * (1 + 1e-10):
                for asset in filled:
                    if wanted[asset] > held[asset]:
                        wanted[asset] = held[asset] + (wanted[asset] - held[asset]) * left / bought
            paid = {a: abs(wanted[a] - held[a]) * rate[1 if wanted[a] > held[a] else -1] for a in filled}
            pays = cash + sum(held[asset] for asset in filled)
            share = sum(paid.values()) / pays if filled else 0.0
            change = {asset: wanted[asset] * (1 - share) / fills[asset] - shares[asset] for asset in filled}
            if settings.shares == "whole":
                change = {asset: math.trunc(shares[asset] + number) - shares[asset] for asset, number in change.items()}
                needed = sum(max(number, 0) * fills[a] * (1 + rate[1]) for a, number in change.items())
                available = cash + sum(max(-number, 0) * fills[a] * (1 - rate[-1]) for a, number in change.items())
                if needed > available * (1 + 1e-10):
                    # Fewer whole shares are sold short than was planned.
                    buys = {a: math.floor(number * available / needed) for a, number in change.items() if number > 0}
                    change |= buys
                paid = {a: abs(number) * fills[a] * rate[1 if number > 0 else -1] for a, number in change.items()}
            for asset, number in change.items():
                shares[asset] += number
                cash -= number * fills[asset] + paid[asset]
                traded[day] += abs(number) * fills[asset] * (1 + slippage if number > 0 else 1 - slippage)
                costs[day] += paid[asset]
        equity.append(cash + worth_at_close(day))
    return equity, traded, costs


@pytest.mark.parametrize("shares", ["fractional", "whole"])
@pytest.mark.parametrize("fill", ["next_open", "next_close", "same_close"])
@pytest.mark.parametrize("seed", range(4))
def test_weights_are_held_as_an_obvious_account_holds_them(shares: Any, fill: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    closes = 40.0 * np.exp(np.cumsum(random.normal(0.0, 0.05, (40, 5)), axis=0))
    opens = closes * np.exp(random.normal(0.0, 0.03, (40, 5)))
    opens[random.random((40, 5)) < 0.1] = np.nan
    closes[1:][random.random((39, 5)) < 0.05] = np.nan
    panel = panel_of(opens, opens, closes)
    weights = random.dirichlet(np.ones(5), 40) * random.choice([0.5, 1.0], (40, 1))
    weights[random.random(40) < 0.4] = np.nan
    weights[random.random((40, 5)) < 0.05] = np.nan
    trading = TradingConfig(fill=fill, cost_bps=20.0, slippage_bps=10.0)
    settings = AccountConfig(capital=3_000.0, shares=shares, interest=0.04)
    short = 1.4 * weights - 0.4 * random.dirichlet(np.ones(5), 40)
    accounts = weights_accounts(np.stack([weights, short]), prices_of(panel), DATES, trading, settings)
    for trader, of_trader in enumerate((weights, short)):
        curve = accounts.curve(trader)
        equity, traded, costs = slow_equity(of_trader.tolist(), panel, trading, settings)
        np.testing.assert_allclose(curve.equity, equity, rtol=1e-9)
        np.testing.assert_allclose(curve.traded, traded, atol=1e-6)
        np.testing.assert_allclose(curve.costs, costs, atol=1e-6)
        assert curve.exposure.max() <= 1.0 + 1e-9
        table = accounts.table(trader, SYMBOLS)
        assert table["gain"].sum() + accounts.interest[trader] == pytest.approx(equity[-1] - settings.capital)
        assert table["costs"].sum() == pytest.approx(sum(costs))
        by_asset = gain_by_asset(table)
        assert by_asset["gain"].sum() == pytest.approx(table["gain"].sum())
        assert by_asset["won"].isna().all()
    assert accounts.shares[0].min() >= 0.0 > accounts.shares[1].min()
    invested = accounts.held_weights().sum(axis=1)
    np.testing.assert_allclose(invested, accounts.together().exposure, atol=1e-12)


def test_whole_shares_never_take_more_than_the_cash() -> None:
    """Nor where every target is a whole number of shares but for the costs, which leaves nothing over."""
    closes = np.full((20, 2), 1.0)
    panel = panel_of(closes, closes, closes)
    weights = np.tile([[[0.25, 0.75], [0.75, 0.25]]], (1, 10, 1))
    trading = TradingConfig(fill="next_close", cost_bps=100.0, slippage_bps=50.0)
    settings = AccountConfig(capital=1e9, shares="whole")
    accounts = weights_accounts(weights, prices_of(panel), panel.dates, trading, settings)
    assert accounts.exposure.max() <= 1.0
    np.testing.assert_array_equal(accounts.shares, np.round(accounts.shares))


@pytest.mark.parametrize("every", [1, 3])
def test_cash_earns_its_interest_by_calendar_time(every: int) -> None:
    dates = np.datetime64("2020-01-01") + np.arange(0, 4 * 365 + 2, every)
    nothing = np.full((len(dates), 1), np.nan)
    settings = AccountConfig(capital=100.0, interest=0.05)
    known = prices_of(panel_of(nothing, nothing, nothing))
    curve = weights_accounts(nothing[None], known, dates, TradingConfig(), settings).curve(0)
    assert curve.equity[0] == 100.0
    assert curve.equity[-1] == pytest.approx(100.0 * 1.05**4, rel=3e-4)
    trades = trade_accounts(DecidedTrades.none(1, len(dates)), nothing, dates, TradingConfig(), settings)
    np.testing.assert_allclose(trades.curve(0).equity, curve.equity)


def test_an_account_that_loses_all_ends_there() -> None:
    closes = np.array([[10.0], [10.0], [21.0], [15.0], [10.0]])
    weights = np.full((2, 5, 1), [[[-1.0]], [[-0.2]]])
    trading, dates = TradingConfig(cost_bps=0.0, slippage_bps=0.0), DATES[:5]
    known = prices_of(panel_of(closes, closes, closes))
    accounts = weights_accounts(weights, known, dates, trading, AccountConfig(interest=0.05))
    assert accounts.equity[0, 1:].tolist() == [pytest.approx(accounts.equity[0, 1]), 0.0, 0.0, 0.0]
    assert accounts.exposure[0, 2:].tolist() == [0.0, 0.0, 0.0]
    assert accounts.traded[0, 3:].tolist() == [0.0, 0.0]
    assert (accounts.equity[1] > 0.0).all()
    found = compute_metrics(accounts.curve(0), periods_per_year=252)
    assert (found.total_return, found.max_drawdown) == (-1.0, -1.0)
