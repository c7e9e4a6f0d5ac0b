"""Excess return of trades and accounts over the market, and their alpha, with standard errors.

The market is the mean of all assets that can be bought. A day is a row of the prices, counted from 0.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.records import Excess
from eigen_core.config import TradingConfig
from eigen_core.trading.equity import Values
from eigen_core.trading.orders import PERCENT
from eigen_core.trading.prices import Prices
from eigen_core.trading.trades import DecidedTrades

# Up to this standard deviation the gains of a market differ by rounding alone.
_ROUNDING = 1e-12
_FEWEST = 10


def market_gains(prices: Prices, trading: TradingConfig, day: Tensor, due: Tensor) -> Tensor:
    """Return the mean gain over all assets of a decision on each `day`, float64; NaN where no asset can be bought.

    It is the mean net gain (a fraction) over all assets that the decision can buy, each sold by an order that is due on
    day + `due`, after slippage and costs; see `Fills`. A trade is compared with that of `Fills.due_after`, the day on
    which its sale was due: the sales of the market may wait for their fills too. `day` and `due` are int64, of one
    shape.
    """
    fills = prices.fills(trading)
    # Prices of a later split are not used.
    last = torch.maximum(prices.last_day[day], day + trading.holding_bars).clamp(max=prices.days - 1)
    row = torch.minimum(day + due, last)
    # Positions whose sale is due later count at the last close, also of an asset that has ended.
    sale = torch.where((day + due > last)[..., None], prices.last_close[row], fills.sale[row])
    return prices.costs(trading).gain_at_market(fills.entry[day], sale).nanmean(dim=-1)


def newey_west_lags(days: int) -> int:
    """Return the lags (days) for the standard error of daily returns: 4 (days / 100)^(2 / 9) (Newey and West 1994)."""
    return int(4.0 * (days / 100.0) ** (2.0 / 9.0))


def mean_excess(
    excess: NDArray[np.float64],
    number: NDArray[np.float64],
    starts: NDArray[np.int64],
    lags: int,
    periods_per_year: float | None = None,
) -> Excess | None:
    """Return the mean excess of the trades of episodes and its standard error (%); None with fewer than two trades.

    Only days are random: all decisions on one day are one observation, whichever episode they are from, and days at
    most `lags` apart are correlated (Driscoll and Kraay 1998, "Consistent covariance matrix estimation with spatially
    dependent panel data", equations 5 and 6, with the kernel of Newey and West 1987). The number of trades is random
    too, so the error is that of a ratio. If the days are cut into stretches of `lags` days, the trades of a stretch are
    nearly one observation: Student's t has one degree of freedom less than there are stretches with trades, at least 1.

    Args:
        excess: sum over each decision's trades of the gain less the market's (fractions), `[episodes, decisions]`.
        number: number of trades of each decision, `[episodes, decisions]`.
        starts: day of each episode's first decision, `[episodes]`; episodes may overlap.
        lags: for how many days after a decision later trades overlap with its trades: their longest holding time.
        periods_per_year: trading days of a year, by which to annualise if trades are daily returns; None: per trade.
    """
    trades = float(number.sum())
    if trades < 2:
        return None
    days = starts[:, None] - starts.min() + np.arange(excess.shape[1])
    gained, traded = (np.bincount(days.ravel(), values.ravel()) for values in (excess * PERCENT, number))
    mean = float(gained.sum()) / trades
    error = _sum_of_pairs(gained - mean * traded, lags) ** 0.5 / trades
    scale = periods_per_year or 1.0
    return Excess(
        mean=mean * scale,
        standard_error=error * scale,
        freedom=_freedom(np.flatnonzero(traded), lags, 1),
        trades=int(trades),
        per="trade" if periods_per_year is None else "year",
    )


def _freedom(traded: NDArray[np.int64], lags: int, fitted: int) -> float:
    """Return degrees of freedom: the stretches of `lags` days with days `traded`, less `fitted` values; at least 1."""
    return max(len(np.unique(traded // max(lags, 1))) - fitted, 1.0)


def _sum_of_pairs(daily: Values, lags: int) -> float:
    """Return the sum over all pairs of days of their products, weighted by Bartlett's kernel; `daily` is `[days]`."""
    # This equals the sum of the squares of moving sums.
    moving = np.convolve(daily, np.ones(lags + 1))
    return float(moving @ moving / (lags + 1))


def excess_of_days(returns: Values, benchmark: Values, periods_per_year: float) -> Excess | None:
    """Return the excess per year (%) of daily returns over a benchmark's, float64 `[days]` each; None for one day."""
    difference = (returns - benchmark)[None]
    first, lags = np.zeros(1, dtype=np.int64), newey_west_lags(len(returns))
    return mean_excess(difference, np.ones_like(difference), first, lags, periods_per_year)


def excess_of_trades(
    trades: DecidedTrades, known: Prices, trading: TradingConfig, *, any_day: bool = False
) -> tuple[Excess | None, Excess | None]:
    """Return the mean excess of trades over buying all assets that could be bought on the same day, and their alpha.

    Both are per trade (%); see `mean_excess` and `alpha_of`, also for None. The sales of the assets compared with are
    due on the same day as the trade's (`market_gains`). `known` are prices of the days, as `prices_of_span`
    returns them. With `any_day` a trade is compared with buying on each day of the span, held as long as the trade may
    be, instead of on its day.
    """
    made, device = trades.asset >= 0, known.close.device
    every = np.arange(int(known.last_day[0] + 1))
    day = np.broadcast_to(trades.day[..., None], made.shape)
    due, market = trades.due_day(known.fills(trading)) - day, np.full(made.shape, np.nan)

    def of_market(days: NDArray[np.int64], due: NDArray[np.int64]) -> Values:
        given = (torch.tensor(values, device=device) for values in (days, due))
        return market_gains(known, trading, *given).cpu().numpy()

    if any_day:
        for held in np.unique(due[made]):
            found = of_market(every, np.full_like(every, held))
            market[made & (due == held)] = found[~np.isnan(found)].mean()
    else:
        # Many trades are decided, and their sales due, on the same days.
        pairs, place = np.unique(day[made] * known.days + due[made], return_inverse=True)
        market[made] = of_market(*np.divmod(pairs, known.days))[place]
    costs = known.costs(trading).to(torch.device("cpu")).of_assets(torch.tensor(trades.asset).clamp_(min=0))
    gains = costs.net_gain(torch.tensor(trades.entry), torch.tensor(trades.exit)).numpy()
    excess = np.where(made, gains - market, 0.0)
    decided = day[made]
    gained, number = (
        np.bincount(decided, values[made], len(every))[None].astype(np.float64) for values in (excess, made)
    )
    return (
        mean_excess(gained, number, np.zeros(1, dtype=np.int64), trading.holding_bars),
        alpha_of(excess[made], market[made], decided, trading.holding_bars),
    )


def alpha_of_days(returns: Values, market: Values, periods_per_year: float) -> Excess | None:
    """Return the alpha per year (%) of daily returns against the market's, float64 `[days]` each; see `alpha_of`."""
    return alpha_of(returns - market, market, np.arange(len(returns)), newey_west_lags(len(returns)), periods_per_year)


def alpha_of(
    excess: Values, market: Values, day: NDArray[np.int64], lags: int, periods_per_year: float | None = None
) -> Excess | None:
    """Return alpha: the intercept of a regression of the excess on the market's gain, with its standard error (%).

    An agent that prefers volatile assets gains more than the market while the market rises; alpha is the gain that this
    does not explain (Jensen 1968). Error and degrees of freedom are those of `mean_excess`, but one degree of freedom
    less, since two values are fitted. None with fewer than 10 observations, or
    if the market's gain is the same in all of them.

    Args:
        excess, market: excess and market's gain of each trade or day, as fractions, float64 `[observations]`.
        day: day of each observation, counted from the first day of the span, int64 `[observations]`.
        lags: see `mean_excess`.
        periods_per_year: trading days of a year, by which to annualise the alpha of daily returns; None: per trade.
    """
    if len(excess) < _FEWEST or market.std() <= _ROUNDING:
        return None
    inputs = np.column_stack([np.ones(len(market)), market])
    inverse = np.linalg.inv(inputs.T @ inputs)
    fitted = inverse @ (inputs.T @ excess)
    residuals = excess - inputs @ fitted
    daily: Values = np.bincount(day, inputs @ inverse[0] * residuals)  # type: ignore[assignment] # float64 by weights
    variance = _sum_of_pairs(daily, lags)
    scale = PERCENT * (periods_per_year or 1.0)
    return Excess(
        mean=float(fitted[0]) * scale,
        standard_error=variance**0.5 * scale,
        freedom=_freedom(day, lags, 2),
        trades=len(excess),
        per="trade" if periods_per_year is None else "year",
    )
