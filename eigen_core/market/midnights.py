"""Time stamps that are midnight of the next day, written on another clock, and the days they stand for.

Midnight east of Greenwich is the evening before in UTC. Whether stamps of an evening are such midnights, or times of
their own day, shows in the weekdays on which a symbol has them: Monday to Friday are days of trading as they stand,
Sunday to Thursday become Monday to Friday a day later. Some exchanges trade from Sunday to Thursday themselves; there
the time of day decides, and where that is not enough, the stamps are refused.
"""

from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.errors import InputError
from eigen_core.market.days import Days, Stamps

_Reading = Literal["own day", "next day", "unknown"]
Readings = dict[int, set[_Reading]]
"""What evening stamps in UTC were read as, by their times of day in seconds."""

Instants = NDArray[np.datetime64]

_HOUR, _DAY = 3_600, 86_400
# The first hour in UTC at which it is midnight of the next day anywhere: UTC+13 in New Zealand's summer.
_FIRST_EVENING = 11 * _HOUR
# Midnights of zones that are not whole hours from UTC: Adelaide, Yangon, Kathmandu, India, Kabul, Tehran.
_MIDNIGHTS_BETWEEN = frozenset(int(hour * _HOUR) for hour in (13.5, 14.5, 17.5, 18.25, 18.5, 19.5, 20.5))
# No exchange whose week begins on Saturday or Sunday closes at a full hour from here on, nor at any from `_NIGHT` on.
_AFTER_ALL_CLOSES = 15 * _HOUR
_NIGHT = 17 * _HOUR
_SOUTHERN = ("Australia/Sydney", "Pacific/Auckland")
_MIDNIGHTS_OF_LONDON = {0, 23 * _HOUR}
_WEDNESDAY, _THURSDAY, _FRIDAY, _SATURDAY, _SUNDAY = 2, 3, 4, 5, 6


def trading_days(
    stamps: Stamps, symbol_codes: NDArray[np.intp], where: str, earlier: Readings | None = None
) -> tuple[Days, int]:
    """Return the exchange's date of each row, datetime64[D] `[rows]`, and the number of rows moved by a day.

    Args:
        stamps: of the rows.
        symbol_codes: intp `[rows]`, from 0, equal for rows of the same symbol.
        where: the file, for messages.
        earlier: what stamps of the source's files before this one were read as; those of this one are added.

    A stamp keeps the date on its own clock: midnight in New York is that day. Evening stamps in UTC move to the next
    day where they are its midnight.

    Raises:
        InputError: evening stamps may be of their own day or of the next.
    """
    earlier = {} if earlier is None else earlier
    late = (stamps.seconds >= _FIRST_EVENING) & ~np.isnat(stamps.days)
    moved = np.zeros(len(late), dtype=np.bool_)
    for in_utc in (True, False):
        rows = np.flatnonzero(late & (stamps.in_utc == in_utc))
        if rows.size:
            moved[rows] = _are_of_next_day(stamps, symbol_codes, rows, in_utc, where, earlier)
    return np.where(moved, stamps.days + np.timedelta64(1, "D"), stamps.days), int(moved.sum())


def _are_of_next_day(
    stamps: Stamps, symbol_codes: NDArray[np.intp], rows: NDArray[np.intp], in_utc: bool, where: str, earlier: Readings
) -> NDArray[np.bool_]:
    codes = symbol_codes[rows]
    weekdays = (stamps.days[rows].astype("datetime64[D]").astype(np.int64) + 3) % 7
    counts = np.bincount(codes * 7 + weekdays, minlength=(int(codes.max()) + 1) * 7).reshape(-1, 7)
    # Exchanges open on few Saturdays or Sundays out of turn.
    regular = 4 * counts >= np.maximum(counts.max(axis=1, keepdims=True), 1)
    instants = _by_code(codes, stamps, rows)
    readings = {
        code: _reading(set(np.flatnonzero(regular[code]).tolist()), own, in_utc) for code, own in instants.items()
    }
    if in_utc:
        _follow_others(readings, instants, _by_code(symbol_codes, stamps, np.arange(len(symbol_codes))), earlier)
    for code, reading in readings.items():
        if reading == "unknown" or (reading == "next day" and not in_utc):
            row = rows[np.argmax(codes == code)]
            second = int(stamps.seconds[row])
            raise InputError(
                f"{where}: the time stamp {stamps.days[row]} {second // _HOUR:02}:{second // 60 % 60:02} "
                f"{'in UTC' if in_utc else 'without a time zone'} may be of its own day, or midnight of the next day "
                "where the exchange is: write the exchange's dates as YYYY-MM-DD."
            )
    next_day = np.zeros(len(counts), dtype=np.bool_)
    next_day[[code for code, reading in readings.items() if reading == "next day"]] = True
    return next_day[codes]


def _by_code(codes: NDArray[np.intp], stamps: Stamps, rows: NDArray[np.intp]) -> dict[int, Instants]:
    instants = stamps.days[rows].astype("datetime64[s]") + stamps.seconds[rows]
    order = np.argsort(codes, kind="stable")
    present, starts = np.unique(codes[order], return_index=True)
    return dict(zip(present.tolist(), np.split(instants[order], starts[1:]), strict=True))


def _times(instants: Instants) -> set[int]:
    """Return the times of day in seconds."""
    return set(np.unique(instants.astype(np.int64) % _DAY).tolist())


def _reading(weekdays: set[int], instants: Instants, in_utc: bool) -> _Reading:
    """Return which day the evening stamps of one symbol belong to, by their weekdays and times of day."""
    if len(weekdays) == 7:
        return "own day"
    times = _times(instants)
    midnights = all(time % _HOUR == 0 or time in _MIDNIGHTS_BETWEEN for time in times)
    if not weekdays & {_SATURDAY, _SUNDAY}:
        return "unknown" if midnights and in_utc and _FRIDAY not in weekdays else "own day"
    if not weekdays & {_FRIDAY, _SATURDAY}:
        if midnights:
            return "next day" if min(times) >= _AFTER_ALL_CLOSES or _are_southern(instants, times) else "unknown"
        return "own day" if max(times) < _NIGHT or not in_utc else "unknown"
    if _SUNDAY not in weekdays and {_THURSDAY, _FRIDAY} <= weekdays:
        return "own day"
    # Midnights of weeks from Saturday or Sunday on.
    rest = {_WEDNESDAY, _THURSDAY} if _FRIDAY in weekdays else {_THURSDAY, _FRIDAY}
    return "next day" if midnights and min(times) >= _NIGHT and not weekdays & rest else "unknown"


def _are_southern(instants: Instants, times: set[int]) -> bool:
    """Return whether the stamps follow the clocks of Sydney or Auckland, which change against those of the north."""
    return len(times) > 1 and any(
        not pd.DatetimeIndex(instants, tz="UTC").tz_convert(zone).hour.any() for zone in _SOUTHERN
    )


def _follow_others(
    readings: dict[int, _Reading], late: dict[int, Instants], instants: dict[int, Instants], earlier: Readings
) -> None:
    """Let symbols of too few days follow those with the same times of day, or the clock of London.

    What is known of the others is added to `earlier`.
    """
    for code, reading in readings.items():
        if reading != "unknown":
            for time in _times(late[code]):
                earlier.setdefault(time, set()).add(reading)
    for code, reading in readings.items():
        if reading == "unknown":
            found = set.union(*(earlier.get(time, {"unknown"}) for time in _times(late[code])))
            if _times(instants[code]) == _MIDNIGHTS_OF_LONDON:
                found = {"next day"}
            readings[code] = found.pop() if len(found) == 1 else "unknown"
