"""Dates and time stamps become the exchange's days."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from market_cases import business_days, cleaned, write_text

from eigen_core.errors import InputError

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


WEEKS = {
    "Asia/Jerusalem": "Sun Mon Tue Wed Thu",
    "Asia/Riyadh": "Sun Mon Tue Wed Thu",
    "Asia/Dhaka": "Sun Mon Tue Wed Thu",
    "Africa/Cairo": "Sun Mon Tue Wed Thu",
    "Asia/Tehran": "Sat Sun Mon Tue Wed",
}


def days_of_week(zone: str, start: str, days: int) -> pd.DatetimeIndex:
    return pd.bdate_range(start, periods=days, freq="C", weekmask=WEEKS.get(zone, "Mon Tue Wed Thu Fri"))


def files_of_midnights(folder: Path, zone: str, days: pd.DatetimeIndex) -> list[Path]:
    """Write closes 1, 2, ... at the midnights of a zone in UTC, as text, numbers and time stamps."""
    utc = days.tz_localize(zone, nonexistent="shift_forward", ambiguous=True).tz_convert("UTC")
    closes = np.arange(1.0, len(days) + 1)
    milliseconds = utc.tz_localize(None).as_unit("ms").astype("int64")
    pd.DataFrame({"Date": [str(stamp) for stamp in utc], "A": closes}).to_csv(folder / "text.csv", index=False)
    pd.DataFrame({"Date": milliseconds, "A": closes}).to_csv(folder / "numbers.csv", index=False)
    pd.DataFrame({"Date": utc, "A": closes}).to_parquet(folder / "stamps.parquet", index=False)
    return [folder / "text.csv", folder / "numbers.csv", folder / "stamps.parquet"]


@pytest.mark.parametrize(
    "zone",
    [
        *WEEKS, "Europe/Athens", "Europe/Moscow", "Asia/Kolkata", "Asia/Kathmandu", "Asia/Shanghai", "Australia/Sydney",
        "Pacific/Auckland", "America/New_York", "America/Sao_Paulo", "America/Los_Angeles", "Pacific/Honolulu",
        "Europe/London", "UTC",
    ],
)  # fmt: skip
@pytest.mark.parametrize("start", ["2015-01-04", "2019-07-01"])
def test_midnights_of_all_weeks_in_utc(tmp_path: Path, zone: str, start: str) -> None:
    days = days_of_week(zone, start, 300)
    for path in files_of_midnights(tmp_path, zone, days):
        prices, _ = cleaned(path)
        np.testing.assert_array_equal(prices.days, days.to_numpy().astype("datetime64[D]"))
        np.testing.assert_array_equal(prices.close[:, 0], np.arange(1.0, 301.0))


def test_trading_out_of_turn_at_weekends_does_not_hide_a_week(tmp_path: Path) -> None:
    days = days_of_week("Asia/Kolkata", "2020-01-01", 300)
    days = days.union(pd.DatetimeIndex(["2020-02-01", "2020-11-14", "2020-11-15"]))
    for path in files_of_midnights(tmp_path, "Asia/Kolkata", days):
        np.testing.assert_array_equal(cleaned(path)[0].days, days.to_numpy().astype("datetime64[D]"))


def test_a_symbol_of_few_days_follows_the_others(tmp_path: Path) -> None:
    days = days_of_week("Asia/Tokyo", "2020-01-06", 40)
    utc = days.tz_localize("Asia/Tokyo").tz_convert("UTC")
    rows = [f"{stamp},OLD,1" for stamp in utc] + [f"{stamp},NEW,2" for stamp in utc[-4:]]
    prices, _ = cleaned(write_text(tmp_path / "p.csv", "Date,Symbol,Close\n" + "\n".join(rows) + "\n"))
    np.testing.assert_array_equal(prices.days, days.to_numpy().astype("datetime64[D]"))
    np.testing.assert_array_equal(prices.close[-5:, 0], [np.nan, 2, 2, 2, 2])


EITHER_DAY = r"may be of its own day, or midnight of the next day"


@pytest.mark.parametrize(
    ("weekdays", "time", "refusal"),
    [
        ("Sun Mon Tue Wed Thu", "15:25:00+00:00", None),
        ("Sun Mon Tue Wed Thu", "12:00:00+00:00", EITHER_DAY),
        ("Sat Sun Mon Tue Wed", "12:00:00+00:00", EITHER_DAY),
        ("Sun Mon Tue Wed Thu", "23:59:59+00:00", EITHER_DAY),
        ("Sun Mon Tue Wed Thu", "22:00:00", EITHER_DAY),
        ("Sun Mon Tue Wed Thu", "17:25:00", None),
        ("Sun Mon Tue Wed Thu", "07:00:00+00:00", None),
        ("Mon Tue Wed Thu Fri Sat", "21:00:00+00:00", None),
        ("Wed", "15:00:00+00:00", EITHER_DAY),
        ("Wed", "15:00:00", "weekly bars"),
        ("Fri", "21:00:00+00:00", "weekly bars"),
        ("Sun Mon Tue Wed Thu Fri", "22:00:00+00:00", EITHER_DAY),
    ],
)
def test_hours_that_may_be_of_two_days_are_refused(
    tmp_path: Path, weekdays: str, time: str, refusal: str | None
) -> None:
    days = pd.bdate_range("2020-01-06", periods=60, freq="C", weekmask=weekdays)
    stamps = [f"{day:%Y-%m-%d} {time}" for day in days]
    if refusal is not None:
        with pytest.raises(InputError, match=refusal):
            days_of(tmp_path, stamps)
    else:
        np.testing.assert_array_equal(days_of(tmp_path, stamps)[0], days.to_numpy().astype("datetime64[D]"))


@pytest.mark.parametrize("pattern", ["%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S", "%Y%m%d%H%M%S.parquet"])
def test_dates_and_times_as_digits(tmp_path: Path, pattern: str) -> None:
    texts = [(day + pd.Timedelta(hours=9, minutes=30)).strftime(pattern.removesuffix(".parquet")) for day in DAYS]
    if pattern.endswith(".parquet"):
        pd.DataFrame({"Date": list(map(int, texts)), "A": np.arange(1.0, 61.0)}).to_parquet(tmp_path / "p.parquet")
        days = cleaned(tmp_path / "p.parquet")[0].days
    else:
        days = days_of(tmp_path, texts)[0]
    np.testing.assert_array_equal(days, DAYS.to_numpy().astype("datetime64[D]"))


def test_milliseconds_before_2001(tmp_path: Path) -> None:
    days = business_days(60, "1975-11-03")
    numbers = days.as_unit("ms").astype("int64")
    assert {len(str(number)) for number in numbers} == {12}
    np.testing.assert_array_equal(days_of(tmp_path, list(map(str, numbers)))[0], days.to_numpy())


def test_months_are_no_days(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'201811' is no date"):
        days_of(tmp_path, ["201811", "201812"])


@pytest.mark.parametrize("layout", ["long", "wide", "numbers", "newest first"])
def test_rows_within_a_day_are_refused(tmp_path: Path, layout: str) -> None:
    stamps = [day + pd.Timedelta(hours=hour, minutes=30) for day in DAYS for hour in (9, 10, 15)]
    frame = pd.DataFrame({"date": stamps, "close": 1.0, "volume": 5})
    if layout == "wide":
        frame = frame.rename(columns={"close": "A", "volume": "B"})
    if layout == "numbers":
        frame["date"] = [stamp.strftime("%Y%m%d%H%M") for stamp in stamps]
    frame.iloc[:: -1 if layout == "newest first" else 1].to_csv(tmp_path / "p.csv", index=False)
    with pytest.raises(
        InputError, match=r"several rows of 2020-02-03, at 9:30:00 and 10:30|of 2020-.*, at 15:30:00 and"
    ):
        cleaned(tmp_path / "p.csv")


def test_one_row_a_day_at_changing_times_is_kept(tmp_path: Path) -> None:
    stamps = [f"{day:%Y-%m-%d} {9 + number % 7:02}:{number % 60:02}:07" for number, day in enumerate(DAYS)]
    np.testing.assert_array_equal(days_of(tmp_path, stamps)[0], DAYS.to_numpy().astype("datetime64[D]"))


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
