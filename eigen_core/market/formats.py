"""Formats of price files: headings, vendors, dates and time zones; and the settings that fit an unknown format."""

import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
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
    "symbol": ("symbol", "ticker"),
    **{role: (role,) for role in PRICE_ROLES},
    "adjusted_close": ("adjclose", "adjustedclose"),
    "volume": ("volume", "vol"),
}
"""Headings of roles in the long layout (a row per symbol and day), by `heading_key`; the first in a file counts."""

_SHOWN_NAMES = 6
# For `suggest_settings`.
_ROWS, _MOST_SYMBOLS = 3_000, 500
_ORDERS = (
    "%m %d %Y", "%d %m %Y", "%d %b %Y", "%d %B %Y", "%b %d %Y", "%B %d %Y", "%Y %b %d", "%Y %m %d", "%m %d %y",
    "%d %m %y", "%d %b %y", "%y %m %d", "%b %d, %Y", "%B %d, %Y", "%d. %B %Y", "%Y年 %m月 %d日",
)  # fmt: skip
_TIMES = ("", " %H:%M:%S", " %H:%M", " %H:%M:%S.%f", " %H:%M:%S%z", " %I:%M:%S %p", " %I:%M %p", "T%H:%M:%S")
_FORMATS = [order.replace(" ", mark) + time for order in _ORDERS for mark in (*"/.- ", "") for time in _TIMES]
_FORMATS += ["%Y%m%d%H%M%S", "%Y%m%d%H%M", "%Y%m%d%H"]
_WORDS: dict[Role, str] = {
    "adjusted_close": r"adj.*cl|cl.*adj|adjusted|后复权|前复权",
    "open": r"open|^o$|开|開|시가|始値|eröff|erste|apert|ouvert|abert|откр",
    "high": r"high|^h$|max|最高|고가|高値|hoch|höchst|alto|haut|máx|макс",
    "low": r"low|^l$|min|最低|저가|安値|tief|bajo|bas$|mín|мин",
    "close": r"close|^c$|settle|last|price|收|종가|終値|schluss|cierre|clôt|clot|chius|fech|nav|px|prc|value|kurs|level"
    r"|zuletzt|закр|净值",
    "volume": r"vol|qty|成交量|거래량|出来高|stück|объ",
}
_SYMBOL_WORDS = (
    r"sym|tick|tic$|code|ric$|isin|cusip|sedol|wkn|permno|instr|asset|secur|stock|name|pair|coin|代码|종목|銘柄"
)
_UNCHANGED, _REPEATED, _WIDEST, _TIMES_OF_DAYS, _FEW = 0.5, 0.2, 1.3, 3, 32
# Time zones to suggest for timestamps in UTC.
_ZONES = (
    "America/New_York", "Europe/London", "Europe/Berlin", "Asia/Tokyo", "Asia/Shanghai", "Asia/Kolkata",
    "Australia/Sydney", "America/Sao_Paulo", "America/Chicago", "Europe/Helsinki", "Africa/Johannesburg",
    "Pacific/Auckland",
)  # fmt: skip
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)

Cells = Mapping[str, "pd.Series[Any]"]
Numbers = Mapping[str, "pd.Series[float]"]


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


@dataclass(frozen=True)
class Vendor:
    """The layout of the price files of a vendor, a provider of market data.

    Attributes:
        headings, optional: required and optional headings, as `heading_key` returns them, separated by spaces.
        roles: the heading of a role (date, close and so on), if it is not one of `ALIASES`.
        date_formats: formats for `parse_dates`; empty: the formats of the long layout.
        time_zone: time zone in which the timestamps, written in UTC, are midnights; None: the date shown is the day.
        symbol_from: pattern of file names, like `market.symbol_from`; None: a file's name is its symbol.
        has_units: numbers may have a currency sign, thousands separators or a letter (K, M, B, T).
    """

    headings: str
    optional: str = ""
    roles: dict[Role, str] = field(default_factory=dict)
    date_formats: tuple[str, ...] = ()
    time_zone: str | None = None
    symbol_from: str | None = None
    has_units: bool = False

    def fits(self, keys: set[str]) -> bool:
        needed = set(self.headings.split())
        return needed <= keys <= needed | set(self.optional.split())


VENDORS = {
    "Polygon": Vendor(
        "ticker volume open close high low windowstart transactions",
        roles={"date": "windowstart"},
        time_zone="America/New_York",
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
        "opentime open high low close volume closetime",
        "quotevolume quoteassetvolume count numberoftrades takerbuyvolume takerbuyquotevolume takerbuybaseassetvolume "
        "takerbuyquoteassetvolume ignore",
        {"date": "opentime"},
        symbol_from="{symbol}-{part}.csv",
    ),
}
"""Vendors whose headings differ from the long layout. Stooq, freqtrade and DuckDB use it; `parse_headings` reads
yfinance's two lines of headings."""

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


