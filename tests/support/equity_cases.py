"""Equity curves from returns."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.trading import EquityCurve

CAPITAL = 1_000.0


def curve_of(
    returns: "pd.Series[float]",
    *,
    exposure: NDArray[np.float64] | None = None,
    traded: NDArray[np.float64] | None = None,
) -> EquityCurve:
    """The equity of an account with these daily returns, by date; without costs, and idle unless it is given."""
    none = np.zeros(len(returns))
    return EquityCurve(
        dates=returns.index.to_numpy().astype("datetime64[D]"),
        capital=CAPITAL,
        equity=CAPITAL * np.cumprod(1.0 + returns.to_numpy(dtype=np.float64)),
        exposure=none if exposure is None else exposure,
        traded=none if traded is None else traded,
        costs=none,
    )
