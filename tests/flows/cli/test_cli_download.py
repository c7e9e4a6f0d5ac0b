"""Bars of stand-ins for an exchange and for Yahoo: downloaded, continued, interrupted, refused, and read."""

import json
import re
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pandas as pd
import pytest
from cli_cases import eigen, refused

from eigen_core.config import Config
from eigen_core.market.build import read_prices

FIELDS = ["open", "high", "low", "close", "volume"]
FIRST, LENGTH, MOST = pd.Timestamp("2024-03-04"), 300_000, 1_000


class StandIn(ThreadingHTTPServer):
    """Answers like the spot markets of Binance.

    Attributes:
        bars: all rows of each market, by the opens of bars in milliseconds.
        now: time in milliseconds: a bar that has begun is given as it stands.
        failures: number of requests for bars to come that get no answer.
        page_of_time: whether a page has the bars of a span of time, as on some exchanges, or the next `MOST` bars.
        asked: market and first time of each answered request for bars.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.bars = {name: random_rows(2_400, seed) for seed, name in enumerate(("BTCUSDT", "ETHUSDT"))}
        self.now = self.bars["BTCUSDT"][2_300][0] + LENGTH // 2
        self.failures, self.page_of_time = 0, False
        self.asked: list[tuple[str, int]] = []

    def finished(self, name: str) -> list[list[float]]:
        return [row for row in self.bars[name] if row[0] + LENGTH <= self.now]


def random_rows(number: int, seed: int) -> list[list[float]]:
    generator = np.random.default_rng(seed)
    begin = int(FIRST.timestamp() * 1_000)
    closes = 50.0 * np.exp(np.cumsum(0.001 * generator.standard_normal(number))).round(4)
    return [
        [begin + place * LENGTH, float(close), float(close) + 0.5, float(close) - 0.5, float(close) + 0.1, 5.0 + place]
        for place, close in enumerate(closes)
    ]


class Answer(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(address.query).items()}
        what = address.path.rpartition("/")[2]
        if what == "klines" and self.server.failures:
            self.server.failures -= 1
            return self.say(503, {})
        if what == "klines" and asked["symbol"] == "GONEUSDT":
            return self.say(400, {"code": -1121, "msg": "Invalid symbol."})
        return self.say(200, getattr(self, what)(**asked))

    def time(self) -> object:
        return {"serverTime": self.server.now}

    def exchangeInfo(self) -> object:  # noqa: N802 - the exchange's name
        coins = [name.removesuffix("USDT") for name in (*self.server.bars, "GONEUSDT")]
        spot = {"quoteAsset": "USDT", "status": "TRADING", "isSpotTradingAllowed": True, "filters": []}
        return {"symbols": [{"symbol": f"{coin}USDT", "baseAsset": coin, **spot} for coin in coins]}

    def klines(self, symbol: str, interval: str, startTime: str, limit: str) -> object:
        assert interval == "5m"
        begin, most = int(startTime), min(int(limit), MOST)
        self.server.asked.append((symbol, begin))
        end = begin + most * LENGTH if self.server.page_of_time else self.server.now
        rows = [row for row in self.server.bars[symbol] if begin <= row[0] < min(end, self.server.now)]
        return [[row[0], *map(str, row[1:]), row[0] + LENGTH - 1, "1", 1, "1", "1", "0"] for row in rows[:most]]

    def say(self, code: int, content: object) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def exchange(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    import ccxt  # takes seconds, which only this file's tests are to wait for

    server = StandIn()

    class Loopback(ccxt.binance):  # type: ignore[misc]
        def describe(self) -> Any:
            urls = {"api": {"public": f"http://127.0.0.1:{server.server_port}/api/v3"}}
            return self.deep_extend(
                super().describe(), {"urls": urls, "options": {"fetchMarkets": {"types": ["spot"]}}}
            )

        def sleep(self, milliseconds: float) -> None:
            pass

    monkeypatch.setattr(ccxt, "binance", Loopback)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def coins(folder: Path, *names: str, last: str = "2024-04-30") -> list[str]:
    days = ["--from", "2024-03-04", "--to", last]
    return ["download", "ccxt", "binance", *(names or ("BTC/USDT",)), "--bar", "5m", *days, "--out", str(folder)]


def stored(path: Path) -> list[list[float]]:
    bars = pd.read_feather(path)
    milliseconds = bars["date"].dt.tz_localize(None).dt.as_unit("ms").astype("int64")
    return [[int(date), *row] for date, row in zip(milliseconds, bars[FIELDS].to_numpy().tolist(), strict=True)]


def read(folder: Path) -> Any:
    return read_prices(Config.model_validate({"market": {"data": str(folder)}}))


def test_coins_are_downloaded_in_pages_continued_and_read_without_settings(tmp_path: Path, exchange: StandIn) -> None:
    folder = tmp_path / "coins"
    said = eigen(*coins(folder, "BTC/USDT", "ETH/USDT"), code=0).stdout
    assert "BTC-USDT-5m.feather: 2,300 bars, from 2024-03-04 00:00:00+00:00 to" in said
    assert sorted(path.name for path in folder.iterdir()) == ["BTC-USDT-5m.feather", "ETH-USDT-5m.feather"]
    for name in exchange.bars:
        # The bar that has begun is not among them.
        assert stored(folder / f"{name[:3]}-USDT-5m.feather") == exchange.bars[name][:2_300]
    assert len(exchange.asked) == 6
    prices = read(folder)
    assert prices.symbols == ("BTC-USDT", "ETH-USDT")
    # Agents see a bar at its end.
    assert [str(end) for end in prices.days[[0, -1]]] == ["2024-03-04T00:05:00", "2024-03-11T23:40:00"]
    np.testing.assert_array_equal(prices.close[:, 0], [row[4] for row in exchange.bars["BTCUSDT"][:2_300]])

    exchange.now += 50 * LENGTH
    exchange.asked.clear()
    eigen(*coins(folder, "BTC/USDT", "ETH/USDT"), code=0)
    assert exchange.asked == [(name, rows[2_300][0]) for name, rows in exchange.bars.items()]
    assert stored(folder / "ETH-USDT-5m.feather") == exchange.bars["ETHUSDT"][:2_350]
    exchange.asked.clear()
    before = (folder / "BTC-USDT-5m.feather").read_bytes()
    eigen(*coins(folder), code=0)
    assert (exchange.asked, (folder / "BTC-USDT-5m.feather").read_bytes()) == ([], before)


def test_the_last_day_is_the_last_one_downloaded(tmp_path: Path, exchange: StandIn) -> None:
    eigen(*coins(tmp_path, last="2024-03-05"), code=0)
    assert stored(tmp_path / "BTC-USDT-5m.feather") == exchange.bars["BTCUSDT"][: 2 * 288]


def test_a_short_failure_is_not_noticed_and_after_a_long_one_the_download_continues(
    tmp_path: Path, exchange: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "BTC-USDT-5m.feather"
    exchange.failures = 2
    eigen(*coins(tmp_path / "short"), code=0)
    assert stored(tmp_path / "short" / path.name) == exchange.finished("BTCUSDT")

    given, klines = [], Answer.klines

    def two_pages(self: Answer, **asked: str) -> object:
        given.append(asked)
        self.server.failures = 9 if len(given) == 2 else 0
        return klines(self, **asked)

    monkeypatch.setattr(Answer, "klines", two_pages)
    ended = eigen(*coins(tmp_path), code=1)
    assert "binance gives no answer" in ended.stderr
    assert "the same command continues later" in ended.stderr
    assert stored(path) == exchange.bars["BTCUSDT"][: 2 * MOST]
    exchange.failures = 0
    eigen(*coins(tmp_path), code=0)
    assert stored(path) == exchange.finished("BTCUSDT")
    assert len(given) == 3
    assert list(tmp_path.glob(".*")) == []


def test_a_market_that_begins_later_and_pauses_is_downloaded_whole(tmp_path: Path, exchange: StandIn) -> None:
    """On exchanges whose answers span a time, several answers in a row may be empty."""
    exchange.page_of_time = True
    rows = random_rows(6_000, seed=3)
    exchange.bars["BTCUSDT"] = [*rows[2_500:2_600], *rows[5_100:]]
    exchange.now = rows[5_990][0]
    eigen(*coins(tmp_path), code=0)
    assert stored(tmp_path / "BTC-USDT-5m.feather") == exchange.finished("BTCUSDT")


@pytest.mark.usefixtures("exchange")
def test_what_cannot_be_downloaded_from_an_exchange_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "coins"
    told = {
        "BTC/USDT:USDT": "a futures contract, whose funding Eigen does not model: give the spot market BTC/USDT",
        "BTC/EUR": "binance has no spot market 'BTC/EUR'; it has BTC/USDT, ETH/USDT",
        "GONE/USDT": "binance refuses: .*Invalid symbol",
    }
    for name, words in told.items():
        assert re.search(words, refused(*coins(folder, name)))
    assert "has no bars of BTC/USDT from 2024-03-04" in refused(*coins(folder, last="2024-03-03"))
    assert not folder.exists()
    assert "ccxt knows no exchange 'binanse'" in refused(
        *["binanse" if word == "binance" else word for word in coins(folder)]
    )
    eigen(*coins(folder), code=0)
    path = folder / "BTC-USDT-5m.feather"
    bars = pd.read_feather(path)
    bars.attrs = {"source": "kraken"}
    for content, words in ((bars, "has not been downloaded from binance"), (None, "cannot be read")):
        path.write_bytes(b"no table") if content is None else content.to_feather(path)
        before = path.read_bytes()
        assert words in refused(*coins(folder))
        assert path.read_bytes() == before


class Ticker:
    """A stand-in of `yfinance.Ticker`: its answers have the shape of the package's."""

    bars = pd.DataFrame()
    asked: ClassVar[list[str]] = []
    error: Exception | None = None

    def __init__(self, symbol: str) -> None:
        self.symbol = symbol

    def history(self, start: Any, end: Any, interval: str, auto_adjust: bool, actions: bool) -> pd.DataFrame:
        assert (auto_adjust, actions) == (False, False)
        if self.error is not None:
            raise self.error
        self.asked.append(f"{self.symbol} {interval} {start} {end}")
        opens = pd.DatetimeIndex(self.bars.index)
        first, last = (day if pd.Timestamp(day).tz else pd.Timestamp(day, tz=opens.tz) for day in (start, end))
        return self.bars[(opens >= first) & (opens < last)]


