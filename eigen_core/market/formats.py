"""Formats of price files: headings, vendors, dates and times of day."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from eigen_core.common.errors import InputError
from eigen_core.common.text import listed
from eigen_core.config import MarketConfig

Role = Literal["date", "time", "symbol", "open", "high", "low", "close", "adjusted_close", "volume"]

BAR: tuple[Role, ...] = ("open", "high", "low", "close")
PRICE_ROLES: tuple[Role, ...] = (*BAR, "adjusted_close", "volume")

ALIASES: dict[Role, tuple[str, ...]] = {
    "date": ("date", "datetime", "timestamp", "tradedate", "time"),
    "time": ("time",),
    "symbol": ("symbol", "ticker", "tic"),
    **{role: (role,) for role in PRICE_ROLES},
    "adjusted_close": ("adjclose", "adjustedclose"),
    "volume": ("volume", "vol"),
}
"""Headings of roles in the long layout (a row per symbol and day), by `heading_key`; the first in a file counts."""

_SHOWN_NAMES = 6
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)


class LayoutError(InputError):
    """A price file cannot be read; the message continues a sentence that begins with the file's path."""


def clean_text(text: str) -> str:
    """Return `text` without invisible characters, and with single spaces between words only."""
    return " ".join(_INVISIBLE.sub("", text).split())


def heading_key(heading: str) -> str:
    """Return a heading in lower case without spaces and punctuation."""
    return re.sub(r"[\s_\-./*<>]", "", unicodedata.normalize("NFKC", clean_text(heading)).casefold())


def is_unnamed(heading: str) -> bool:
    return not clean_text(heading) or heading.startswith(("Unnamed:", "__index_level_"))


ISO = "2024-12-31"
"""Format for `parse_dates`: dates and timestamps that need no setting."""


@dataclass(frozen=True)
class Vendor:
    """The layout of the price files of a vendor, a provider of market data.

    Attributes:
        headings, optional: required and optional headings, as `heading_key` returns them, separated by spaces.
        roles: the heading of a role (date, close and so on), if it is not one of `ALIASES`.
        date_formats: formats for `parse_dates`; empty: the formats of the long layout.
        time_zone: time zone in which the day of the timestamps, written in UTC, is taken; None: the date shown.
        symbol: pattern of file names without their endings, whose group is the symbol; None: the name is the symbol.
        named: files must have names like `symbol`, and may have any further columns.
        has_units: numbers may have a currency sign, thousands separators or a letter (K, M, B, T).
        bar_stamp: whether a timestamp marks the open or the close of its bar; None: unknown.
    """

    headings: str
    optional: str = ""
    roles: dict[Role, str] = field(default_factory=dict)
    date_formats: tuple[str, ...] = ()
    time_zone: str | None = None
    symbol: str | None = None
    named: bool = False
    has_units: bool = False
    bar_stamp: Literal["open", "close"] | None = None

    def fits(self, keys: set[str], stem: str) -> bool:
        needed = set(self.headings.split())
        if self.named:
            return needed <= keys and bool(self.symbol_in(stem))
        return needed <= keys <= needed | set(self.optional.split())

    def symbol_in(self, stem: str) -> str:
        """Return the symbol in a file's name without its ending; empty if the name does not match."""
        found = re.fullmatch(self.symbol or "()", stem)
        return found[1] if found else ""


# Bars of 1D, 60 (minutes) and so on; a browser numbers second downloads.
_CHART = r"([^,]+), (?:\d+[SDWM]?|[DWM])(?:_\w+| \(\d+\))?"

# ccxt's rows have the headings 0 to 5, or none.
_ROWS_OF_CCXT = ("ccxt timestamp", "open", "high", "low", "close", "volume")

