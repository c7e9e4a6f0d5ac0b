"""Several accounts as one: one after another, or side by side."""

from collections.abc import Sequence

import numpy as np

from eigen_core.account.equity import EquityCurve, share_of


def one_after_another(curves: Sequence[EquityCurve]) -> EquityCurve:
    """Return the account that trades span after span, each with all that the one before it has left.

    What an account holds at the end of its span counts at its last known close and becomes cash, without costs. Whole
    shares are those of each curve's own capital.

    Raises:
        ValueError: the spans are not in the order of their days.
    """
    dates = np.concatenate([curve.dates for curve in curves])
    if not np.all(dates[1:] > dates[:-1]):
        raise ValueError("the spans are not in the order of their days")
    capital, factors = curves[0].capital, []
    for curve in curves:
        factors.append(capital / curve.capital)
        capital = float(curve.equity[-1]) * factors[-1]

    def carried(name: str) -> np.ndarray:
        return np.concatenate([getattr(curve, name) * factor for curve, factor in zip(curves, factors, strict=True)])

    return EquityCurve(
        dates=dates,
        capital=curves[0].capital,
        equity=carried("equity"),
        exposure=np.concatenate([curve.exposure for curve in curves]),
        traded=carried("traded"),
        costs=carried("costs"),
    )


def side_by_side(curves: Sequence[EquityCurve]) -> EquityCurve:
    """Return the mean of accounts over the same days with the same capital: an equal share of it is in each."""
    equity = np.stack([curve.equity for curve in curves])
    positions = np.stack([curve.exposure for curve in curves]) * equity
    return EquityCurve(
        dates=curves[0].dates,
        capital=curves[0].capital,
        equity=equity.mean(axis=0),
        exposure=share_of(positions.mean(axis=0), equity.mean(axis=0)),
        traded=np.mean([curve.traded for curve in curves], axis=0),
        costs=np.mean([curve.costs for curve in curves], axis=0),
    )
