"""Calendars of exchanges (package exchange_calendars): sessions, opens and closes, which prices cannot say."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.common.errors import InputError, needs_extra
from eigen_core.common.text import count, quoted
from eigen_core.config import MarketConfig
from eigen_core.market.formats import Days, dates_of

_ALWAYS_OPEN = "24/7"
_CHECKED_FROM, _CHECKED_TO = pd.Timestamp(1990, 1, 1), pd.Timestamp(2025, 12, 31)
# Checksums of the sessions, opens and closes of this span, from exchange_calendars 4.13.2 with pandas 2.3.3.
# Since pandas 3.1 `Timestamp + offset` does not call the package's own offsets: sessions vanish without an error.
_CHECKSUMS = """
24/5=0adb9e1f AIXK=3378162b ASEX=e7167db7 BVMF=2e8929cd CMES=4d553700 IEPA=a5bb354f XAMS=98425678 XASX=017eb77d
XBDA=374645d4 XBEL=75070255 XBKK=ac8112b0 XBOG=e5652e82 XBOM=f000adf9 XBRA=e25cc46c XBRU=171c1257 XBSE=81e454d2
XBUD=32bf5486 XBUE=c0273c10 XCBF=6d324342 XCSE=7b48ada0 XCYS=151e910f XDUB=8ce3d975 XDUS=3189f610 XEEE=d0a7f934
XETR=e1a1cd0b XEUR=b698112c XFRA=e1a1cd0b XHAM=3189f610 XHEL=7404830a XHKG=873251cf XICE=a5379263 XIDX=faef1db8
XIST=d01d3951 XJSE=955a8784 XKAR=275be7e3 XKLS=1d70dea6 XKRX=3fd9ad51 XLIM=aecf6c0a XLIS=9cb331dc XLIT=3f91bb58
XLJU=90de6153 XLON=7ff16445 XLUX=35dec9a4 XMAD=9e8c8748 XMEX=ee68fd66 XMIL=402bb9ab XMOS=def57028 XNYS=ceccfe9a
XNZE=11e98a52 XOSL=f0ab160f XPAR=22956f31 XPHS=07e05206 XPRA=e344c9a2 XRIS=15cdf206 XSAU=ed0e50f6 XSES=0968498e
XSGO=387d74ac XSHG=4254ab9c XSTO=fa25fb56 XSTU=cd9931e2 XSWX=e8d304b7 XTAE=48b972f8 XTAI=5806d7b6 XTAL=2a0b71b1
XTKS=d3818e8e XTSE=fa86b786 XWAR=ed5c65b1 XWBO=9ebd2550 XZAG=a001a634 us_futures=626fad39
"""
_CHECKED = dict(pair.split("=") for pair in _CHECKSUMS.split())


@dataclass(frozen=True)
class Calendar:
    """Sessions of an exchange (dates `sessions`, datetime64[D], increasing), which are known from `first` to `last`.

    `opens` and `closes` of the sessions are datetime64[s] in UTC; `time_zone` is the exchange's.
    """

    name: str
    time_zone: str
    sessions: Days
    opens: Days
    closes: Days
    first: np.datetime64
    last: np.datetime64

    def to_utc(self, local: "pd.Series[pd.Timestamp]") -> "pd.Series[pd.Timestamp]":
        """Convert times of the exchange's clock to UTC; of an hour that the clock shows twice, the second is meant."""
        second = np.zeros(len(local), dtype=np.bool_)
        zoned = local.dt.tz_localize(self.time_zone, ambiguous=second, nonexistent="shift_forward")
        return zoned.dt.tz_convert(None)

    def session_of(self, dates: Days, seconds: int | None = None) -> NDArray[np.intp]:
        """Return the index of the session on each date; -1: none. Of bars, `dates` are the ends (UTC), and a bar is in
        a session if some of its `seconds` are, by default the shortest distance of ends."""
        if dates.dtype == "datetime64[D]":
            place = np.searchsorted(self.sessions, dates, side="right") - 1
            return np.where((place >= 0) & (self.sessions[place] == dates), place, -1)
        steps = np.append(np.diff(dates), np.timedelta64(1, "D"))
        length = np.timedelta64(seconds, "s") if seconds is not None else steps.min()
        place = np.searchsorted(self.opens, dates) - 1
        return np.where((place >= 0) & (dates - length < self.closes[place]), place, -1)

    def is_closed_day(self, dates: Days, seconds: int | None = None) -> NDArray[np.bool_]:
        """Whether each date, or bar that ends then, is on a day without a session; False where none is known."""
        days = self._local(dates)
        is_other = (self.session_of(dates, seconds) < 0) & ~np.isin(days, self.sessions)
        return is_other & (days >= self.first) & (days <= self.last)

    def is_regular(self, ends: Days, seconds: int, traded: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether bars are in a session, or on a closed day on which they `traded`; InputError if none is known."""
        days = self._local(ends)
        if (outside := days[(days < self.first) | (days > self.last)]).size:
            raise InputError(
                f"market.session=regular needs the hours of {outside[0]}, and those of {self.name} are known from "
                f"{self.first} to {self.last}: leave market.session out, or leave out prices of other days."
            )
        return (self.session_of(ends, seconds) >= 0) | (self.is_closed_day(ends, seconds) & traded)

    def seconds_closed(self, ends: Days, seconds: int) -> NDArray[np.float64]:
        """Return for how many seconds before its end each bar's session has been closed; 0 for other bars."""
        place = self.session_of(ends, seconds)
        return np.where(place >= 0, (ends - self.closes[place]).astype(np.float64).clip(min=0.0), 0.0)

    def after(self, date: np.datetime64) -> NDArray[np.intp]:
        """Return the known sessions (indices) after a date, or of those that close after the end of a bar."""
        return np.flatnonzero((self.sessions if date.dtype == "datetime64[D]" else self.closes) > date)

    def describe(self, days: Days, traded: NDArray[np.bool_]) -> tuple[str, ...]:
        """Return sentences about a panel with these sessions; `traded`, bool `[days, assets]`."""
        noun, dates = "day" if days.dtype == "datetime64[D]" else "bar", self._local(days)
        between = np.flatnonzero((self.sessions > dates[0]) & (self.sessions < dates[-1]))
        found = (
            (days[self.is_closed_day(days) & traded.any(axis=1)], noun, f"with prices on days closed in {self.name}"),
            (self.sessions[np.setdiff1d(between, self.session_of(days))], "session", f"of {self.name} without a price"),
            (dates[(dates < self.first) | (dates > self.last)], noun, f"not from {self.first} to {self.last}"),
        )
        lines = [f"{count(len(own), of)} {words}, the first on {own[0]}." for own, of, words in found if len(own)]
        return f"Sessions are those of {self.name}, and all others that prices show.", *lines

    def _local(self, dates: Days) -> Days:
        if dates.dtype == "datetime64[D]":
            return dates
        return dates_of(pd.DatetimeIndex(dates, tz="UTC").tz_convert(self.time_zone).tz_localize(None).to_numpy())


def calendar_of(market: MarketConfig, days: Days) -> Calendar | None:
    """Return `market.calendar`, known at least until a year after `days` unless it ends earlier; None if `prices`.

    Raises:
        InputError: there is no such calendar, its package is missing, or its sessions are not those that were checked.
    """
    if market.calendar == "prices":
        return None
    first, last = pd.Timestamp(days.min()).year, pd.Timestamp(days.max()).year + 1
    return _calendar(market.calendar, pd.Timestamp(first, 1, 1), pd.Timestamp(last, 12, 31))


@lru_cache
def _calendar(name: str, first: pd.Timestamp, last: pd.Timestamp) -> Calendar:
    time_zone, days = "UTC", pd.date_range(first, last)
    hours = pd.DataFrame({"open": days, "close": days + pd.Timedelta(days=1)}, days)
    if name != _ALWAYS_OPEN:
        time_zone, hours, first, last = _of_package(name, first, last)
    opens, closes = (hours[column].to_numpy().astype("datetime64[s]") for column in ("open", "close"))
    sessions, known = hours.index.to_numpy().astype("datetime64[D]"), (first.to_datetime64(), last.to_datetime64())
    return Calendar(name, time_zone, sessions, opens, closes, *(day.astype("datetime64[D]") for day in known))


def _of_package(
    name: str, first: pd.Timestamp, last: pd.Timestamp
) -> tuple[str, pd.DataFrame, pd.Timestamp, pd.Timestamp]:
    """Return time zone, `open` and `close` (UTC) by session, and first and last known date: `first`, `last` or beyond,
    unless the calendar begins later or ends earlier."""
    with needs_extra("calendars", f"market.calendar={name}"):
        import exchange_calendars as package
    code = package.aliases_to_names().get(name, name)
    if code not in _CHECKED:
        known = ", ".join(("prices", _ALWAYS_OPEN, *_CHECKED))
        raise InputError(f"market.calendar {quoted(name)} is no calendar: use one of {known}.")
    try:
        calendar = package.get_calendar(code)
        first = max(min(first, _CHECKED_FROM), calendar.bound_min() or pd.Timestamp.min)
        last = min(max(last, _CHECKED_TO + pd.DateOffset(years=1)), calendar.bound_max() or pd.Timestamp.max)
        # XKRX opens too late on the last day, which is none of the checked ones.
        schedule = package.get_calendar(code, start=first, end=last).schedule[["open", "close"]]
        hours = schedule.apply(lambda times: times.dt.tz_convert(None))
        table = hours[_CHECKED_FROM:_CHECKED_TO].reset_index().to_numpy(dtype="datetime64[s]")
        checksum = hashlib.sha256(table.tobytes("F")).hexdigest()[:8]
    except (ValueError, NotImplementedError):
        # So end some calendars whose offsets pandas does not call.
        checksum = ""
    if checksum != _CHECKED[code]:
        raise InputError(
            f"market.calendar={name}: exchange_calendars {package.__version__} with pandas {pd.__version__} gives "
            "other sessions than those that were checked: `pip install 'exchange_calendars==4.13.2' 'pandas<3.1'`, or "
            "use market.calendar=prices."
        )
    return str(calendar.tz), hours, first, last
