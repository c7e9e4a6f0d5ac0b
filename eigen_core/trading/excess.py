"""Excess of trades over the market: their gain less that of all assets due to be sold on the same day."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.records import Excess
from eigen_core.config import TradingConfig
from eigen_core.trading.fills import fill_offset
from eigen_core.trading.orders import PERCENT, gain_at_close
from eigen_core.trading.prices import Prices


def market_gains(prices: Prices, trading: TradingConfig) -> Tensor:
    """Return what an asset drawn at random gains: float64 `[days, longest + 1]`, NaN where none can be bought.

    Entry [t, h] is the mean net gain (a fraction) over all assets that a decision on day t can buy, each sold at the
    fill of a sale that is due on day t + h, slippage and costs paid; see `Fills`. A trade is compared with the entry at
    `Fills.due_after`: where its sale waits, the sale of the market has to wait too.
    """
    days, fills = prices.days, prices.fills(trading)
    day = torch.arange(days, device=fills.entry.device)
    # No price of a later split is met.
    last = torch.maximum(prices.last_day, day + trading.holding_days).clamp(max=days - 1)
    gains = torch.full((days, fills.longest + 1), torch.nan, dtype=torch.float64, device=day.device)
    for offset in range(fill_offset(trading), fills.longest + 1):
        row = torch.minimum(day + offset, last)
        # A sale that is due later is none: what is held counts at the last close, also of an asset that has ended.
        sale = torch.where((day + offset > last)[:, None], prices.last_close[row], fills.sale[row])
        gains[:, offset] = gain_at_close(trading, fills.entry, sale).nanmean(dim=1)
    return gains


def newey_west_lags(days: int) -> int:
    """Return the lags of a standard error over so many daily returns: 4 (days / 100)^(2 / 9) (Newey and West 1994)."""
    return int(4.0 * (days / 100.0) ** (2.0 / 9.0))


def excess_of(
    excess: NDArray[np.float64],
    number: NDArray[np.float64],
    starts: NDArray[np.int64],
    lags: int,
    periods_per_year: float | None = None,
) -> Excess | None:
    """Return the mean excess of all trades of episodes and its standard error; None with fewer than two trades.

    Args:
        excess: what the trades of each decision gained beyond the market, summed (fractions), `[episodes, decisions]`.
        number: how many trades there were, `[episodes, decisions]`.
        starts: day of each episode's first decision, `[episodes]`. Episodes may overlap.
        lags: days after a decision whose trades overlap with its trades.
        periods_per_year: what was counted as trades are days, of which a year has so many, and mean and error are of a
            year. None: of a trade.

    What is estimated is the excess that the same agent may expect of a trade on days like these: the sum of the excess
    that a day is expected to bring, over the number of its trades. Only days are drawn at random. So all that episodes
    decided on one day of the calendar is one observation, whichever episode it is from, and days that are at most
    `lags` apart are related (Driscoll and Kraay 1998, "Consistent covariance matrix estimation with spatially dependent
    panel data", equations 5 and 6, with the kernel of Newey and West 1987). The number of trades is random too, which
    makes the error that of a ratio. Student's t of the interval has as many degrees of freedom as there are stretches
    of `lags` days with trades, less one: the trades of one stretch say little more than one of them.
    """
    trades = float(number.sum())
    if trades < 2:
        return None
    days = starts[:, None] - starts.min() + np.arange(excess.shape[1])
    gained, traded = (np.bincount(days.ravel(), values.ravel()) for values in (excess * PERCENT, number))
    mean = float(gained.sum()) / trades
    # The sum over all pairs of days with the weights of Bartlett's kernel is that of the squares of moving sums.
    moving = np.convolve(gained - mean * traded, np.ones(lags + 1))
    error = float(moving @ moving / (lags + 1)) ** 0.5 / trades
    stretches = len(np.unique(np.flatnonzero(traded) // max(lags, 1)))
    scale = periods_per_year or 1.0
    return Excess(
        mean=mean * scale,
        standard_error=error * scale,
        freedom=max(stretches - 1.0, 1.0),
        trades=int(trades),
        per="trade" if periods_per_year is None else "year",
    )


def excess_of_days(returns: Tensor, benchmark: Tensor, periods_per_year: float) -> Excess | None:
    """Return what daily returns of one account are beyond those of another a year; None with fewer than two days.

    Args:
        returns, benchmark: float64 `[days]`, as fractions.
        periods_per_year: days of trading a year.
    """
    difference = (returns - benchmark).cpu().numpy()[None]
    first, lags = np.zeros(1, dtype=np.int64), newey_west_lags(len(returns))
    return excess_of(difference, np.ones_like(difference), first, lags, periods_per_year)
