"""What the choice of symbols and the making of their prices do to a backtest, as far as prices show it."""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from eigen_core.market.stamps import Days, weekdays_of

Dividends = Literal["adjusted", "unadjusted", "unknown"]

_SMALLEST_SPLIT = 1.2
_SMALLEST_DIVIDENDS = 0.005
_ENDED_DAYS = 20
_SATURDAY = 5


@dataclass(frozen=True)
class UniverseAudit:
    """What prices show of the choice of symbols and of how prices were made.

    Attributes:
        ended_symbols: tradable symbols whose last price is more than 20 days before the last day.
        dividends: whether prices are adjusted for dividends: `adjusted` if adjusted closes grow against closes by more
            than splits do, `unadjusted` if they do so for no symbol, `unknown` without adjusted closes that differ from
            closes.
        weekend_days: days of the panel that are Saturdays or Sundays.
        missing_share: share of all days and symbols without a price, before a symbol's first and after its last too.
    """

    ended_symbols: int
    dividends: Dividends
    weekend_days: int
    missing_share: float

    @classmethod
    def of(
        cls,
        days: Days,
        assets: int,
        close: NDArray[np.float64],
        factor: NDArray[np.float64],
    ) -> Self:
        """Audit prices.

        Args:
            days: datetime64[D] `[days]`.
            assets: number of tradable symbols, which come first.
            close: closes, float64 `[days, symbols]`, NaN where there is none.
            factor: float64 `[days, symbols]`, adjusted close / close; 1 everywhere where there are no adjusted closes.
        """
        priced = ~np.isnan(close)
        return cls(
            ended_symbols=int((~priced[-_ENDED_DAYS - 1 :, :assets].any(axis=0)).sum()),
            dividends=_dividends(factor, priced),
            weekend_days=int((weekdays_of(days) >= _SATURDAY).sum()),
            missing_share=float(1.0 - priced.mean()),
        )


def _dividends(factor: NDArray[np.float64], priced: NDArray[np.bool_]) -> Dividends:
    if (factor[priced] == 1.0).all():
        return "unknown"
    for column in range(factor.shape[1]):
        steps = np.diff(np.log(factor[priced[:, column], column]))
        if steps[np.abs(steps) < np.log(_SMALLEST_SPLIT)].sum() > _SMALLEST_DIVIDENDS:
            return "adjusted"
    return "unadjusted"
