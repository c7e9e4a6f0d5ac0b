"""From the dates and time stamps of a price file to trading days."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.errors import InputError

Days = NDArray[np.datetime64]

# Day first and month first are tried both; a column that can be read both ways is refused, not guessed at.
_DATE_FORMATS = ("%Y-%m-%d", "%Y%m%d", "%d-%b-%Y", "%b %d, %Y", "%d %b %Y", "%B %d, %Y", "%d %B %Y")
_DAY_AND_MONTH_FORMATS = ("%m-%d-%Y", "%d-%m-%Y")

_STAMP = (
    r"^(?P<date>.+?)"
    r"(?:(?:[T ]\s*(?P<hour>\d{1,2}):\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s*[AaPp][Mm])?|T(?P<compact>\d{2})\d{2,4})"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?)?$"
)
_UTC_ZONES = ("Z", "UTC", "GMT", "+00:00", "-00:00", "+0000", "-0000", "+00", "-00")

_EARLIEST, _LATEST = np.datetime64("1800-01-01"), np.datetime64("2200-12-31")

# The first hour in UTC at which it is midnight of the next day somewhere (UTC+13).
_FIRST_EVENING_HOUR = 11
_SUNDAY, _FRIDAY, _SATURDAY = 6, 4, 5

_EPOCH_UNITS = ((1e8, 1e10, "s"), (1e11, 1e13, "ms"), (1e14, 1e16, "us"), (1e17, 1e19, "ns"))


@dataclass(frozen=True)
class Stamps:
    """The stamps of a file's rows.

    Attributes:
        days: datetime64[D] `[rows]`, the date on the stamp's own clock; NaT where the row has none.
        in_evening: bool `[rows]`, the stamp is in UTC and late enough to be midnight of the next day elsewhere.
    """

    days: Days
    in_evening: NDArray[np.bool_]


class UnreadableDateError(ValueError):
    """A cell of a column of dates cannot be read; `row` counts from 0, `text` is what stands there."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row
        self.text = text


def read_stamps(column: "pd.Series[Any]", where: str) -> Stamps:
    """Read dates, time stamps with or without a time zone, or seconds to nanoseconds since 1970.

    Args:
        column: text, numbers, dates or time stamps.
        where: file and column, for messages.

    Raises:
        UnreadableDateError: a cell is no date.
        InputError: days and months cannot be told apart, or the years are out of range.
    """
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        stamps = _of_zoned(column)
    elif pd.api.types.is_datetime64_any_dtype(column.dtype):
        stamps = Stamps(column.to_numpy().astype("datetime64[D]"), np.zeros(len(column), dtype=np.bool_))
    elif pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        numbers = column.astype("float64")
        texts = pd.Series(numbers.map(lambda number: "" if np.isnan(number) else f"{number:.0f}"), dtype="str")
        stamps = _of_texts(texts, where)
    else:
        stamps = _of_texts(column.astype("str").where(column.notna(), ""), where)
    known = stamps.days[~np.isnat(stamps.days)]
    if known.size and (known.min() < _EARLIEST or known.max() > _LATEST):
        raise InputError(
            f"{where}: the dates reach from {known.min()} to {known.max()}: write them as YYYY-MM-DD, between "
            f"{_EARLIEST} and {_LATEST}."
        )
    return stamps


def trading_days(stamps: Stamps, symbol_codes: NDArray[np.intp]) -> tuple[Days, int]:
    """Return the exchange's date of each row, datetime64[D] `[rows]`, and the number of rows moved by a day.

    Args:
        stamps: of the rows.
        symbol_codes: intp `[rows]`, from 0, equal for rows of the same symbol.

    A stamp keeps the date on its own clock: midnight in New York is that day. One in UTC is no exchange's own clock,
    and midnight east of Greenwich is the evening before there. A symbol with evening stamps on Sundays and none on
    Fridays or Saturdays shows this, and its evening stamps move to the next day.
    """
    evening = stamps.in_evening & ~np.isnat(stamps.days)
    if not evening.any():
        return stamps.days, 0
    weekday = (stamps.days.astype("datetime64[D]").astype(np.int64) + 3) % 7
    symbols = int(symbol_codes.max()) + 1
    on_sunday = np.bincount(symbol_codes[evening & (weekday == _SUNDAY)], minlength=symbols) > 0
    at_weeks_end = evening & ((weekday == _FRIDAY) | (weekday == _SATURDAY))
    before_weekend = np.bincount(symbol_codes[at_weeks_end], minlength=symbols) > 0
    moved = evening & (on_sunday & ~before_weekend)[symbol_codes]
    return np.where(moved, stamps.days + np.timedelta64(1, "D"), stamps.days), int(moved.sum())