def columns_of(names: Sequence[str], market: MarketConfig) -> Columns | None:
    """Find columns by headings; None if these fit no layout. `LayoutError` if one of `market.columns` is missing."""
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
    vendor = None if named else next((each for each in VENDORS.values() if each.fits(set(keys))), None)
    aliases = ALIASES | {role: (key,) for role, key in (vendor.roles if vendor else {}).items()}
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


def suggest_settings(cells: Cells, market: MarketConfig, date: str | None = None, file_name: str = "") -> str:
    """Return the settings that most likely fit a file's cells, as the end of an error message.

    `date` is the heading of the dates, None if the columns are unknown; `file_name` is set if the symbol is unknown.
    """
    cells = {heading: column.head(_ROWS) for heading, column in cells.items()}
    found: dict[str, str] = {}
    if date is None:
        date, found = _layout(cells, market)
    if file_name:
        found["symbol_from"] = _symbol_pattern(file_name)
    elif date and not market.date_format and (pattern := _date_format(cells[date])):
        found["date_format"] = pattern
    return settings_to_add(found)


def settings_to_add(found: Mapping[str, str]) -> str:
    """Return flags with these settings of `market` to add to the command, as the end of an error message."""
    if not found:
        return (
            ": name its columns in market.columns.date, market.columns.close and so on, and the format of its dates in "
            "market.date_format, or write one row a symbol and day under the headings date, symbol and close."
        )
    flags = [f"--set {shlex.quote(f'market.{key}={value}')}" for key, value in found.items()]
    return f": add `{' '.join(flags)}`."


def likely_time_zone(utc: pd.DatetimeIndex) -> str:
    """Guess an exchange's time zone from UTC timestamps of its bars or days; UTC if it trades on weekends, too."""
    if all((utc.day_of_week == day).mean() > 0.05 for day in (SATURDAY, SATURDAY + 1)):
        return "UTC"

    def distance(zone: str) -> float:
        local = utc.tz_localize("UTC").tz_convert(zone).tz_localize(None)
        seconds = np.unique((local - local.normalize()).total_seconds())
        if len(seconds) <= _TIMES_OF_DAYS:
            # Daily rows: at midnight, or after a session from Monday to Friday.
            right = np.asarray((local.hour >= 12) & (local.hour <= 18)) * 0.9
            return -float(np.maximum(right, seconds.max() == 0.0)[local.day_of_week < SATURDAY].sum() / len(local))
        # Midnight is in the middle of the longest gap.
        gaps = np.diff(seconds, append=seconds[0] + 86_400.0)
        middle = (seconds[gaps.argmax()] + gaps.max() / 2.0) % 86_400.0
        return float(min(middle, 86_400.0 - middle))

    return min(_ZONES, key=distance)


def _symbol_pattern(file_name: str) -> str:
    stem = re.sub(r"(\.(csv|tsv|txt|parquet|pq|feather|arrow|ipc|gz))+$", "", file_name, flags=re.IGNORECASE)
    suffix = file_name.removeprefix(stem)
    if first := re.match(r"\d[-_\d]*([-_ ])(?=\D)", stem):
        return f"{{part}}{first[1]}{{symbol}}{suffix}"
    words = r"(?:\d+[smhdwM]-|[a-z]+[-_ .]?|[A-Z])?(?=\d)"
    parts = re.fullmatch(rf"(.+?)([-_ .(]+|(?=(?:19|20)\d\d))({words})(\d.*?)(\)?)", stem)
    return "{symbol}" + (f"{parts[2]}{parts[3]}{{part}}{parts[5]}" if parts else "") + suffix


