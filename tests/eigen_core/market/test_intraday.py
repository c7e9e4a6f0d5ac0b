"""Bars within a day form the days that an obvious version forms; none is left out as a duplicate."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from market_cases import cleaned, random_bars, refused, small_config, write_csv, write_text

from eigen_core.config import Config
from eigen_core.market import build_panel
from eigen_core.market.audit import audit_market
from eigen_core.market.cleaning import CleanPrices

HOURS = {
    "America/New_York": range(4, 20),
    "Asia/Tokyo": range(9, 15),
    "Australia/Sydney": range(10, 16),
    "UTC": range(24),
}


def hourly(zone: str, days: int = 20) -> pd.DataFrame:
    """Return hourly bars on an exchange's clock, with gaps, across a change of its clock."""
    generator = np.random.default_rng(1)
    dates = (pd.date_range if zone == "UTC" else pd.bdate_range)("2024-02-20", periods=days)
    stamps = pd.DatetimeIndex([date + pd.Timedelta(hours=hour) for date in dates for hour in HOURS[zone]])
    parts = []
    for seed, symbol in enumerate(("AAA", "BBB"), 1):
        own = stamps[generator.random(len(stamps)) < 0.8]
        parts.append(random_bars([symbol], len(own), seed).assign(date=own))
    return pd.concat(parts, ignore_index=True)


def days_of(bars: pd.DataFrame) -> dict[tuple[str, str], list[float]]:
    """Return open, high, low, close and volume of each symbol and day, formed one after another."""
    found: dict[tuple[str, str], list[float]] = {}
    ordered = bars.sort_values("date")
    keys = zip(ordered["symbol"], ordered["date"].dt.strftime("%Y-%m-%d"), strict=True)
    fields = ordered[["open", "high", "low", "close", "volume"]].to_numpy()
    for key, (opened, high, low, close, volume) in zip(keys, fields.tolist(), strict=True):
        before = found.get(key)
        if before is None:
            found[key] = [opened, high, low, close, volume]
        else:
            found[key] = [before[0], max(before[1], high), min(before[2], low), close, before[4] + volume]
    return found


def assert_days(prices: CleanPrices, bars: pd.DataFrame) -> None:
    expected = days_of(bars)
    grids = (prices.open, prices.high, prices.low, prices.close, prices.volume)
    read = {
        (symbol, str(day)): [grid[row, column] for grid in grids]
        for column, symbol in enumerate(prices.symbols)
        for row, day in enumerate(prices.days)
        if not np.isnan(prices.close[row, column])
    }
    assert read.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(read[key], values, rtol=1e-12)


FORMED = {"bar": "1d"}


def formed(zone: str) -> dict[str, str]:
    return {**FORMED, "time_zone": zone}


def in_utc(bars: pd.DataFrame, zone: str) -> pd.DataFrame:
    return bars.assign(date=bars["date"].dt.tz_localize(zone).dt.tz_convert("UTC"))


def write_forms(folder: Path, bars: pd.DataFrame, zone: str) -> dict[str, Path]:
    """Write bars on the exchange's clock, with its offset from UTC, in UTC, as numbers, and one file a symbol."""
    offset = bars.assign(date=bars["date"].dt.tz_localize(zone))
    utc = in_utc(bars, zone)
    seconds = utc["date"].dt.tz_localize(None).dt.as_unit("s").astype("int64")
    per_symbol = folder / "folder"
    per_symbol.mkdir()
    for symbol, own in utc.groupby("symbol"):
        own.drop(columns="symbol").to_parquet(per_symbol / f"{symbol}.parquet", index=False)
    two = bars.assign(date=bars["date"].dt.strftime("%Y%m%d"), time=bars["date"].dt.strftime("%H%M%S"))
    offset.to_parquet(folder / "zoned.parquet", index=False)
    return {
        "own clock": write_csv(folder / "own.csv", bars),
        "two columns": write_csv(folder / "two.csv", two[["symbol", "date", "time", *bars.columns[2:]]]),
        "offset": write_csv(folder / "offset.csv", offset),
        "zoned": folder / "zoned.parquet",
        "utc": write_csv(folder / "utc.csv", utc.sample(frac=1.0, random_state=1)),
        "numbers": write_csv(folder / "numbers.csv", bars.assign(date=seconds)),
        "folder": per_symbol,
    }


