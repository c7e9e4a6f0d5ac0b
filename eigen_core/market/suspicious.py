"""Rows of prices that are probably wrong, each named with its symbol and day."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eigen_core.market.stamps import Days
from eigen_core.market.vendors import Role

Grid = NDArray[np.float64]
Kind = Literal["spike", "jump", "move", "not positive", "twice", "adjusted late", "last day", "stale", "unfinished"]

# New shares for old ones. Prices fall by the ratio; at a reverse split they rise by it.
_WHOLE_SPLITS = tuple(Fraction(new) for new in (2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 50, 100))
_SPLITS = (Fraction(3, 2), *_WHOLE_SPLITS, *(1 / ratio for ratio in _WHOLE_SPLITS))
_SPLIT_MOVES = -np.log([float(ratio) for ratio in _SPLITS])
_SPLIT_TOLERANCE = 0.03
_SPLIT_DEVIATIONS = 10.0
_DAYS_AROUND = 20
_FEWEST_DAYS_AROUND = 5
_STALE_DAYS = 10
_SPIKE, _BACK, _SPIKE_DAYS = 3.0, 1.5, 3
_JUMP, _LARGE = 5.0, 2.0
_LAST_LOSS = 0.99
_LATE_FACTOR = 1.02
_SENTENCES: dict[Kind, str] = {
    "spike": "A price away by a factor of three or more from those around it",
    "jump": "A jump that stays, as of a split that prices are not adjusted for, or by a factor of five or more",
    "not positive": "A close of zero or below",
    "twice": "A day twice, with other prices",
    "adjusted late": "Adjusted closes begin after closes, on another scale",
    "last day": "A loss of 99 % or more, or a rise by a factor of five or more, on the last day",
    "move": "A change far beyond those of the days around it, which may be a split that prices are not adjusted for",
    "stale": "The same close on ten days or more in succession, so that probably nothing was traded",
    "unfinished": "Bars of the last day end before the usual time",
}
_HARMLESS: frozenset[Kind] = frozenset(("move", "stale", "unfinished"))


@dataclass(frozen=True)
class SuspiciousRow:
    """A row that is probably wrong.

    Attributes:
        kind: what is suspicious of it.
        symbol: whose; empty: of all.
        day: as YYYY-MM-DD; the first of several.
        detail: the numbers that show it, in words.
        left_out: it is not in the panel.
    """

    kind: Kind
    symbol: str
    day: str
    detail: str = ""
    left_out: bool = False

    @property
    def ends_a_scale(self) -> bool:
        """Whether it is the rows before it that are of another scale than all later ones."""
        return self.kind in ("jump", "adjusted late")

    def __str__(self) -> str:
        """The row in words."""
        notes = ", ".join(note for note in (self.detail, "left out" if self.left_out else "") if note)
        return f"{self.symbol} {self.day}".strip() + (f" ({notes})" if notes else "")


def absurd(rows: Sequence[SuspiciousRow]) -> tuple[SuspiciousRow, ...]:
    """Return the rows that make figures absurd, but those that are left out: `market.suspicious` decides on them."""
    return tuple(row for row in rows if row.kind not in _HARMLESS and not row.left_out)


def sentences(rows: Sequence[SuspiciousRow], shown: int = 5) -> list[str]:
    """Return a sentence for each kind of suspicious rows."""
    found = []
    for kind, words in _SENTENCES.items():
        own = [str(row) for row in rows if row.kind == kind]
        more = f" and {len(own) - shown:,} more" if len(own) > shown else ""
        if own:
            found.append(f"{words}: {', '.join(own[:shown])}{more}.")
    return found


def suspicious_prices(
    days: Days, symbols: Sequence[str], raw: Mapping[Role, Grid], prices: Mapping[Role, Grid]
) -> Iterator[SuspiciousRow]:
    """Give what is suspicious of prices.

    Args:
        days: datetime64[D] `[days]`.
        symbols: names.
        raw: float64 `[days, symbols]` of each role, as the files have them.
        prices: open, high, low and close after cleaning, on the scale of adjusted closes.
    """
    for column, symbol in enumerate(symbols):
        closes = raw["close"][:, column]
        for below in np.flatnonzero(closes <= 0.0):
            yield SuspiciousRow("not positive", symbol, str(days[below]), f"{closes[below]:g}")
        own = np.flatnonzero(~np.isnan(prices["close"][:, column]))
        bars = {role: prices[role][own, column] for role in ("open", "high", "low", "close")}
        for kind, row, detail in (
            *_of_bars(bars),
            *_late(raw["adjusted_close"][own, column], raw["close"][own, column]),
        ):
            yield SuspiciousRow(kind, symbol, str(days[own[row]]), detail)


def _of_bars(bars: Mapping[str, NDArray[np.float64]]) -> Iterator[tuple[Kind, int, str]]:
    """Give kind, day and numbers of what is suspicious of a symbol's own days."""
    close = bars["close"]
    spikes = _spikes(close)
    for row in spikes:
        yield "spike", row, f"close {close[row]:g} after {close[max(row - 1, 0)]:g}"
    before = np.concatenate([close[:1], close[:-1]])
    for role in ("open", "high", "low"):
        far = (bars[role] >= _SPIKE * np.maximum(close, before)) | (bars[role] <= np.minimum(close, before) / _SPIKE)
        for row in set(np.flatnonzero(far).tolist()) - set(spikes):
            yield "spike", row, f"{role} {bars[role][row]:g}, close {close[row]:g}"
    for row, ratio in _jumps(np.where(np.isnan(bars["open"]), close, bars["open"]), close):
        factor = max(close[row] / close[row - 1], close[row - 1] / close[row])
        is_split = ratio is not None and max(ratio, 1 / ratio) >= _LARGE
        # Of the last day nothing shows whether it stays.
        kind: Kind = "jump" if (is_split or factor >= _JUMP) and row + 1 < len(close) else "move"
        if row not in spikes and row - 1 not in spikes:
            detail = f"{close[row - 1]:g} to {close[row]:g}"
            yield kind, row, f"{detail}, {ratio.numerator}:{ratio.denominator}" if ratio else detail
    if len(close) > 1 and not (1.0 - _LAST_LOSS) * close[-2] < close[-1] < _JUMP * close[-2]:
        yield "last day", len(close) - 1, f"{close[-2]:g} to {close[-1]:g}"
    for row, length in _stale_runs(close):
        yield "stale", row, f"{length:,} days"


