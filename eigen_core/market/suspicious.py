"""Find suspicious prices: spikes, jumps like unadjusted splits, days that repeat, prices that do not move."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eigen_core.market.dates import Days
from eigen_core.market.layouts import BAR, Role

Grid = NDArray[np.float64]
Kind = Literal[
    "spike", "jump", "move", "not positive", "unusable", "twice", "adjusted late", "last day", "stale", "unfinished"
]  # fmt: skip
Finding = tuple[Kind, int, str]  # kind, position of the day, prices as text

_WHOLE = (2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 50, 100)
_SPLITS = (Fraction(3, 2), *map(Fraction, _WHOLE), *(Fraction(1, new) for new in _WHOLE))
_SPLIT_MOVES = -np.log([float(ratio) for ratio in _SPLITS])
_SPLIT_TOLERANCE, _SPLIT_DEVIATIONS = 0.03, 10.0
_DAYS_AROUND, _FEWEST_DAYS_AROUND, _STALE_DAYS = 20, 5, 10
_SPIKE, _BACK, _SPIKE_DAYS = 3.0, 1.5, 3
_JUMP, _LARGE, _LAST_LOSS, _LATE_FACTOR = 5.0, 2.0, 0.99, 1.02
# Numbers outside are errors of the source; inside, no indicator overflows.
SMALLEST_PRICE, LARGEST_PRICE = 1e-12, 1e15
_SENTENCES: dict[Kind, str] = {
    "spike": "A price that differs by a factor of three or more from those around it",
    "jump": "A permanent jump, like an unadjusted split or by a factor of five or more",
    "not positive": "A close of zero or below, or too large",
    "unusable": "An open, high or low of zero or below, or too large: treated as missing",
    "twice": "A day twice, with different prices",
    "adjusted late": "Adjusted closes begin after closes, on another scale",
    "last day": "A loss of 99 % or more, or a rise by a factor of five or more, on the last day",
    "move": "An unusually large change, perhaps an unadjusted split",
    "stale": "The same close on ten or more consecutive days, probably without trading",
    "unfinished": "Bars of the last day end before the usual time",
}
_HARMLESS: frozenset[Kind] = frozenset(("move", "unusable", "stale", "unfinished"))


@dataclass(frozen=True)
class SuspiciousRow:
    """A suspicious row: symbol (empty: all), day (YYYY-MM-DD, the first of several), prices as text (`detail`), and
    whether it was dropped (`left_out`)."""

    kind: Kind
    symbol: str
    day: str
    detail: str = ""
    left_out: bool = False

    def __str__(self) -> str:
        notes = ", ".join(note for note in (self.detail, "left out" if self.left_out else "") if note)
        return f"{self.symbol} {self.day}".strip() + (f" ({notes})" if notes else "")


def distorting(rows: Sequence[SuspiciousRow]) -> tuple[SuspiciousRow, ...]:
    """Return the rows that distort metrics and were not dropped; `market.suspicious` says what to do with them."""
    return tuple(row for row in rows if row.kind not in _HARMLESS and not row.left_out)


def sentences(rows: Sequence[SuspiciousRow], shown: int = 5) -> list[str]:
    found = []
    for kind, words in _SENTENCES.items():
        if own := [str(row) for row in rows if row.kind == kind]:
            more = f" and {len(own) - shown:,} more" if len(own) > shown else ""
            found.append(f"{words}: {', '.join(own[:shown])}{more}.")
    return found


def suspicious_prices(
    days: Days, symbols: Sequence[str], raw: Mapping[Role, Grid], prices: Mapping[Role, Grid]
) -> Iterator[SuspiciousRow]:
    """Find suspicious prices, float64 `[days, symbols]` of each role: `raw` as in the files, `prices` cleaned bars."""
    for column, symbol in enumerate(symbols):
        closes = raw["close"][:, column]
        # Vendors write zeros on days without trading.
        traded = raw["volume"][:, column] != 0.0 if "volume" in raw else np.full(len(days), True)
        for role, values in ((role, raw[role][:, column]) for role in BAR if role in raw):
            wrong = (values < SMALLEST_PRICE) | (values > LARGEST_PRICE)
            for row in np.flatnonzero(wrong if role == "close" else wrong & traded):
                kind: Kind = "not positive" if role == "close" else "unusable"
                yield SuspiciousRow(kind, symbol, str(days[row]), f"{role} {values[row]:g}".removeprefix("close "))
        own = np.flatnonzero(~np.isnan(prices["close"][:, column]))
        found = _of_bars(*(prices[role][own, column] for role in BAR))
        late = _late(raw["adjusted_close"][own, column], closes[own]) if "adjusted_close" in raw else ()
        for kind, place, detail in (*found, *late):
            yield SuspiciousRow(kind, symbol, str(days[own[place]]), detail)


def _of_bars(opened: Grid, high: Grid, low: Grid, close: Grid) -> Iterator[Finding]:
    before = np.concatenate([close[:1], close[:-1]])
    spikes: list[int] = []
    # Changes by a factor of three that one of the next closes reverts.
    for row in np.flatnonzero(np.abs(np.diff(np.log(close), prepend=np.log(close[:1]))) >= np.log(_SPIKE)).tolist():
        # The reversal is not a spike itself.
        if not spikes or row - 1 != spikes[-1]:
            later = np.abs(np.log(close[row + 1 : row + 1 + _SPIKE_DAYS] / before[row])) <= np.log(_BACK)
            spikes += range(row, row + 1 + int(later.argmax())) if later.any() else ()
    for row in spikes:
        yield "spike", row, f"close {close[row]:g} after {close[max(row - 1, 0)]:g}"
    for role, values in (("open", opened), ("high", high), ("low", low)):
        far = (values >= _SPIKE * np.maximum(close, before)) | (values <= np.minimum(close, before) / _SPIKE)
        for row in set(np.flatnonzero(far).tolist()) - set(spikes):
            yield "spike", row, f"{role} {values[row]:g}, close {close[row]:g}"
    for kind, row, detail in _jumps(np.where(np.isnan(opened), close, opened), close):
        if row not in spikes and row - 1 not in spikes:
            yield kind, row, detail
    if len(close) > 1 and not (1.0 - _LAST_LOSS) * close[-2] < close[-1] < _JUMP * close[-2]:
        yield "last day", len(close) - 1, f"{close[-2]:g} to {close[-1]:g}"
    starts = np.flatnonzero(np.diff(close, prepend=np.nan) != 0.0)
    for row, length in zip(starts.tolist(), np.diff(starts, append=len(close)).tolist(), strict=True):
        if length >= _STALE_DAYS:
            yield "stale", row, f"{length:,} days"


def _jumps(first: Grid, close: Grid) -> Iterator[Finding]:
    """Find changes of ten or more standard deviations of the daily log returns of the 20 days before and after.

    Most of these days have changing closes. The change is a factor of two or more, or its overnight part is within 3 %
    of a split's.
    """
    overnight, moves = np.log(first[1:] / close[:-1]), np.log(close[1:] / close[:-1])
    for move in np.flatnonzero(np.maximum(np.abs(overnight), np.abs(moves)) > np.log(1.5) - _SPLIT_TOLERANCE).tolist():
        distances = np.abs(overnight[move] - _SPLIT_MOVES)
        split = _SPLITS[int(distances.argmin())] if distances.min() <= _SPLIT_TOLERANCE else None
        sides = moves[max(move - _DAYS_AROUND, 0) : move], moves[move + 1 : move + 1 + _DAYS_AROUND]
        # Exclude other changes of scale, such as a reversal.
        small = (side[np.abs(side) < np.log(_SPIKE)] for side in sides)
        around = [side for side in small if len(side) >= _FEWEST_DAYS_AROUND]
        deviation, size = max((side.std() for side in around), default=np.inf), abs(moves[move])
        # Closes that do not change before a jump are stale.
        changing = all(np.median(np.abs(side)) for side in around)
        if changing and size >= _SPLIT_DEVIATIONS * deviation and (split is not None or size >= np.log(_LARGE)):
            before, after = close[move], close[move + 1]
            is_split = split is not None and max(split, 1 / split) >= _LARGE
            # On the last day nothing shows whether it is permanent.
            stays = (is_split or max(after / before, before / after) >= _JUMP) and move + 2 < len(close)
            ratio = f", {split.numerator}:{split.denominator}" if split else ""
            yield "jump" if stays else "move", move + 1, f"{before:g} to {after:g}{ratio}"


def _late(adjusted: Grid, close: Grid) -> Iterator[Finding]:
    """Find the day on which adjusted closes begin, if they differ from the closes before it."""
    factor = np.where((adjusted > 0.0) & (close > 0.0), adjusted, np.nan) / np.where(close > 0.0, close, np.nan)
    known = np.flatnonzero(~np.isnan(factor))
    if len(known) and known[0] > 0 and not 1.0 / _LATE_FACTOR < factor[known[0]] < _LATE_FACTOR:
        yield "adjusted late", int(known[0]), f"{factor[known[0]]:.3f} of the close"