def of_yahoo(dates: Any) -> pd.DataFrame:
    close = 50.0 * np.exp(np.cumsum(0.01 * np.random.default_rng(1).standard_normal(len(dates))))
    columns = {"Open": close - 0.1, "High": close + 0.5, "Low": close - 0.5, "Close": close, "Adj Close": close * 0.9}
    return pd.DataFrame({**columns, "Volume": np.arange(1, len(dates) + 1)}, index=dates.rename("Date"))


@pytest.fixture
def yahoo(monkeypatch: pytest.MonkeyPatch) -> type[Ticker]:
    import yfinance

    class Fresh(Ticker):
        asked: ClassVar[list[str]] = []

    monkeypatch.setattr(yfinance, "Ticker", Fresh)
    return Fresh


def stocks(folder: Path, *names: str, first: str = "2020-01-01", **options: str) -> list[str]:
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    return ["download", "yfinance", *(names or ("AAPL",)), "--from", first, *given, "--out", str(folder)]


def test_days_of_yahoo_come_anew_after_a_dividend_without_the_unfinished_one(
    tmp_path: Path, yahoo: type[Ticker]
) -> None:
    today = pd.Timestamp.now("America/New_York").normalize()
    yahoo.bars = of_yahoo(
        pd.bdate_range(end=today - pd.Timedelta(days=3), periods=80).append(pd.DatetimeIndex([today]))
    )
    first = str(yahoo.bars.index[0].date())
    eigen(*stocks(tmp_path, "AAPL", "^GSPC", first=first), code=0)
    prices = read(tmp_path)
    assert prices.symbols == ("AAPL", "^GSPC")
    assert len(prices.days) == 80
    np.testing.assert_allclose(prices.close[:, 0], yahoo.bars["Adj Close"].iloc[:80], rtol=1e-12)
    # The next day, after a dividend.
    older = yahoo.bars.iloc[:40].index
    yahoo.bars.loc[older, "Adj Close"] *= 0.98
    eigen(*stocks(tmp_path, "AAPL", first=str(older[-1].date())), code=0)
    found = pd.read_feather(tmp_path / "AAPL-1d.feather")
    np.testing.assert_array_equal(found["adj close"], yahoo.bars["Adj Close"].iloc[:80])
    # An earlier last day removes none.
    eigen(*stocks(tmp_path, "AAPL", first=first, to=str(older[-1].date())), code=0)
    assert len(pd.read_feather(tmp_path / "AAPL-1d.feather")) == 80
    # Nor does an answer without the oldest ones.
    before = (tmp_path / "AAPL-1d.feather").read_bytes()
    yahoo.bars = yahoo.bars.iloc[10:]
    assert "no longer those that were downloaded" in refused(*stocks(tmp_path, "AAPL", first=first))
    assert (tmp_path / "AAPL-1d.feather").read_bytes() == before


