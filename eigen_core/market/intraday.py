"""Bars within a day: recognised, and formed to days from midnight to midnight on the exchange's clock."""

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.errors import InputError
from eigen_core.market.days import Days, Stamps
from eigen_core.market.repeats import Repeats

if TYPE_CHECKING:
    from pandas.core.groupby import SeriesGroupBy

Instants = NDArray[np.datetime64]

# Midnights of one exchange are at few times of day in UTC: its clock changes, and may have changed its zone.
_TIMES_OF_MIDNIGHT = 4
_DAYS_TO_JUDGE_BY, _TIMES_A_YEAR = 10, 2
_SATURDAY, _SUNDAY = 5, 6


@dataclass(frozen=True)
class Intraday:
    """What becomes of bars within a day.

    Attributes:
        aggregate: days are formed of them; else they are refused.
        time_zone: the exchange's; None: its clock is that of the stamps.
    """

    aggregate: bool = False
    time_zone: str | None = None


REFUSED = Intraday()


def are_within_days(codes: NDArray[np.intp], stamps: Stamps) -> bool:
    """Return whether a symbol has several times of day on most of its days, or on some of them more than midnights are.

    Args:
        codes: intp `[rows]`, equal for rows of the same symbol.
        stamps: of the rows.
    """
    repeats = Repeats.of(codes, stamps.days)
    times = pd.DataFrame({"day": np.cumsum(repeats.starts), "second": stamps.seconds[repeats.rows]}).drop_duplicates()
    several = times[times.duplicated("day", keep=False)]
    different = int((~np.isnat(stamps.days)).sum()) - len(repeats.rows) + len(times)
    return 2 * len(several) > different or several["second"].nunique() > _TIMES_OF_MIDNIGHT


def are_clearly_days(codes: NDArray[np.intp], stamps: Stamps, times_of_days: Set[int]) -> NDArray[np.bool_]:
    """Return of each row whether its symbol has ten rows or more, one a day, at the same time but for clock changes.

    Of a symbol with fewer, all times must be among those at which the source's files before have rows of days: such is
    the end of a table that was written in parts.

    Args:
        codes: intp `[rows]`, equal for rows of the same symbol.
        stamps: of the rows.
        times_of_days: those times, in seconds.

    bool `[rows]`; false for rows without a date.
    """
    frame = pd.DataFrame({"code": codes, "day": stamps.days, "second": stamps.seconds}).dropna().drop_duplicates()
    frame["known"] = frame["second"].isin(times_of_days)
    groups = frame.groupby("code")
    rows, days, times = (groups.size().to_numpy(), *(groups[name].nunique().to_numpy() for name in ("day", "second")))
    enough = (rows >= _DAYS_TO_JUDGE_BY) | groups["known"].all().to_numpy()
    daily = enough & (rows == days) & (times <= _TIMES_A_YEAR)
    return np.isin(codes, np.unique(frame["code"])[daily]) & ~np.isnat(stamps.days)


def on_exchange_clock(stamps: Stamps, time_zone: str | None, where: str) -> Instants:
    """Return the instants of bars on the exchange's clock, datetime64[s] `[rows]`, NaT where there is none.

    Args:
        stamps: of the bars.
        time_zone: the exchange's; None: its clock is that of the stamps.
        where: the file, for messages.

    Raises:
        InputError: nothing says which clock it is.
    """
    instants: Instants = stamps.days.astype("datetime64[s]") + stamps.seconds.astype("timedelta64[s]")
    dated = ~np.isnat(instants)
    if time_zone is None:
        if stamps.in_utc[dated].any():
            raise InputError(
                f"{where} has bars within days in UTC: name the exchange's time zone, for example "
                "market.time_zone=America/New_York, or UTC where days end at midnight in UTC."
            )
    elif np.isnan(stamps.offsets[dated]).any():
        raise InputError(
            f"{where} has bars within days without a time zone, which may be on the exchange's clock or in UTC: leave "
            "market.time_zone out in the first case, and write the stamps with +00:00 in the second."
        )
    else:
        utc = instants[dated] - stamps.offsets[dated].astype("timedelta64[s]")
        local = pd.DatetimeIndex(utc).tz_localize("UTC").tz_convert(time_zone).tz_localize(None)
        instants[dated] = local.to_numpy().astype("datetime64[s]")
    return instants


