"""Dates and time stamps become the exchange's days."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from market_cases import business_days, cleaned, write_text

DAYS = business_days(60, "2020-02-03")


def days_of(tmp_path: Path, stamps: list[str]) -> tuple[np.ndarray, int]:
    rows = "".join(f'"{stamp}",{number + 1}\n' for number, stamp in enumerate(stamps))
    prices, report = cleaned(write_text(tmp_path / "p.csv", f"Date,A\n{rows}"))
    np.testing.assert_array_equal(prices.close[:, 0], np.arange(1, len(stamps) + 1))
    return prices.days, report.moved_stamps


def written(pattern: str) -> list[str]:
    return [day.strftime(pattern) for day in DAYS]


@pytest.mark.parametrize(
    "pattern",
    [
        "%Y-%m-%d",
        "%Y/%m/%d",
        "%Y.%m.%d",
        "%Y%m%d",
        "%m/%d/%Y",
        "%d/%m/%Y",
        "%d.%m.%Y",
        "%d-%b-%Y",
        "%b %d, %Y",
        "%d %B %Y",
        "%Y-%m-%d 00:00:00",
        "%Y-%m-%dT16:00",
        "%m/%d/%Y 12:00:00 AM",
        "%Y-%m-%d 00:00:00-05:00",
        "%Y-%m-%d 00:00:00.000+0900",
        "%Y-%m-%dT05:00:00Z",
        "%Y%m%dT210000Z",
        "%Y-%m-%d 21:00:00+00:00",
        "%Y-%m-%d 21:00:00 UTC",
    ],
)
def test_spellings_of_dates(tmp_path: Path, pattern: str) -> None:
    days, moved = days_of(tmp_path, written(pattern))
    np.testing.assert_array_equal(days, DAYS.to_numpy().astype("datetime64[D]"))
    assert moved == 0


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", "Asia/Tokyo", "Asia/Kolkata", "Europe/London"])
@pytest.mark.parametrize("form", ["local", "utc", "seconds", "milliseconds", "parquet local", "parquet utc"])
def test_midnights_of_an_exchange_across_the_change_of_the_clocks(tmp_path: Path, zone: str, form: str) -> None:
    local = DAYS.tz_localize(zone)
    assert zone.startswith("Asia") or local[0].utcoffset() != local[-1].utcoffset()
    utc = local.tz_convert("UTC")
    seconds = utc.tz_localize(None).as_unit("s").astype("int64")
    if form.startswith("parquet"):
        stamps = local if form == "parquet local" else utc
        pd.DataFrame({"A": np.arange(1.0, 61.0)}, index=stamps.rename("Date")).to_parquet(tmp_path / "p.parquet")
        days = cleaned(tmp_path / "p.parquet")[0].days
    else:
        texts = {
            "local": [str(stamp) for stamp in local],
            "utc": [str(stamp) for stamp in utc],
            "seconds": [str(second) for second in seconds],
            "milliseconds": [str(second * 1_000) for second in seconds],
        }
        days = days_of(tmp_path, texts[form])[0]
    np.testing.assert_array_equal(days, DAYS.to_numpy().astype("datetime64[D]"))


def test_moved_stamps_are_reported_and_every_symbol_is_judged_alone(tmp_path: Path) -> None:
    tokyo = DAYS.tz_localize("Asia/Tokyo").tz_convert("UTC")
    close_in_new_york = (DAYS + pd.Timedelta(hours=16)).tz_localize("America/New_York").tz_convert("UTC")
    rows = [f"{stamp},JP,1" for stamp in tokyo] + [f"{stamp},US,2" for stamp in close_in_new_york]
    prices, report = cleaned(write_text(tmp_path / "p.csv", "Date,Symbol,Close\n" + "\n".join(rows) + "\n"))
    np.testing.assert_array_equal(prices.close, np.tile([1.0, 2.0], (60, 1)))
    assert report.moved_stamps == 60
    assert any("60 time stamps in UTC" in line for line in report.lines())


def test_a_market_that_never_closes_keeps_its_utc_days(tmp_path: Path) -> None:
    every_day = pd.date_range("2020-02-03", periods=60)
    days, moved = days_of(tmp_path, [f"{day:%Y-%m-%d} 23:59:00+00:00" for day in every_day])
    np.testing.assert_array_equal(days, every_day.to_numpy().astype("datetime64[D]"))
    assert moved == 0


def test_parquet_dates_and_integers(tmp_path: Path) -> None:
    expected = DAYS.to_numpy().astype("datetime64[D]")
    closes = {"A": np.arange(1.0, 61.0)}
    for number, dates in enumerate((DAYS.date, DAYS.strftime("%Y%m%d").astype("int64"), DAYS.strftime("%Y-%m-%d"))):
        path = tmp_path / f"{number}.parquet"
        pd.DataFrame({"date": dates, **closes}).to_parquet(path)
        np.testing.assert_array_equal(cleaned(path)[0].days, expected)
