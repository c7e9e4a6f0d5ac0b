"""Accounts once more: slow, obvious, day by day, with plain numbers."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from eigen_core.config import AccountConfig, TradingConfig
from eigen_core.trading.fills import fill_offset
from eigen_core.trading.orders import resolve_orders
from eigen_core.trading.prices import Prices
from eigen_core.trading.trades import ROUNDING, DecidedTrades


def decided_trades(prices: Prices, trading: TradingConfig, span: range, traders: int, seed: int) -> DecidedTrades:
    """Trades in random tradable assets, on some of the days, as the rules fill and close them."""
    random = np.random.default_rng(seed)
    shape = (traders, len(span), trading.purchases_per_day)
    day = np.broadcast_to(np.arange(span.start, span.stop)[:, None], shape)
    asset = random.integers(0, prices.assets, shape)
    coefficient = random.uniform(1.0, trading.max_coefficient or 5.0, shape)
    targets = torch.tensor(random.uniform(0.0, 0.2, shape))
    resolved = resolve_orders(prices, trading, torch.tensor(day), torch.tensor(asset), targets)
    tradable = prices.tradable.numpy()[day, asset]
    made = tradable & resolved.filled.numpy() & (random.random(shape) < 0.9)
    opens = prices.open.numpy()[np.minimum(day + 1, prices.days - 1), asset]
    return DecidedTrades(
        asset=np.where(made, asset, -1),
        exit_day=day - span.start + resolved.exit_offset.numpy(),
        entry=resolved.entry.numpy(),
        exit=resolved.exit.numpy(),
        target=resolved.entry.numpy() * (1.0 + targets.clamp(trading.min_target, trading.max_target).numpy()),
        coefficient=coefficient,
        at_target=resolved.at_target.numpy(),
        delisted=prices.fills(trading).exit_delisted.numpy()[day, asset],
        at_open=~np.isnan(opens) if trading.fill == "next_open" else np.zeros(shape, dtype=bool),
    )


Decision = tuple[int, int]
"""Day of the decision, and which of the purchases of the day."""


@dataclass
class SlowAccount:
    """The account of one trader."""

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
