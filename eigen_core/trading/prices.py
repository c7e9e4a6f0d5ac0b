"""Prices of the assets of a panel (its tradable columns) as tensors."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.config import AccountConfig, TradingConfig
from eigen_core.config.instruments import Instrument
from eigen_core.market.panel import Panel
from eigen_core.market.trading_days import sessions_of
from eigen_core.trading.order_fills import Fills, OrderCosts

MAX_ASSETS = 2**16
"""Largest number of assets in a panel."""
NOT_TRADABLE = MAX_ASSETS**2 * 2**31
"""Greater than any key by which `choose_assets` sorts assets: a key minus this is below 0."""


def precedence_of(dates: NDArray[np.datetime64], assets: int) -> NDArray[np.int64]:
    """Return pseudo-random numbers by which to sort the assets of each date, int64 `[days, assets]`, all different.

    The bits of a date and of an asset's number are joined to 64 bits and mixed by a bijection (Steele et al. 2014,
    "Fast splittable pseudorandom number generators", figure 16).
    """
    day = dates.astype(np.uint64)
    bits: NDArray[np.uint64] = np.left_shift(day[:, None], np.uint64(32)) + np.arange(assets, dtype=np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    return bits.view(np.int64)


@dataclass(frozen=True)
class Prices:
    """Prices of assets by day, float64 `[days, assets]`: days are the rows of a panel, assets its tradable columns.

    Attributes:
        open, high, close: prices of the day; NaN where there is none.
        last_close: the close of the day, or else the last one before it; NaN before the asset's first close.
        tradable: bool, the asset has a close above zero on the day.
        missing: bool, the asset has no open, high, low or close on the day.
        precedence: int64, place of the asset in a pseudo-random order of the day (`precedence_of`), from 0, times
            `MAX_ASSETS`, plus the asset's number; minus `NOT_TRADABLE` where the asset is not tradable. Among assets of
            equal rank the one with the highest precedence is bought first. It depends on the date and columns alone.
        session: bool, the market of the asset is open on the day; see `sessions_of`, and of the calendar of the panel.
        time: int64 `[days]`, seconds from 1970 to the end of a bar or, of daily prices, to the day.
        panel_time: int64, `time` of all days of the panel, also where these are the prices of a span.
        last_day: int64 `[days]`, the last day whose prices an order decided on the day may use (`Panel.last_days`).
        instruments: costs and order rules of each asset; empty: the single rates of `trading`.
        liquidity: mean volume and volatility (`liquidity_of`), on the host; None: orders are not compared with them.
        held: column of each symbol that accounts hold at the first close (`account.start`).
    """

    open: Tensor
    high: Tensor
    close: Tensor
    last_close: Tensor
    tradable: Tensor
    missing: Tensor
    precedence: Tensor
    session: Tensor
    time: Tensor
    panel_time: Tensor
    last_day: Tensor
    instruments: tuple[Instrument, ...] = ()
    liquidity: tuple[Tensor, ...] | None = None
    held: Mapping[str, int] = field(default_factory=dict)
    _fills: dict[Hashable, Fills] = field(default_factory=dict, init=False, repr=False, compare=False)
    _costs: dict[Hashable, OrderCosts] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of_panel(cls, panel: Panel, device: torch.device) -> "Prices":
        """Return the prices of a panel; raise InputError if it has more than `MAX_ASSETS` assets."""
        if panel.assets > MAX_ASSETS:
            raise InputError(f"At most {MAX_ASSETS:,} symbols can be traded, not {panel.assets:,}: set market.symbols.")

        def on_device(values: NDArray[np.float64]) -> Tensor:
            return torch.tensor(np.asarray(values), dtype=torch.float64, device=device)

        close = on_device(panel.close)
        tradable = close > 0.0
        time = torch.tensor(panel.time, device=device)
        places = precedence_of(np.asarray(panel.dates), panel.assets).argsort(axis=1).argsort(axis=1)
        session = sessions_of(panel.valid[:, : panel.assets], np.asarray(panel.close) > 0.0, panel.dates)
        if panel.calendar is not None:
            session |= (panel.calendar.session_of(panel.dates) >= 0)[:, None]
        precedence = torch.tensor(places * MAX_ASSETS + np.arange(panel.assets), device=device)
        of_day = (panel.open, panel.high, panel.low, panel.close)
        return cls(
            open=on_device(panel.open),
            high=on_device(panel.high),
            close=close,
            last_close=on_device(pd.DataFrame(panel.close).ffill().to_numpy()),
            tradable=tradable,
            missing=torch.tensor(np.logical_and.reduce([np.isnan(prices) for prices in of_day]), device=device),
            precedence=torch.where(tradable, precedence, precedence.add(-NOT_TRADABLE)),
            session=torch.tensor(session, device=device),
            time=time,
            panel_time=time,
            last_day=torch.tensor(panel.last_days(), device=device),
            instruments=panel.instruments,
        )

    def costs(self, trading: TradingConfig) -> OrderCosts:
        """Return the costs of orders by the rates of `trading`, or of each asset if there are `instruments`."""
        if not self.instruments:
            return OrderCosts.of(trading)
        rates = trading.cost_bps, trading.slippage_bps
        if rates not in self._costs:
            self._costs[rates] = OrderCosts.of(trading, self.instruments).to(self.close.device)
        return self._costs[rates]

    def fills(self, trading: TradingConfig) -> Fills:
        """Return the fills of orders by the rules of `trading`, computed once for the same rules; see `Fills.of`."""
        rules = Fills.rules(trading)
        if rules not in self._fills:
            # On the CPU: a GPU has no deterministic cumulative sum.
            prices = (self.open, self.high, self.close, self.last_close, self.session, self.last_day)
            opened, high, close, last_close, session, last_day = map(Tensor.cpu, prices)
            costs = self.costs(trading).to(opened.device)
            found = Fills.of(opened, high, close, last_close, session, last_day, trading, costs)
            self._fills[rules] = found.to(self.close.device)
        return self._fills[rules]

    @property
    def assets(self) -> int:
        return int(self.close.shape[1])

    @property
    def days(self) -> int:
        return int(self.close.shape[0])


def prices_of_span(prices: Prices, span: range, days_after: int) -> Prices:
    """Return the prices of a span, a range of days, as known at its end: `days_after` days without any price follow.

    On these days positions count at the span's last close, and all markets are open. Day 0 is the span's first day.
    `InputError` if a symbol of `Prices.held` has no close on it.
    """
    rows = slice(span.start, span.stop)
    for symbol, column in prices.held.items():
        if not prices.tradable[span.start, column]:
            day = np.datetime64(int(prices.time[span.start]), "s")
            raise InputError(
                f"account.start: {symbol} has no price at {day}, where an account begins: leave it out, or begin on "
                "another day."
            )

    def padded(values: Tensor, after: Tensor | float | bool) -> Tensor:
        later = torch.empty((days_after, prices.assets), dtype=values.dtype, device=values.device)
        later[:] = after
        return torch.cat([values[rows], later])

    return replace(
        prices,
        liquidity=prices.liquidity and tuple(padded(values, torch.nan) for values in prices.liquidity),
        open=padded(prices.open, torch.nan),
        high=padded(prices.high, torch.nan),
        close=padded(prices.close, torch.nan),
        last_close=padded(prices.last_close, prices.last_close[span.stop - 1]),
        tradable=padded(prices.tradable, False),
        missing=padded(prices.missing, True),
        precedence=padded(prices.precedence, -NOT_TRADABLE),
        session=padded(prices.session, True),
        time=torch.cat([prices.time[rows], torch.zeros(days_after, dtype=torch.int64, device=prices.time.device)]),
        last_day=torch.full((len(span) + days_after,), len(span) - 1, device=prices.close.device),
    )


def start_of(known: Prices, settings: AccountConfig) -> tuple[NDArray[np.float64], float]:
    """Return the shares that accounts hold at the first close, float64 `[assets]`, and their equity then (money).

    `InputError` if short sales leave no equity.
    """
    shares, equity = np.zeros(known.assets), settings.capital
    if known.held:
        columns = list(known.held.values())
        shares[columns] = [settings.holdings[symbol] for symbol in known.held]
        equity += float(shares[columns] @ known.close[0, columns].cpu().numpy())
        if equity <= 0.0:
            raise InputError("account.start sells more short than account.capital pays for: raise account.capital.")
    return shares, equity