VENDORS = {
    "Polygon": Vendor(
        "ticker volume open close high low windowstart transactions",
        roles={"date": "windowstart"},
        time_zone="America/New_York",
        bar_stamp="open",
    ),
    "nasdaq.com": Vendor(
        "date closelast open high low", "volume", {"close": "closelast"}, date_formats=("%m/%d/%Y",), has_units=True
    ),
    "investing.com": Vendor(
        "date price open high low change%",
        "vol",
        {"close": "price"},
        date_formats=("%m/%d/%Y", "%d/%m/%Y", "%b %d, %Y"),
        has_units=True,
    ),
    "Binance": Vendor(
        "open high low close volume closetime",
        "opentime date quotevolume quoteassetvolume count numberoftrades takerbuyvolume takerbuyquotevolume "
        "takerbuybaseassetvolume takerbuyquoteassetvolume ignore",
        {"date": "opentime"},
        symbol=r"(.+?)-\d.*",
        bar_stamp="open",
    ),
    "TradingView, US exchanges": Vendor(
        "time open high low close",
        date_formats=("s", ISO),
        time_zone="America/New_York",
        symbol=f"(?:NASDAQ|NYSE|AMEX|BATS|CBOE|OTC)_{_CHART}",
        named=True,
        bar_stamp="open",
    ),
    "TradingView": Vendor(
        "time open high low close",
        date_formats=("s", ISO),
        symbol=f"(?:[A-Z0-9]+_)?{_CHART}",
        named=True,
        bar_stamp="open",
    ),
    "freqtrade": Vendor("date open high low close volume", symbol=r"(.+)-(?:\d+[mh]|1d)", named=True, bar_stamp="open"),
    # NumPy makes floats of all numbers of a row.
    "ccxt": Vendor(
        "ccxttimestamp open high low close volume",
        roles={"date": "ccxttimestamp"},
        date_formats=("ms",),
        bar_stamp="open",
    ),
}
"""Vendors whose headings or file names differ from the long layout. Stooq and DuckDB use it."""
YFINANCE = Vendor("", bar_stamp="open")
"""Its files have two lines of headings, which `parse_headings` reads."""

# The columns of spot prices in Binance's archive, whose files have no headings.
_KLINES = (
    *("open_time", "open", "high", "low", "close", "volume", "close_time", "quote_volume", "count"),
    *("taker_buy_volume", "taker_buy_quote_volume", "ignore"),
)
_YFINANCE = "open high low close adjclose volume dividends stocksplits capitalgains repaired?"


@dataclass(frozen=True)
class Columns:
    """Positions of a file's columns by role, and of its other columns, which are the symbols of a wide file."""

    roles: dict[Role, int]
    others: tuple[int, ...]
    vendor: Vendor | None = None


def columns_of(names: Sequence[str], market: MarketConfig, stem: str) -> Columns | None:
    """Find columns by headings, and by `stem`, the file's name without ending; None if these fit no layout.
    `LayoutError` if one of `market.columns` is missing."""
    seen = [clean_text(name) for name in names]
    named: dict[Role, int] = {}
    for role in ALIASES:
        if (heading := getattr(market.columns, role)) is not None:
            if clean_text(heading) not in seen:
                raise LayoutError(
                    f": market.columns.{role} names '{heading}', which is no heading; the headings are "
                    f"{list_headings(names)}: correct the setting."
                )
            named[role] = seen.index(clean_text(heading))
    headed = [place for place, name in enumerate(names) if not is_unnamed(name)]
    keys = {heading_key(names[place]): place for place in reversed(headed) if place not in named.values()}
    vendor = None if named else next((each for each in VENDORS.values() if each.fits(set(keys), stem)), None)
    aliases = ALIASES | {role: (key, *ALIASES[role]) for role, key in (vendor.roles if vendor else {}).items()}
    roles = {role: keys[alias] for role in ALIASES for alias in reversed(aliases[role]) if alias in keys} | named
    if "date" not in roles and is_unnamed(names[0]):
        roles["date"] = 0
    if roles.get("time") == roles.get("date"):
        roles.pop("time", None)
    if "close" not in roles and "adjusted_close" in roles:
        roles["close"] = roles.pop("adjusted_close")
    others = tuple(place for place in headed if place not in roles.values())
    is_whole = {"date", "close"} <= roles.keys()
    # In a file with unknown columns, "close" may be a ticker.
    is_long = {"symbol", "volume", "adjusted_close"} & roles.keys() or {"open", "high", "low"} <= roles.keys()
    if vendor is not None or {"close", "symbol"} & named.keys() or (is_whole and (is_long or not others)):
        return Columns(roles, others, vendor) if is_whole else None
    if market.layout == "long":
        return None
    used: dict[Role, int] = {"date": roles.get("date", 0)}
    if "time" in named:
        used["time"] = named["time"]
    return Columns(used, tuple(place for place in headed if place not in used.values()))


