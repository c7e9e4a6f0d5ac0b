"""The layouts of vendors that are read without a word said, each known by all of its headings."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Role = Literal["date", "time", "symbol", "open", "high", "low", "close", "adjusted_close", "volume"]

PRICE_ROLES: tuple[Role, ...] = ("open", "high", "low", "close", "adjusted_close", "volume")

SPELLINGS: dict[Role, tuple[str, ...]] = {
    "date": ("date", "datetime", "timestamp", "tradedate", "time"),
    "time": ("time",),
    "symbol": ("symbol", "ticker"),
    "open": ("open",),
    "high": ("high",),
    "low": ("low",),
    "close": ("close",),
    "adjusted_close": ("adjclose", "adjustedclose"),
    "volume": ("volume", "vol"),
}
"""Headings of the long layout as `plain` has them; the earlier one is taken where a file has several."""

_ENGLISH_DATES = ("%m/%d/%Y", "%d/%m/%Y", "%b %d, %Y")
_YFINANCE = frozenset(
    ("open", "high", "low", "close", "adjclose", "volume", "dividends", "stocksplits", "capitalgains", "repaired?")
)
_UNSEEN = re.compile(r"[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def visible(text: str) -> str:
    """Return text without invisible characters and surrounding spaces."""
    return _UNSEEN.sub("", text.replace("\u00a0", " ")).strip()


def plain(heading: str) -> str:
    """Return a heading without case, spaces and the marks that programs put around and between words."""
    return re.sub(r"[\s_\-./*<>]", "", unicodedata.normalize("NFKC", visible(heading)).casefold())


def is_unnamed(heading: str) -> bool:
    """Return whether a column has no heading, or the one that programs give an index without a name."""
    return not visible(heading) or heading.startswith(("Unnamed:", "__index_level_"))


@dataclass(frozen=True)
class Vendor:
    """How one vendor writes prices.

    Attributes:
        name: of the vendor.
        headings: plain headings that a file must have, and `others` that it may have.
        roles: plain heading of each role that is not called as in the long layout.
        date_formats: of its dates: the only one that fits all of them is taken; empty: as in the long layout.
        time_zone: of the exchanges whose midnights stamps of days in UTC are.
        symbol_from: names of its files; None: a file is named after its symbol.
        own_numbers: numbers have a currency, commas between thousands, or the letter of a unit.
    """

    name: str
    headings: frozenset[str]
    others: frozenset[str] = frozenset()
    roles: dict[Role, str] = field(default_factory=dict)
    date_formats: tuple[str, ...] = ()
    time_zone: str | None = None
    symbol_from: str | None = None
    own_numbers: bool = False


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


VENDORS = (
    Vendor(
        "Polygon",
        _words("ticker volume open close high low windowstart transactions"),
        roles={"date": "windowstart"},
        time_zone="America/New_York",
    ),
    Vendor(
        "nasdaq.com",
        _words("date closelast open high low"),
        _words("volume"),
        roles={"close": "closelast"},
        date_formats=("%m/%d/%Y",),
        own_numbers=True,
    ),
    Vendor(
        "investing.com",
        _words("date price open high low change%"),
        _words("vol"),
        roles={"close": "price"},
        date_formats=_ENGLISH_DATES,
        own_numbers=True,
    ),
    Vendor(
        "Binance",
        _words("opentime open high low close volume closetime"),
        _words(
            "quotevolume quoteassetvolume count numberoftrades takerbuyvolume takerbuyquotevolume "
            "takerbuybaseassetvolume takerbuyquoteassetvolume ignore"
        ),
        roles={"date": "opentime"},
        symbol_from="{symbol}-{part}.csv",
    ),
)
"""Beside these, files of Stooq, freqtrade and DuckDB have the headings of the long layout; those of yfinance have two
lines of them (`level_of_fields`)."""

KLINES = (
    *("open_time", "open", "high", "low", "close", "volume", "close_time", "quote_volume", "count"),
    *("taker_buy_volume", "taker_buy_quote_volume", "ignore"),
)
"""Headings of Binance's archive, whose files of the spot market have none."""


def vendor_of(names: Sequence[str]) -> Vendor | None:
    """Return the vendor whose file has exactly these headings, and None if they are of none."""
    found = {plain(name) for name in names if not is_unnamed(name)}
    return next((each for each in VENDORS if each.headings <= found <= each.headings | each.others), None)


def are_klines(cells: Sequence[str]) -> bool:
    """Return whether the first line of a file without headings is one of Binance's archive."""
    stamps = [cells[position].strip() for position in (0, 6)] if len(cells) == len(KLINES) else []
    return bool(stamps) and all(re.fullmatch(r"\d{13}|\d{16}", stamp) for stamp in stamps)


def level_of_fields(upper: Sequence[str], lower: Sequence[str]) -> int | None:
    """Return which of two lines of headings has yfinance's fields (0 or 1), the other the tickers; None: neither.

    Args:
        upper, lower: headings of each column; the first pair names the lines, as far as yfinance wrote their names.
    """
    named = [plain(line[0]) for line in (upper, lower)]
    if set(named) == {"price", "ticker"}:
        return named.index("price")
    words = [set(map(plain, line[1:])) for line in (upper, lower)]
    of_fields = [found <= _YFINANCE for found in words]
    if sum(of_fields) != 1 or lower[0] or "close" not in words[of_fields.index(True)]:
        return None
    return of_fields.index(True)


def own_numbers(texts: "pd.Series[str]") -> NDArray[np.float64]:
    """Return numbers as `$1,234.50`, `1.00M` and `0.5%` as float64 `[rows]`, NaN where it is none."""
    parts = texts.str.replace(",", "").str.extract(r"^([-+]?)\$?([-+]?[0-9]*\.?[0-9]+)\s*([KMBT]?)%?$")
    numbers = pd.to_numeric(parts[1], errors="coerce") * parts[2].fillna("").map(_UNITS)
    return np.asarray(numbers.where(parts[0] != "-", -numbers).to_numpy(dtype=np.float64, na_value=np.nan))
