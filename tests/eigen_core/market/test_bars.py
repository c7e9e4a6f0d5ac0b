"""Bars within a day: an obvious version makes the same ones, agents see none before its close, nothing is guessed."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from market_cases import cleaned, random_bars, refused, small_config, write_csv
from pandas.tseries.holiday import USFederalHolidayCalendar

from eigen_core.config import AccountConfig
from eigen_core.market import build_panel
from eigen_core.market.trading_days import sessions_of
from eigen_core.trading.equity import periods_per_year

MINUTES = {"15m": 15, "30m": 30, "1h": 60, "4h": 240}


def five_minutes(zone: str, hours: range, days: int, seed: int, first: str = "2024-03-04") -> pd.DataFrame:
    """Return 5-minute bars of two symbols, dated by their opens in UTC, with gaps, across a change of the clock."""
    generator = np.random.default_rng(seed)
    dates = (pd.date_range if zone == "UTC" else pd.bdate_range)(first, periods=days)
    opens = pd.DatetimeIndex(
        [
            date + pd.Timedelta(hours=hour, minutes=minute)
            for date in dates
            for hour in hours
            for minute in range(0, 60, 5)
        ]
    ).tz_localize(zone)
    parts = []
    for number, symbol in enumerate(("AAA", "BBB")):
        own = opens[generator.random(len(opens)) < 0.9].tz_convert("UTC")
        parts.append(random_bars([symbol], len(own), seed + number).assign(date=own))
    return pd.concat(parts, ignore_index=True)


def obvious(bars: pd.DataFrame, zone: str, minutes: int) -> dict[tuple[str, str], list[float]]:
    """Return open, high, low, close and volume of each symbol and bar, by its end in UTC, bar after bar."""
    found: dict[tuple[str, str], list[float]] = {}
    ordered = bars.sort_values("date")
    stamps = zip(ordered["symbol"], ordered["date"], ordered["date"].dt.tz_convert(zone), strict=True)
    fields = ordered[["open", "high", "low", "close", "volume"]].to_numpy(dtype=np.float64).tolist()
    for (symbol, start, clock), (opened, high, low, close, volume) in zip(stamps, fields, strict=True):
        since = clock.hour * 60 + clock.minute
        end = (start + pd.Timedelta(minutes=minutes - since % minutes)).tz_localize(None).isoformat()
        before = found.get((symbol, end), [opened, high, low, close, 0.0])
        formed = [before[0], max(before[1], high), min(before[2], low), close, before[4] + volume]
        found[symbol, end] = formed
    return found


def as_read(path: Path, **market: object) -> dict[tuple[str, str], list[float]]:
    prices, _ = cleaned(path, **market)
    grids = (prices.open, prices.high, prices.low, prices.close, prices.volume)
    return {
        (symbol, str(end)): [grid[row, column] for grid in grids]
        for column, symbol in enumerate(prices.symbols)
        for row, end in enumerate(prices.days)
        if not np.isnan(prices.close[row, column])
    }


def assert_same(read: dict[tuple[str, str], list[float]], wanted: dict[tuple[str, str], list[float]]) -> None:
    assert read.keys() == wanted.keys()
    np.testing.assert_allclose([read[key] for key in wanted], list(wanted.values()), rtol=1e-12)


@pytest.mark.parametrize(
    ("zone", "hours"), [("UTC", range(24)), ("America/New_York", range(10, 16)), ("Asia/Kolkata", range(9, 15))]
)
@pytest.mark.parametrize("bar", MINUTES)
def test_longer_bars_are_those_of_an_obvious_version(tmp_path: Path, zone: str, hours: range, bar: str) -> None:
    for seed in range(3):
        bars = five_minutes(zone, hours, 8, seed)
        path = write_csv(tmp_path / "p.csv", bars.sample(frac=1.0, random_state=seed))
        market = {"bar": bar, "bar_stamp": "open"} | ({} if zone == "UTC" else {"time_zone": zone})
        assert_same(as_read(path, **market), obvious(bars, zone, MINUTES[bar]))


@pytest.mark.parametrize("bar", ["auto", "1h", "1d"])
def test_the_wrong_reading_of_timestamps_is_a_whole_bar_of_look_ahead(tmp_path: Path, bar: str) -> None:
    bars = five_minutes("UTC", range(24), 12, 1)
    opens = write_csv(tmp_path / "opens.csv", bars)
    closes = write_csv(tmp_path / "closes.csv", bars.assign(date=bars["date"] + pd.Timedelta(minutes=5)))
    market = {"bar": bar, "time_zone": "UTC"}
    right = as_read(opens, bar_stamp="open", **market)
    assert_same(as_read(closes, bar_stamp="close", **market), right)
    if bar == "auto":
        early = as_read(closes, bar_stamp="open", **market)
        shifted = {
            (symbol, str(np.datetime64(end) + np.timedelta64(300, "s"))): row for (symbol, end), row in right.items()
        }
        assert_same(early, shifted)
    if bar != "1d":
        refused(opens, "open or the close.*set market.bar_stamp=open .* or market.bar_stamp=close", **market)


def test_known_vendors_mark_the_open_and_the_report_says_so(tmp_path: Path) -> None:
    bars = five_minutes("UTC", range(24), 3, 1)
    wanted = obvious(bars, "UTC", 5)
    coin = bars[bars["symbol"] == "AAA"].drop(columns="symbol")
    of_coin = [row for (symbol, _), row in wanted.items() if symbol == "AAA"]
    milliseconds = coin["date"].dt.tz_localize(None).dt.as_unit("ms").astype("int64")
    freqtrade = tmp_path / "AAA_USDT-5m.feather"
    coin.reset_index(drop=True).to_feather(freqtrade)
    ccxt = tmp_path / "AAA.csv"
    coin.assign(date=milliseconds).to_csv(ccxt, index=False, header=False)
    klines = coin.assign(date=milliseconds)
    klines.insert(6, "closed", milliseconds + 299_999)
    archive = tmp_path / "AAA-5m-2024-03.csv"
    klines.assign(quote=1, count=1, taker=1, taker_quote=1, ignore=0).to_csv(archive, index=False, header=False)
    for path in (freqtrade, ccxt, archive):
        np.testing.assert_allclose(list(as_read(path).values()), of_coin, rtol=1e-12)
        _, report = cleaned(path)
        words = (
            f"Bars of 5m, of {len(coin)} given bars: timestamps mark the open of a bar, and agents decide at its close"
        )
        assert any(line.startswith(words) for line in report.lines())
        assert report.first_day == "2024-03-04T00:05:00"


def test_bars_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    bars = five_minutes("UTC", range(24), 3, 1)
    path = write_csv(tmp_path / "p.csv", bars)
    refused(
        path, "bars of 300 seconds, of which market.bar=1m cannot be made.*to 5m or 15m", bar="1m", bar_stamp="open"
    )
    three = bars.assign(date=bars["date"].dt.floor("D") + (bars["date"] - bars["date"].dt.floor("D")) * 3 / 5)
    path = write_csv(tmp_path / "q.csv", three)
    refused(path, "bars of 180 seconds, of which market.bar=auto .*to 15m or 30m", bar_stamp="open")
    first = bars["date"].min().floor("D")
    seven = bars.assign(date=first + (bars["date"] - first) * 7 / 5)
    path = write_csv(tmp_path / "s.csv", seven)
    refused(path, "bars of 420 seconds, of which market.bar=auto .*to 1d", bar_stamp="open")
    assert len(cleaned(path, bar="1d", time_zone="UTC", suspicious="keep")[0].days) == 5
    daily = write_csv(tmp_path / "r.csv", random_bars(["AAA"], 60, 1))
    refused(daily, "daily rows, of which bars of 1h cannot be made", bar="1h")


def test_an_unfinished_last_bar_is_said_and_left_out(tmp_path: Path) -> None:
    bars = five_minutes("UTC", range(24), 3, 1)
    path = write_csv(tmp_path / "p.csv", bars[bars["date"] < "2024-03-06 10:20+00:00"])
    prices, report = cleaned(path, bar="1h", bar_stamp="open")
    assert str(prices.days[-1]) == "2024-03-06T10:00:00"
    assert [(row.kind, row.day) for row in report.suspicious if row.left_out] == [("unfinished", "2024-03-06T11:00:00")]


def test_hours_are_sessions_of_the_exchanges_that_are_open_then() -> None:
    ends = np.arange("2024-04-01T01", "2024-06-03T01", dtype="datetime64[h]").astype("datetime64[s]")  # From a Monday.
    begun = ends - np.timedelta64(1, "h")
    hour, weekday = begun.astype("datetime64[h]").astype(int) % 24, (begun.astype("datetime64[D]").astype(int) + 3) % 7
    week = weekday < 5
    new_york, frankfurt = week & (hour >= 14) & (hour < 21), week & (hour >= 7) & (hour < 16)
    is_open = np.stack([new_york, new_york, frankfurt, frankfurt, np.ones(len(ends), dtype=bool)], axis=1)
    traded = is_open.copy()
    traded[180:260, 1] = False  # A halt of days beside one of the same exchange,
    traded[400:403, 2] = False  # and one of hours.
    assert not np.array_equal(traded, is_open)
    assert np.array_equal(sessions_of(traded, traded, ends), is_open)


def test_a_year_has_the_bars_of_its_days() -> None:
    around_the_clock = np.arange("2024-01-10T00:05", "2024-03-01T00:05", 5, dtype="datetime64[m]").astype(
        "datetime64[s]"
    )
    assert periods_per_year(around_the_clock, AccountConfig()) == 365 * 288
    assert periods_per_year(around_the_clock, AccountConfig(), range(14_000, 14_300)) == 365 * 288
    days = pd.bdate_range("2022-01-03", "2023-12-29", freq="C", holidays=USFederalHolidayCalendar().holidays().tolist())
    exchange = np.array([day + pd.Timedelta(hours=hour) for day in days for hour in range(10, 17)], "datetime64[s]")
    assert periods_per_year(exchange, AccountConfig()) == 252 * 7


def test_a_panel_of_bars_comes_back_from_the_cache(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "p.csv", five_minutes("UTC", range(24), 3, 1))
    panels = [
        build_panel(small_config(path, bar=bar, bar_stamp="open"), tmp_path / "cache")[0]
        for bar in ("auto", "auto", "15m", "1h")
    ]
    assert np.array_equal(panels[0].dates, panels[1].dates)
    assert panels[1].dates.dtype == "datetime64[s]"
    assert len({panel.fingerprint for panel in panels}) == 3
