"""Bars within a day: recognised, and formed to days from midnight to midnight on the exchange's clock."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.errors import InputError
from eigen_core.market.stamps import Days, Instants, weekdays_of

if TYPE_CHECKING:
    from pandas.core.groupby import SeriesGroupBy

_DAYS_TO_JUDGE_BY = 10
_MANY_DAYS, _SOME_DAYS, _MANY_TIMES = 0.5, 0.05, 4
_SATURDAY, _SUNDAY = 5, 6


@dataclass(frozen=True)
class Repeats:
    """Rows of which each has another one about the same symbol and time.

    Attributes:
        rows: intp `[repeated rows]`, positions of these rows, those of one symbol and time together.
        starts: bool `[repeated rows]`, the row is the first of its symbol and time.
    """

    rows: NDArray[np.intp]
    starts: NDArray[np.bool_]

    @classmethod
    def of(cls, codes: NDArray[np.intp], times: NDArray[np.datetime64]) -> "Repeats":
        """Find the rows in which a code and a time come more than once."""
        number = times.astype(np.int64)
        first, last = (number.min(), number.max()) if len(times) else (0, 0)
        key = codes * (last - first + 1) + (number - first)
        order = np.argsort(key, kind="stable")
        new = np.diff(key[order], prepend=-1) != 0
        repeated = ~new | np.append(~new[1:], False)
        return cls(order[repeated], new[repeated])

    def differing(self, cells: NDArray[Any]) -> NDArray[np.bool_]:
        """Return of each repeated row whether its cell differs from that of its symbol's and time's row before.

        Args:
            cells: `[all rows]`; two missing ones do not differ.
        """
        codes, _ = pd.factorize(cells[self.rows], use_na_sentinel=True)
        return np.asarray(~self.starts & (codes != np.concatenate([codes[:1], codes[:-1]])))


def are_bars_within_days(codes: NDArray[np.intp], utc: Instants, days: Days) -> bool:
    """Return whether most days of symbols have rows at several times, or some at many: a live row makes few of both."""
    if len(pd.unique(utc)) == len(pd.unique(days)):
        return False
    rows = pd.DataFrame({"code": codes, "instant": utc, "day": days}).drop_duplicates()
    rows["several"] = rows.duplicated(["code", "day"], keep=False)
    one_each = rows.drop_duplicates(["code", "day"])
    share = float(one_each["several"].mean()) if len(rows) else 0.0
    times = rows.loc[rows["several"], "instant"]
    return share > _MANY_DAYS or (share > _SOME_DAYS and (times - times.dt.normalize()).nunique() > _MANY_TIMES)


@dataclass(frozen=True)
class FormedDays:
    """Days that bars have formed, ordered by symbol and day.

    Attributes:
        codes: intp `[days]`, which symbol a day is of.
        days: datetime64[D] `[days]`.
        values: float64 `[days]` of each role and own column.
        bars: bars that the days were formed of.
        repeated: bars that came again with the same values, counted once.
        unfinished: the last day, if its bars end before the time at which they usually do, as YYYY-MM-DD.
    """

    codes: NDArray[np.intp]
    days: Days
    values: dict[str, NDArray[np.float64]]
    bars: int
    repeated: int
    unfinished: str


def form_days(
    codes: NDArray[np.intp],
    symbols: Sequence[str],
    utc: Instants,
    local: Instants,
    values: Mapping[str, NDArray[np.float64]],
    where: str,
) -> FormedDays:
    """Form days of bars: first open, highest high, lowest low, last close, summed volume, the last of any other value.

    Args:
        codes: intp `[bars]`, which of `symbols` a bar is of.
        symbols: names.
        utc: datetime64[s] `[bars]`, by which bars are ordered and come again: a clock that is put back shows an hour
            twice.
        local: the same on the exchange's clock, whose midnights part the days.
        values: float64 `[bars]` of each role and own column, NaN where a cell is missing; bars without any are none.
        where: the source, for messages.

    Raises:
        InputError: bars of one symbol and instant differ, or sessions go over midnight.
    """
    known = np.logical_or.reduce([~np.isnan(column) for column in values.values()])
    order = np.flatnonzero(known)
    order = order[np.lexsort((utc[order], codes[order]))]
    codes, utc, local = codes[order], utc[order], local[order]
    values = {name: column[order] for name, column in values.items()}
    _refuse_sessions_over_midnight(local, where)
    repeats = Repeats.of(codes, utc)
    for name, column in values.items():
        differing = repeats.differing(column)
        if differing.any():
            row = int(np.argmax(differing))
            one, other = (f"{column[repeats.rows[position]]:g}" for position in (row - 1, row))
            symbol, instant = symbols[codes[repeats.rows[row]]], local[repeats.rows[row]].item()
            raise InputError(
                f"{where}: '{symbol}' has several bars at {instant:%Y-%m-%d %H:%M:%S}, with {name} {one} and {other}: "
                "leave one bar an instant, and write stamps with their time zone."
            )
    first = np.ones(len(codes), dtype=np.bool_)
    first[repeats.rows[~repeats.starts]] = False
    days = local[first].astype("datetime64[D]")
    keys = [pd.Series(codes[first]), pd.Series(days.astype(np.int64))]
    formed = {name: _formed(name, pd.Series(column[first]).groupby(keys)) for name, column in values.items()}
    index = next(iter(formed.values())).index
    return FormedDays(
        codes=index.get_level_values(0).to_numpy(dtype=np.intp),
        days=index.get_level_values(1).to_numpy(dtype=np.int64).astype("datetime64[D]"),
        values={name: np.asarray(column.to_numpy(), dtype=np.float64) for name, column in formed.items()},
        bars=int(first.sum()),
        repeated=int((~first).sum()),
        unfinished=_unfinished(local),
    )


def _formed(name: str, cells: "SeriesGroupBy[float, tuple[Hashable, ...]]") -> "pd.Series[float]":
    if name == "open":
        return cells.first()
    if name == "high":
        return cells.max()
    if name == "low":
        return cells.min()
    return cells.sum(min_count=1) if name == "volume" else cells.last()


def _unfinished(local: Instants) -> str:
    """Return the last day if its last bar is earlier than usual by more than a bar, as YYYY-MM-DD, else nothing."""
    days = local.astype("datetime64[D]")
    seconds = pd.Series((local - days).astype(np.int64))
    last = seconds.groupby(pd.Series(days)).max()
    steps = np.diff(np.unique(seconds))
    if len(last) <= _DAYS_TO_JUDGE_BY or not steps.size:
        return ""
    return str(last.index[-1].date()) if last.iloc[-1] < last.iloc[:-1].median() - np.median(steps) else ""


def _refuse_sessions_over_midnight(instants: Instants, where: str) -> None:
    """Refuse bars whose sessions begin or end on a day of the weekend: by midnights they would form a day more."""
    days, bars = np.unique(instants.astype("datetime64[D]"), return_counts=True)
    # The first and the last may be cut.
    days, bars = days[1:-1], bars[1:-1]
    weekdays = weekdays_of(days)
    usual = bars[weekdays < _SATURDAY]
    for weekday, name in ((_SATURDAY, "Saturdays"), (_SUNDAY, "Sundays")):
        own = bars[weekdays == weekday]
        if usual.size and 20 * own.size >= usual.size and 2 * np.median(own) < np.median(usual):
            raise InputError(
                f"{where} has few bars on {name} ({int(np.median(own))}, {int(np.median(usual))} on other days), so "
                "sessions go over midnight, or the stamps are on another clock than the exchange's: write them with "
                "their time zone and name the exchange's in market.time_zone, or give daily bars."
            )