def _layout(cells: Cells, market: MarketConfig) -> tuple[str, dict[str, str]]:
    headings = {heading_key(heading): heading for heading in reversed(list(cells))}
    known: dict[Role, str] = {
        role: headings[alias] for role in ALIASES for alias in reversed(ALIASES[role]) if alias in headings
    }
    known.pop("time", None)
    known |= {role: text for role in ALIASES if (text := getattr(market.columns, role)) in cells}
    date = known.get("date") or next((heading for heading, column in cells.items() if _are_dates(column)), "")
    if not date:
        return "", {}
    roles = dict(known)
    numbers = {heading: found for heading, column in cells.items() if (found := _numbers(column)) is not None}
    numbers.pop(date, None)
    texts = [heading for heading in cells if heading not in (date, *numbers) and cells[heading].notna().any()]
    repeated = cells[date].duplicated().mean() > _REPEATED
    if repeated and "symbol" not in roles:
        candidates = [heading for heading in (*texts, *numbers) if _is_key(cells[date], cells[heading])]
        if not candidates:
            return date, {}
        roles["symbol"] = min(candidates, key=lambda heading: not re.search(_SYMBOL_WORDS, heading.casefold()))
    numbers.pop(roles.get("symbol", ""), None)
    prices = _price_columns(numbers, roles)
    of_one = repeated or "symbol" in roles or {"open", "high", "low"} <= prices.keys()
    others = {heading: values.dropna() for heading, values in numbers.items() if heading not in prices.values()}
    whole = [heading for heading, values in others.items() if (values % 1 == 0).all() and values.nunique() > _FEW]
    if {*BAR} <= prices.keys() and "volume" not in prices and len(whole) == 1:
        prices["volume"] = whole[0]
    # Closes of several symbols under headings like AAPL_Close and AAPL_Open.
    fields = [sum(role in heading.casefold() for heading in numbers) for role in (*BAR[:3], "volume")]
    closes = [heading for heading in numbers if re.fullmatch(r"(?!.*(adj|bid|ask)).*close.*", heading.casefold())]
    closes = closes if not repeated and "symbol" not in roles and 1 < len(closes) in fields else []
    if "close" not in prices and of_one and len(numbers) == 1:
        prices["close"] = next(iter(numbers))
    if not closes and "close" in prices and (of_one or len(numbers) == 1 or len(prices) > 1):
        named = {role: text for role, text in {**roles, **prices, "date": date}.items() if known.get(role) != text}
        if not {"close", "symbol"} & named.keys():
            named["close"] = prices["close"]
        return date, {f"columns.{role}": clean_text(text) for role, text in named.items() if clean_text(text)}
    # A second column of dates means that symbols have their own dates.
    if not numbers or (of_one and not closes) or any(_are_dates(cells[heading]) for heading in texts):
        return date, {}
    settings = {"layout": "wide"}
    if heading_key(date) not in ALIASES["date"] and date != next(iter(cells)):
        settings["columns.date"] = date
    symbols = closes or _likely_symbols(numbers)
    if len(symbols) < len(numbers) + len(texts) and 0 < len(symbols) <= _MOST_SYMBOLS:
        settings["symbols"] = f"[{','.join(map(clean_text, symbols))}]"
    return date, settings


def _price_columns(numbers: Numbers, roles: Mapping[Role, str]) -> dict[Role, str]:
    """Find price columns by headings; if these lack one of open, high, low and close, find those four by values."""
    found: dict[Role, str] = {role: heading for role, heading in roles.items() if heading in numbers}
    for role, words in _WORDS.items():
        for heading in numbers:
            free = role not in found and heading not in found.values()
            if free and re.search(words, clean_text(heading).casefold()):
                found[role] = heading
    if set(BAR) <= found.keys():
        return found
    headings = list(numbers)
    # The first four columns with one that is always highest and one that is always lowest.
    for start in range(len(headings) - 3):
        four = np.stack([numbers[heading].to_numpy() for heading in headings[start : start + 4]])
        top, bottom = np.nanmax(four, axis=0), np.nanmin(four, axis=0)
        highest, lowest = (four >= top).mean(axis=1) > 0.95, (four <= bottom).mean(axis=1) > 0.95
        if highest.sum() == lowest.sum() == 1 and (top < _WIDEST * bottom).mean() > 0.95:
            first, second = np.flatnonzero(~highest & ~lowest)
            # A close before the open: by one of their headings, or as investing.com orders unknown ones.
            known = {headings[start + place] for place in (first, second)} & set(found.values())
            if second == 1 if not known else found.get("open") == headings[start + second]:
                first, second = second, first
            places = (first, highest.argmax(), lowest.argmax(), second)
            bars = {role: headings[start + place] for role, place in zip(BAR, places, strict=True)}
            return {role: heading for role, heading in found.items() if heading not in bars.values()} | bars
    return found