@pytest.mark.parametrize(
    "zone", [zone if zone == "Asia/Tokyo" else pytest.param(zone, marks=pytest.mark.thorough) for zone in HOURS]
)
def test_bars_within_days_in_all_forms(tmp_path: Path, zone: str) -> None:
    bars = hourly(zone)
    for form, path in write_forms(tmp_path, bars, zone).items():
        own = {"date_format": "s"} if form == "numbers" else {}
        refused(path, r"market.bar_stamp=open.*market.bar_stamp=close.*`--set market\.bar=1d`", **own)
        on_own_clock = form in ("own clock", "two columns", "offset", "zoned") and zone != "UTC"
        if form in ("own clock", "two columns"):
            refused(path, "are in the exchange's time zone, do not set market.time_zone", **formed(zone))
            prices, report = cleaned(path, **FORMED)
        else:
            if on_own_clock:
                assert_days(cleaned(path, **FORMED)[0], bars)
            else:
                refused(path, "intraday bars.*set market.time_zone|market.time_zone=UTC", **FORMED, **own)
            prices, report = cleaned(path, **formed(zone), **own)
        assert_days(prices, bars)
        assert (report.bars, report.formed_days) == (len(bars), len(days_of(bars)))
        assert report.duplicate_rows == 0


def test_an_hour_that_comes_twice_by_the_clock_is_two_bars(tmp_path: Path) -> None:
    hours = pd.date_range("2022-11-04", periods=96, freq="h", tz="UTC")
    bars = pd.DataFrame({"date": hours, "symbol": "X", "close": np.arange(1.0, 97.0), "volume": 1})
    path = write_csv(tmp_path / "p.csv", bars)
    prices, report = cleaned(path, **formed("America/New_York"))
    # 2022-11-06 has 25 hours in New York; 4 hours of 3 November and 5 of the 7th are cut off.
    assert dict(zip(map(str, prices.days), prices.volume[:, 0].tolist(), strict=True))["2022-11-06"] == 25.0
    assert (report.bars, report.duplicate_rows) == (96, 0)


def test_an_unfinished_last_day_is_said_and_left_out(tmp_path: Path) -> None:
    hours = pd.date_range("2024-01-01", "2024-01-30 09:00", freq="h", tz="UTC")
    bars = pd.DataFrame({"date": hours, "symbol": "BTC", "close": 100.0 + np.arange(len(hours)), "volume": 1})
    path = write_csv(tmp_path / "p.csv", bars)
    prices, report = cleaned(path, **formed("UTC"))
    assert str(prices.days[-1]) == "2024-01-29"
    assert "Bars of the last day end before the usual time: 2024-01-30 (left out)." in report.lines()
    kept, report = cleaned(path, **formed("UTC"), suspicious="keep")
    assert (str(kept.days[-1]), kept.volume[-1, 0]) == ("2024-01-30", 10.0)
    whole = write_csv(tmp_path / "whole.csv", bars[bars["date"] < "2024-01-30"])
    np.testing.assert_array_equal(cleaned(whole, **formed("UTC"))[0].close, prices.close)


def test_a_bar_outside_the_usual_hours_is_said(tmp_path: Path) -> None:
    bars = hourly("Australia/Sydney", 120)
    late = bars.iloc[[300]].assign(
        date=bars["date"][300].normalize() + pd.Timedelta(hours=21, minutes=5), close=1.0, low=1.0
    )
    early = bars.iloc[[700]].assign(
        date=bars["date"][700].normalize() + pd.Timedelta(hours=4), open=1.0, low=1.0, symbol="BBB"
    )
    path = write_csv(tmp_path / "p.csv", pd.concat([bars, late, early]))
    prices, report = cleaned(path, **FORMED)
    assert_days(prices, pd.concat([bars, late, early]))
    found = [str(row) for row in report.suspicious if row.kind == "unusual hour"]
    day, other = (f"{table['date'].iloc[0]:%Y-%m-%d}" for table in (late, early))
    assert sorted(found) == sorted([f"AAA {day} (21:05)", f"{bars['symbol'][700]} {other} (04:00)"])
    # On two days in a hundred it is usual, such as a longer session before a holiday.
    often = bars[bars["date"].dt.hour == 15].iloc[:4].assign(date=lambda table: table["date"] + pd.Timedelta(hours=4))
    assert_days(cleaned(write_csv(tmp_path / "q.csv", pd.concat([bars, often])), **FORMED)[0], pd.concat([bars, often]))


