"""Accounts that make trades, beside an obvious account that is kept day by day."""

from typing import Any

import numpy as np
import pytest
import torch
from account_cases import SlowAccount, decided_trades
from trading_cases import panel_of, prices_of, random_panel

from eigen_core.config import AccountConfig, TradingConfig
from eigen_core.trading.trades import DecidedTrades, prices_of_span, trade_accounts, trade_day_by_day

TRADERS = 2


def random_case(seed: int) -> tuple[TradingConfig, AccountConfig, int]:
    random = np.random.default_rng(seed)
    holding = int(random.integers(1, 12))
    trading: dict[str, Any] = {
        "fill": random.choice(["next_open", "next_close", "same_close"]).item(),
        "bookkeeping": random.choice(["exact", "classic"]).item() if seed % 2 == 0 else "exact",
        "holding_days": holding,
        "settlement_days": holding,
        "min_target": 0.01,
        "max_target": 0.3,
        "max_coefficient": 3.0 if seed % 5 else None,
        "purchases_per_day": 1 + (seed % 3 if seed % 2 else 0),
        "cost_bps": float(random.uniform(0.0, 50.0)),
        "slippage_bps": float(random.uniform(0.0, 30.0)),
    }
    settings: dict[str, Any] = {
        "capital": float(random.uniform(5_000.0, 1e6)),
        "sizing": random.choice(["coefficient", "equal", "fixed"]).item(),
        "fixed_amount": float(random.uniform(500.0, 60_000.0)),
        "shares": random.choice(["fractional", "whole"]).item(),
        "interest": float(random.uniform(-0.05, 0.1)),
    }
    return TradingConfig(**trading), AccountConfig(**settings), int(random.integers(2, 60))


@pytest.mark.parametrize("spans", [30, pytest.param(200, marks=pytest.mark.thorough)])
def test_accounts_equal_an_obvious_one_that_is_kept_day_by_day(spans: int) -> None:
    panel = random_panel(7, days=400, assets=6)
    prices, last_close = prices_of(panel), prices_of(panel).last_close.numpy()
    kept = 0
    for seed in range(spans):
        trading, settings, days = random_case(seed)
        first = int(np.random.default_rng(seed).integers(0, 400 - days - trading.holding_days))
        span = range(first, first + days)
        trades = decided_trades(prices, trading, span, TRADERS, seed)
        closes = last_close[first : first + days]
        accounts = trade_accounts(trades, closes, panel.dates[first : first + days], trading, settings)
        for trader in range(TRADERS):
            slow = SlowAccount(trades, trader, trading, settings)
            slow.keep(closes, panel.dates[first : first + days])
            curve = accounts.curve(trader)
            for name in ("equity", "traded", "costs"):
                expected = np.array(getattr(slow, name))
                assert np.abs(getattr(curve, name) - expected).max() < 1e-9 * curve.equity.min(), (seed, name)
            np.testing.assert_allclose(curve.exposure, slow.exposure, atol=1e-9)
            table = accounts.table(trader, panel.symbols)
            kept += len(table)
            np.testing.assert_allclose(table["gain"], [slow.gains[day] for day in sorted(slow.gains)], atol=1e-5)
            gained = table["gain"].sum() + accounts.interest[trader]
            assert curve.equity[-1] == pytest.approx(settings.capital + gained, rel=1e-9)
            assert curve.costs.sum() == pytest.approx(table["costs"].sum(), rel=1e-9)
    assert kept > 20 * spans


def one_trade(**changes: Any) -> DecidedTrades:
    """One trade, decided on the first of four days, bought at 10 on the second and sold at 12 on the third."""
    values = {"asset": 0, "exit_day": 2, "entry": 10.0, "exit": 12.0, "target": 13.0, "coefficient": 3.0}
    flags = {"at_target": False, "delisted": False, "at_open": True}
    columns: dict[str, Any] = {
        name: np.full((1, 4, 1), value) for name, value in {**values, **flags, **changes}.items()
    }
    columns["asset"][:, 1:] = -1
    return DecidedTrades(**columns)


def test_a_position_takes_its_share_of_the_equity_and_gives_back_what_it_is_sold_for() -> None:
    trading = TradingConfig(cost_bps=0.0, slippage_bps=0.0)
    closes = np.array([[10.0], [11.0], [13.0], [14.0]])
    dates = np.datetime64("2020-01-01") + np.arange(4)
    accounts = trade_accounts(one_trade(), closes, dates, trading, AccountConfig(capital=1_000.0))
    curve, table = accounts.curve(0), accounts.table(0, ("A",))
    np.testing.assert_allclose(curve.equity, [1_000.0, 1_005.0, 1_010.0, 1_010.0])
    np.testing.assert_allclose(curve.traded, [0.0, 50.0, 60.0, 0.0])
    assert table[["symbol", "shares", "paid", "received", "gain", "reason"]].to_numpy().tolist() == [
        ["A", 5.0, 50.0, 60.0, 10.0, "time"]
    ]


