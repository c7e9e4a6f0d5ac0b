"""Headings of the long layout, and the layouts of vendors, each known by all of its headings."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from eigen_core.config import MarketConfig
from eigen_core.errors import InputError

Role = Literal["date", "time", "symbol", "open", "high", "low", "close", "adjusted_close", "volume"]

PRICE_ROLES: tuple[Role, ...] = ("open", "high", "low", "close", "adjusted_close", "volume")

ALIASES: dict[Role, tuple[str, ...]] = {
    "date": ("date", "datetime", "timestamp", "tradedate", "time"),
    "time": ("time",),
    "symbol": ("symbol", "ticker"),
    **{role: (role,) for role in PRICE_ROLES},
    "adjusted_close": ("adjclose", "adjustedclose"),
    "volume": ("volume", "vol"),
}
"""Headings of the long layout, as `heading_key` returns them; a file that has several has the first one's."""

_INVISIBLE = re.compile(r"[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")


class LayoutError(InputError):
    """A file cannot be read as it is. The message goes on after the name of the file."""


def visible(text: str) -> str:
    """Return text without invisible characters and surrounding spaces."""
    return _INVISIBLE.sub("", text.replace("\u00a0", " ")).strip()


def heading_key(heading: str) -> str:
    """Return a heading without case, spaces and the marks that programs put around and between words."""
    return re.sub(r"[\s_\-./*<>]", "", unicodedata.normalize("NFKC", visible(heading)).casefold())


def is_unnamed(heading: str) -> bool:
    """Return whether a column has no heading, or the one that programs give an index without a name."""
    return not visible(heading) or heading.startswith(("Unnamed:", "__index_level_"))


@dataclass(frozen=True)
class Vendor:
    """The layout of a vendor's files.

    Attributes:
        headings: keys of the headings that a file must have, separated by spaces; `optional`: that it may have.
        roles: key of the heading of each role that has another one than in the long layout.
        date_formats: of its dates; the only one that fits all of them is used. Empty: as in the long layout.
        time_zone: whose midnights, in UTC, are the dates.
        symbol_from: pattern of file names; None: a file is named after its symbol.
        has_units: numbers have a currency, commas between thousands, or the letter of a unit.
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
"""Files of Stooq, freqtrade and DuckDB have the headings of the long layout, those of yfinance two lines of them."""

# Files of the spot market in Binance's archive have no headings, but these.
_KLINES = (
    *("open_time", "open", "high", "low", "close", "volume", "close_time", "quote_volume", "count"),
    *("taker_buy_volume", "taker_buy_quote_volume", "ignore"),
)
_YFINANCE = "open high low close adjclose volume dividends stocksplits capitalgains repaired?"


@dataclass(frozen=True)
class Columns:
    """Positions of a file's columns: of each role that is used, and of the other ones with a heading.

    Of a wide file the others are those of symbols, and no role is `close`.
    """

    roles: dict[Role, int]
    others: tuple[int, ...]
    vendor: Vendor | None = None


def columns_of(names: Sequence[str], market: MarketConfig) -> Columns | None:
    """Return what the columns with these headings are; None: it is neither named nor known.

    Raises:
        LayoutError: a named column is not there.
    """
    seen = [visible(name) for name in names]
    named: dict[Role, int] = {}
    for role in ALIASES:
        if (heading := getattr(market.columns, role)) is not None:
            if visible(heading) not in seen:
                raise LayoutError(
                    f": market.columns.{role} names '{heading}', which is no heading; there are {listed(names)}."
                )
            named[role] = seen.index(visible(heading))
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
    # A close beside other columns may as well be a ticker.
    is_long = {"symbol", "volume", "adjusted_close"} & roles.keys() or {"open", "high", "low"} <= roles.keys()
    if vendor is not None or {"close", "symbol"} & named.keys() or (is_whole and (is_long or not others)):
        return Columns(roles, others, vendor) if is_whole else None
    if market.layout == "long":
        return None
    used: dict[Role, int] = {"date": roles.get("date", 0)}
    if "time" in named:
        used["time"] = named["time"]
    return Columns(used, tuple(place for place in headed if place not in used.values()))


def headings_of(lines: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Return headings, tickers if there is a second line of headings, and number of lines, by cells of the first three.

    Raises:
        LayoutError: they are no headings.
    """
    names, second, third = lines
    tickers: tuple[str, ...] = ()
    if len(names) == len(_KLINES) and all(re.fullmatch(r"\d{13}|\d{16}", names[place]) for place in (0, 6)):
        return _KLINES, (), 0
    if len(second) == len(names) > 1 and (level := _field_level(names, second)) is not None:
        names, tickers = ("Date", *(names, second)[level][1:]), (names, second)[1 - level][1:]
    if len(names) < 2:
        raise LayoutError(" has one column only: give dates and prices, separated by commas.")
    if re.fullmatch(r"[-+]?[0-9][-0-9./: ]*(T[-0-9:.+Z]*)?", names[0]):
        raise LayoutError(f" begins with '{names[0]}': write headings into its first line.")
    longest = max(names, key=len)
    if len(longest) > 1_000:
        raise LayoutError(f" has a heading of {len(longest):,} characters: write short ones into its first line.")
    has_dates = third and heading_key(third[0]) in ALIASES["date"] and not any(third[1:])
    return names, tickers, (3 if has_dates else 2) if tickers else 1


def listed(names: Sequence[str], shown: int = 6) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(f"'{name}'" for name in names[:shown]) + more


def _field_level(upper: Sequence[str], lower: Sequence[str]) -> int | None:
    """Return which of two lines of headings has yfinance's fields (0 or 1), the other the tickers; None: neither.

    The first pair names the lines, as far as yfinance wrote their names.
    """
    names = [heading_key(line[0]) for line in (upper, lower)]
    if set(names) == {"price", "ticker"}:
        return names.index("price")
    keys = [set(map(heading_key, line[1:])) for line in (upper, lower)]
    levels = [level for level in (0, 1) if keys[level] <= set(_YFINANCE.split())]
    return levels[0] if len(levels) == 1 and not lower[0] and "close" in keys[levels[0]] else None