@pytest.mark.parametrize("market", [{}, FORMED])
def test_a_live_row_beside_daily_ones_is_a_day_that_comes_twice(tmp_path: Path, market: dict[str, str]) -> None:
    days = pd.bdate_range("2022-01-03", periods=60)
    daily = pd.DataFrame({"date": days, "symbol": "A", "close": np.arange(101.0, 161.0), "volume": 100})
    live = daily.iloc[[-1]].assign(date=days[-1] + pd.Timedelta("15:31:07"), close=160.1, volume=40)
    path = write_csv(tmp_path / "p.csv", pd.concat([daily, live]))
    prices, report = cleaned(path, **market)
    assert [(row.kind, row.symbol, row.day) for row in report.suspicious] == [("twice", "A", str(days[-1].date()))]
    assert prices.volume[-1, 0] == 40.0
    dropped = cleaned(path, suspicious="drop", **market)[0]
    assert str(dropped.days[-1]) == str(days[-2].date())


def test_a_live_row_instead_of_a_daily_one_is_an_unfinished_day(tmp_path: Path) -> None:
    days = [str(day.date()) for day in pd.bdate_range("2022-01-03", periods=60)]
    for name, zone in (("local", ""), ("utc", "+00:00")):
        stamps = [f"{day} 00:00:00{zone}" for day in days[:-1]] + [f"{days[-1]} 15:31:07{zone}"]
        bars = pd.DataFrame({"date": stamps, "symbol": "A", "close": np.arange(101.0, 161.0)})
        path = write_csv(tmp_path / f"{name}.csv", bars)
        # A panel that keeps rows is the same in the cache.
        assert str(cleaned(path, suspicious="keep")[0].days[-1]) == days[-2]
        prices, report = cleaned(path)
        assert str(prices.days[-1]) == days[-2]
        assert [(row.kind, row.day, row.left_out) for row in report.suspicious] == [("unfinished", days[-1], True)]


@pytest.mark.parametrize(("zone", "last"), [("Europe/London", "2023-03-27"), ("Atlantic/Azores", "2022-10-31")])
def test_a_change_of_the_clock_before_the_last_row_makes_no_unfinished_day(
    tmp_path: Path, zone: str, last: str
) -> None:
    days = pd.bdate_range(end=last, periods=60)
    utc = days.tz_localize(zone).tz_convert("UTC")
    path = write_csv(tmp_path / "p.csv", pd.DataFrame({"date": utc, "symbol": "A", "close": np.arange(101.0, 161.0)}))
    refused(path, "daily timestamps in UTC that are not at midnight, such as .*: set market.time_zone")
    assert [str(day) for day in cleaned(path, time_zone=zone)[0].days] == [f"{day:%Y-%m-%d}" for day in days]


def test_few_bars_of_each_day_are_recognised(tmp_path: Path) -> None:
    bars = hourly("Asia/Tokyo", 120).sample(frac=0.2, random_state=1)
    path = write_csv(tmp_path / "p.csv", bars)
    refused(path, "set market.bar_stamp=open")
    assert_days(cleaned(path, **FORMED)[0], bars)


def test_wide_bars_and_times_in_a_column_of_their_own(tmp_path: Path) -> None:
    bars = hourly("Asia/Tokyo")
    wide = bars.pivot(index="date", columns="symbol", values="close").reset_index()
    last = wide.assign(day=wide["date"].dt.strftime("%Y-%m-%d")).groupby("day")[["AAA", "BBB"]].last()
    wide.to_csv(tmp_path / "one.csv", index=False)
    wide.insert(1, "Time", wide["date"].dt.strftime("%H:%M"))
    wide.assign(date=wide["date"].dt.strftime("%Y-%m-%d")).to_csv(tmp_path / "two.csv", index=False)
    for name in ("one.csv", "two.csv"):
        named = {"layout": "wide"} | ({} if name == "one.csv" else {"columns": {"time": "Time"}})
        refused(tmp_path / name, "set market.bar_stamp=open", **named)
        prices, _ = cleaned(tmp_path / name, **FORMED, **named)
        assert prices.symbols == ("AAA", "BBB")
        np.testing.assert_allclose(prices.close, last.to_numpy(), rtol=1e-14)
    text = "Date,TIME,AAA\n2020-01-02,1600,1\n2020-01-03,1600,2\n"
    assert cleaned(write_text(tmp_path / "ticker.csv", text), layout="wide")[0].symbols == ("TIME", "AAA")


