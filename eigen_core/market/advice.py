"""The settings that most likely read a price file whose layout is neither named nor known: what a refusal prints.

Here cells and headings may be guessed from, for nothing is read by it: a user pastes the settings, or names others.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pandas as pd

from eigen_core.config import MarketConfig
from eigen_core.market.stamps import UnreadableDateError, in_format, read_stamps
from eigen_core.market.vendors import SPELLINGS, Role, plain, visible

Column = "pd.Series[Any]"

_ROWS = 3_000
_MOST_SYMBOLS = 500
_DATES = (
    "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%m-%d-%Y", "%d-%b-%Y", "%d %b %Y", "%b %d, %Y", "%d %B %Y",
    "%B %d, %Y", "%d.%m.%y", "%m/%d/%y", "%d/%m/%y", "%Y年%m月%d日", "%d-%b-%y", "%Y%m%d%H%M%S", "%Y%m%d%H%M",
    "%Y%m%d%H",
)  # fmt: skip
_TIMES = ("", " %H:%M:%S", " %H:%M", " %H:%M:%S%z", " %I:%M:%S %p", " %I:%M %p", "T%H:%M:%S")
_WORDS: dict[Role, str] = {
    "adjusted_close": r"adj.*cl|cl.*adj|adjusted|后复权|前复权",
    "open": r"open|^o$|开|開|시가|始値|eröff|erste|apert|ouvert|abert|откр",
    "high": r"high|^h$|max|最高|고가|高値|hoch|höchst|alto|haut|máx|макс",
    "low": r"low|^l$|min|最低|저가|安値|tief|bajo|bas$|mín|мин",
    "close": r"close|^c$|settle|last|price|收|종가|終値|schluss|cierre|clôt|clot|chius|fech|nav|px|prc|value|kurs|level"
    r"|закр|净值",
    "volume": r"vol|qty|成交量|거래량|出来高|stück|объ",
    "symbol": r"sym|tick|tic$|code|ric$|isin|cusip|sedol|wkn|permno|instr|asset|secur|stock|name|pair|coin"
    r"|代码|종목|銘柄",
}
_UNCHANGED, _REPEATED, _WIDEST = 0.5, 0.2, 1.3


class _Used(Protocol):
    @property
    def roles(self) -> dict[Role, int]: ...


def advice(
    columns: "Mapping[str, pd.Series[Any]]", market: MarketConfig, used: _Used | None, file_name: str = ""
) -> str:
    """Return the end of a sentence: the settings that most likely read a file.

    Args:
        columns: cells by heading.
        market: what is named already.
        used: the columns that are known; None: they are not.
        file_name: of a file that does not say its symbol; empty: it need not.
    """
    cells = {heading: column.head(_ROWS) for heading, column in columns.items()}
    found: dict[str, str] = {}
    headings = list(cells)
    date = headings[used.roles["date"]] if used is not None else ""
    if used is None:
        date, found = _named_columns(cells, market)
    if date and not market.date_format and (pattern := _date_format(cells[date])):
        found["date_format"] = pattern
    if (mark := _decimal(cells)) and mark != market.decimal:
        found["decimal"] = mark
    if file_name:
        found["symbol_from"] = symbol_pattern(file_name)
    return settings_to_add(found)


def settings_to_add(found: Mapping[str, str]) -> str:
    """Return the end of a sentence that says which settings of `market` to add to the command."""
    if not found:
        return (
            ": name its columns in market.columns.date, market.columns.close and so on, or write one row a symbol and "
            "day under the headings date, symbol and close."
        )
    flags = [f"--set {shlex.quote(f'market.{key}={value}')}" for key, value in found.items()]
    return f": add `{' '.join(flags)}`."


def symbol_pattern(file_name: str) -> str:
    """Return the `market.symbol_from` that most likely says where the symbol is in a file's name."""
    stem = re.sub(r"(\.(csv|tsv|txt|parquet|pq|feather|arrow|ipc|gz))+$", "", file_name, flags=re.IGNORECASE)
    suffix = file_name.removeprefix(stem)
    parted = re.fullmatch(r"(.+?)([-_ .(]+|(?=(?:19|20)\d\d))(\d.*?)(\)?)", stem)
    if parted is None:
        return "{symbol}" + suffix
    interval = re.match(r"\d+[smhdwM]-(?=\d)", parted[3])
    return "{symbol}" + parted[2] + (interval[0] if interval else "") + "{part}" + parted[4] + suffix


