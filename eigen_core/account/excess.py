"""Excess of trades over the market, and the part of it that the market's own gain does not explain."""

import numpy as np
import torch
from numpy.typing import NDArray
from statsmodels.stats.sandwich_covariance import S_hac_simple

from eigen_core.account.trades import DecidedTrades
from eigen_core.common.records import Excess
from eigen_core.config import TradingConfig
from eigen_core.trading import Prices, excess_of, market_gains
from eigen_core.trading.excess import newey_west_lags
from eigen_core.trading.orders import PERCENT, net_gain

Values = NDArray[np.float64]

# Markets whose gains differ by rounding alone explain nothing.
_ROUNDING = 1e-12
_FEWEST = 10


def excess_of_trades(
    trades: DecidedTrades, known: Prices, trading: TradingConfig, *, any_day: bool = False
) -> tuple[Excess | None, Excess | None]:
    """Return the mean of what trades gained beyond all assets that could be bought that day, and its alpha.

    Args:
        trades: of one or more agents, `[agents, days, K]`. What is decided on one day counts together in the errors.
        known: prices of the span, as `prices_of_span` returns them.
        trading: the rules.
        any_day: beyond what is gained by buying on any day of the span instead.

    Both are of a trade (%), and the market's sale is due on the same day; see `market_gains`, `excess_of` and
    `alpha_of`.
    """
    days = trades.asset.shape[1]
    made, day = trades.asset >= 0, np.arange(days)[:, None]
    of_day = market_gains(known, trading).cpu().numpy()[:days]
    if any_day:
        known_gains = ~np.isnan(of_day)
        of_day[:] = np.where(known_gains, of_day, 0.0).sum(axis=0) / np.maximum(known_gains.sum(axis=0), 1)
    market = of_day[day, np.where(made, trades.due_day(known.fills(trading)) - day, 0)]
    gains = net_gain(trading, torch.tensor(trades.entry), torch.tensor(trades.exit)).numpy()
    excess = np.where(made, gains - market, 0.0)
    gained, number = excess.sum(axis=2), made.sum(axis=2).astype(np.float64)
    decided = np.broadcast_to(day, made.shape)[made]
    return (
        excess_of(gained, number, np.zeros(len(made), dtype=np.int64), trading.holding_days),
        alpha_of(excess[made], market[made], decided, trading.holding_days),
    )


def alpha_of_days(returns: Values, market: Values, periods_per_year: float) -> Excess | None:
    """Return the alpha of daily returns beyond the market's, float64 `[days]` each, of a year (%); see `alpha_of`."""
    return alpha_of(returns - market, market, np.arange(len(returns)), newey_west_lags(len(returns)), periods_per_year)


def alpha_of(
    excess: Values, market: Values, day: NDArray[np.int64], lags: int, periods_per_year: float | None = None
) -> Excess | None:
    """Return the intercept of the excess on the market's gain, with its standard error (%).

    Who prefers assets that move more than the market gains more than it while it rises; the intercept is what is left
    (Jensen 1968). Observations of a day count together in the error, and those at most `lags` days apart are related
    (Driscoll and Kraay 1998, "Consistent covariance matrix estimation with spatially dependent panel data", with
    Bartlett's kernel).

    Args:
        excess, market: of each trade or day, as fractions, float64 `[observations]`.
        day: of each, counted from the span's first, int64 `[observations]`.
        lags: days.
        periods_per_year: days of a year that the intercept is of; None: it is of a trade.

    Returns None where there are fewer than 10 observations, or the market does not move.
    """
    if len(excess) < _FEWEST or market.std() <= _ROUNDING:
        return None
    inputs = np.column_stack([np.ones(len(market)), market])
    inverse = np.linalg.inv(inputs.T @ inputs)
    fitted = inverse @ (inputs.T @ excess)
    moments = np.zeros((day.max() + 1, 2))
    np.add.at(moments, day, inputs * (excess - inputs @ fitted)[:, None])
    variance = (inverse @ S_hac_simple(moments, nlags=lags) @ inverse)[0, 0]
    scale = PERCENT * (periods_per_year or 1.0)
    return Excess(
        mean=float(fitted[0]) * scale,
        standard_error=max(float(variance), 0.0) ** 0.5 * scale,
        trades=len(excess),
        per="trade" if periods_per_year is None else "year",
    )