def test_hours_of_yahoo_are_continued_unless_a_split_changed_them(tmp_path: Path, yahoo: type[Ticker]) -> None:
    days = pd.bdate_range(end=pd.Timestamp.now("America/New_York").normalize() - pd.Timedelta(days=2), periods=30)
    opens = pd.DatetimeIndex([day + pd.Timedelta(hours=10 + hour) for day in days for hour in range(6)])
    whole = of_yahoo(opens)
    yahoo.bars = whole.iloc[:100]
    first = str(days[0].date())
    eigen(*stocks(tmp_path, first=first, bar="1h"), code=0)
    yahoo.bars = whole.iloc[90:] * (1.0 + 1e-7)
    eigen(*stocks(tmp_path, first=first, bar="1h"), code=0)
    assert str(opens[99]) in yahoo.asked[-1]
    found = pd.read_feather(tmp_path / "AAPL-1h.feather")
    np.testing.assert_array_equal(found["date"], opens)
    np.testing.assert_allclose(found["close"], whole["Close"], rtol=1e-6)
    assert (
        str(read(tmp_path).days[0])
        == (opens[0] + pd.Timedelta(hours=1)).tz_convert("UTC").tz_localize(None).isoformat()
    )
    before = (tmp_path / "AAPL-1h.feather").read_bytes()
    yahoo.bars = whole.iloc[90:] / 2.0
    assert "as after a split: move their file away" in refused(*stocks(tmp_path, first=first, bar="1h"))
    assert (tmp_path / "AAPL-1h.feather").read_bytes() == before


