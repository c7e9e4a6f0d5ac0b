"""From the dates and time stamps of a price file to trading days."""

from dataclasses import dataclass, replace
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
    r"(?:(?:[T ]\s*(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,]\d+)?)?(?:\s*(?P<half>[AaPp])[Mm])?"
    r"|T(?P<compact_hour>\d{2})(?P<compact_minute>\d{2})(?P<compact_second>\d{2})?)"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?)?$"
)
_TIME_OF_DAY = (
    r"^(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,]\d+)?)?(?:\s*(?P<half>[AaPp])\.?[Mm]\.?)?$"
)
_UTC_ZONES = ("Z", "UTC", "GMT", "+00:00", "-00:00", "+0000", "-0000", "+00", "-00")

_EARLIEST, _LATEST = np.datetime64("1800-01-01"), np.datetime64("2200-12-31")

# Digits that are a date and a time of day, by their number; 2018010109 as seconds would be a day of 2033.
_WRITTEN_OUT = {10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_EPOCH_UNITS = ((1e8, 1e10, "s"), (1e11, 1e13, "ms"), (1e14, 1e16, "us"), (1e17, 1e19, "ns"))


@dataclass(frozen=True)
class Stamps:
    """The stamps of a file's rows.

    Attributes:
        days: datetime64[D] `[rows]`, the date on the stamp's own clock; NaT where the row has none.
        seconds: int64 `[rows]`, since midnight on that clock; 0 for a date alone.
        in_utc: bool `[rows]`, that clock is UTC, which is no exchange's own.
        offsets: float64 `[rows]`, seconds by which that clock is ahead of UTC; NaN where the stamp has no time zone.
    """

    days: Days
    seconds: NDArray[np.int64]
    in_utc: NDArray[np.bool_]
    offsets: NDArray[np.float64]

    @classmethod
    def of_instants(cls, instants: NDArray[np.datetime64], in_utc: bool) -> "Stamps":
        """Return the stamps of instants, datetime64 `[rows]` of any unit."""
        days = instants.astype("datetime64[D]")
        seconds = (instants.astype("datetime64[s]") - days.astype("datetime64[s]")).astype(np.int64)
        offsets = np.full(len(days), 0.0 if in_utc else np.nan)
        return cls(days, np.where(np.isnat(days), 0, seconds), np.full(len(days), in_utc), offsets)


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
        InputError: days and months cannot be distinguished, or the years are out of range.
    """
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        stamps = _of_zoned(column)
    elif pd.api.types.is_datetime64_any_dtype(column.dtype):
        stamps = Stamps.of_instants(column.to_numpy(), in_utc=False)
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


def seconds_of_day(column: "pd.Series[Any]") -> NDArray[np.float64]:
    """Return seconds since midnight, float64 `[rows]`, of times of day: 9:30, 16:00:00, 4:00 PM, 93000 or 1600.

    NaN where a cell is none of these, or no time.
    """
    texts = column.astype("str").where(column.notna(), "").str.strip().str.removesuffix(".0")
    digits = texts.str.fullmatch(r"\d{3,6}|0")
    padded = texts.str.zfill(4).where(texts.str.len() <= 4, texts.str.zfill(6)).str.ljust(6, "0")
    written = texts.where(~digits, padded.str.replace(r"(..)(..)(..)", r"\1:\2:\3", regex=True))
    parts = written.str.extract(_TIME_OF_DAY)
    hours, minutes, seconds = (pd.to_numeric(parts[unit]) for unit in ("hour", "minute", "second"))
    afternoon = parts["half"].str.lower() == "p"
    hours = hours.where(parts["half"].isna(), hours % 12 + 12 * afternoon)
    found = hours * 3_600 + minutes * 60 + seconds.fillna(0)
    right = (hours < 24) & (minutes < 60) & (seconds.fillna(0) < 60)
    return np.asarray(found.where(right).to_numpy(dtype=np.float64, na_value=np.nan))


def _of_zoned(column: "pd.Series[Any]") -> Stamps:
    in_utc = str(column.dt.tz) in ("UTC", "GMT", "Etc/UTC", "Zulu", "UTC+00:00", "+00:00")
    local, utc = (column.dt.tz_localize(None), column.dt.tz_convert("UTC").dt.tz_localize(None))
    offsets = (local - utc).dt.total_seconds().to_numpy(dtype=np.float64)
    return replace(Stamps.of_instants(local.to_numpy(), in_utc), offsets=offsets)


def _of_texts(texts: "pd.Series[str]", where: str) -> Stamps:
    codes, found = pd.factorize(texts.str.strip())
    unique = pd.Series(found, dtype="str")
    stamps = _of_unique_texts(unique, where)
    unreadable = np.isnat(stamps.days)
    unreadable &= ~unique.isin(["", "NaT", "nan", "NaN", "None", "null", "NA", "<NA>"]).to_numpy()
    if unreadable.any():
        row = int(np.argmax(unreadable[codes]))
        raise UnreadableDateError(row, str(unique[codes[row]]))
    return Stamps(stamps.days[codes], stamps.seconds[codes], stamps.in_utc[codes], stamps.offsets[codes])


def _of_unique_texts(texts: "pd.Series[str]", where: str) -> Stamps:
    stamps = Stamps.of_instants(_in_format(texts, _DATE_FORMATS[0]), in_utc=False)
    digits = np.isnat(stamps.days) & texts.str.fullmatch(r"\d{9,19}").to_numpy(dtype=np.bool_)
    if digits.any():
        _put(stamps, digits, _of_digits(texts[digits]))
    other = np.isnat(stamps.days) & ~digits
    if other.any():
        parts = texts[other].str.extract(_STAMP)
        dates = parts["date"].fillna("").str.strip().str.replace(r"[./]", "-", regex=True)
        in_utc = parts["zone"].isin(_UTC_ZONES).to_numpy()
        found = Stamps(_parse_dates(dates, where), _seconds_of(parts), in_utc, _offsets_of(parts["zone"]))
        _put(stamps, other, found)
    return stamps


def _put(stamps: Stamps, rows: NDArray[np.bool_], found: Stamps) -> None:
    stamps.days[rows], stamps.seconds[rows] = found.days, found.seconds
    stamps.in_utc[rows], stamps.offsets[rows] = found.in_utc, found.offsets


def _offsets_of(zones: "pd.Series[str]") -> NDArray[np.float64]:
    """Return the seconds ahead of UTC that `Z`, `+05:30`, `-0500` or `+09` say, NaN where there is none."""
    parts = zones.where(~zones.isin(_UTC_ZONES), "+00").str.extract(r"([+-])(\d{2}):?(\d{2})?")
    hours, minutes = (pd.to_numeric(parts[column]) for column in (1, 2))
    seconds = hours * 3_600 + minutes.fillna(0) * 60
    return np.asarray(seconds.where(parts[0] != "-", -seconds).to_numpy(dtype=np.float64, na_value=np.nan))


def _seconds_of(parts: pd.DataFrame) -> NDArray[np.int64]:
    hours, minutes, seconds = (
        pd.to_numeric(parts[unit].fillna(parts[f"compact_{unit}"])).fillna(0).to_numpy(dtype=np.int64)
        for unit in ("hour", "minute", "second")
    )
    half = parts["half"].str.lower()
    hours = np.where(half.notna(), hours % 12, hours)
    afternoon = (half == "p").to_numpy(dtype=np.int64)
    return np.asarray((hours + 12 * afternoon) * 3_600 + minutes * 60 + seconds, dtype=np.int64)


def _of_digits(texts: "pd.Series[str]") -> Stamps:
    """Read dates and times of day that are written as digits alone; what is none counts seconds or less since 1970."""
    lengths = texts.str.len().to_numpy()
    stamps = Stamps.of_instants(np.full(len(texts), np.datetime64("NaT"), dtype="datetime64[s]"), in_utc=False)
    for length in np.unique(lengths):
        same = lengths == length
        pattern = _WRITTEN_OUT.get(int(length))
        instants = _instants(texts[same], pattern) if pattern else None
        if instants is not None and not np.isnat(instants).any():
            _put(stamps, same, Stamps.of_instants(instants, in_utc=False))
        else:
            _put(stamps, same, _of_epochs(texts[same].to_numpy(dtype=np.float64)))
    return stamps


def _of_epochs(numbers: NDArray[np.float64]) -> Stamps:
    instants = np.full(len(numbers), np.datetime64("NaT"), dtype="datetime64[s]")
    for lowest, highest, unit in _EPOCH_UNITS:
        within = (numbers >= lowest) & (numbers < highest)
        instants[within] = numbers[within].astype(np.int64).astype(f"datetime64[{unit}]")
    return Stamps.of_instants(instants, in_utc=True)


def _parse_dates(dates: "pd.Series[str]", where: str) -> Days:
    parsed = np.full(len(dates), np.datetime64("NaT"), dtype="datetime64[D]")
    for pattern in _DATE_FORMATS:
        open_cells = np.isnat(parsed)
        if not open_cells.any():
            return parsed
        cells = dates[open_cells]
        # 201811 is a month, not 1 January.
        fitting = cells.where(cells.str.len() == 8, "") if pattern == "%Y%m%d" else cells
        parsed[open_cells] = _in_format(fitting, pattern)
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
    return _instants(dates, pattern).astype("datetime64[D]")


def _instants(texts: "pd.Series[str]", pattern: str) -> NDArray[np.datetime64]:
    return pd.to_datetime(texts, format=pattern, errors="coerce").to_numpy()