def _of_zoned(column: "pd.Series[Any]") -> Stamps:
    on_own_clock = column.dt.tz_localize(None)
    in_utc = str(column.dt.tz) in ("UTC", "GMT", "Etc/UTC", "Zulu", "UTC+00:00", "+00:00")
    evening = (on_own_clock.dt.hour >= _FIRST_EVENING_HOUR).to_numpy(dtype=np.bool_) & in_utc
    return Stamps(on_own_clock.to_numpy().astype("datetime64[D]"), evening)


def _of_texts(texts: "pd.Series[str]", where: str) -> Stamps:
    codes, found = pd.factorize(texts.str.strip())
    unique = pd.Series(found, dtype="str")
    days, evening = _of_unique_texts(unique, where)
    unreadable = np.isnat(days) & ~unique.isin(["", "NaT", "nan", "NaN", "None", "null", "NA", "<NA>"]).to_numpy()
    if unreadable.any():
        row = int(np.argmax(unreadable[codes]))
        raise UnreadableDateError(row, str(unique[codes[row]]))
    return Stamps(days[codes], evening[codes])


def _of_unique_texts(texts: "pd.Series[str]", where: str) -> tuple[Days, NDArray[np.bool_]]:
    days = _in_format(texts, _DATE_FORMATS[0])
    evening = np.zeros(len(texts), dtype=np.bool_)
    epoch = np.isnat(days) & texts.str.fullmatch(r"\d{9,19}").to_numpy(dtype=np.bool_)
    if epoch.any():
        days[epoch], evening[epoch] = _of_epochs(texts[epoch].to_numpy(dtype=np.float64))
    other = np.isnat(days)
    if other.any():
        parts = texts[other].str.extract(_STAMP)
        dates = parts["date"].fillna("").str.strip().str.replace(r"[./]", "-", regex=True)
        days[other] = _parse_dates(dates, where)
        hours = pd.to_numeric(parts["hour"].fillna(parts["compact"])).fillna(0).to_numpy()
        evening[other] = parts["zone"].isin(_UTC_ZONES).to_numpy() & (hours >= _FIRST_EVENING_HOUR)
    return days, evening


def _of_epochs(numbers: NDArray[np.float64]) -> tuple[Days, NDArray[np.bool_]]:
    days = np.full(len(numbers), np.datetime64("NaT"), dtype="datetime64[D]")
    hours = np.zeros(len(numbers), dtype=np.int64)
    for lowest, highest, unit in _EPOCH_UNITS:
        within = (numbers >= lowest) & (numbers < highest)
        stamps = numbers[within].astype(np.int64).astype(f"datetime64[{unit}]")
        days[within] = stamps.astype("datetime64[D]")
        hours[within] = (stamps.astype("datetime64[h]") - days[within].astype("datetime64[h]")).astype(np.int64)
    return days, hours >= _FIRST_EVENING_HOUR


def _parse_dates(dates: "pd.Series[str]", where: str) -> Days:
    parsed = np.full(len(dates), np.datetime64("NaT"), dtype="datetime64[D]")
    for pattern in _DATE_FORMATS:
        open_cells = np.isnat(parsed)
        if not open_cells.any():
            return parsed
        parsed[open_cells] = _in_format(dates[open_cells], pattern)
    rest = dates[np.isnat(parsed)]
    month_first, day_first = (_in_format(rest, pattern) for pattern in _DAY_AND_MONTH_FORMATS)
    misread_by_month, misread_by_day = (int(np.isnat(read).sum()) for read in (month_first, day_first))
    differ = (month_first != day_first) & ~np.isnat(month_first) & ~np.isnat(day_first)
    if misread_by_month == misread_by_day and differ.any():
        text = rest.iloc[int(np.argmax(differ))]
        raise InputError(f"{where}: '{text}' could be day-month or month-day: write dates as YYYY-MM-DD.")
    parsed[np.isnat(parsed)] = month_first if misread_by_month < misread_by_day else day_first
    return parsed


def _in_format(dates: "pd.Series[str]", pattern: str) -> Days:
    return pd.to_datetime(dates, format=pattern, errors="coerce").to_numpy().astype("datetime64[D]")
