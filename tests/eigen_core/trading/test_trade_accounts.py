"""Accounts that make trades, beside an obvious account that is kept day by day."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from trading_cases import decided_trades, panel_of, prices_of, random_panel

from eigen_core.config import AccountConfig, TradingConfig
from eigen_core.trading.order_fills import fill_offset
from eigen_core.trading.prices import prices_of_span
from eigen_core.trading.trades import ROUNDING, DecidedTrades, trade_accounts

Decision = tuple[int, int]
"""Day of the decision, and which of the purchases of the day."""


@dataclass
class SlowAccount:
    trades: DecidedTrades
    trader: int
    trading: TradingConfig
    settings: AccountConfig
    cash: float = 0.0
    held: dict[Decision, float] = field(default_factory=dict)
    equity: list[float] = field(default_factory=list)
    decision_equity: list[float] = field(default_factory=list)
    traded: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    exposure: list[float] = field(default_factory=list)
    gains: dict[Decision, float] = field(default_factory=dict)

    def of(self, name: str, decided: Decision) -> Any:
        return getattr(self.trades, name)[self.trader][decided].item()

    def size(self, decided: Decision) -> float:
        if self.settings.sizing == "fixed":
            return self.settings.fixed_amount
        equity = self.decision_equity[decided[0]] / self.trading.holding_days / self.trading.purchases_per_day
        if self.settings.sizing == "equal" or self.trading.max_coefficient is None:
            return float(equity)
        return float(equity * self.of("coefficient", decided) / self.trading.max_coefficient)

    def buy_all(self, day: int, *, at_open: bool) -> None:
        if day >= 0:
            for purchase in range(self.trading.purchases_per_day):
                self.buy((day, purchase), at_open=at_open)

    def buy(self, decided: Decision, *, at_open: bool) -> None:
        if self.of("asset", decided) < 0 or self.of("at_open", decided) != at_open:
            return
        cost, slippage = self.trading.cost_bps / 1e4, self.trading.slippage_bps / 1e4
        entry = self.of("entry", decided)
        shares = min(self.size(decided), self.cash) / (entry * (1 + cost))
        if self.settings.shares == "whole":
            shares = math.floor(shares)
        if shares <= 0 or self.cash <= ROUNDING * self.settings.capital:
            return
        self.held[decided] = shares
        self.gains[decided] = -shares * entry * (1 + cost)
        self.cash += self.gains[decided]
        self.traded[-1] += shares * entry
        self.costs[-1] += shares * (entry * cost + entry - entry / (1 + slippage))

    def sell(self, day: int) -> None:
        cost, slippage = self.trading.cost_bps / 1e4, self.trading.slippage_bps / 1e4
        for decided in [decided for decided in self.held if self.of("exit_day", decided) == day]:
            price, shares = self.of("exit", decided), self.held.pop(decided)
            received = shares * price * (1 - cost)
            self.cash += received
            self.gains[decided] += received
            self.traded[-1] += shares * price
            slipped = 0.0 if self.of("at_target", decided) else price / (1 - slippage) - price
            self.costs[-1] += shares * (price * cost + slipped)

    def worth(self, closes: Any) -> float:
        return float(sum(shares * closes[self.of("asset", decided)] for decided, shares in self.held.items()))

    def keep(self, last_close: Any, dates: Any) -> None:
        self.cash = self.settings.capital
        offset = fill_offset(self.trading)
        for day, closes in enumerate(last_close.tolist()):
            self.traded.append(0.0)
            self.costs.append(0.0)
            elapsed = (dates[day] - dates[max(day - 1, 0)]).item().days
            self.cash *= (1 + self.settings.interest) ** (elapsed / 365.25)
            self.buy_all(day - offset, at_open=True)
            self.sell(day)
            self.decision_equity.append(self.cash + self.worth(closes))
            self.buy_all(day - offset, at_open=False)
            self.sell(day)
            self.equity.append(self.cash + self.worth(closes))
            self.exposure.append(self.worth(closes) / self.equity[-1])
        for decided, shares in self.held.items():
            self.gains[decided] += shares * last_close[-1][self.of("asset", decided)]


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
    prices = prices_of(panel)
    kept = 0
    for seed in range(spans):
        trading, settings, days = random_case(seed)
        first = int(np.random.default_rng(seed).integers(0, 400 - days - trading.holding_days))
        span = range(first, first + days)
        known, dates = prices_of_span(prices, span, trading.holding_days), panel.dates[first : first + days]
        actions = np.random.default_rng(seed).uniform(0.0, [[[[3.0]]], [[[0.2]]]], (2, TRADERS, days, 6))
        trades = decided_trades(known, trading, *actions)
        accounts = trade_accounts(trades, known, dates, trading, settings)
        for trader in range(TRADERS):
            slow = SlowAccount(trades, trader, trading, settings)
            slow.keep(known.last_close[:days].numpy(), dates)
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


def test_the_sale_of_a_delisted_symbol_is_named_with_its_loss() -> None:
    """Beside a symbol that goes on; what is bought on the last days is still held."""
    closes = np.full((60, 2), 10.0)
    closes[20:, 0] = np.nan
    panel = panel_of(closes, closes, closes)
    rules: dict[str, Any] = {"holding_days": 4, "settlement_days": 4, "delisting_days": 8, "delisting_loss": 0.25}
    trading = TradingConfig(**rules, cost_bps=0.0, slippage_bps=0.0, purchases_per_day=2)
    known = prices_of_span(prices_of(panel), range(60), trading.holding_days)

    coefficients = np.zeros((1, 60, 2))
    coefficients[:, [5, 17, 58]] = 3.0
    trades = decided_trades(known, trading, coefficients, 0.5)
    table = trade_accounts(trades, known, panel.dates, trading, AccountConfig()).table(0, panel.symbols)
    by_symbol = {symbol: rows["reason"].tolist() for symbol, rows in table.groupby("symbol")}
    assert by_symbol == {"S0": ["time", "delisted"], "S1": ["time", "time", "held"]}
    delisted = table[table["reason"] == "delisted"].iloc[0]
    assert (delisted["exit_price"], delisted["gain_percent"]) == pytest.approx((7.5, -25.0))
    # Day 27 is the eighth without a price.
    assert delisted["exit"] == panel.dates[27]
