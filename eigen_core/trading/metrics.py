"""Metrics of an account: return, risk, comparison with a benchmark, and the gain by asset.

Names are those of the library quantstats; `docs/report.md` says where and why definitions differ from it.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from skfolio.measures import probabilistic_sharpe_ratio

from eigen_core.trading.equity import EquityCurve, Values, daily_rates

TAIL = 0.05
"""Quantile of the daily returns up to which the expected shortfall averages them."""

# Returns that differ by rounding alone have no volatility.
_ROUNDING = 1e-12
_DAY = np.timedelta64(1, "D")


@dataclass(frozen=True)
class Metrics:
    """Metrics of one account; None where undefined, such as a ratio whose denominator is 0.

    `r` are the daily returns, `e` the daily returns less the risk-free rate since the day before (`daily_rates`), `P`
    the trading days of a year, `std` the standard deviation with N - 1. The drawdown of a day is equity / highest
    equity so far - 1; the capital before the first day counts as an equity. `days` is the number of days.

    Attributes:
        total_return: last equity / capital - 1.
        cagr: (1 + total_return)^(P / days) - 1.
        volatility: std(r) sqrt(P).
        sharpe: mean(e) / std(e) sqrt(P) (Sharpe 1994, "The Sharpe ratio"); None if the account earned interest alone.
        probabilistic_sharpe: probability, from 0 to 1, that the true Sharpe ratio is above 0, given the number,
            skewness and kurtosis of e (Bailey and Lopez de Prado, Journal of Risk 2012, equation 9).
        sortino: mean(e) / sqrt(mean(min(e, 0)^2)) sqrt(P) (Sortino and Price, Journal of Investing 1994).
        calmar: cagr / -max_drawdown.
        max_drawdown: the deepest drawdown, <= 0.
        longest_drawdown_days: most calendar days in a row below the highest equity, first and last day counted.
        ulcer_index: sqrt(mean(drawdown^2)) (Martin and McCann, The Investor's Guide to Fidelity Funds, 1989).
        expected_shortfall: mean of the returns up to their 5 % quantile.
        time_in_market: share of the days whose positions at the close are worth more than 0.
        turnover: value of purchases and sales per year / mean equity; 0 if the mean equity is 0.
        win_days: days with a gain / days with a gain or a loss.
        beta: cov(r, r_benchmark) / var(r_benchmark).
        alpha: (mean(e) - beta mean(e_benchmark)) P (Jensen, Journal of Finance 1968).
        information_ratio: mean(r - r_benchmark) / std(r - r_benchmark) sqrt(P).
    """

    total_return: float
    cagr: float
    volatility: float | None
    sharpe: float | None
    probabilistic_sharpe: float | None
    sortino: float | None
    calmar: float | None
    max_drawdown: float
    longest_drawdown_days: int
    ulcer_index: float
    expected_shortfall: float
    time_in_market: float
    turnover: float
    win_days: float | None
    beta: float | None
    alpha: float | None
    information_ratio: float | None


def compute_metrics(
    curve: EquityCurve, benchmark: EquityCurve | None = None, *, periods_per_year: float, risk_free: float = 0.0
) -> Metrics:
    """Return the metrics of an account; without a `benchmark` beta, alpha and information ratio are None.

    Metrics are annualised by `periods_per_year`, trading days of a year. `risk_free` is an annual rate (a fraction).

    Raises:
        ValueError: the curve has no days or an equity below 0, or the benchmark has other days.
    """
    if not len(curve.dates) or not (curve.equity >= 0.0).all():
        lowest = curve.equity.min(initial=np.inf)
        raise ValueError(
            f"Metrics need an account of 1 day or more without an equity below 0; this account has {len(curve.dates)} "
            f"days, and its lowest equity is {lowest}."
        )
    returns, days = curve.returns, len(curve.dates)
    daily_risk_free = daily_rates(risk_free, curve.dates)
    excess, drawdown = returns - daily_risk_free, drawdowns(curve)
    total_return = float(curve.equity[-1] / curve.capital - 1.0)
    cagr = float((1.0 + total_return) ** (periods_per_year / days) - 1.0)
    max_drawdown = float(drawdown.min())
    year = float(np.sqrt(periods_per_year))
    spread = 0.0 if _is_interest(curve) else _spread(excess)
    downside = float(np.sqrt(np.mean(np.minimum(excess, 0.0) ** 2)))
    mean = float(excess.mean())
    gains, losses = int((returns > 0.0).sum()), int((returns < 0.0).sum())
    beta, alpha, information_ratio = _against(curve, benchmark, daily_risk_free, periods_per_year)
    return Metrics(
        total_return=total_return,
        cagr=cagr,
        volatility=None if days < 2 else _spread(returns) * year,
        sharpe=_ratio(mean * year, spread),
        probabilistic_sharpe=_probabilistic_sharpe(excess) if spread else None,
        sortino=_ratio(mean * year, downside),
        calmar=_ratio(cagr, -max_drawdown),
        max_drawdown=max_drawdown,
        longest_drawdown_days=_longest(curve.dates, drawdown < 0.0),
        ulcer_index=float(np.sqrt(np.mean(drawdown**2))),
        expected_shortfall=float(returns[returns <= np.quantile(returns, TAIL)].mean()),
        time_in_market=float((curve.exposure > 0.0).mean()),
        turnover=_ratio(float(curve.traded.sum()) * periods_per_year / days, float(curve.equity.mean())) or 0.0,
        win_days=_ratio(gains, gains + losses),
        beta=beta,
        alpha=alpha,
        information_ratio=information_ratio,
    )


def drawdowns(curve: EquityCurve) -> Values:
    """Return each day's drawdown, a fraction of the highest equity so far: float64 `[days]`, 0 or below."""
    return curve.equity / np.maximum.accumulate(np.maximum(curve.equity, curve.capital)) - 1.0


def _against(
    curve: EquityCurve, benchmark: EquityCurve | None, risk_free: Values, periods_per_year: float
) -> tuple[float | None, float | None, float | None]:
    """Return beta, alpha and information ratio; None where undefined. `risk_free` are the rates of the days."""
    if benchmark is None:
        return None, None, None
    if not np.array_equal(curve.dates, benchmark.dates):
        raise ValueError(
            f"The benchmark ({len(benchmark.dates)} days) and the account ({len(curve.dates)}) need the same dates."
        )
    returns, market = curve.returns, benchmark.returns
    difference = returns - market
    information_ratio = _ratio(float(difference.mean() * np.sqrt(periods_per_year)), _spread(difference))
    if not _spread(market):
        return None, None, information_ratio
    covariance = np.cov(returns, market)
    beta = float(covariance[0, 1] / covariance[1, 1])
    alpha = float((returns - risk_free).mean() - beta * (market - risk_free).mean()) * periods_per_year
    return beta, alpha, information_ratio


def _spread(values: Values) -> float:
    """Return the standard deviation; 0 for a single value, and if the values differ by rounding alone."""
    deviation = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return deviation if deviation > _ROUNDING else 0.0


def _is_interest(curve: EquityCurve) -> bool:
    """Return whether the equity grew at one rate per calendar day on all days, as it does by interest alone."""
    grown, elapsed = curve.equity / curve.capital, (curve.dates - curve.dates[0]) / _DAY
    if len(grown) < 2 or grown[-1] <= 0.0:
        return False
    return bool(np.abs(grown - grown[-1] ** (elapsed / elapsed[-1])).max() <= _ROUNDING * len(grown))


def _ratio(value: float, by: float) -> float | None:
    return value / by if by else None


def _probabilistic_sharpe(excess: Values) -> float | None:
    probability = float(probabilistic_sharpe_ratio(excess))
    return probability if np.isfinite(probability) else None


def _longest(dates: NDArray[np.datetime64], below: NDArray[np.bool_]) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], below, [False]))))
    first, last = edges[::2], edges[1::2] - 1
    return int(((dates[last] - dates[first]) // _DAY + 1).max(initial=0))


def gain_by_asset(trades: pd.DataFrame) -> pd.DataFrame:
    """Return the gain of each asset in rows of `TradedAccounts.table` or `WeightsAccounts.table`, the highest first.

    Columns: symbol, trades (number of rows), won (share of the trades with a gain; NaN for `WeightsAccounts`, whose
    rows are single orders), paid, costs, gain (money).
    """
    won = trades["gain"] > 0.0 if "exit" in trades else np.nan
    grouped = trades.assign(won=won).groupby("symbol")
    table = grouped.agg(
        trades=("gain", "size"), won=("won", "mean"), paid=("paid", "sum"), costs=("costs", "sum"), gain=("gain", "sum")
    )
    return table.sort_values("gain", ascending=False, kind="stable").reset_index()
