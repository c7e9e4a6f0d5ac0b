"""Dates and timestamps as price files write them, time zones and weekdays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

Days = NDArray[np.datetime64]

EPOCHS = ("s", "ms", "us", "ns")
"""Values of `market.date_format` that are a unit of time since 1970."""
SATURDAY = 5

_DIGITS = {8: "%Y%m%d", 13: "ms", 16: "us", 19: "ns"}
_TIMESTAMP = (
    r"^(?P<date>\d{4}[-/.]\d\d?[-/.]\d\d?)"
    r"(?:[T ](?P<time>\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?)\s*(?P<zone>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)?)?$"
)
_TIME_OF_DAY = (
    r"^(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,]\d+)?)?(?:\s*(?P<half>[AaPp])\.?[Mm]\.?)?$"
)
_MISSING = ("", "NaT", "nan", "NaN", "None", "null", "NA", "<NA>")
_EARLIEST, _LATEST, _LARGEST_COUNT = pd.Timestamp("1800-01-01"), pd.Timestamp("2200-12-31"), 9e18


def to_text(column: "pd.Series[Any]") -> "pd.Series[str]":
    """Return cells as text: floats rounded to integers, missing cells empty."""
    if pd.api.types.is_float_dtype(column.dtype):
        column = column.map("{:.0f}".format, na_action="ignore")
    return column.astype("str").where(column.notna(), "").str.strip()


def parse_dates(column: "pd.Series[Any]", formats: Sequence[str] = ()) -> pd.DataFrame:
    """Parse dates and timestamps from text, numbers, dates or timestamps.

    Args:
        formats: strftime formats, or units of time since 1970 (`EPOCHS`); exactly one must fit. If empty: 2024-12-31,
            with or without a time of day and a time zone, 20241231, or 13, 16 or 19 digits since 1970.

    Returns:
        One row per cell: `timestamp`, local datetime64[s], NaT if empty; `offset`, float64 seconds ahead of UTC, NaN
        without a time zone; `valid`, bool.
    """
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        local, utc = column.dt.tz_localize(None), column.dt.tz_convert("UTC").dt.tz_localize(None)
        return _timestamps(local, (local - utc).dt.total_seconds().to_numpy())
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return _timestamps(column, np.nan)
    codes, found = pd.factorize(to_text(column))
    texts = pd.Series(found, dtype="str")
    missing = texts.isin(_MISSING)
    read = [parse_format(texts, each) for each in formats] or [_parse_iso(texts)]
    fitting = [each for each in read if (missing | each["timestamp"].notna()).all()] or read[:1]
    parsed = fitting[0]
    for other in fitting[1:]:
        parsed["timestamp"] = parsed["timestamp"].where(parsed["timestamp"] == other["timestamp"])
    parsed["valid"] = missing | parsed["timestamp"].between(_EARLIEST, _LATEST)
    return parsed.iloc[codes].reset_index(drop=True)


def parse_format(texts: "pd.Series[str]", pattern: str) -> pd.DataFrame:
    """Parse texts in one format as `parse_dates` does; NaT where it does not fit."""
    if pattern in EPOCHS:
        numbers = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        known = np.abs(numbers) < _LARGEST_COUNT
        counts = np.where(known, numbers, 0.0).astype(np.int64).astype(f"datetime64[{pattern}]")
        return _timestamps(np.where(known, counts, np.datetime64("NaT")), 0.0)
    zoned = "%z" in pattern
    parsed = pd.to_datetime(texts, format=pattern, errors="coerce", utc=zoned)
    return _timestamps(parsed.dt.tz_localize(None), 0.0 if zoned else np.nan)


def parse_times_of_day(column: "pd.Series[Any]") -> NDArray[np.float64]:
    """Return seconds since midnight, float64, of 9:30, 16:00:00, 4:00 PM, 93000, 1600 or empty cells; NaN otherwise."""
    texts = to_text(column).str.removesuffix(".0").replace("", "0")
    padded = texts.str.zfill(4).where(texts.str.len() <= 4, texts.str.zfill(6)).str.ljust(6, "0")
    digits = padded.str.replace(r"(..)(..)(..)", r"\1:\2:\3", regex=True)
    parts = texts.where(~texts.str.fullmatch(r"\d{3,6}|0"), digits).str.extract(_TIME_OF_DAY)
    hours, minutes, seconds = (pd.to_numeric(parts[unit]) for unit in ("hour", "minute", "second"))
    hours = hours.where(parts["half"].isna(), hours % 12 + 12 * (parts["half"].str.lower() == "p"))
    seconds = seconds.fillna(0)
    found = (hours * 3_600 + minutes * 60 + seconds).where((hours < 24) & (minutes < 60) & (seconds < 60))
    return np.asarray(found.to_numpy(dtype=np.float64, na_value=np.nan))


def to_utc(timestamps: pd.DataFrame) -> "pd.Series[pd.Timestamp]":
    """Return timestamps in UTC; those without a time zone are unchanged."""
    if timestamps["offset"].isna().all():
        return timestamps["timestamp"]
    return timestamps["timestamp"] - timestamps["offset"].fillna(0.0).astype(np.int64).astype("timedelta64[s]")


def to_time_zone(timestamps: pd.DataFrame, time_zone: str | None) -> "pd.Series[pd.Timestamp]":
    """Return timestamps in a time zone; those without a time zone are unchanged."""
    if time_zone is None:
        return timestamps["timestamp"]
    local = to_utc(timestamps).dt.tz_localize("UTC").dt.tz_convert(time_zone).dt.tz_localize(None)
    return timestamps["timestamp"].where(timestamps["offset"].isna(), local)


def weekdays_of(days: Days) -> NDArray[np.int64]:
    """Return 0 for Monday to 6 for Sunday."""
    return (days.astype(np.int64) + 3) % 7


def _timestamps(values: ArrayLike, offsets: float | NDArray[np.float64]) -> pd.DataFrame:
    return pd.DataFrame({"timestamp": np.asarray(values).astype("datetime64[s]"), "offset": offsets, "valid": True})


def _parse_iso(texts: "pd.Series[str]") -> pd.DataFrame:
    parts = texts.str.extract(_TIMESTAMP)
    times = parts["time"].fillna("00:00").str.replace(",", ".")
    written = parts["date"].str.replace(r"[/.]", "-", regex=True) + "T" + times
    zones = parts["zone"].replace(["UTC", "GMT"], "Z").fillna("")
    local, utc = (
        pd.to_datetime(each, format="ISO8601", errors="coerce", utc=True).dt.tz_localize(None)
        for each in (written, written + zones)
    )
    instants = local.where(utc.notna()).to_numpy().astype("datetime64[s]")
    offsets = (local - utc).dt.total_seconds().where(zones != "").to_numpy(dtype=np.float64, na_value=np.nan).copy()
    for length, pattern in _DIGITS.items():
        rows = texts.str.fullmatch(rf"\d{{{length}}}").to_numpy(dtype=np.bool_)
        if rows.any():
            counted = parse_format(texts[rows], pattern)
            instants[rows], offsets[rows] = counted["timestamp"], counted["offset"]
    return _timestamps(instants, offsets.astype(np.float64, copy=False))