def _named_columns(cells: "dict[str, pd.Series[Any]]", market: MarketConfig) -> tuple[str, dict[str, str]]:
    """Return the heading of the dates, and the settings that name layout and columns."""
    roles = _known_roles(cells, market)
    date = roles.get("date") or next((heading for heading, column in cells.items() if _are_dates(column)), "")
    if not date:
        return "", {}
    numbers = {heading: values for heading, column in cells.items() if (values := _numbers(column)) is not None}
    numbers.pop(date, None)
    texts = [heading for heading in cells if heading not in (date, *numbers) and cells[heading].notna().any()]
    repeated = cells[date].duplicated().mean() > _REPEATED
    if repeated and "symbol" not in roles:
        keys = [heading for heading in (*texts, *numbers) if _is_key(cells[date], cells[heading])]
        keys.sort(key=lambda heading: not re.search(_WORDS["symbol"], heading.casefold()))
        if not keys:
            return date, {}
        roles["symbol"] = keys[0]
    numbers.pop(roles.get("symbol", ""), None)
    hinted = _hinted(numbers, roles)
    if not {"open", "high", "low", "close"} <= hinted.keys():
        bars = _by_structure(numbers)
        hinted = {role: heading for role, heading in hinted.items() if heading not in bars.values()} | bars
    of_one = repeated or "symbol" in roles or {"open", "high", "low"} <= hinted.keys()
    if "close" not in hinted and of_one and len(numbers) == 1:
        hinted["close"] = next(iter(numbers))
    if "close" in hinted and (of_one or len(numbers) == 1 or "volume" in hinted or len(hinted) > 1):
        return date, _settings(cells, {**roles, **hinted, "date": date}, market)
    if of_one or not numbers:
        return date, {}
    symbols = _likely_symbols(numbers)
    found = {"layout": "wide"}
    if plain(date) not in SPELLINGS["date"] and date != next(iter(cells)):
        found["columns.date"] = date
    if len(symbols) < len(numbers) + len(texts) and 0 < len(symbols) <= _MOST_SYMBOLS:
        found["symbols"] = f"[{','.join(map(visible, symbols))}]"
    return date, found


def _settings(cells: "dict[str, pd.Series[Any]]", roles: dict[Role, str], market: MarketConfig) -> dict[str, str]:
    known = _known_roles(cells, market)
    found = {f"columns.{role}": visible(heading) for role, heading in roles.items() if known.get(role) != heading}
    if not {"close", "symbol"} & {key.removeprefix("columns.") for key in found} and "close" in roles:
        found["columns.close"] = visible(roles["close"])
    return {key: heading for key, heading in found.items() if heading}


def _known_roles(cells: "Mapping[str, pd.Series[Any]]", market: MarketConfig) -> dict[Role, str]:
    named: dict[Role, str] = {role: text for role in SPELLINGS if (text := getattr(market.columns, role)) in cells}
    known: dict[Role, str] = {
        role: found[0]
        for role, spellings in SPELLINGS.items()
        if role != "time" and (found := [heading for name in spellings for heading in cells if plain(heading) == name])
    }
    return known | named


def _hinted(numbers: Mapping[str, "pd.Series[float]"], roles: dict[Role, str]) -> dict[Role, str]:
    """Return the numeric columns whose headings are words for prices, each for one role."""
    found: dict[Role, str] = {role: heading for role, heading in roles.items() if heading in numbers}
    for role, words in _WORDS.items():
        for heading in numbers:
            free = role not in found and role != "symbol" and heading not in found.values()
            if free and re.search(words, visible(heading).casefold()):
                found[role] = heading
    return found


def _by_structure(numbers: Mapping[str, "pd.Series[float]"]) -> dict[Role, str]:
    """Return open, high, low and close: the first four columns of which one is the highest and one the lowest."""
    free = list(numbers)
    for start in range(len(free) - 3):
        four = np.stack([numbers[heading].to_numpy() for heading in free[start : start + 4]])
        highest = [(row >= np.nanmax(four, axis=0)).mean() > 0.95 for row in four]
        lowest = [(row <= np.nanmin(four, axis=0)).mean() > 0.95 for row in four]
        near = (np.nanmax(four, axis=0) < _WIDEST * np.nanmin(four, axis=0)).mean() > 0.95
        if sum(highest) == 1 and sum(lowest) == 1 and near:
            others = [position for position in range(4) if not highest[position] and not lowest[position]]
            places: tuple[tuple[Role, int], ...] = (
                ("open", others[0]), ("high", highest.index(True)), ("low", lowest.index(True)), ("close", others[1])
            )  # fmt: skip
            return {role: free[start + position] for role, position in places}
    return {}


