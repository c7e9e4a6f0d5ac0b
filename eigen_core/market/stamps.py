"""Dates and time stamps as they stand in price files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Days = NDArray[np.datetime64]
Instants = NDArray[np.datetime64]

EPOCHS = ("s", "ms", "us", "ns")
"""Values of `market.date_format` that are a unit of time since 1970."""

_DIGITS = {8: "%Y%m%d", 13: "ms", 16: "us", 19: "ns"}
_STAMP = (
    r"^(?P<date>\d{4}[-/.]\d\d?[-/.]\d\d?)"
    r"(?:[T ](?P<time>\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?)\s*(?P<zone>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?)?$"
)
_TIME_OF_DAY = (
    r"^(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,]\d+)?)?(?:\s*(?P<half>[AaPp])\.?[Mm]\.?)?$"
)
_MISSING = ("", "NaT", "nan", "NaN", "None", "null", "NA", "<NA>")
_EARLIEST, _LATEST = np.datetime64("1800-01-01"), np.datetime64("2200-12-31")
_LARGEST_COUNT = 9e18
_SATURDAY = 5
_TIMES_OF_DAYS = 3
# The exchanges whose midnights or sessions stamps in UTC may be of, for advice.
_ZONES = (
    "America/New_York", "Europe/London", "Europe/Berlin", "Asia/Tokyo", "Asia/Shanghai", "Asia/Kolkata",
    "Australia/Sydney", "America/Sao_Paulo", "America/Chicago", "Europe/Helsinki", "Africa/Johannesburg",
    "Pacific/Auckland",
)  # fmt: skip


@dataclass(frozen=True)
class Stamps:
    """The stamps of rows.

    Attributes:
        instants: datetime64[s] `[rows]`, on the stamp's own clock; NaT where the row has none.
        offsets: float64 `[rows]`, seconds by which that clock is ahead of UTC; NaN where the stamp has no time zone.
    """

    instants: Instants
    offsets: NDArray[np.float64]

    def at(self, rows: "NDArray[np.bool_] | NDArray[np.intp]") -> "Stamps":
        """Return the stamps of some rows."""
        return Stamps(self.instants[rows], self.offsets[rows])

    @property
    def utc(self) -> Instants:
        """The instants in UTC; those without a time zone as they are."""
        offsets = np.nan_to_num(self.offsets).astype(np.int64).astype("timedelta64[s]")
        return np.asarray(self.instants - offsets)


class UnreadableDateError(ValueError):
    """A cell of a column of dates cannot be read; `row` counts from 0."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def read_stamps(column: "pd.Series[Any]", formats: Sequence[str]) -> Stamps:
    """Read dates and time stamps.

    Args:
        column: text, numbers, dates or time stamps.
        formats: how they may be written: directives of strftime, or a unit of time since 1970; exactly one must fit;
            none: as 2024-12-31, with a time of day and a time zone or without, as 20241231, or as 13, 16 or 19 digits
            that count from 1970.

    Raises:
        UnreadableDateError: a cell is no such date, or dates can be read in two of the formats.
    """
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        local, utc = (column.dt.tz_localize(None), column.dt.tz_convert("UTC").dt.tz_localize(None))
        offsets = (local - utc).dt.total_seconds().to_numpy(dtype=np.float64)
        return Stamps(local.to_numpy().astype("datetime64[s]"), offsets)
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return Stamps(column.to_numpy().astype("datetime64[s]"), np.full(len(column), np.nan))
    if pd.api.types.is_float_dtype(column.dtype):
        column = column.map("{:.0f}".format, na_action="ignore")
    codes, found = pd.factorize(column.astype("str").where(column.notna(), "").str.strip())
    texts = pd.Series(found, dtype="str")
    missing = texts.isin(_MISSING).to_numpy()
    stamps = _of_texts(texts, formats, missing)
    right = missing | (stamps.instants >= _EARLIEST) & (stamps.instants <= _LATEST)
    if not right.all():
        raise UnreadableDateError(int(np.argmax(~right[codes])))
    return stamps.at(codes)


def in_format(texts: "pd.Series[str]", pattern: str) -> Stamps:
    """Read texts in one format, NaT where one is not written so."""
    if pattern in EPOCHS:
        numbers = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        known = np.abs(numbers) < _LARGEST_COUNT
        instants = np.where(known, numbers, 0.0).astype(np.int64).astype(f"datetime64[{pattern}]")
        counted = instants.astype("datetime64[s]")
        counted[~known] = np.datetime64("NaT")
        return Stamps(counted, np.zeros(len(texts)))
    zoned = "%z" in pattern
    parsed = pd.to_datetime(texts, format=pattern, errors="coerce", utc=zoned)
    written = (parsed.dt.tz_localize(None) if zoned else parsed).to_numpy()
    return Stamps(written.astype("datetime64[s]"), np.full(len(texts), 0.0 if zoned else np.nan))