def _likely_symbols(numbers: Numbers) -> list[str]:
    """Return the headings of columns that are probably closes: positive, changing, and not named after another one."""
    capitals = sum(map(str.isupper, numbers)) > len(numbers) / 2
    found = []
    for heading, values in numbers.items():
        known = values.dropna()
        is_price = (known > 0.0).mean() > 0.9 and (known.diff().iloc[1:] == 0.0).mean() < _UNCHANGED
        is_price &= not (known.isin(range(_FEW)).all() or known.between(1.8e7, 2.2e7).all())
        cleaned = clean_text(heading)
        shorter = [other for other in numbers if len(other) < len(heading) and cleaned.startswith(clean_text(other))]
        is_derived = any(not heading[len(other)].isupper() for other in shorter) or (capitals and heading.islower())
        if is_price and not is_derived:
            found.append(heading)
    return found


def _is_key(dates: "pd.Series[Any]", cells: "pd.Series[Any]") -> bool:
    """Return whether a column can contain the symbols: its cell and the date identify a row, and its cells repeat."""
    # The ticker NA may be read as missing.
    both = pd.DataFrame({"date": dates, "cells": cells.astype("str").fillna("")})[dates.notna().to_numpy()]
    return bool(both.duplicated().mean() < 0.01) and 1 < both["cells"].nunique() <= len(both) / 3


def _texts(column: "pd.Series[Any]") -> "pd.Series[str]":
    texts = to_text(column)
    return texts[texts != ""]


def _date_format(column: "pd.Series[Any]") -> str | None:
    """Return the `market.date_format` that fits all cells best; empty if none is needed, None if none fits."""
    texts = _texts(column)
    if parse_dates(texts)["valid"].all():
        return ""
    fitting: dict[str, float] = {}
    lengths = zip(EPOCHS, (10, 13, 16, 19), strict=True)
    units = [unit for unit, most in lengths if texts.str.fullmatch(rf"\d{{{most - 1},{most}}}(\.0*)?").all()]
    for pattern in (each for each in (*_FORMATS, *units) if parse_format(texts[:5], each)["timestamp"].notna().all()):
        dates = parse_format(texts, pattern)["timestamp"]
        if dates.between(pd.Timestamp("1800-01-01"), pd.Timestamp("2100-01-01")).all():
            days = dates.to_numpy().astype("datetime64[D]").astype(np.int64)
            fitting[pattern] = float((np.abs(np.diff(days)) <= 5).mean()) if len(days) > 1 else 0.0
    return max(fitting, key=lambda pattern: fitting[pattern]) if fitting else None


def _are_dates(column: "pd.Series[Any]") -> bool:
    texts = _texts(column)
    digits = texts.str.fullmatch(r"[-+]?\d*").all()
    is_number = digits and not texts.str.fullmatch(r"(19|20)\d{6}|\d{10}|\d{13}|\d{16}").all()
    return bool(len(texts) and not is_number and texts.str.contains(r"\d").all() and _date_format(column) is not None)


def _numbers(column: "pd.Series[Any]") -> "pd.Series[float] | None":
    """Return a column as numbers, however they are written; None if fewer than 90 % of the cells are numbers."""
    if column.dtype.kind in "bM":
        return None
    if pd.api.types.is_numeric_dtype(column.dtype):
        return column.astype("float64") if column.notna().any() else None
    texts = _texts(column).str.replace(r"[$€£%\s]", "", regex=True)
    for written in (texts, texts.str.replace(",", ""), texts.str.replace(".", "").str.replace(",", ".")):
        numbers = pd.to_numeric(written, errors="coerce")
        if numbers.notna().mean() > 0.9:
            return numbers.reindex(column.index)
    return None


Days = NDArray[np.datetime64]

EPOCHS = ("s", "ms", "us", "ns")
"""Values of `market.date_format` for numbers that count this unit of time since 1970."""
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
    """Return cells as text without surrounding spaces: floats rounded to integers, missing cells empty."""
    if pd.api.types.is_float_dtype(column.dtype):
        column = column.map("{:.0f}".format, na_action="ignore")
    return column.astype("str").where(column.notna(), "").str.strip()


def parse_dates(column: "pd.Series[Any]", formats: Sequence[str] = ()) -> pd.DataFrame:
    """Parse dates and timestamps from text, numbers, dates or timestamps.

    Args:
        formats: strftime formats, or units of time since 1970 (`EPOCHS`); one must fit all cells. If several do, cells
            that they read differently are invalid; if none does, cells that do not fit the first. Without formats each
            cell may be 2024-12-31, with or without a time of day and a time zone, 20241231, or 13, 16 or 19 digits
            (milliseconds, microseconds or nanoseconds since 1970).

    Returns:
        One row per cell: `timestamp`, local datetime64[s], NaT if the cell is empty; `offset`, float64 seconds ahead of
        UTC, NaN without a time zone; `valid`, bool, true for an empty cell.
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
    """Return the weekdays of `days`: 0 for Monday to 6 for Sunday."""
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
