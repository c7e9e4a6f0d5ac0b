"""What was found in the prices and what was done about it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from eigen_core.config import TradingConfig
from eigen_core.market.stamps import Days, weekdays_of
from eigen_core.market.suspicious import SuspiciousRow, sentences

Dividends = Literal["adjusted", "unadjusted", "unknown"]

_SMALLEST_SPLIT = 1.2
_SMALLEST_DIVIDENDS = 0.005
_ENDED_DAYS = 20
_SATURDAY = 5
_YEAR_DAYS = 252
_SHOWN_SHARE = 0.001


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


@dataclass(frozen=True)
class SymbolHistory:
    """The history of one symbol.

    Attributes:
        symbol: its name.
        first_day, last_day: first and last day with a price, as YYYY-MM-DD.
        valid_days: days with a price.
        gap_days: days without one in between.
        tradable: false for a context column.
    """

    symbol: str
    first_day: str
    last_day: str
    valid_days: int
    gap_days: int
    tradable: bool


@dataclass(frozen=True)
class DataReport:
    """What was read, what was wrong with it, and what was done. All numbers are counts.

    Attributes:
        source: the file or folder.
        layout: `long`, `wide` or `folder`.
        files: price files read.
        rows: rows read.
        days: days of the panel; first_day and last_day as YYYY-MM-DD.
        symbols: history of each column of the panel, in its order.
        undated_rows: rows without a date or a symbol, left out.
        duplicate_rows: rows of a symbol and day that came again with the same prices, counted once.
        unsorted_rows: rows before the preceding row of their symbol, sorted.
        empty_days: days of the source without any price, left out.
        unusable_prices: prices that are zero, negative, infinite or absurd, taken as missing.
        repaired_highs, repaired_lows: highs below, lows above the day's open or close, set to the larger, the smaller.
        derived_highs, derived_lows: missing highs, lows of priced days, set likewise.
        missing_opens: priced days without an open, left so.
        adjusted_prices: priced days brought to the scale of the adjusted close.
        carried_adjustments: those without an adjusted close of their own, adjusted as the symbol's last.
        suspended_days: priced days with a volume of zero, on which no order is filled.
        large_moves: changes from one price of a symbol to its next by more than a factor of two, kept.
        dropped_symbols: symbols without any usable price, left out.
        ignored_columns: headings of columns that are not used.
        ignored_files: names of files and folders in the source's folder that are not read.
        bars: bars within days, of which `formed_days` days of symbols were formed.
        time_zone: the exchange's, where its midnights were on its clock; empty: on that of the stamps.
        own_features: names of the features that are columns of the data or are computed by registered functions.
        look_ahead: what feature functions know of later days, in sentences.
        universe: what prices show of the choice of symbols and of how prices were made.
        suspicious: rows that are probably wrong.
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
    unsorted_rows: int = 0
    empty_days: int = 0
    unusable_prices: int = 0
    repaired_highs: int = 0
    repaired_lows: int = 0
    derived_highs: int = 0
    derived_lows: int = 0
    missing_opens: int = 0
    adjusted_prices: int = 0
    carried_adjustments: int = 0
    large_moves: int = 0
    suspended_days: int = 0
    dropped_symbols: tuple[str, ...] = ()
    ignored_columns: tuple[str, ...] = ()
    ignored_files: tuple[str, ...] = ()
    own_features: tuple[str, ...] = ()
    look_ahead: tuple[str, ...] = ()
    bars: int = 0
    formed_days: int = 0
    time_zone: str = ""

    @property
    def gap_days(self) -> int:
        """Days without a price inside the histories of all symbols."""
        return sum(history.gap_days for history in self.symbols)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as values that JSON can hold."""
        return asdict(self) | {
            "symbols": [asdict(history) for history in self.symbols],
            "suspicious": [asdict(row) for row in self.suspicious],
            "dropped_symbols": list(self.dropped_symbols),
            "ignored_columns": list(self.ignored_columns),
            "ignored_files": list(self.ignored_files),
            "own_features": list(self.own_features),
            "look_ahead": list(self.look_ahead),
        }

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> "DataReport":
        """Return the report that `as_dict` made `values` of."""
        return cls(
            **{
                **values,
                "symbols": tuple(SymbolHistory(**history) for history in values["symbols"]),
                "universe": UniverseAudit(**values["universe"]),
                "suspicious": tuple(SuspiciousRow(**row) for row in values["suspicious"]),
                "dropped_symbols": tuple(values["dropped_symbols"]),
                "ignored_columns": tuple(values["ignored_columns"]),
                "ignored_files": tuple(values["ignored_files"]),
                "own_features": tuple(values["own_features"]),
                "look_ahead": tuple(values["look_ahead"]),
            }
        )

    def lines(self, trading: TradingConfig | None = None) -> list[str]:
        """Return the report as sentences: what the panel holds first, then everything that was found.

        Args:
            trading: says what becomes of a symbol that ends; None: the settings are named, without their values.
        """
        found = (*self._findings(), self._ends(trading), *self._universe())
        return [*self._summary(), *sentences(self.suspicious), *(sentence for count, sentence in found if count)]

    def _summary(self) -> list[str]:
        tradable = [history for history in self.symbols if history.tradable]
        context = [history.symbol for history in self.symbols if not history.tradable]
        files = f" in {self.files:,} files" if self.files > 1 else ""
        sentences = [
            f"Read {_counted(self.rows, 'row')}{files} from {self.source} ({self.layout}).",
            f"The panel has {_counted(self.days, 'day')} from {self.first_day} to {self.last_day} and "
            f"{_counted(len(tradable), 'tradable symbol')}.",
        ]
        if context:
            sentences.append(f"Context only: {_listed(context)}.")
        if self.own_features:
            sentences.append(f"Own features: {_listed(self.own_features)}.")
        sentences += self.look_ahead
        late = [history for history in self.symbols if history.first_day > self.first_day]
        early = [history for history in self.symbols if history.last_day < self.last_day]
        if late:
            sentences.append(
                "Start later: " + _listed([f"{history.symbol} ({history.first_day})" for history in late]) + "."
            )
        if early:
            sentences.append(
                "End earlier: " + _listed([f"{history.symbol} ({history.last_day})" for history in early]) + "."
            )
        return sentences

    def _ends(self, trading: TradingConfig | None) -> tuple[int, str]:
        ended = sum(history.tradable and history.last_day < self.last_day for history in self.symbols)
        days, loss = "trading.delisting_days", "trading.delisting_loss"
        if trading is not None:
            days = f"{trading.delisting_days:,} ({days})"
            loss = f"{trading.delisting_loss or 0.0:.0%} ({loss})"
        sentence = (
            f"{_counted(ended, 'tradable symbol')} without a price on the last day: a position in a symbol that has "
            f"none for {days} days is booked at its last close less {loss}."
        )
        return ended, sentence

    def _findings(self) -> list[tuple[int, str]]:
        gaps = sum(history.gap_days > 0 for history in self.symbols)
        derived = self.derived_highs + self.derived_lows
        return [
            (len(self.dropped_symbols), f"No usable price, left out: {_listed(self.dropped_symbols)}."),
            (len(self.ignored_columns), f"Columns not used: {_listed(self.ignored_columns)}."),
            (len(self.ignored_files), f"Not read, for they are no price files: {_listed(self.ignored_files)}."),
            (self.undated_rows, f"{_counted(self.undated_rows, 'row')} without a date or a symbol: left out."),
            (
                self.duplicate_rows,
                f"{_counted(self.duplicate_rows, 'row')} again for a symbol and day, with the same prices: taken once.",
            ),
            (self.unsorted_rows, f"{_counted(self.unsorted_rows, 'row')} out of order: sorted by day."),
            (
                self.bars,
                f"{_counted(self.formed_days, 'day')} of symbols formed of {_counted(self.bars, 'bar')} within days, "
                f"from midnight to midnight {f'in {self.time_zone}' if self.time_zone else 'by their own clock'}: "
                "first open, highest high, lowest low, last close, summed volume.",
            ),
            (self.empty_days, f"{_counted(self.empty_days, 'day')} without any price: left out."),
            (
                self.gap_days,
                f"{_counted(self.gap_days, 'day')} without a price inside the histories of "
                f"{_counted(gaps, 'symbol')}: no order is filled there, and a sale waits.",
            ),
            (
                self.suspended_days,
                f"{_counted(self.suspended_days, 'day')} of prices with a volume of zero: no order is filled there, "
                "and a sale waits.",
            ),
            (
                self.unusable_prices,
                f"{_counted(self.unusable_prices, 'price')} zero, negative, infinite or absurd: taken as missing.",
            ),
            (
                self.repaired_highs,
                f"{_counted(self.repaired_highs, 'high')} below the open or the close: set to the larger of these.",
            ),
            (
                self.repaired_lows,
                f"{_counted(self.repaired_lows, 'low')} above the open or the close: set to the smaller of these.",
            ),
            (
                derived,
                f"{_counted(self.derived_highs, 'high')} and {_counted(self.derived_lows, 'low')} missing: taken from "
                "open and close.",
            ),
            (
                self.missing_opens,
                f"{_counted(self.missing_opens, 'day')} of prices without an open: orders fill at the close there.",
            ),
            (
                self.adjusted_prices,
                f"{_counted(self.adjusted_prices, 'day')} of prices brought to the scale of the adjusted close.",
            ),
            (
                self.carried_adjustments,
                f"{_counted(self.carried_adjustments, 'day')} of these without an adjusted close: adjusted as the "
                "symbol's last one.",
            ),
            (
                self.large_moves,
                f"{_counted(self.large_moves, 'change')} from a price to the next by more than a factor of two: kept; "
                "check that prices are adjusted for splits.",
            ),
        ]

    def _universe(self) -> list[tuple[int, str]]:
        """What the choice of symbols and the making of their prices do to a backtest."""
        universe = self.universe
        return [
            (
                not universe.ended_symbols and self.days >= _YEAR_DAYS,
                "No tradable symbol ends before the last day: they were probably chosen among those that survived. A "
                "backtest on survivors earns more than trading would have: those that failed are missing.",
            ),
            (
                universe.dividends == "unadjusted",
                "Adjusted closes contain splits but no dividend: gains leave dividends out, which is right only for "
                "symbols that pay none.",
            ),
            (
                universe.dividends == "unknown",
                "Whether prices are adjusted for dividends cannot be known from closes alone: if they are not, gains "
                "leave dividends out.",
            ),
            (
                universe.weekend_days,
                f"{_counted(universe.weekend_days, 'day')} on a Saturday or Sunday: right where trading never stops, "
                "wrong dates on an exchange.",
            ),
            (
                universe.missing_share >= _SHOWN_SHARE,
                f"{universe.missing_share:.1%} of all days and symbols have no price.",
            ),
        ]


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _listed(names: list[str] | tuple[str, ...], shown: int = 8) -> str:
    listed = ", ".join(names[:shown])
    return listed if len(names) <= shown else f"{listed} and {len(names) - shown:,} more"


def _dividends(factor: NDArray[np.float64], priced: NDArray[np.bool_]) -> Dividends:
    if (factor[priced] == 1.0).all():
        return "unknown"
    for column in range(factor.shape[1]):
        steps = np.diff(np.log(factor[priced[:, column], column]))
        if steps[np.abs(steps) < np.log(_SMALLEST_SPLIT)].sum() > _SMALLEST_DIVIDENDS:
            return "adjusted"
    return "unadjusted"
