"""What the choice of symbols and the making of their prices do to a backtest, as far as prices show it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from eigen_core.market.days import Days

Dividends = Literal["adjusted", "unadjusted", "unknown"]

# New shares for old ones. Prices fall by the ratio; at a reverse split they rise by it.
_WHOLE_SPLITS = tuple(Fraction(new) for new in (2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 50, 100))
_SPLITS = (Fraction(3, 2), *_WHOLE_SPLITS, *(1 / ratio for ratio in _WHOLE_SPLITS))
_SPLIT_MOVES = -np.log([float(ratio) for ratio in _SPLITS])
_SPLIT_TOLERANCE = 0.03
_SPLIT_DEVIATIONS = 10.0
_DAYS_AROUND = 20
_FEWEST_DAYS_AROUND = 5
_SMALLEST_SPLIT = 1.2
_SMALLEST_DIVIDENDS = 0.005
_STALE_DAYS = 10
_ENDED_DAYS = 20
_SATURDAY = 5


@dataclass(frozen=True)
class SuspectedSplit:
    """A change of a price that is probably a split: `symbol`, `day` as YYYY-MM-DD, `ratio` of new to old shares."""

    symbol: str
    day: str
    ratio: str

    def __str__(self) -> str:
        """The split in words."""
        return f"{self.symbol} {self.ratio} on {self.day}"


@dataclass(frozen=True)
class StaleRun:
    """Closes of `symbol` that are the same on `days` of its days in succession; the first as YYYY-MM-DD."""

    symbol: str
    first_day: str
    days: int

    def __str__(self) -> str:
        """The run in words."""
        return f"{self.symbol} ({self.days:,} days from {self.first_day})"


@dataclass(frozen=True)
class UniverseAudit:
    """What prices show of the choice of symbols and of how prices were made.

    Attributes:
        ended_symbols: tradable symbols whose last price is more than 20 days before the last day.
        suspected_splits: changes from a close to the next day that are probably splits, not moves of the market. The
            change to the open (to the close without one) is within 3 % of 3:2, 2:1, 3:1 and so on up to 100:1, or of
            one of these but 3:2 in reverse; that to the close is at least ten times the standard deviation of daily
            log returns of the 20 days before and of the 20 days after; and most of those days have changing closes.
        dividends: whether prices are adjusted for dividends: `adjusted` if adjusted closes grow against closes by more
            than splits do, `unadjusted` if they do so for no symbol, `unknown` without adjusted closes that differ from
            closes.
        weekend_days: days of the panel that are Saturdays or Sundays.
        stale_runs: runs of ten or more identical closes.
        missing_share: share of all days and symbols without a price, before a symbol's first and after its last too.
    """

    ended_symbols: int
    suspected_splits: tuple[SuspectedSplit, ...]
    dividends: Dividends
    weekend_days: int
    stale_runs: tuple[StaleRun, ...]
    missing_share: float

    @classmethod
    def of(
        cls,
        days: Days,
        symbols: tuple[str, ...],
        assets: int,
        opened: NDArray[np.float64],
        close: NDArray[np.float64],
        factor: NDArray[np.float64],
    ) -> Self:
        """Audit prices.

        Args:
            days: datetime64[D] `[days]`.
            symbols: names; the `assets` tradable ones first.
            assets: number of tradable symbols.
            opened, close: opens and closes, float64 `[days, symbols]`, NaN where there is none.
            factor: float64 `[days, symbols]`, adjusted close / close; 1 everywhere where there are no adjusted closes.
        """
        splits: list[SuspectedSplit] = []
        stale: list[StaleRun] = []
        for column, symbol in enumerate(symbols):
            own = np.flatnonzero(~np.isnan(close[:, column]))
            known, prices = days[own], close[own, column]
            first = np.where(np.isnan(opened[own, column]), prices, opened[own, column])
            splits += [SuspectedSplit(symbol, str(known[day]), ratio) for day, ratio in _splits(first, prices)]
            stale += [StaleRun(symbol, str(known[day]), length) for day, length in _stale_runs(prices)]
        priced = ~np.isnan(close)
        return cls(
            ended_symbols=int((~priced[-_ENDED_DAYS - 1 :, :assets].any(axis=0)).sum()),
            suspected_splits=tuple(splits),
            dividends=_dividends(factor, priced),
            weekend_days=int((_weekdays(days) >= _SATURDAY).sum()),
            stale_runs=tuple(stale),
            missing_share=float(1.0 - priced.mean()),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the audit as values that JSON can hold."""
        return asdict(self) | {
            "suspected_splits": [asdict(split) for split in self.suspected_splits],
            "stale_runs": [asdict(run) for run in self.stale_runs],
        }

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the audit that `as_dict` made `values` of."""
        return cls(
            **{
                **values,
                "suspected_splits": tuple(SuspectedSplit(**split) for split in values["suspected_splits"]),
                "stale_runs": tuple(StaleRun(**run) for run in values["stale_runs"]),
            }
        )


def _splits(first: NDArray[np.float64], close: NDArray[np.float64]) -> list[tuple[int, str]]:
    """Return day and ratio of the changes that are probably splits, from each day's first price and its close."""
    overnight, moves = np.log(first[1:] / close[:-1]), np.log(close[1:] / close[:-1])
    found: list[tuple[int, str]] = []
    large = np.flatnonzero(np.abs(overnight) > np.log(1.5) - _SPLIT_TOLERANCE)
    distances = np.abs(overnight[large, None] - _SPLIT_MOVES)
    near = distances.min(axis=1) <= _SPLIT_TOLERANCE
    for move, nearest in zip(large[near], distances[near].argmin(axis=1), strict=True):
        sides = moves[max(move - _DAYS_AROUND, 0) : move], moves[move + 1 : move + 1 + _DAYS_AROUND]
        around = [side for side in sides if len(side) >= _FEWEST_DAYS_AROUND]
        deviation = max((side.std() for side in around), default=np.inf)
        # Closes that stood still, then jump, are stale.
        if abs(moves[move]) >= _SPLIT_DEVIATIONS * deviation and all(np.median(np.abs(side)) for side in around):
            found.append((int(move) + 1, f"{_SPLITS[nearest].numerator}:{_SPLITS[nearest].denominator}"))
    return found


def _stale_runs(close: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return first day and length of the runs of identical closes, of a symbol's own days."""
    starts = np.flatnonzero(np.diff(close, prepend=np.nan) != 0.0)
    lengths = np.diff(starts, append=len(close))
    return [(int(starts[run]), int(lengths[run])) for run in np.flatnonzero(lengths >= _STALE_DAYS)]


def _dividends(factor: NDArray[np.float64], priced: NDArray[np.bool_]) -> Dividends:
    if (factor[priced] == 1.0).all():
        return "unknown"
    for column in range(factor.shape[1]):
        steps = np.diff(np.log(factor[priced[:, column], column]))
        if steps[np.abs(steps) < np.log(_SMALLEST_SPLIT)].sum() > _SMALLEST_DIVIDENDS:
            return "adjusted"
    return "unadjusted"


def _weekdays(days: Days) -> NDArray[np.int64]:
    """Return the days of the week, Monday 0."""
    return (days.astype(np.int64) + 3) % 7
