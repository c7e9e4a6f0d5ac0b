"""What trades earn beyond the market: their gain less that of all assets bought on the same day and held as long."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import TradingConfig
from eigen_core.records import Excess
from eigen_core.trading.orders import PERCENT, entry_prices, fill_offset, gain_at_close
from eigen_core.trading.prices import Prices

_SUMS = ("trades", "excess", "excess_excess", "excess_trades", "trades_trades")


def market_gains(prices: Prices, trading: TradingConfig) -> Tensor:
    """Return what an asset drawn at random gains: float64 `[days, holding_days + 1]`, NaN where none can be bought.

    Entry [t, h] is the mean net gain (a fraction) over all assets that a decision on day t can buy, each filled as
    `trading.fill` says and sold at the last known close of day t + h, slippage and costs paid. Days after the last one
    count as days without prices.
    """
    days, entry = prices.days, entry_prices(prices, trading)
    gains = torch.full((days, trading.holding_days + 1), torch.nan, dtype=torch.float64, device=entry.device)
    for offset in range(fill_offset(trading), trading.holding_days + 1):
        row = (torch.arange(days, device=entry.device) + offset).clamp(max=days - 1)
        gains[:, offset] = gain_at_close(trading, entry, prices.last_close[row]).nanmean(dim=1)
    return gains


def excess_sums(excess: Tensor, bought: Tensor, lags: int) -> dict[str, Tensor]:
    """Return what `excess_of` needs to know of each episode: float64 `[episodes]` by name.

    Args:
        excess: float64 `[episodes, decisions]`, gain of a decision's trades beyond the market's, summed (a fraction).
        bought: bool or int64 `[episodes, decisions]`, whether there was a trade, or how many.
        lags: decisions after one whose trades overlap with its trade.

    Beside the number of trades and the sum of their excess: sums over all pairs of decisions at most `lags` apart, of
    the products of excess and excess, excess and number, number and number, with the weights of Bartlett's kernel.
    """
    number = bought.to(torch.float64)
    gained = torch.where(number > 0.0, excess * PERCENT, 0.0)
    sums = {"trades": number.sum(dim=1), "excess": gained.sum(dim=1)}
    for name, left, right in (
        ("excess_excess", gained, gained),
        ("excess_trades", gained, number),
        ("trades_trades", number, number),
    ):
        total = (left * right).sum(dim=1)
        for lag in range(1, min(lags, left.shape[1] - 1) + 1):
            both = left[:, lag:] * right[:, :-lag] + left[:, :-lag] * right[:, lag:]
            total = total + (1.0 - lag / (lags + 1)) * both.sum(dim=1)
        sums[name] = total
    return sums


def newey_west_lags(days: int) -> int:
    """Return the lags of a standard error over so many daily returns: 4 (days / 100)^(2 / 9) (Newey and West 1994)."""
    return int(4.0 * (days / 100.0) ** (2.0 / 9.0))


def excess_of(sums: Mapping[str, NDArray[np.float64]], periods_per_year: float | None = None) -> Excess | None:
    """Return the mean excess of all trades of episodes and its standard error; None with fewer than two trades.

    Args:
        sums: those of `excess_sums`, on the host.
        periods_per_year: what was counted as trades are days, of which a year has so many, and mean and error are of a
            year. None: of a trade.

    Trades overlap, so the error takes the covariance of decisions that are close to each other into account (Newey and
    West 1987, "A simple, positive semi-definite, heteroskedasticity and autocorrelation consistent covariance matrix",
    equation 5); the number of trades, which is random too, makes it the error of a ratio.
    """
    trades, excess, squares, products, counts = (float(sums[name].sum()) for name in _SUMS)
    if trades < 2:
        return None
    mean = excess / trades
    variance = squares - 2.0 * mean * products + mean**2 * counts
    error, scale = max(variance, 0.0) ** 0.5 / trades, periods_per_year or 1.0
    per: Literal["trade", "year"] = "trade" if periods_per_year is None else "year"
    return Excess(mean=mean * scale, standard_error=error * scale, trades=int(trades), per=per)


def excess_of_days(returns: Tensor, benchmark: Tensor, periods_per_year: float) -> Excess | None:
    """Return what daily returns of one account are beyond those of another a year; None with fewer than two days.

    Args:
        returns, benchmark: float64 `[days]`, as fractions.
        periods_per_year: days of trading a year.
    """
    difference = (returns - benchmark).unsqueeze(0)
    sums = excess_sums(difference, torch.ones_like(difference), newey_west_lags(len(returns)))
    return excess_of({name: values.cpu().numpy() for name, values in sums.items()}, periods_per_year)