def _spikes(close: NDArray[np.float64]) -> list[int]:
    """Return the days whose close is a factor of three from the one before, to which one of the next comes back."""
    found: list[int] = []
    for row in np.flatnonzero(np.abs(np.diff(np.log(close))) >= np.log(_SPIKE)) + 1:
        # The way back is none of its own.
        if not found or row - 1 != found[-1]:
            later = np.abs(np.log(close[row + 1 : row + 1 + _SPIKE_DAYS] / close[row - 1])) <= np.log(_BACK)
            if later.any():
                found += range(int(row), int(row) + 1 + int(later.argmax()))
    return found


def _jumps(first: NDArray[np.float64], close: NDArray[np.float64]) -> list[tuple[int, Fraction | None]]:
    """Return day and ratio, if it is near one of a split, of the changes that are no moves of the market.

    The change to the close is at least ten times the standard deviation of daily log returns of the 20 days before and
    of the 20 days after, most of which have changing closes; and it is a factor of two or more, or the change to the
    day's first price is within 3 % of a split's.
    """
    overnight, moves = np.log(first[1:] / close[:-1]), np.log(close[1:] / close[:-1])
    found: list[tuple[int, Fraction | None]] = []
    for move in np.flatnonzero(np.maximum(np.abs(overnight), np.abs(moves)) > np.log(1.5) - _SPLIT_TOLERANCE):
        distances = np.abs(overnight[move] - _SPLIT_MOVES)
        split = _SPLITS[int(distances.argmin())] if distances.min() <= _SPLIT_TOLERANCE else None
        sides = moves[max(move - _DAYS_AROUND, 0) : move], moves[move + 1 : move + 1 + _DAYS_AROUND]
        around = [side for side in sides if len(side) >= _FEWEST_DAYS_AROUND]
        deviation = max((side.std() for side in around), default=np.inf)
        # Closes that stood still, then jump, are stale.
        changing = all(np.median(np.abs(side)) for side in around)
        is_large = split is not None or abs(moves[move]) >= np.log(_LARGE)
        if is_large and changing and abs(moves[move]) >= _SPLIT_DEVIATIONS * deviation:
            found.append((int(move) + 1, split))
    return found


def _stale_runs(close: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return first day and length of the runs of identical closes, of a symbol's own days."""
    starts = np.flatnonzero(np.diff(close, prepend=np.nan) != 0.0)
    lengths = np.diff(starts, append=len(close))
    return [(int(starts[run]), int(lengths[run])) for run in np.flatnonzero(lengths >= _STALE_DAYS)]


def _late(adjusted: NDArray[np.float64], close: NDArray[np.float64]) -> Iterator[tuple[Kind, int, str]]:
    """Give the day on which adjusted closes begin, if closes before it would seem to jump to them."""
    factor = np.where((adjusted > 0.0) & (close > 0.0), adjusted, np.nan) / np.where(close > 0.0, close, np.nan)
    first = int(np.argmax(~np.isnan(factor))) if len(factor) else 0
    if first > 0 and not 1.0 / _LATE_FACTOR < factor[first] < _LATE_FACTOR:
        yield "adjusted late", first, f"{factor[first]:.3f} of the close"