def parse_headings(lines: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Return headings, tickers (second headings) and number of heading lines of a file's first 3; or `LayoutError`."""
    names, second, third = lines
    tickers: tuple[str, ...] = ()
    if len(names) == len(_KLINES) and all(re.fullmatch(r"\d{13}|\d{16}", names[place]) for place in (0, 6)):
        return _KLINES, (), 0
    index, row = names[: -len(_ROWS_OF_CCXT)], names[-len(_ROWS_OF_CCXT) :]
    if index in ((), ("",)) and row == tuple(map(str, range(len(row)))):
        return (*index, *_ROWS_OF_CCXT), (), 1
    if index in ((), ("0",)) and len(row) == len(_ROWS_OF_CCXT) and re.fullmatch(r"\d{13}(\.0)?", row[0]):
        return (*("" for _ in index), *_ROWS_OF_CCXT), (), 0
    if len(second) == len(names) > 1 and (level := _field_level(names, second)) is not None:
        names, tickers = ("Date", *(names, second)[level][1:]), (names, second)[1 - level][1:]
    if len(names) < 2:
        raise LayoutError(" has one column only: give dates and prices, separated by commas.")
    cells = [name for name in names if re.fullmatch(r"\d{4}-\d\d-\d\d([T ].*)?|\d*\.\d*[1-9]\d*", name)]
    if cells or re.fullmatch(r"[-+]?[0-9][-0-9./: ]*(T[-0-9:.+Z]*)?", names[0]):
        raise LayoutError(f" begins with '{(*cells, names[0])[0]}': write headings into its first line.")
    longest = max(names, key=len)
    if len(longest) > 1_000:
        raise LayoutError(f" has a heading of {len(longest):,} characters: write short ones into its first line.")
    has_dates = third and heading_key(third[0]) in ALIASES["date"] and not any(third[1:])
    return names, tickers, (3 if has_dates else 2) if tickers else 1


def list_headings(names: Sequence[str]) -> str:
    """Quote the first headings and count the others."""
    return listed([f"'{name}'" for name in names], _SHOWN_NAMES)


def _field_level(upper: Sequence[str], lower: Sequence[str]) -> int | None:
    """Return which of two lines has yfinance's price fields, 0 or 1 (the other has tickers); None if neither has."""
    names = [heading_key(line[0]) for line in (upper, lower)]
    if set(names) == {"price", "ticker"}:
        return names.index("price")
    keys = [set(map(heading_key, line[1:])) for line in (upper, lower)]
    levels = [level for level in (0, 1) if keys[level] <= set(_YFINANCE.split())]
    return levels[0] if len(levels) == 1 and not lower[0] and "close" in keys[levels[0]] else None


Days = NDArray[np.datetime64]

EPOCHS = ("s", "ms", "us", "ns")
"""Values of `market.date_format` for numbers that count this unit of time since 1970."""
SATURDAY, SUNDAY = 5, 6

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
    """Return cells as text without surrounding spaces: whole floats as integers, missing cells empty."""
    if pd.api.types.is_float_dtype(column.dtype):
        is_whole = bool((column.dropna() % 1 == 0).all())
        column = column.map("{:.0f}".format if is_whole else str, na_action="ignore")
    return column.astype("str").where(column.notna(), "").str.strip()


def distinct_texts(column: "pd.Series[Any]") -> tuple[NDArray[np.intp], "pd.Series[str]"]:
    """Return the distinct cells as `to_text` writes them, and the position of each cell among them."""
    codes, found = pd.factorize(column)
    texts = to_text(pd.Series(found).astype(getattr(found.dtype, "categories", found).dtype))
    # Missing cells have the code -1, the last one.
    return codes, texts if codes.min(initial=0) >= 0 else pd.concat([texts, pd.Series([""])], ignore_index=True)


def parse_dates(column: "pd.Series[Any]", formats: Sequence[str] = ()) -> pd.DataFrame:
    """Parse dates and timestamps from text, numbers, dates or timestamps.

    Args:
        formats: strftime formats, units of time since 1970 (`EPOCHS`), or `ISO`; one must fit all cells. If several do,
            cells that they read differently are invalid; if none does, cells that do not fit the first. By `ISO`, and
            without formats, each cell may be 2024-12-31, with or without a time of day and a time zone, 20241231, or
            13, 16 or 19 digits (milliseconds, microseconds or nanoseconds since 1970).

    Returns:
        One row per cell: `timestamp`, local datetime64[s], NaT if the cell is empty; `offset`, float64 seconds ahead of
        UTC, NaN without a time zone; `valid`, bool, true for an empty cell.
    """
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        local, utc = column.dt.tz_localize(None), column.dt.tz_convert("UTC").dt.tz_localize(None)
        return _timestamps(local, (local - utc).dt.total_seconds().to_numpy())
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return _timestamps(column, np.nan)
    codes, texts = distinct_texts(column)
    missing = texts.isin(_MISSING)
    read = [_parse_iso(texts) if each == ISO else parse_format(texts, each) for each in formats or (ISO,)]
    fitting = [each for each in read if (missing | each["timestamp"].notna()).all()] or read[:1]
    parsed = fitting[0]
    for other in fitting[1:]:
        parsed["timestamp"] = parsed["timestamp"].where(parsed["timestamp"] == other["timestamp"])
    parsed["valid"] = missing | parsed["timestamp"].between(_EARLIEST, _LATEST)
    return pd.DataFrame({name: values.to_numpy()[codes] for name, values in parsed.items()})


def parse_format(texts: "pd.Series[str]", pattern: str) -> pd.DataFrame:
    """Parse texts in one format, into the columns that `parse_dates` returns; NaT where the format does not fit."""
    if pattern in EPOCHS:
        numbers = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        known = np.abs(numbers) < _LARGEST_COUNT
        counts = np.where(known, numbers, 0.0).astype(np.int64).astype(f"datetime64[{pattern}]")
        return _timestamps(np.where(known, counts, np.datetime64("NaT")), 0.0)
    zoned = "%z" in pattern
    parsed = pd.to_datetime(texts, format=pattern, errors="coerce", utc=zoned)
    return _timestamps(parsed.dt.tz_localize(None), 0.0 if zoned else np.nan)


def parse_times_of_day(column: "pd.Series[Any]") -> NDArray[np.float64]:
    """Return seconds since midnight, float64: of 9:30, 16:00:00, 4:00 PM, 93000 or 1600; 0 if empty, otherwise NaN."""
    texts = to_text(column).str.removesuffix(".0").replace("", "0")
    padded = texts.str.zfill(4).where(texts.str.len() <= 4, texts.str.zfill(6)).str.ljust(6, "0")
    digits = padded.str.replace(r"(..)(..)(..)", r"\1:\2:\3", regex=True)
    parts = texts.where(~texts.str.fullmatch(r"\d{3,6}|0"), digits).str.extract(_TIME_OF_DAY)
    hours, minutes, seconds = (pd.to_numeric(parts[unit]) for unit in ("hour", "minute", "second"))
    hours = hours.where(parts["half"].isna(), hours % 12 + 12 * (parts["half"].str.lower() == "p"))
    seconds = seconds.fillna(0)
    found = (hours * 3_600 + minutes * 60 + seconds).where((hours < 24) & (minutes < 60) & (seconds < 60))
    return np.asarray(found.to_numpy(dtype=np.float64, na_value=np.nan))


def weekdays_of(days: Days) -> NDArray[np.int64]:
    """Return the weekdays of `days`, or of the days of bars: 0 for Monday to 6 for Sunday."""
    return (dates_of(days).astype(np.int64) + 3) % 7


def dates_of(ends: Days) -> Days:
    """Return the dates, datetime64[D], of days or of bars by their ends; midnight ends the day before."""
    return ends if ends.dtype == "datetime64[D]" else (ends - np.timedelta64(1, "s")).astype("datetime64[D]")


_DAY = re.compile(r"(?<!{)\bday(?=s?\b)")


def unit_of(dates: Days) -> str:
    """Return what a row with one of these dates is called: a day, or a bar (within a day)."""
    return "day" if dates.dtype == "datetime64[D]" else "bar"


def in_unit(sentence: str, unit: str) -> str:
    """Return a sentence, or a template of one, in which days are called by another unit."""
    return _DAY.sub(unit, sentence)


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