def _likely_symbols(numbers: Mapping[str, "pd.Series[float]"]) -> list[str]:
    """Return the columns that are most likely closes: positive, changing, and no heading with another one in it."""
    capitals = sum(heading.isupper() for heading in numbers) > len(numbers) / 2

    def is_price(heading: str, values: "pd.Series[float]") -> bool:
        known = values.dropna()
        changing = len(known) > 1 and float((known.diff().iloc[1:] == 0.0).mean()) < _UNCHANGED
        begun = any(
            other != heading and visible(heading).startswith(visible(other)) and not heading[len(other)].isupper()
            for other in numbers
            if len(other) < len(heading)
        )
        return changing and bool((known > 0.0).mean() > 0.9) and not begun and not (capitals and heading.islower())

    return [heading for heading, values in numbers.items() if is_price(heading, values)]


def _is_key(dates: "pd.Series[Any]", cells: "pd.Series[Any]") -> bool:
    """Return whether rows are known apart by the date and this column, which has fewer values than there are rows."""
    # NA is a ticker that was read as missing.
    together = pd.DataFrame({"date": dates, "cells": cells.astype("str").fillna("")})[dates.notna().to_numpy()]
    few = together["cells"].nunique() <= len(together) / 3
    return bool(few and together.duplicated().mean() < 0.01 and together["cells"].nunique() > 1)


def _are_dates(column: "pd.Series[Any]") -> bool:
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return True
    texts = column.dropna().astype("str").str.strip()
    digits = texts.str.fullmatch(r"[-+]?\d*\.?\d*").all()
    if not len(texts) or (digits and not texts.str.fullmatch(r"(19|20)\d{6}|\d{10}|\d{13}|\d{16}").all()):
        return False
    return _is_usual_date(column) or bool(_date_format(column))


def _is_usual_date(column: "pd.Series[Any]") -> bool:
    try:
        read_stamps(column, ())
    except UnreadableDateError:
        return False
    return True


def _date_format(column: "pd.Series[Any]") -> str:
    """Return the format that fits all dates, and in which most follow each other; empty: none, or none is needed."""
    if not (pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.is_datetime64_any_dtype(column.dtype)):
        column = column.where(column.str.strip() != "") if hasattr(column, "str") else column
    if _is_usual_date(column):
        return ""
    texts = column.dropna()
    if pd.api.types.is_float_dtype(texts.dtype):
        texts = texts.map("{:.0f}".format)
    texts = texts.astype("str").str.strip()
    fitting: list[tuple[float, str]] = []
    patterns = ["s"] if texts.str.fullmatch(r"\d{9,10}").all() else []
    timed = [date + time for date in _DATES for time in _TIMES if not (time and "%H" in date)]
    for pattern in (*timed, *patterns):
        instants = in_format(texts, pattern).instants
        if len(texts) and not np.isnat(instants).any() and instants.max() < np.datetime64("2100-01-01"):
            steps = np.diff(instants.astype("datetime64[D]").astype(np.int64))
            fitting.append((-float((np.abs(steps) <= 5).mean()) if len(steps) else 0.0, pattern))
    return min(fitting, key=lambda found: found[0])[1] if fitting else ""


def _numbers(column: "pd.Series[Any]") -> "pd.Series[float] | None":
    """Return a column as numbers, if most of its cells are some, however they are written."""
    if pd.api.types.is_datetime64_any_dtype(column.dtype) or pd.api.types.is_bool_dtype(column.dtype):
        return None
    if pd.api.types.is_numeric_dtype(column.dtype):
        return column.astype("float64") if column.notna().any() else None
    texts = column.dropna().astype("str").str.strip()
    texts = texts[texts != ""].str.replace(r"[$€£%\s]", "", regex=True)
    for written in (texts, texts.str.replace(",", ""), texts.str.replace(".", "").str.replace(",", ".")):
        numbers = pd.to_numeric(written, errors="coerce")
        if len(numbers) and numbers.notna().mean() > 0.9:
            return numbers.reindex(column.index)
    return None


def _decimal(cells: "Mapping[str, pd.Series[Any]]") -> str:
    """Return the decimal mark of numbers that were read as text, empty where there are none with commas."""
    for column in cells.values():
        if pd.api.types.is_numeric_dtype(column.dtype) or _numbers(column) is None:
            continue
        texts = column.dropna().astype("str").str.strip()
        thousands = texts.str.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?").any()
        if thousands and not texts.str.fullmatch(r"\d+,(\d\d?|\d{4,})").any():
            return "."
        if texts.str.fullmatch(r"[-+]?[\d.]*,\d+").any():
            return ","
    return ""
