"""Which column of a price file is what, decided from all of its headings."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eigen_core.errors import InputError
from eigen_core.market.spellings import (
    PRICE_ROLES,
    SPELLINGS,
    VALUES,
    Role,
    is_closing,
    is_companion,
    plain,
    split_fields,
)

CellKind = Literal["text", "time", "whole", "fraction", "empty"]
"""What most cells of a column are: text, times of day below a heading of times, whole numbers, numbers, or nothing."""

_LONGEST_HEADING = 1_000
_LONGEST_TICKER = 5
_DATE_OR_NUMBER = re.compile(r"[-+]?[0-9][-0-9./: ]*(T[-0-9:.+Z]*)?")
_IN_CAPITALS = re.compile(r"[A-Z0-9^]+([-.=/ ][A-Z0-9]+)*")
_LONG_HEADINGS = "one row a symbol and day under the headings date, symbol and close"


@dataclass(frozen=True)
class Headings:
    """What the columns of one file are.

    Attributes:
        layout: `long` has one row a symbol and day, `wide` one row a day and one column of closes a symbol.
        roles: position of each column that is used; of a wide file those of date and time alone.
        symbols: of a wide file, position and name of each symbol's column.
        ignored: positions of named columns that are not used.
    """

    layout: Literal["long", "wide"]
    roles: dict[Role, int]
    symbols: tuple[tuple[int, str], ...]
    ignored: tuple[int, ...]


def check_names(names: Sequence[str], where: str) -> None:
    """Check headings before anything is known of the cells below them.

    Raises:
        InputError: there is one column only, or what stands there is no heading.
    """
    if len(names) < 2:
        raise InputError(
            f"{where} has one column only: give a date, a symbol and prices, or a date and one column of closes a "
            "symbol, separated by commas."
        )
    if _DATE_OR_NUMBER.fullmatch(names[0].strip()):
        raise InputError(f"{where} begins with '{names[0]}': write headings into its first line.")
    longest = max(names, key=len)
    if len(longest) > _LONGEST_HEADING:
        raise InputError(
            f"{where} has a heading of {len(longest):,} characters ('{longest[:40]}...'): write short headings into "
            "its first line."
        )


def text_positions(names: Sequence[str]) -> set[int]:
    """Return the positions whose cells are read as text because of their headings: dates and symbols."""
    positions = _positions(names)
    return {0} | {
        positions[spelling]
        for role in ("date", "time", "symbol")
        for spelling in SPELLINGS[role]
        if spelling in positions
    }


def read_headings(names: Sequence[str], kinds: Sequence[CellKind], where: str) -> Headings:
    """Return what the columns with these headings are.

    Args:
        names: headings, as they stand in the file.
        kinds: of the cells of each column.
        where: the file, for messages.

    A file with a column of closes is long, any other is wide, its first column the date. Where that column may as well
    be a symbol (LAST, PRICE, CLOSE), the other headings decide. Upper and lower case, spaces and punctuation make no
    difference to a heading; in a wide file they do to a symbol.

    Raises:
        InputError: there is no date, no price, a heading is there twice, or the file can be read in two ways.
    """
    roles = _roles_of(names, kinds)
    others = _other_numbers(names, kinds, roles)
    if "close" not in roles and "adjusted_close" not in roles:
        values = [position for position in others if plain(names[position]) in VALUES]
        with_value = {**roles, "close": values[0]} if values else roles
        if not values or not _is_long(with_value, others[1:]):
            return _wide(names, kinds, roles, where)
        return _long(names, with_value, where)
    if _is_in_capitals(names, _known(roles), 3) and not _has_symbols(roles, kinds):
        return _wide(names, kinds, roles, where)
    if _is_long(roles, others):
        return _long(names, roles, where)
    close = names[roles.get("close", roles.get("adjusted_close", 0))]
    raise InputError(
        f"{where} can be read in two ways: '{close}' is the close of one symbol, or a symbol like the other columns "
        f"({_listed(names)}): write {_LONG_HEADINGS}, or leave out what is no price."
    )


def _positions(names: Sequence[str]) -> dict[str, int]:
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        positions.setdefault(plain(name), position)
    return positions


def _roles_of(names: Sequence[str], kinds: Sequence[CellKind]) -> dict[Role, int]:
    positions = _positions(names)
    roles: dict[Role, int] = {}
    for role, spellings in SPELLINGS.items():
        found = [positions[spelling] for spelling in spellings if spelling in positions]
        # COIN and STOCK above prices are symbols themselves.
        found = [position for position in found if role != "symbol" or kinds[position] != "fraction"]
        # What is called so may be the date, or the hour of an announcement.
        found = [position for position in found if role != "time" or kinds[position] == "time"]
        if found and found[0] != roles.get("date"):
            roles[role] = found[0]
    return roles


def _other_numbers(names: Sequence[str], kinds: Sequence[CellKind], roles: dict[Role, int]) -> list[int]:
    """Return the positions of columns of numbers that have a heading of their own: a symbol, or nothing known."""
    used = {plain(names[position]) for position in roles.values()}
    return [
        position
        for position, name in enumerate(names)
        if position != roles.get("date", 0)
        and plain(name) not in used
        and kinds[position] in ("whole", "fraction")
        and not (_is_unnamed(name) or is_companion(name))
    ]


def _has_symbols(roles: dict[Role, int], kinds: Sequence[CellKind]) -> bool:
    return "symbol" in roles and kinds[roles["symbol"]] == "text"


def _is_long(roles: dict[Role, int], others: Sequence[int]) -> bool:
    if {"symbol", "volume"} & roles.keys() or {"open", "high", "low"} <= roles.keys():
        return True
    if {"close", "adjusted_close"} <= roles.keys():
        return True
    # Half a range is rare, and LOW is a symbol.
    return not others and ("high" in roles) == ("low" in roles)


def _known(roles: dict[Role, int]) -> int:
    """Return how many columns but the first have the heading of a role."""
    return sum(position > 0 for position in roles.values())


def _is_in_capitals(names: Sequence[str], words: int, times: int) -> bool:
    """Return whether all headings but the first look like symbols, and those beside `words` are `times` as many."""
    symbols = names[1:]
    capitals = not names[0].isupper() and all(_IN_CAPITALS.fullmatch(name.strip()) for name in symbols)
    return capitals and len(symbols) - words >= times * words


def _long(names: Sequence[str], roles: dict[Role, int], where: str) -> Headings:
    if "date" not in roles and _is_unnamed(names[0]):
        roles = {**roles, "date": 0}
    if "date" not in roles:
        raise InputError(f"{where} has no column of dates: name it date; its columns are {_listed(names)}.")
    used = {plain(names[position]) for position in roles.values()}
    counts = Counter(plain(name) for name in names)
    _refuse_repeated([name for name in names if plain(name) in used and counts[plain(name)] > 1], where)
    ignored = tuple(
        position for position, name in enumerate(names) if position not in roles.values() and not _is_unnamed(name)
    )
    if "close" not in roles:
        roles = {**roles, "close": roles["adjusted_close"]}
        del roles["adjusted_close"]
    return Headings("long", roles, (), ignored)


def _wide(names: Sequence[str], kinds: Sequence[CellKind], roles: dict[Role, int], where: str) -> Headings:
    symbols = [
        (position, name.strip()) for position, name in enumerate(names) if position not in (0, roles.get("time"))
    ]
    others = [name for _, name in symbols]
    bars = sum(roles.get(role, 0) > 0 for role in PRICE_ROLES)
    if (bars >= 2 and _has_symbols(roles, kinds)) or ("date" in roles and bars >= len(others)):
        raise InputError(f"{where} has no column of closes: name it close; its columns are {_listed(names)}.")
    if "time" in roles and _is_in_capitals(names, 0, 0):
        raise InputError(
            f"{where} can be read in two ways: '{names[roles['time']]}' is the time of day, or a symbol like the other "
            f"columns ({_listed(others)}): write {_LONG_HEADINGS}, or date and time in one column."
        )
    unnamed = [position + 1 for position, name in symbols if _is_unnamed(name)]
    if unnamed:
        raise InputError(f"{where}: column {unnamed[0]} has no heading: write its symbol there.")
    if any(name.startswith("(") for name in others):
        raise InputError(f"{where} has headings of two levels ({_listed(others)}): give a long file or closes alone.")
    _refuse_repeated([name for name, count in Counter(others).items() if count > 1], where)
    of_roles = [name for position, name in symbols if position in roles.values()]
    _refuse_what_is_no_symbol(names[0], others, of_roles, where)
    used: dict[Role, int] = {"date": 0, "time": roles["time"]} if "time" in roles else {"date": 0}
    return Headings("wide", used, tuple(symbols), ())


def _refuse_what_is_no_symbol(date: str, symbols: Sequence[str], of_roles: Sequence[str], where: str) -> None:
    companions = [name for name in symbols if is_companion(name)]
    fields = split_fields(symbols)
    bases = Counter([*(symbol for symbol, _ in fields.values()), *map(plain, symbols)])
    doubtful = [name for name, (symbol, field) in fields.items() if not is_closing(field) or bases[symbol] > 1]
    for words, times in ((of_roles, 1), (companions, 3)):
        # LOW and OPEN are symbols, VOLUME is none.
        in_capitals = _is_in_capitals([date, *symbols], len(words), times)
        doubtful += [name for name in words if not in_capitals or len(name) > _LONGEST_TICKER]
    if doubtful:
        raise InputError(
            f"{where} has one column of closes a symbol, but '{doubtful[0]}' may be a symbol or something else of a "
            f"day: leave it out, name it by its symbol alone, or write {_LONG_HEADINGS}."
        )


def _refuse_repeated(names: Sequence[str], where: str) -> None:
    if names:
        raise InputError(f"{where} has several columns named {_listed(names)}: leave one of them.")


def _is_unnamed(name: str) -> bool:
    return not name.strip() or name.startswith(("Unnamed:", "__index_level_"))


def _listed(names: Sequence[str], shown: int = 6) -> str:
    listed = ", ".join(f"'{name}'" for name in names[:shown])
    return listed if len(names) <= shown else f"{listed} and {len(names) - shown} more"