def test_times_of_day_of_daily_rows(tmp_path: Path) -> None:
    for name, time in (("a", "16:00"), ("b", "4:00 PM"), ("c", "000000"), ("d", "160000"), ("e", "")):
        text = f"Date,Time,Symbol,Close\n2020-01-02,{time},A,1\n2020-01-03,{time},A,2\n"
        prices, report = cleaned(write_text(tmp_path / f"{name}.csv", text))
        np.testing.assert_array_equal(prices.close, [[1.0], [2.0]])
        assert report.bars == 0
    text = "Date,Time,Symbol,Close\n2020-01-02,after close,A,1\n2020-01-03,before open,A,2\n"
    refused(write_text(tmp_path / "f.csv", text), "line 2, column 'Time': 'after close' is no time of day")
    text = "Date,Time,Symbol,Close\n2020-01-02 10:00,16:00,A,1\n2020-01-03 10:00,16:00,A,2\n"
    refused(write_text(tmp_path / "g.csv", text), "times of day in two columns, 'Date' and 'Time', and they differ")


def test_sessions_over_midnight_are_refused(tmp_path: Path) -> None:
    sydney = in_utc(hourly("Australia/Sydney", 60), "Australia/Sydney")
    # In UTC the session of Monday begins on Sunday.
    path = write_csv(tmp_path / "naive.csv", sydney.assign(date=sydney["date"].dt.tz_localize(None)))
    refused(path, r"few bars on Sundays \(\d+, \d+ on other days\), so sessions span midnight", **FORMED)
    path = write_csv(tmp_path / "utc.csv", sydney)
    refused(path, "sessions span midnight", **formed("UTC"))


def test_bars_that_come_again(tmp_path: Path) -> None:
    bars = hourly("Asia/Tokyo")
    path = write_csv(tmp_path / "p.csv", pd.concat([bars, bars.iloc[5:9]]))
    prices, report = cleaned(path, **FORMED)
    assert_days(prices, bars)
    assert (report.duplicate_rows, report.bars) == (4, len(bars))
    other = bars.iloc[[5]].assign(close=1.0, low=1.0)
    refused(
        write_csv(tmp_path / "q.csv", pd.concat([bars, other])),
        r"'AAA' has several bars at 2024-02-2\d \d\d:00:00, with low ",
        **FORMED,
    )


def test_a_symbol_of_days_among_bars_is_refused(tmp_path: Path) -> None:
    bars = in_utc(hourly("America/New_York"), "America/New_York")
    days = bars.groupby(bars["date"].dt.normalize()).first().drop(columns="date").reset_index().assign(symbol="DAY")
    path = write_csv(tmp_path / "p.csv", pd.concat([bars, days]))
    refused(path, "daily rows of some symbols and intraday bars of others", **formed("America/New_York"))


def test_a_day_whose_bars_are_in_several_files(tmp_path: Path) -> None:
    bars = in_utc(hourly("America/New_York"), "America/New_York").sort_values(["symbol", "date"])
    folder = tmp_path / "p"
    folder.mkdir()
    for number, first in enumerate(range(0, len(bars), 50)):
        write_csv(folder / f"part-{number}.csv", bars.iloc[first : first + 50])
    # The last file has a single bar.
    write_csv(folder / "part-99.csv", bars.iloc[-1:])
    prices, report = cleaned(folder, **formed("America/New_York"))
    assert_days(prices, hourly("America/New_York"))
    assert (report.bars, report.duplicate_rows) == (len(bars), 1)


def test_the_panel_and_its_report(tmp_path: Path) -> None:
    bars = hourly("America/New_York", 40)
    path = write_csv(tmp_path / "p.csv", in_utc(bars, "America/New_York"))
    config = small_config(path, **formed("America/New_York"))
    panel, report = build_panel(config, tmp_path / "cache")
    assert panel.days == 40
    words = f"Aggregated {len(bars):,} intraday bars to 80 daily bars, from midnight to midnight in America/New_York"
    for lines in (report.lines(), audit_market(config, 1).report.lines()):
        assert any(line.startswith(words) for line in lines)
    assert build_panel(config, tmp_path / "cache")[1].lines() == report.lines()
    other, _ = build_panel(small_config(path, **formed("America/Chicago")), tmp_path / "cache")
    assert other.fingerprint != panel.fingerprint
    for zone in ("Nowhere", "../etc/passwd", "America"):
        with pytest.raises(ValueError, match="is no time zone: name one like America/New_York"):
            Config.model_validate({"market": {"time_zone": zone}})