@dataclass(frozen=True)
class FormedDays:
    """Days that bars have formed, ordered by symbol and day.

    Attributes:
        codes: intp `[days]`, which symbol a day is of.
        days: datetime64[D] `[days]`.
        values: float64 `[days]` of each role and own column.
        bars: bars that the days were formed of.
        repeated: bars that came again with the same values, counted once.
    """

    codes: NDArray[np.intp]
    days: Days
    values: dict[str, NDArray[np.float64]]
    bars: int
    repeated: int


def form_days(
    codes: NDArray[np.intp],
    symbols: Sequence[str],
    instants: Instants,
    values: Mapping[str, NDArray[np.float64]],
    where: str,
) -> FormedDays:
    """Form days of bars: first open, highest high, lowest low, last close, summed volume, the last of any other value.

    Args:
        codes: intp `[bars]`, which of `symbols` a bar is of.
        symbols: names.
        instants: datetime64[s] `[bars]`, on the exchange's clock.
        values: float64 `[bars]` of each role and own column, NaN where a cell is missing; bars without any are none.
        where: the source, for messages.

    Raises:
        InputError: bars of one symbol and instant differ, or sessions go over midnight.
    """
    known = np.logical_or.reduce([~np.isnan(column) for column in values.values()])
    order = np.flatnonzero(known)
    order = order[np.lexsort((instants[order], codes[order]))]
    codes, instants = codes[order], instants[order]
    values = {name: column[order] for name, column in values.items()}
    _refuse_sessions_over_midnight(instants, where)
    repeats = Repeats.of(codes, instants)
    for name, column in values.items():
        differing = repeats.difference(column)
        if differing is not None:
            one, other = (f"{column[row]:g}" for row in differing)
            symbol, instant = symbols[codes[differing[1]]], instants[differing[1]].item()
            raise InputError(
                f"{where}: '{symbol}' has several bars at {instant:%Y-%m-%d %H:%M:%S}, with {name} {one} and {other}: "
                "leave one bar an instant."
            )
    first = np.ones(len(codes), dtype=np.bool_)
    first[repeats.rows[~repeats.starts]] = False
    days = instants[first].astype("datetime64[D]")
    keys = [pd.Series(codes[first]), pd.Series(days.astype(np.int64))]
    formed = {name: _formed(name, pd.Series(column[first]).groupby(keys)) for name, column in values.items()}
    index = next(iter(formed.values())).index
    return FormedDays(
        codes=index.get_level_values(0).to_numpy(dtype=np.intp),
        days=index.get_level_values(1).to_numpy(dtype=np.int64).astype("datetime64[D]"),
        values={name: np.asarray(column.to_numpy(), dtype=np.float64) for name, column in formed.items()},
        bars=int(first.sum()),
        repeated=int((~first).sum()),
    )


def _formed(name: str, cells: "SeriesGroupBy[float, tuple[Hashable, ...]]") -> "pd.Series[float]":
    if name == "open":
        return cells.first()
    if name == "high":
        return cells.max()
    if name == "low":
        return cells.min()
    return cells.sum(min_count=1) if name == "volume" else cells.last()


def _refuse_sessions_over_midnight(instants: Instants, where: str) -> None:
    """Refuse bars whose sessions begin or end on a day of the weekend: by midnights they would form a day more."""
    days, bars = np.unique(instants.astype("datetime64[D]"), return_counts=True)
    # The first and the last may be cut.
    days, bars = days[1:-1], bars[1:-1]
    weekdays = (days.astype(np.int64) + 3) % 7
    usual = bars[weekdays < _SATURDAY]
    for weekday, name in ((_SATURDAY, "Saturdays"), (_SUNDAY, "Sundays")):
        own = bars[weekdays == weekday]
        if usual.size and 20 * own.size >= usual.size and 2 * np.median(own) < np.median(usual):
            raise InputError(
                f"{where} has few bars on {name} ({int(np.median(own))}, {int(np.median(usual))} on other days), so "
                "sessions go over midnight, or the stamps are on another clock than the exchange's: write them with "
                "their time zone and name the exchange's in market.time_zone, or give daily bars."
            )
