"""Which column of a price file is what: the usual spellings of its headings."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eigen_core.errors import InputError

Role = Literal["date", "symbol", "open", "high", "low", "close", "adjusted_close", "volume"]

PRICE_ROLES: tuple[Role, ...] = ("open", "high", "low", "close", "adjusted_close", "volume")

# The earlier spelling wins where a file has several: a file with `ticker` and `name` has the company's name in the
# latter.
_SPELLINGS: dict[Role, tuple[str, ...]] = {
    "date": ("date", "datetime", "timestamp", "tradedate", "tradingdate", "day", "time"),
    "symbol": ("symbol", "ticker", "tic", "code", "instrument", "asset", "stock", "name"),
    "open": ("open", "openprice", "openingprice"),
    "high": ("high", "highprice", "dayhigh"),
    "low": ("low", "lowprice", "daylow"),
    "close": ("close", "closeprice", "closingprice", "closelast", "last", "lastprice", "price"),
    "adjusted_close": ("adjclose", "adjustedclose", "closeadj", "closeadjusted", "adjcloseprice"),
    "volume": ("volume", "vol", "tradedvolume", "sharevolume"),
}


_DATE_OR_NUMBER = re.compile(r"[-+]?[0-9][-0-9./: ]*(T[-0-9:.+Z]*)?")


@dataclass(frozen=True)
class Headings:
    """What the columns of one file are.

    Attributes:
        layout: `long` has one row a symbol and day, `wide` one row a day and one column of closes a symbol.
        roles: position of each column that is used; of a wide file the date's alone.
        symbols: of a wide file, position and name of each symbol's column.
        ignored: headings of columns that are not used.
    """

    layout: Literal["long", "wide"]
    roles: dict[Role, int]
    symbols: tuple[tuple[int, str], ...]
    ignored: tuple[str, ...]


def read_headings(names: Sequence[str], where: str) -> Headings:
    """Tell what the columns with these headings are.

    Args:
        names: headings, as they stand in the file.
        where: the file, for messages.

    A file with a column of closes is long; any other is wide, its first column the date. Upper and lower case, spaces
    and punctuation make no difference to a heading; in a wide file they do to a symbol.

    Raises:
        InputError: there is no date, no price, or a heading is there twice.
    """
    if len(names) < 2:
        raise InputError(
            f"{where} has one column only: give a date, a symbol and prices, or a date and one column of closes a "
            "symbol, separated by commas."
        )
    if _DATE_OR_NUMBER.fullmatch(names[0].strip()):
        raise InputError(f"{where} begins with '{names[0]}': write headings into its first line.")
    roles = _roles_of(names)
    if "close" in roles or "adjusted_close" in roles:
        return _long(names, roles, where)
    return _wide(names, roles, where)


def _plain(heading: str) -> str:
    return re.sub(r"[^0-9a-z]", "", heading.lower())


def _roles_of(names: Sequence[str]) -> dict[Role, int]:
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        positions.setdefault(_plain(name), position)
    roles: dict[Role, int] = {}
    for role, spellings in _SPELLINGS.items():
        found = [positions[spelling] for spelling in spellings if spelling in positions]
        if found:
            roles[role] = found[0]
    return roles


def _long(names: Sequence[str], roles: dict[Role, int], where: str) -> Headings:
    if "date" not in roles and _is_unnamed(names[0]):
        roles = {**roles, "date": 0}
    if "date" not in roles:
        raise InputError(f"{where} has no column of dates: name it date; its columns are {_listed(names)}.")
    used = {_plain(names[position]) for position in roles.values()}
    counts = Counter(_plain(name) for name in names)
    twice = [name for name in names if _plain(name) in used and counts[_plain(name)] > 1]
    if twice:
        raise InputError(f"{where} has several columns named {_listed(twice)}: leave one of them.")
    ignored = tuple(
        name for position, name in enumerate(names) if position not in roles.values() and not _is_unnamed(name)
    )
    return Headings("long", roles, (), ignored)


def _wide(names: Sequence[str], roles: dict[Role, int], where: str) -> Headings:
    others = [name.strip() for name in names[1:]]
    bars: set[Role] = {"open", "high", "low", "volume"}
    found = sum(roles[role] != 0 for role in bars & roles.keys())
    # LOW and OPEN are symbols too: a file is taken for a long one only if it has hardly anything else.
    if (found >= 2 and "symbol" in roles) or ("date" in roles and found >= len(names) - 1):
        raise InputError(f"{where} has no column of closes: name it close; its columns are {_listed(names)}.")
    unnamed = [position for position, name in enumerate(others, 2) if _is_unnamed(name)]
    if unnamed:
        raise InputError(f"{where}: column {unnamed[0]} has no heading: write its symbol there.")
    if any(name.startswith("(") for name in others):
        raise InputError(f"{where} has headings of two levels ({_listed(others)}): give a long file or closes alone.")
    twice = [name for name, count in Counter(others).items() if count > 1]
    if twice:
        raise InputError(f"{where} has several columns named {_listed(twice)}: leave one of them.")
    return Headings("wide", {"date": 0}, tuple(enumerate(others, 1)), ())


def _is_unnamed(name: str) -> bool:
    return not name.strip() or name.startswith(("Unnamed:", "__index_level_"))


def _listed(names: Sequence[str], shown: int = 6) -> str:
    listed = ", ".join(f"'{name}'" for name in names[:shown])
    return listed if len(names) <= shown else f"{listed} and {len(names) - shown} more"
