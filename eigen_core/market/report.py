"""The data report: sentences about the prices of a source, their errors, and what Eigen corrected."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from eigen_core.common.text import count, listed, percent
from eigen_core.config import TradingConfig
from eigen_core.market.formats import SATURDAY, Days, dates_of, in_unit, weekdays_of

SuspiciousKind = Literal[
    "spike", "jump", "move", "proved", "not positive", "unusable", "twice", "adjusted late", "last day", "stale",
    "unfinished", "unusual hour",
]  # fmt: skip
Dividends = Literal["adjusted", "unadjusted", "unknown"]

_SMALLEST_SPLIT, _SMALLEST_DIVIDENDS = 1.2, 0.005
_ENDED_DAYS, _YEAR_DAYS = 20, 252
_SHOWN_SHARE, _SHOWN_NAMES, _SHOWN_ROWS = 0.001, 8, 5

_KINDS: dict[SuspiciousKind, str] = {
    "spike": "A price that differs by a factor of three or more from those around it",
    "jump": "A permanent jump with nothing traded in between, like an unadjusted split or by a factor of five or more",
    "not positive": "A close of zero or below, or too large",
    "unusable": "An open, high or low of zero or below, or too large: treated as missing",
    "twice": "A day twice, with different prices",
    "adjusted late": "Adjusted closes begin later than closes, on another scale",
    "last day": "A loss of 99 % or more, or a rise by a factor of five or more, on the last day",
    "move": "A change by a factor of two or more, or like a split, that its row does not prove: kept",
    "proved": "A change by a factor of two or more that its row proves, since it joins the last close: kept",
    "stale": "The same close on ten or more consecutive days, probably without trading",
    "unfinished": "Bars of the last day end before the usual time",
    "unusual hour": "A bar before or after the usual hours, which opens or closes its day",
}
_HARMLESS: frozenset[SuspiciousKind] = frozenset(("move", "proved", "unusable", "stale", "unfinished", "unusual hour"))

# The report's sentences in order; each appears if its key's value is neither zero, empty nor false. `{rows:row}` is a
# number with its noun, a tuple a list of names; an empty template means that the value is a list of sentences.
_SENTENCES: Mapping[str, str] = {
    "rows": "Read {rows:row}{in_files} from {source} ({layout}).",
    "days": "The panel has {days:day} from {first_day} to {last_day} and {tradable:tradable symbol}.",
    "context": "Context only: {context}.",
    "levels": "Levels, observed as the feature level: {levels}.",
    "own_features": "Own features: {own_features}.",
    "events": "Decided by market.events: {events}.",
    "look_ahead": "",
    "late": "Start later: {late}.",
    "early": "End earlier: {early}.",
    "suspicious": "",
    "dropped_symbols": "No usable price, left out: {dropped_symbols}.",
    "ignored_columns": "Columns not used: {ignored_columns}.",
    "ignored_files": "Ignored, since they are no price files: {ignored_files}.",
    "undated_rows": "{undated_rows:row} without a date or a symbol: dropped.",
    "duplicate_rows": "{duplicate_rows:row} repeated with the same prices: used once.",
    "aggregated": "Aggregated {bars:intraday bar} to {formed_days:daily bar}, from midnight to midnight {clock}: first "
    "open, highest high, lowest low, last close, summed volume.",
    "bar_stamp": "Bars of {bar}, of {bars:given bar}: timestamps mark the {bar_stamp} of a bar, and agents decide at "
    "its close, whose times are shown here.",
    "irregular_bars": "{irregular_bars:given bar} outside the regular hours of the calendar: left out.",
    "calendar": "",
    "empty_days": "{empty_days:day} without any price: dropped.",
    "gap_days": "{gap_days:day} without a price inside the histories of {gap_symbols:symbol}: no order is filled "
    "on these, and a sale waits.",
    "suspended_days": "{suspended_days:day} of prices with a volume of zero: no order is filled on these, and a sale "
    "waits.",
    "unknown_volumes": "Volumes of zero on days on which prices move, as a share of the symbol's days: "
    "{unknown_volumes}. The symbols traded, and these volumes are unknown.",
    "unusable_prices": "{unusable_prices:price} zero, negative, infinite or too large: treated as missing.",
    "repaired_highs": "{repaired_highs:high} below the open or the close: set to the larger of these.",
    "repaired_lows": "{repaired_lows:low} above the open or the close: set to the smaller of these.",
    "derived": "{derived_highs:high} and {derived_lows:low} missing: taken from open and close.",
    "missing_opens": "{missing_opens:day} of prices without an open: orders fill at the close instead.",
    "adjusted_prices": "{adjusted_prices:day} of prices brought to the scale of the adjusted close.",
    "ended": "{ended:tradable symbol} without a price on the last day: a position in a symbol without prices for "
    "{delisting_bars} days is booked at its last close less {delisting_loss}.",
    "survivors": "No tradable symbol ends before the last day: probably only survivors were chosen. A backtest on "
    "survivors earns more than trading would have, because failed symbols are missing.",
    "unadjusted": "Adjusted closes contain splits but no dividends: gains exclude dividends, which is right only for "
    "symbols that pay none.",
    "unknown": "Closes alone do not show whether prices are adjusted for dividends: if not, gains exclude dividends.",
    "weekend_days": "{weekend_days:day} on a Saturday or Sunday: right for continuous trading, wrong dates for an "
    "exchange.",
    "missing_share": "{missing_share} of all days and symbols have no price.",
}


@dataclass(frozen=True)
class SuspiciousRow:
    """A suspicious row of prices, or the first of several in succession: symbol (empty: all symbols), day (YYYY-MM-DD),
    the prices as text (`detail`), and whether the row was dropped (`left_out`). `event` is the
    decision that `market.events` suggests about it: `drop` if the price comes back after the row, so that to leave it
    out removes no lasting loss."""

    kind: SuspiciousKind
    symbol: str
    day: str
    detail: str = ""
    left_out: bool = False
    event: str = "keep"

    def __str__(self) -> str:
        notes = ", ".join(note for note in (self.detail, "left out" if self.left_out else "") if note)
        return f"{self.symbol} {self.day}".strip() + (f" ({notes})" if notes else "")


def distorting_rows(rows: Sequence[SuspiciousRow]) -> tuple[SuspiciousRow, ...]:
    """Return the rows that were not dropped and are not `_HARMLESS`: they distort metrics (see `market.suspicious`)."""
    return tuple(row for row in rows if row.kind not in _HARMLESS and not row.left_out)


def describe_rows(rows: Sequence[SuspiciousRow]) -> list[str]:
    """Return a sentence for each kind of suspicious row that occurs; it lists the first rows of this kind."""
    of_kinds = {words: [str(row) for row in rows if row.kind == kind] for kind, words in _KINDS.items()}
    return [f"{words}: {listed(found, _SHOWN_ROWS)}." for words, found in of_kinds.items() if found]


@dataclass(frozen=True)
class UniverseAudit:
    """Properties of the symbols and prices that bias a backtest.

    Attributes:
        ended_symbols: number of tradable symbols whose last price is more than 20 days before the last day.
        dividends: `adjusted` if adjusted closes of some symbol grow relative to its closes in steps too small for
            splits, otherwise `unadjusted`; `unknown` without adjusted closes that differ from closes.
        weekend_days: number of days on a Saturday or Sunday.
        missing_share: share of all pairs of a day and a symbol that have no price.
    """

    ended_symbols: int
    dividends: Dividends
    weekend_days: int
    missing_share: float

    @classmethod
    def of(
        cls, days: Days, assets: int, close: NDArray[np.float64], factor: NDArray[np.float64], traded: NDArray[np.bool_]
    ) -> Self:
        """Audit closes (NaN: none), factors (adjusted / close), and the days on which symbols `traded`, all `[days,
        symbols]`; the first `assets` symbols are tradable."""
        priced = ~np.isnan(close)
        steps = (np.diff(np.log(column[known])) for column, known in zip(factor.T, priced.T, strict=True))
        growth = (one[np.abs(one) < np.log(_SMALLEST_SPLIT)].sum() for one in steps)
        dividends: Dividends = "adjusted" if any(total > _SMALLEST_DIVIDENDS for total in growth) else "unadjusted"
        return cls(
            ended_symbols=int((~traded[-_ENDED_DAYS - 1 :, :assets].any(axis=0)).sum()),
            dividends="unknown" if (factor[priced] == 1.0).all() else dividends,
            weekend_days=int((weekdays_of(np.unique(dates_of(days))) >= SATURDAY).sum()),
            missing_share=float(1.0 - priced.mean()),
        )


@dataclass(frozen=True)
class SymbolHistory:
    """First and last day on which a symbol traded (YYYY-MM-DD); of these days `gap_days` have no price.

    `valid_days` is the number of all days with a price.
    """

    symbol: str
    first_day: str
    last_day: str
    valid_days: int
    gap_days: int
    tradable: bool


@dataclass(frozen=True)
class DataReport:
    """Properties of the prices. `_SENTENCES` describes the fields that are not listed here.

    Attributes:
        source: path of the file or folder; its layout is `long`, `wide` or `folder`.
        bar, bar_stamp: length of the bars made of intraday bars, and what their timestamps mark; empty: daily rows.
        time_zone: time zone whose midnights divide intraday bars into days; empty: that of each timestamp.
        look_ahead: sentences about feature functions whose values depend on later days.
        calendar: sentences about sessions by `market.calendar`, unless it is `prices`.
    """

    source: str
    layout: str
    files: int
    rows: int
    days: int
    first_day: str
    last_day: str
    symbols: tuple[SymbolHistory, ...]
    universe: UniverseAudit
    suspicious: tuple[SuspiciousRow, ...] = ()
    undated_rows: int = 0
    duplicate_rows: int = 0
    empty_days: int = 0
    unusable_prices: int = 0
    repaired_highs: int = 0
    repaired_lows: int = 0
    derived_highs: int = 0
    derived_lows: int = 0
    missing_opens: int = 0
    adjusted_prices: int = 0
    suspended_days: int = 0
    unknown_volumes: tuple[str, ...] = ()
    dropped_symbols: tuple[str, ...] = ()
    ignored_columns: tuple[str, ...] = ()
    ignored_files: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    own_features: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    look_ahead: tuple[str, ...] = ()
    calendar: tuple[str, ...] = ()
    irregular_bars: int = 0
    bars: int = 0
    formed_days: int = 0
    time_zone: str = ""
    bar: str = ""
    bar_stamp: str = ""

    @property
    def gap_days(self) -> int:
        return sum(history.gap_days for history in self.symbols)

    def lines(self, trading: TradingConfig | None = None) -> list[str]:
        """Return the report as sentences; they quote values of `trading` or, if it is None, names of its settings."""
        universe, tradable = self.universe, [history for history in self.symbols if history.tradable]
        days, loss = "trading.delisting_bars", "trading.delisting_loss"
        if trading is not None:
            days, loss = f"{trading.delisting_bars:,} ({days})", f"{percent(trading.delisting_loss or 0.0, 0)} ({loss})"
        facts: dict[str, Any] = {
            **vars(self),
            **vars(universe),
            "in_files": f" in {self.files:,} files" if self.files > 1 else "",
            "tradable": len(tradable),
            "context": tuple(one.symbol for one in self.symbols if not one.tradable),
            "late": tuple(f"{one.symbol} ({one.first_day})" for one in self.symbols if one.first_day > self.first_day),
            "early": tuple(f"{one.symbol} ({one.last_day})" for one in self.symbols if one.last_day < self.last_day),
            "suspicious": describe_rows(self.suspicious),
            "aggregated": self.bar == "1d",
            "clock": f"in {self.time_zone}" if self.time_zone else "in their own time zone",
            "gap_days": self.gap_days,
            "gap_symbols": sum(history.gap_days > 0 for history in self.symbols),
            "derived": self.derived_highs + self.derived_lows,
            "ended": sum(history.last_day < self.last_day for history in tradable),
            "delisting_bars": days,
            "delisting_loss": loss,
            "survivors": not universe.ended_symbols and self.days >= _YEAR_DAYS,
            universe.dividends: True,
            "missing_share": percent(universe.missing_share) if universe.missing_share >= _SHOWN_SHARE else "",
        }
        lines: list[str] = []
        for name, template in _SENTENCES.items():
            if facts.get(name):
                # A panel's rows are bars.
                words = in_unit(template, "bar") if self.bar_stamp and name != "weekend_days" else template
                lines += [_SentenceFormatter().vformat(words, (), facts)] if template else facts[name]
        return lines


class _SentenceFormatter(Formatter):
    def format_field(self, value: object, format_spec: str) -> str:
        if isinstance(value, tuple):
            return listed(value, _SHOWN_NAMES)
        if isinstance(value, int):
            return count(value, format_spec)
        return format(value, format_spec)