def _of_texts(texts: "pd.Series[str]", formats: Sequence[str], missing: NDArray[np.bool_]) -> Stamps:
    if formats:
        read = [in_format(texts, pattern) for pattern in formats]
        fitting = [stamps for stamps in read if (missing | ~np.isnat(stamps.instants)).all()] or read[:1]
        instants = fitting[0].instants.copy()
        for other in fitting[1:]:
            instants[instants != other.instants] = np.datetime64("NaT")
        return Stamps(instants, fitting[0].offsets)
    parts = texts.str.extract(_STAMP)
    dates = pd.to_datetime(parts["date"].str.replace(r"[/.]", "-", regex=True), format="%Y-%m-%d", errors="coerce")
    seconds = np.where(parts["time"].isna(), 0.0, seconds_of_day(parts["time"]))
    instants = dates.to_numpy().astype("datetime64[s]")
    instants[np.isnan(seconds)] = np.datetime64("NaT")
    instants += np.nan_to_num(seconds).astype(np.int64).astype("timedelta64[s]")
    zones = parts["zone"].replace(["Z", "UTC", "GMT"], "+00").str.extract(r"([+-])(\d{2}):?(\d{2})?")
    ahead = pd.to_numeric(zones[1]) * 3_600 + pd.to_numeric(zones[2]).fillna(0) * 60
    offsets = ahead.where(zones[0] != "-", -ahead).to_numpy(dtype=np.float64, na_value=np.nan).copy()
    for length, pattern in _DIGITS.items():
        rows = texts.str.fullmatch(rf"\d{{{length}}}").to_numpy(dtype=np.bool_)
        if rows.any():
            found = in_format(texts[rows], pattern)
            instants[rows], offsets[rows] = found.instants, found.offsets
    return Stamps(instants, offsets)


def seconds_of_day(column: "pd.Series[Any]") -> NDArray[np.float64]:
    """Return seconds since midnight, float64 `[rows]`, of times of day: 9:30, 16:00:00, 4:00 PM, 93000 or 1600.

    An empty cell is midnight; NaN where a cell is none of these.
    """
    texts = column.astype("str").where(column.notna(), "").str.strip().str.removesuffix(".0").replace("", "0")
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


def on_clock(stamps: Stamps, time_zone: str | None) -> Instants:
    """Return the instants on a time zone's clock; stamps without a time zone stay as they are."""
    if time_zone is None:
        return stamps.instants
    local = pd.DatetimeIndex(stamps.utc).tz_localize("UTC").tz_convert(time_zone).tz_localize(None)
    return np.where(np.isnan(stamps.offsets), stamps.instants, local.to_numpy().astype("datetime64[s]"))


def likely_zone(stamps: Stamps) -> str:
    """Return the time zone whose days stamps in UTC are most likely of: for advice."""
    utc = pd.DatetimeIndex(stamps.utc).dropna()
    if all((utc.dayofweek == day).mean() > 0.05 for day in (_SATURDAY, _SATURDAY + 1)):
        return "UTC"

    def distance(zone: str) -> float:
        local = utc.tz_localize("UTC").tz_convert(zone)
        seconds = np.unique((local.tz_localize(None) - local.tz_localize(None).normalize()).total_seconds())
        if len(seconds) <= _TIMES_OF_DAYS:
            # One row a day: at midnight, or after a session from Monday to Friday.
            right = np.asarray((local.hour >= 12) & (local.hour <= 18)) * 0.9
            return -float(np.maximum(right, seconds.max() == 0.0)[local.dayofweek < _SATURDAY].sum() / len(local))
        # Midnight is in the middle of the longest time without bars.
        gaps = np.diff(seconds, append=seconds[0] + 86_400.0)
        middle = (seconds[gaps.argmax()] + gaps.max() / 2.0) % 86_400.0
        return float(min(middle, 86_400.0 - middle))

    return min(_ZONES, key=distance)


def weekdays_of(days: Days) -> NDArray[np.int64]:
    """Return the days of the week, Monday 0."""
    return (days.astype(np.int64) + 3) % 7