def test_what_is_still_held_on_the_last_day_counts_at_its_last_known_close() -> None:
    trading = TradingConfig(cost_bps=0.0, slippage_bps=0.0)
    closes = np.array([[10.0], [11.0], [13.0], [14.0]])
    dates = np.datetime64("2020-01-01") + np.arange(4)
    accounts = trade_accounts(one_trade(exit_day=9), closes, dates, trading, AccountConfig(capital=1_000.0))
    table = accounts.table(0, ("A",))
    assert accounts.equity[0, -1] == pytest.approx(1_020.0)
    assert table["reason"].tolist() == ["held"]
    assert table["exit"].isna().all()
    assert table["gain"].tolist() == pytest.approx([20.0])


def test_the_sale_of_a_delisted_symbol_is_named_with_its_loss() -> None:
    """Beside a symbol that goes on; what is bought on the last days is still held."""
    closes = np.full((60, 2), 10.0)
    closes[20:, 0] = np.nan
    panel = panel_of(closes, closes, closes)
    rules: dict[str, Any] = {"holding_days": 4, "settlement_days": 4, "delisting_days": 8, "delisting_loss": 0.25}
    trading = TradingConfig(**rules, cost_bps=0.0, slippage_bps=0.0, purchases_per_day=2)
    known = prices_of_span(prices_of(panel), range(60), trading.holding_days)

    def decide(day: int, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((1, 2), 3.0 if day in (5, 17, 58) else 0.0), torch.full((1, 2), 0.5)

    trades = trade_day_by_day(known, trading, 60, 1, decide)
    table = trade_accounts(trades, known.last_close[:60].numpy(), panel.dates, trading, AccountConfig()).table(
        0, panel.symbols
    )
    by_symbol = {symbol: rows["reason"].tolist() for symbol, rows in table.groupby("symbol")}
    assert by_symbol == {"S0": ["time", "delisted"], "S1": ["time", "time", "held"]}
    delisted = table[table["reason"] == "delisted"].iloc[0]
    assert (delisted["exit_price"], delisted["gain_percent"]) == pytest.approx((7.5, -25.0))
    # Day 27 is the eighth without a price.
    assert delisted["exit"] == panel.dates[27]


@pytest.mark.parametrize(("shares", "bought"), [("fractional", 9.5), ("whole", 9.0)])
def test_no_position_takes_more_than_the_cash(shares: Any, bought: float) -> None:
    trading = TradingConfig(cost_bps=0.0, slippage_bps=0.0)
    settings = AccountConfig(capital=95.0, sizing="fixed", fixed_amount=1_000.0, shares=shares)
    closes, dates = np.full((4, 1), 10.0), np.datetime64("2020-01-01") + np.arange(4)
    accounts = trade_accounts(one_trade(), closes, dates, trading, settings)
    assert accounts.shares[0, 0, 0] == bought


def test_the_purchases_of_all_days_together_take_no_more_than_the_equity() -> None:
    holding, purchases, days = 4, 3, 20
    free = TradingConfig(cost_bps=0.0, slippage_bps=0.0, fill="same_close")
    trading = free.model_copy(update={"holding_days": holding, "purchases_per_day": purchases})
    trades = DecidedTrades.none(1, days, purchases)
    trades.asset[:] = np.arange(days)[:, None] % (holding + 1) * purchases + np.arange(purchases)
    trades.exit_day[:] = np.arange(days)[:, None] + holding
    trades.entry[:], trades.exit[:], trades.coefficient[:] = 10.0, 10.0, 3.0
    closes, dates = np.full((days, (holding + 1) * purchases), 10.0), np.datetime64("2020-01-01") + np.arange(days)
    accounts = trade_accounts(trades, closes, dates, trading, AccountConfig(capital=1_200.0))
    np.testing.assert_allclose(accounts.paid, 100.0)
    np.testing.assert_allclose(accounts.exposure[0], [0.25, 0.5, 0.75, *[1.0] * (days - 3)])


def test_what_the_cash_does_not_pay_for_is_the_last_of_a_day() -> None:
    trading = TradingConfig(cost_bps=0.0, slippage_bps=0.0, purchases_per_day=3)
    trades = DecidedTrades.none(1, 4, 3)
    trades.asset[0, 0], trades.exit_day[0, 0], trades.entry[0, 0], trades.exit[0, 0] = [2, 0, 1], 3, 10.0, 10.0
    trades.coefficient[0, 0] = 3.0
    settings = AccountConfig(capital=150.0, sizing="fixed", fixed_amount=100.0)
    closes, dates = np.full((4, 3), 10.0), np.datetime64("2020-01-01") + np.arange(4)
    accounts = trade_accounts(trades, closes, dates, trading, settings)
    assert accounts.shares[0, 0].tolist() == [10.0, 5.0, 0.0]
    table = accounts.table(0, ("A", "B", "C"))
    assert table["symbol"].tolist() == ["C", "A"]
    assert table["decision"].nunique() == 1
