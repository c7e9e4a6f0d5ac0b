"""Bars of exchanges (ccxt) and of Yahoo (yfinance), downloaded into files that `market.data` reads, one per symbol.

The files have freqtrade's layout, whose timestamps mark the open of a bar: `BTC-USDT-5m.feather`.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa

from eigen_core.common.errors import InputError, Stopped
from eigen_core.common.files import explained, replacing
from eigen_core.common.progress import report_progress
from eigen_core.common.text import listed

_COLUMNS = ["date", "open", "high", "low", "close", "volume"]
_RETRIES, _PAUSE_MILLISECONDS = 3, 1_000
_SHOWN, _LONGEST_REASON = 8, 200
# Yahoo's last digits change from day to day.
_ROUNDING = 1e-5
_SOURCE = "source"
"""Attribute of the tables in files: the `Vendor.source` of their bars."""


class Vendor(Protocol):
    """Where bars come from: `Exchange` or `Yahoo`."""

    source: str

    def require(self, symbols: Sequence[str]) -> None:
        """Raise `InputError` if the vendor does not have one of the symbols, or Eigen cannot use its bars."""

    def pages(self, symbol: str, kept: pd.DataFrame | None, first: date, end: date) -> Iterator[pd.DataFrame]:
        """Yield bars that follow those in `kept`, in order, or replace them from the first date yielded on.

        Tables have the columns date, open, high, low, close, volume, and possibly adj close. Bars begin on `first` or
        later, and have ended by the end of the day before `end` and by now.

        Raises:
            InputError: the vendor refuses. Stopped: it gives no answer at the moment.
        """


def file_of(folder: Path, symbol: str, bar: str) -> Path:
    name = re.sub(r"^\.|[^\w.^=&$+-]", "-", symbol)
    return folder / f"{name}-{bar}.feather"


def update(path: Path, vendor: Vendor, symbol: str, first: date, end: date) -> pd.DataFrame:
    """Download the bars of a symbol that follow those in a file, replace the file atomically, and return all its bars.

    If an error ends the download, the file has the bars that had arrived: the next call continues after them. For
    arguments and errors see `Vendor.pages`; also `InputError` if the file is of another source or cannot be written.
    """
    kept = _read(path, vendor.source) if path.exists() else None
    bars, pages = kept, list[pd.DataFrame]()
    try:
        for page in vendor.pages(symbol, kept, first, end):
            pages.append(page)
            report_progress(symbol, (page["date"].iloc[-1].date() - first).days, (end - first).days)
    finally:
        if pages:
            before = [] if kept is None else [kept[kept["date"] < pages[0]["date"].iloc[0]]]
            bars = pd.concat([*before, *pages], ignore_index=True)
            bars.attrs = {_SOURCE: vendor.source}
            with explained("write", path), replacing(path) as file:
                bars.to_feather(file)
    if bars is None:
        raise InputError(f"{vendor.source} has no bars of {symbol} from {first} on that have ended: give other days.")
    return bars


def _read(path: Path, source: str) -> pd.DataFrame:
    try:
        bars = pd.read_feather(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read ({error}): move it away.") from error
    if bars.attrs.get(_SOURCE) != source:
        raise InputError(f"{path} has not been downloaded from {source}: choose another folder, or move it away.")
    return bars


class Exchange:
    """Spot markets of an exchange, by ccxt."""

    def __init__(self, name: str, bar: str) -> None:
        import ccxt

        if name not in ccxt.exchanges:
            raise InputError(f"ccxt knows no exchange '{name}'; it knows {listed(ccxt.exchanges, _SHOWN)}.")
        options = {"maxRetriesOnFailure": _RETRIES, "maxRetriesOnFailureDelay": _PAUSE_MILLISECONDS}
        self._ccxt: Any = ccxt
        self._exchange: Any = getattr(ccxt, name)({"enableRateLimit": True, "options": options})
        lengths = self._exchange.timeframes if self._exchange.has["fetchOHLCV"] is True else {}
        if bar not in lengths:
            raise InputError(f"{name} has no bars of {bar}; it has bars of {', '.join(lengths) or 'no length'}.")
        self.source, self._bar = name, bar
        self._length = self._exchange.parse_timeframe(bar) * 1_000

    def require(self, symbols: Sequence[str]) -> None:
        if futures := [symbol for symbol in symbols if ":" in symbol]:
            raise InputError(
                f"{futures[0]} is a futures contract, whose funding Eigen does not model: give the spot market "
                f"{futures[0].partition(':')[0]}."
            )
        with self._explained():
            markets = self._exchange.load_markets()
        spots = [symbol for symbol, market in markets.items() if market["spot"]]
        if missing := [symbol for symbol in symbols if symbol not in spots]:
            raise InputError(f"{self.source} has no spot market '{missing[0]}'; it has {listed(spots, _SHOWN)}.")

    def pages(self, symbol: str, kept: pd.DataFrame | None, first: date, end: date) -> Iterator[pd.DataFrame]:
        with self._explained():
            # This machine's clock may be ahead.
            now = self._exchange.fetch_time() if self._exchange.has["fetchTime"] else self._exchange.milliseconds()
            most = self._exchange.feature_value(symbol, "fetchOHLCV", "limit") or 100
        begin = _milliseconds(first) if kept is None else _milliseconds(kept["date"].iloc[-1]) + self._length
        last = min(_milliseconds(end), now) - self._length
        while begin <= last:
            with self._explained():
                rows = self._exchange.fetch_ohlcv(symbol, self._bar, begin, most)
            rows = [row[: len(_COLUMNS)] for row in rows if begin <= row[0] <= last]
            if rows:
                page = pd.DataFrame(rows, columns=_COLUMNS).astype(dict.fromkeys(_COLUMNS[1:], "float64"))
                yield page.assign(date=pd.to_datetime(page["date"], unit="ms", utc=True))
            # Some exchanges answer with nothing if there was no trade in so many bars, as before a market began.
            begin = rows[-1][0] + self._length if rows else begin + most * self._length

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except self._ccxt.OperationFailed as error:
            raise Stopped(_no_answer(self.source, error)) from error
        except self._ccxt.BaseError as error:
            raise InputError(f"{self.source} refuses: {_reason(error)}") from error


class Yahoo:
    """Prices of Yahoo, by yfinance. A split changes all prices before it, and a dividend all adjusted closes."""

    source = "Yahoo"

    def __init__(self, bar: str) -> None:
        import yfinance
        from yfinance import exceptions

        yfinance.config.debug.hide_exceptions = False
        self._yfinance: Any = yfinance
        self._errors: Any = exceptions
        self._bar = bar

    def require(self, symbols: Sequence[str]) -> None:
        if wrong := [symbol for symbol in symbols if not re.fullmatch(r"[\w^][\w.^=&-]*", symbol)]:
            raise InputError(f"'{wrong[0]}' is no symbol of Yahoo: write it as AAPL, BRK-B, 0700.HK or BTC-USD.")

    def pages(self, symbol: str, kept: pd.DataFrame | None, first: date, end: date) -> Iterator[pd.DataFrame]:
        # All days come anew, since later dividends may have changed them. Bars within a day reach back some weeks only.
        of_days = self._bar == "1d"
        old = None if kept is None else kept if of_days else kept.tail(1)
        if old is not None:
            first, end = old["date"].iloc[0], max(end, old["date"].iloc[-1].date() + timedelta(days=1))
        new = self._bars(symbol, first, end)
        if old is not None:
            again = new.set_index("date")["close"].reindex(old["date"])
            if again.isna().any() or not (of_days or np.allclose(again, old["close"], rtol=_ROUNDING)):
                raise InputError(
                    f"Yahoo's bars of {symbol} are no longer those that were downloaded, as after a split: move their "
                    "file away."
                )
        if len(new):
            yield new

    def _bars(self, symbol: str, first: date, end: date) -> pd.DataFrame:
        try:
            found = self._yfinance.Ticker(symbol).history(
                start=first, end=end, interval=self._bar, auto_adjust=False, actions=False
            )
        except (OSError, self._errors.YFRateLimitError, self._errors.YFDataException) as error:
            raise Stopped(_no_answer(self.source, error)) from error
        except self._errors.YFException as error:
            raise InputError(f"Yahoo refuses: {_reason(error)}") from error
        found = found[found.index + pd.Timedelta(self._bar.replace("d", "D")) <= pd.Timestamp.now("UTC")]
        dates = found.index.tz_localize(None).normalize() if self._bar == "1d" else found.index
        prices = found.rename(columns=str.lower).reset_index(drop=True).assign(date=dates)
        return pd.DataFrame(prices[[*_COLUMNS, "adj close"] if self._bar == "1d" else _COLUMNS])


def _milliseconds(day: date) -> int:
    """Return the milliseconds from 1970 to the beginning of a day in UTC, or to a timestamp."""
    return int(pd.Timestamp(day).timestamp() * 1_000)


def _no_answer(source: str, error: Exception) -> str:
    return f"{source} gives no answer ({_reason(error)}): the same command continues later."


def _reason(error: Exception) -> str:
    """Return the first line of an error's message, which may be a whole page."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:_LONGEST_REASON]
