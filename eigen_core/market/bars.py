"""Bars within a day: their length, what their timestamps mark, and longer bars and days that are made of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from eigen_core.common.errors import InputError
from eigen_core.config import MarketConfig
from eigen_core.market.calendars import Calendar, calendar_of
from eigen_core.market.formats import PRICE_ROLES, SATURDAY, SUNDAY, Days, weekdays_of
from eigen_core.market.reading import OWN, FileRows
from eigen_core.market.report import SuspiciousRow

SECONDS = {"1m": 60, "5m": 300, "15m": 900, "30m": 1_800, "1h": 3_600, "4h": 14_400, "1d": 86_400}
"""Lengths of bars by the values of `market.bar`."""
_DAYS_TO_JUDGE_BY = 10
_MANY_DAYS, _SOME_DAYS, _MANY_TIMES = 0.5, 0.05, 4
_UNUSUAL_DAYS = 0.01
_AGGREGATED = {"open": "first", "high": "max", "low": "min", "volume": "sum"}
"""How pandas aggregates the columns of bars; other columns take the last value."""


class FormedBars(NamedTuple):
    """Rows of bars or days, with their end or date as column `day`.

    Attributes:
        rows: columns `code`, `day`, prices and own columns.
        bars, repeated: number of bars that they are made of, and of bars that came again.
        length: key of `SECONDS`; `stamp`: `open` or `close`, empty for days.
        unfinished: the last date or end if its bars end early, else empty.
        found: bars before or after the usual hours of a day.
        irregular: number of bars outside the regular hours (`market.session`), which are left out.
    """

    rows: pd.DataFrame
    bars: int
    repeated: int
    length: str
    stamp: str
    unfinished: str
    found: tuple[SuspiciousRow, ...]
    irregular: int


def are_bars(rows: pd.DataFrame) -> bool:
    """Return whether rows are intraday bars: symbols have several on most days, or on over 5 % at many times of day."""
    if rows["utc"].nunique() == rows["day"].nunique():
        return False
    rows = rows[["code", "utc", "day"]].drop_duplicates()
    several = rows.duplicated(["code", "day"], keep=False)
    share = float(several[~rows.duplicated(["code", "day"])].mean())
    times = rows["utc"][several]
    return share > _MANY_DAYS or (share > _SOME_DAYS and (times - times.dt.normalize()).nunique() > _MANY_TIMES)


def form_bars(
    rows: pd.DataFrame, symbols: Sequence[str], parts: Sequence[FileRows], market: MarketConfig, where: str
) -> FormedBars:
    """Make bars of the length `market.bar` of intraday bars: first open, highest high, lowest low, last close, summed
    volume.

    They begin at multiples of their length after midnight, by the clock of the timestamps or of `market.time_zone`.
    Bars are sorted and compared in UTC: a local clock that is set back shows an hour twice.

    Args:
        rows: columns `code`, `utc`, `local`, `day` (midnight of `local`), `offset`, prices and own columns.

    Raises:
        InputError: bars are longer than `market.bar`, or it is unknown what their timestamps mark; for days, the day of
            a bar is ambiguous, or sessions span midnight. Or a symbol has several bars at one instant.
    """
    _refuse_ambiguous_bars(rows, market, where)
    length, given = _length(rows, market, where)
    stamps = {part.vendor.bar_stamp if part.vendor is not None else None for part in parts}
    stamp = market.bar_stamp or (stamps.pop() if len(stamps) == 1 else None)
    calendar = calendar_of(market, rows["day"].to_numpy())
    regular = calendar if market.session == "regular" else None
    if stamp is None and (length != "1d" or regular):
        raise InputError(
            f"{where} has bars of {given:,} seconds, and nothing says whether a timestamp marks the open or the close "
            "of its bar; the wrong one lets agents see a bar too early: set market.bar_stamp=open (as exchanges' "
            "archives, ccxt and yfinance write it) or market.bar_stamp=close, or add `--set market.bar=1d` to "
            "aggregate the bars to days."
        )
    if stamp == "close":
        shift = pd.Timedelta(seconds=given)
        rows = rows.assign(utc=rows["utc"] - shift, local=rows["local"] - shift)
        rows = rows.assign(day=rows["local"].dt.normalize())
    irregular = 0
    if regular is not None:
        given_ends: Days = (rows["utc"] + pd.Timedelta(seconds=given)).to_numpy().astype("datetime64[s]")
        traded = rows["volume"].to_numpy() != 0.0 if "volume" in rows else np.ones(len(rows), dtype=np.bool_)
        kept = regular.is_regular(given_ends, given, traded)
        irregular, rows = int((~kept).sum()), rows[kept]
        if rows.empty:
            raise InputError(f"{where} has no bar in a session of {regular.name}: correct market.calendar.")
    values = [name for name in map(str, rows) if name in PRICE_ROLES or name.startswith(OWN)]
    bars = rows[rows[values].notna().any(axis=1)].sort_values(["code", "utc"], kind="stable")
    found: tuple[SuspiciousRow, ...] = ()
    if length == "1d":
        found = _unusual_hours(rows, symbols)
        _refuse_sessions_over_midnight(bars["day"].to_numpy().astype("datetime64[D]"), where)
        unfinished = _short_day(bars, calendar)
    else:
        clock = (bars["local"] - bars["day"]).dt.total_seconds()
        ends = bars["utc"] + pd.to_timedelta(SECONDS[length] - clock % SECONDS[length], unit="s")
        # The last bar may end earlier than those of other days at the same time.
        last = clock.groupby(ends).max()
        is_same = (last // SECONDS[length]) == (last.iloc[-1] // SECONDS[length])
        if calendar is not None:
            last += calendar.seconds_closed(last.index.to_numpy().astype("datetime64[s]"), SECONDS[length])
        same = last[is_same]
        unfinished = ends.max().isoformat() if same.iloc[-1] < same.median() else ""
        bars = bars.assign(day=ends)
    again = bars.duplicated(["code", "utc"]).to_numpy()
    places = np.flatnonzero(again)
    for name in values:
        before, own = bars[name].to_numpy()[places - 1], bars[name].to_numpy()[places]
        for number in np.flatnonzero((before != own) & ~(np.isnan(before) & np.isnan(own))):
            symbol, instant = symbols[bars["code"].iloc[places[number]]], bars["local"].iloc[places[number]]
            raise InputError(
                f"{where}: '{symbol}' has several bars at {instant}, with {name} {before[number]:g} and "
                f"{own[number]:g}: keep one bar per timestamp, and write timestamps with their time zone."
            )
    bars = bars[~again]
    grouped = bars.groupby(["code", "day"])
    formed = {name: getattr(grouped[name], _AGGREGATED.get(name, "last"))(min_count=1) for name in values}
    table = pd.DataFrame(formed).reset_index()
    mark = "" if length == "1d" else stamp or ""
    return FormedBars(table, len(bars), int(again.sum()), length, mark, unfinished, found, irregular)


def _length(rows: pd.DataFrame, market: MarketConfig, where: str) -> tuple[str, int]:
    """Return the length of the bars to make, and the length of those given (seconds): their most common distance."""
    instants = rows[["code", "utc"]].drop_duplicates().sort_values(["code", "utc"])
    steps = instants.groupby("code")["utc"].diff().dropna()
    given = int(steps.mode().iloc[0].total_seconds())
    length: str = market.bar
    if length == "auto":
        length = next((name for name, seconds in SECONDS.items() if seconds == given), "")
    # Days can be made of all bars, however irregular.
    longer = [name for name, seconds in SECONDS.items() if seconds % given == 0 or name == "1d"]
    if length not in longer:
        raise InputError(
            f"{where} has bars of {given:,} seconds, of which market.bar={market.bar} cannot be made: set market.bar "
            f"to {' or '.join(longer)}."
        )
    return length, given


def _refuse_ambiguous_bars(rows: pd.DataFrame, market: MarketConfig, where: str) -> None:
    if market.bar == "1d" and market.time_zone is None and (rows["offset"] == 0.0).any():
        # A market that is open on weekends has no exchange whose midnight would count.
        weekdays = rows["utc"].dt.day_of_week.value_counts(normalize=True)
        is_always_open = min(weekdays.get(day, 0.0) for day in (SATURDAY, SUNDAY)) > _SOME_DAYS
        raise InputError(
            f"{where} has intraday bars in UTC, and days are from midnight to midnight in the exchange's time zone: "
            f"{'add `--set market.time_zone=UTC`' if is_always_open else 'set market.time_zone to that'}."
        )
    if market.time_zone is not None and rows["offset"].isna().any():
        raise InputError(
            f"{where} has intraday bars without a time zone. If their timestamps are in the exchange's time zone, do "
            "not set market.time_zone; if they are in UTC, add +00:00 to them."
        )
    own = rows[["code", "utc", "day"]].drop_duplicates().groupby("code")
    if ((own.size() == own["day"].nunique()) & (own.size() >= _DAYS_TO_JUDGE_BY)).any():
        raise InputError(
            f"{where} has daily rows of some symbols and intraday bars of others: give only daily rows or only bars, "
            "or name the symbols to read in market.symbols."
        )


def _unusual_hours(rows: pd.DataFrame, symbols: Sequence[str]) -> tuple[SuspiciousRow, ...]:
    """Return the bars before or after the usual hours. They stay: only later days could show that hours have changed.

    An hour is usual if 1 % of the days have bars as early, and 1 % as late; under 100 days do not show it.
    """
    seconds = (rows["local"] - rows["day"]).dt.total_seconds()
    of_days = seconds.groupby(rows["day"]).agg(["min", "max"])
    rare = int(_UNUSUAL_DAYS * len(of_days))
    if not rare:
        return ()
    # The first time that more days than `rare` begin by, and the last that more of them end at.
    first, last = np.sort(of_days["min"])[rare], np.sort(of_days["max"])[-rare - 1]
    unusual = (seconds < first) | (seconds > last)
    places = rows[unusual].sort_values(["code", "local"])
    return tuple(
        SuspiciousRow("unusual hour", symbols[code], str(day.date()), f"{local:%H:%M}")
        for code, day, local in zip(places["code"], places["day"], places["local"], strict=True)
    )


def _short_day(bars: pd.DataFrame, calendar: Calendar | None) -> str:
    """Return the last day if its bars end earlier than those of other days, by more than a bar, else an empty text.

    Half days of a calendar end at their close.
    """
    seconds = (bars["local"] - bars["day"]).dt.total_seconds()
    last, steps = seconds.groupby(bars["day"]).max(), np.diff(np.unique(seconds))
    if calendar is not None:
        midnights = bars["utc"].groupby(bars["day"]).max() + pd.Timedelta(days=1) - pd.to_timedelta(last, unit="s")
        closed = calendar.seconds_closed(midnights.to_numpy().astype("datetime64[s]"), SECONDS["1d"])
        last += np.where(closed > 0.0, closed, np.median(closed))
    usual = last.iloc[:-1].median() - (np.median(steps) if steps.size else 0.0)
    return str(last.index[-1].date()) if len(last) > _DAYS_TO_JUDGE_BY and last.iloc[-1] < usual else ""


def _refuse_sessions_over_midnight(days: Days, where: str) -> None:
    """Raise `InputError` if sessions reach into the weekend: cut at midnight, their bars would form an extra day."""
    days, bars = np.unique(days, return_counts=True)
    # The first and the last day may be incomplete.
    weekdays, bars = weekdays_of(days[1:-1]), bars[1:-1]
    usual = bars[weekdays < SATURDAY]
    for weekday, name in ((SATURDAY, "Saturdays"), (SUNDAY, "Sundays")):
        own = bars[weekdays == weekday]
        if usual.size and 20 * own.size >= usual.size and 2 * np.median(own) < np.median(usual):
            raise InputError(
                f"{where} has few bars on {name} ({int(np.median(own))}, {int(np.median(usual))} on other days), so "
                "sessions span midnight, or the timestamps are not in the exchange's time zone: write them with their "
                "time zone and set market.time_zone to the exchange's, or give daily bars."
            )