def test_errors_of_yahoo_are_sentences(tmp_path: Path, yahoo: type[Ticker]) -> None:
    from yfinance.exceptions import YFPricesMissingError, YFRateLimitError

    yahoo.bars = of_yahoo(pd.bdate_range("2020-01-01", periods=9, tz="America/New_York"))
    for error in (YFRateLimitError(), ConnectionError("no network")):
        yahoo.error = error
        assert "Yahoo gives no answer" in eigen(*stocks(tmp_path), code=1).stderr
    yahoo.error = YFPricesMissingError("NONE", "(1d 2020-01-01 -> 2020-02-01)")
    assert "Yahoo refuses: $NONE: possibly delisted" in refused(*stocks(tmp_path, "NONE"))
    assert "'../AAPL' is no symbol of Yahoo" in refused(*stocks(tmp_path, "../AAPL"))
    yahoo.error = None
    assert "Yahoo has no bars of AAPL from 2021-01-01" in refused(*stocks(tmp_path, first="2021-01-01"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [["ccxt", "binance", "BTC/USDT"], ["yfinance", "AAPL"]])
def test_without_its_packages_a_download_says_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, names[0], None)
    said = refused("download", *names, "--from", "2024-01-01", "--out", str(tmp_path))
    assert f"needs the package {names[0]}, which is not installed: `pip install 'eigen-trader[download]'`" in said
