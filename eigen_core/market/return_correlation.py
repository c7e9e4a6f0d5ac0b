"""Rank correlations of features with later returns: they show values of the data that were not known on their days."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from eigen_core.market.panel_features import PanelFeatures

Values = NDArray[np.float64]

MOST_OF_A_SYMBOL, MOST_IN_THE_MEAN = 0.2, 0.1
"""Rank correlation of one symbol, and mean of absolute values over all symbols, below which nothing is suspected."""
ERRORS_OF_A_SYMBOL, ERRORS_IN_THE_MEAN = 7.0, 4.0
"""The same in standard errors: returns of h days overlap, so that n days are like n / h returns."""

_FEWEST_RETURNS = 250
_FEWEST_SYMBOLS = 5
_PARTS = 3


@dataclass(frozen=True)
class SuspectedLeak:
    """A feature that knows too much of later returns.

    Attributes:
        feature: its name.
        symbol: whose feature it is; None: of all symbols.
        correlation: rank correlation with the return after the day; of all symbols the mean of the absolute values.
        limit: its absolute value from which it is suspected.
        horizon: days of the return.
        first_day, last_day: between which they correlate that much, as YYYY-MM-DD.
    """

    feature: str
    symbol: str | None
    correlation: float
    limit: float
    horizon: int
    first_day: str
    last_day: str

    def __str__(self) -> str:
        """The suspicion as a sentence."""
        ahead = "day" if self.horizon == 1 else f"{self.horizon} days"
        whose = f"{self.feature} has" if self.symbol is None else f"{self.feature} of {self.symbol} has"
        what = "a mean absolute rank correlation over all symbols" if self.symbol is None else "a rank correlation"
        return (
            f"{whose} {what} of {self.correlation:.2f} with the return of the next {ahead} from {self.first_day} to "
            f"{self.last_day}: what is known at the close stays below {self.limit:.2f}."
        )


@dataclass(frozen=True)
class TriedCorrelations:
    """What correlations with later returns were tried, and what was found.

    Attributes:
        first_day, last_day: of the days tried, as YYYY-MM-DD; each third of them was tried too.
        days: how many there are.
        horizon: longest return (days).
        tried: whether a symbol has enough prices.
        suspected: one finding a feature at most.
    """

    first_day: str
    last_day: str
    days: int
    horizon: int
    tried: bool
    suspected: tuple[SuspectedLeak, ...]

    @property
    def unseen(self) -> str:
        """What cannot be seen, as a sentence."""
        if not self.tried:
            return (
                f"No symbol has {_FEWEST_RETURNS + self.horizon} prices from {self.first_day} to {self.last_day}: what "
                "columns of the data know of later days was not tried."
            )
        third, ends = self.days // _PARTS, np.array([1, self.horizon])
        one, mean = (np.minimum(limits(third, ends, of_a_symbol), 1.0) for of_a_symbol in (True, False))
        return (
            "What columns of the data and functions that read files know of later days shows in rank correlations "
            f"alone. They were tried with the returns of the next 1 to {self.horizon} days, from {self.first_day} to "
            f"{self.last_day} and in each third of these days. Not seen is knowledge that correlates less than "
            f"{one[0]:.2f} (1 day) to {one[1]:.2f} ({self.horizon} days) in each symbol and {mean[0]:.2f} to "
            f"{mean[1]:.2f} in the mean of {_FEWEST_SYMBOLS} or more, knowledge of fewer than about "
            f"{round(one[0] * third):,} days of a symbol, of what begins more than {self.horizon} days later, and of "
            "days held out."
        )


def try_correlations(features: PanelFeatures, days: range, longest: int) -> TriedCorrelations:
    """Return which features correlate more with later returns than one that is known on its evening can.

    Args:
        features: of all symbols, before normalisation.
        days: positions of the days that may be seen.
        longest: days of the longest return.

    Of each symbol the days with a price are taken, all of `days` and each third of them, where there are 250 or more.
    """
    parts = [days, *(days[part[0] : part[-1] + 1] for part in np.array_split(np.arange(len(days)), _PARTS))]
    found, numbers = _of_parts(features, parts, longest)
    known, sizes, horizons = ~np.isnan(found), np.abs(np.nan_to_num(found)), np.arange(1, longest + 1)
    symbols = known[..., 0].sum(axis=1)
    means = sizes.sum(axis=1) / np.maximum(symbols, 1)[..., None]
    of_one = limits(numbers, horizons, of_a_symbol=True)
    in_mean = limits(numbers.sum(axis=1) / np.maximum(symbols, 1), horizons, of_a_symbol=False)
    beyond = np.where(known, sizes / of_one, 0.0)
    beyond_mean = np.where(symbols[..., None] >= _FEWEST_SYMBOLS, means / in_mean, 0.0)
    dates, suspected = features.prices.days, []
    for feature, name in enumerate(features.names):
        each, mean = beyond[:, :, feature], beyond_mean[:, feature]
        if max(each.max(), mean.max()) < 1.0:
            continue
        if mean.max() >= each.max():
            part, horizon = map(int, np.unravel_index(mean.argmax(), mean.shape))
            symbol, cell = None, (part, feature, horizon)
            correlation, limit = means[cell], in_mean[cell]
        else:
            part, column, horizon = map(int, np.unravel_index(each.argmax(), each.shape))
            symbol, at = features.prices.symbols[column], (part, column, feature, horizon)
            correlation, limit = found[at], of_one[at]
        first, last = (str(dates[day]) for day in (parts[part][0], parts[part][-1]))
        suspected.append(SuspectedLeak(name, symbol, float(correlation), float(limit), horizon + 1, first, last))
    first, last = (str(dates[day]) for day in (days[0], days[-1]))
    return TriedCorrelations(first, last, len(days), longest, bool(known.any()), tuple(suspected))


def _of_parts(features: PanelFeatures, parts: Sequence[range], longest: int) -> tuple[Values, Values]:
    """Return correlations `[parts, symbols, features, horizons]`, NaN where there are too few days, and how many days.

    Args:
        features: of all symbols.
        parts: positions of the days of each.
        longest: days of the longest return.
    """
    symbols, close = features.prices.symbols, np.log(features.prices.close)
    found = np.full((len(parts), len(symbols), len(features.names), longest), np.nan)
    numbers = np.zeros(found.shape[:3])
    for column in range(len(symbols)):
        values = features.of_column(column)
        for part, days in enumerate(parts):
            own = days.start + np.flatnonzero(~np.isnan(close[days.start : days.stop, column]))
            for feature, number, correlations in _correlations(values[own], close[own, column], longest):
                found[part, column, feature], numbers[part, column, feature] = correlations, number
    return found, numbers


def limits(numbers: NDArray[np.float64] | float, horizons: NDArray[np.int64], of_a_symbol: bool) -> Values:
    """Return from which correlation on a feature is suspected: `[..., horizons]` for `numbers` of days, `[...]`.

    A feature that changes slowly correlates with overlapping returns by chance as if there were n / h of them. No
    feature computed from prices reaches these limits on the bundled prices, or on prices made of them in which nothing
    can be predicted (`benchmarks/audit.py`).
    """
    errors = np.sqrt(horizons / np.maximum(np.asarray(numbers, dtype=np.float64), 1.0)[..., None])
    most, factor = (MOST_OF_A_SYMBOL, ERRORS_OF_A_SYMBOL) if of_a_symbol else (MOST_IN_THE_MEAN, ERRORS_IN_THE_MEAN)
    bounds: Values = np.maximum(most, factor * errors)
    return bounds


def _correlations(values: Values, close: Values, longest: int) -> Iterator[tuple[int, int, Values]]:
    """Yield each feature that has enough values, how many, and its rank correlation with the return of each horizon.

    Args:
        values: `[days, features]`, NaN where unknown.
        close: logarithms, `[days]`.
        longest: days of the longest return.
    """
    number = len(close) - longest
    if number < _FEWEST_RETURNS:
        return
    returns = np.column_stack([close[horizon : horizon + number] - close[:number] for horizon in range(1, longest + 1)])
    ranked: dict[bytes, Values] = {}
    for feature, of_feature in enumerate(values[:number].T):
        known = ~np.isnan(of_feature)
        if known.sum() < _FEWEST_RETURNS:
            continue
        # Most features are known on the same days, and ranking all horizons is most of the work.
        key = known.tobytes()
        if key not in ranked:
            ranked[key] = _ranks(returns[known])
        yield feature, int(known.sum()), _ranks(of_feature[known, None])[:, 0] @ ranked[key]


def _ranks(values: Values) -> Values:
    """Return the ranks of each column, of mean 0 and length 1; zeros where all values are equal."""
    ranks = rankdata(values, axis=0)
    ranks -= ranks.mean(axis=0)
    length = np.sqrt((ranks**2).sum(axis=0))
    unit: Values = np.divide(ranks, length, out=np.zeros_like(ranks), where=length > 0.0)
    return unit
