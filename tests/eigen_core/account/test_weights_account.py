"""Accounts that hold target weights, beside one that is kept asset by asset."""

import math
from typing import Any

import numpy as np
import pytest

from eigen_core.account import DecidedTrades, trade_accounts
from eigen_core.account.attribution import gain_by_asset
from eigen_core.account.figures import figures_of
from eigen_core.account.weights import weights_accounts
from eigen_core.config import AccountConfig, TradingConfig

SYMBOLS = tuple("ABCDE")
DATES = np.datetime64("2020-01-01") + np.arange(40)


def slow_equity(
    weights: Any, entries: Any, closes: Any, trading: TradingConfig, settings: AccountConfig
) -> tuple[list[float], list[float], list[float]]:
    cost, slippage = trading.cost_bps / 1e4, trading.slippage_bps / 1e4
    offset = 0 if trading.fill == "same_close" else 1
    cash, shares = settings.capital, [0.0] * len(closes[0])
    equity: list[float] = []
    traded, costs = [0.0] * len(closes), [0.0] * len(closes)

    def worth(day: int) -> float:
        return float(sum(number * closes[day][asset] for asset, number in enumerate(shares) if number))

    def trade(day: int, asset: int, number: float) -> float:
        fill = entries[day - offset][asset] / (1 + slippage)
        price = fill * (1 + slippage if number > 0 else 1 - slippage)
        shares[asset] += number
        fee = abs(number) * price * cost
        traded[day] += abs(number) * price
        costs[day] += fee + abs(number) * fill * slippage
        return float(-number * price - fee)

    for day in range(len(closes)):
        elapsed = (DATES[day] - DATES[max(day - 1, 0)]).item().days
        cash *= (1 + settings.interest) ** (elapsed / 365.25)
        decided = day - offset
        if decided >= 0 and not math.isnan(weights[decided][0]):
            known = cash + worth(day) if offset == 0 else equity[decided]
            changes = {}
            for asset, entry in enumerate(entries[decided]):
                if not math.isnan(entry):
                    target = weights[decided][asset] * known / (entry * (1 + cost))
                    changes[asset] = (math.trunc(target) if settings.shares == "whole" else target) - shares[asset]
            for asset, number in changes.items():
                if number < 0:
                    cash += trade(day, asset, number)
            buys = {asset: number for asset, number in changes.items() if number > 0}
            needed = sum(number * entries[decided][asset] * (1 + cost) for asset, number in buys.items())
            for asset, number in buys.items():
                smaller = number * cash / needed if needed > cash * (1 + 1e-10) else number
                if settings.shares == "whole" and smaller < number:
                    smaller = math.floor(smaller)
                spent = trade(day, asset, smaller)
                buys[asset] = spent
            cash += sum(buys.values())
        equity.append(cash + worth(day))
    return equity, traded, costs


@pytest.mark.parametrize("shares", ["fractional", "whole"])
@pytest.mark.parametrize("fill", ["next_open", "same_close"])
@pytest.mark.parametrize("seed", range(4))
def test_weights_are_held_as_an_obvious_account_holds_them(shares: Any, fill: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    closes = 40.0 * np.exp(np.cumsum(random.normal(0.0, 0.05, (40, 5)), axis=0))
    entries = closes * np.exp(random.normal(0.0, 0.03, (40, 5)))
    entries[random.random((40, 5)) < 0.1] = np.nan
    weights = random.dirichlet(np.ones(5), 40) * random.choice([0.5, 1.0], (40, 1))
    weights[random.random(40) < 0.4] = np.nan
    trading = TradingConfig(fill=fill, cost_bps=20.0, slippage_bps=10.0)
    settings = AccountConfig(capital=3_000.0, shares=shares, interest=0.04)
    short = 1.4 * weights - 0.4 * random.dirichlet(np.ones(5), 40)
    accounts = weights_accounts(np.stack([weights, short]), entries, closes, DATES, trading, settings)
    for trader, of_trader in enumerate((weights, short)):
        curve = accounts.curve(trader)
        equity, traded, costs = slow_equity(of_trader.tolist(), entries.tolist(), closes.tolist(), trading, settings)
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


@pytest.mark.parametrize("every", [1, 3])
def test_cash_earns_its_interest_by_calendar_time(every: int) -> None:
    dates = np.datetime64("2020-01-01") + np.arange(0, 4 * 365 + 2, every)
    nothing = np.full((len(dates), 1), np.nan)
    settings = AccountConfig(capital=100.0, interest=0.05)
    curve = weights_accounts(nothing[None], nothing, nothing, dates, TradingConfig(), settings).curve(0)
    assert curve.equity[0] == 100.0
    assert curve.equity[-1] == pytest.approx(100.0 * 1.05**4, rel=3e-4)
    trades = trade_accounts(DecidedTrades.none(1, len(dates)), nothing, dates, TradingConfig(), settings)
    np.testing.assert_allclose(trades.curve(0).equity, curve.equity)


def test_an_account_that_loses_all_ends_there() -> None:
    closes = np.array([[10.0], [10.0], [21.0], [15.0], [10.0]])
    weights = np.full((2, 5, 1), [[[-1.0]], [[-0.2]]])
    trading, dates = TradingConfig(cost_bps=0.0, slippage_bps=0.0), DATES[:5]
    accounts = weights_accounts(weights, closes, closes, dates, trading, AccountConfig(interest=0.05))
    assert accounts.equity[0, 1:].tolist() == [pytest.approx(accounts.equity[0, 1]), 0.0, 0.0, 0.0]
    assert accounts.exposure[0, 2:].tolist() == [0.0, 0.0, 0.0]
    assert accounts.traded[0, 3:].tolist() == [0.0, 0.0]
    assert (accounts.equity[1] > 0.0).all()
    found = figures_of(accounts.curve(0), periods_per_year=252)
    assert (found.total_return, found.max_drawdown) == (-1.0, -1.0)
