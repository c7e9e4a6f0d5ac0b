"""Calendars: they agree with dates known from exchanges or are refused, and prices are right where they differ."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from market_cases import cleaned, random_bars, read, refused, small_config, write_csv

from eigen_core.common.errors import InputError
from eigen_core.config import MarketConfig
from eigen_core.market import build_panel
from eigen_core.market.calendars import Calendar, calendar_of
from eigen_core.trading.prices import Prices

NEW_YORK = "America/New_York"
CPU = torch.device("cpu")
# The day after Thanksgiving closes at 13:00, as the days before Independence Day and Christmas do.
HALF_DAY, CLOSED = "2024-11-29", "2024-11-28"


def calendar(name: str, first: str = "1990-01-02", last: str = "2026-11-30") -> Calendar:
    found = calendar_of(MarketConfig(calendar=name), np.array([first, last], dtype="datetime64[D]"))
    assert found is not None
    return found


def hours(name: str, date: str) -> str | None:
    """Return open and close of a date by the exchange's clock; None: closed."""
    own = calendar(name)
    place = int(own.session_of(np.array([date], dtype="datetime64[D]"))[0])
    if place < 0:
        return None
    times = pd.DatetimeIndex([own.opens[place], own.closes[place]], tz="UTC").tz_convert(own.time_zone)
    return "-".join(times.strftime("%H:%M"))


@pytest.mark.parametrize(
    ("name", "sessions", "closed"),
    [
        # The budget, and the test of a second data centre.
        ("XBOM", {"2024-01-20": "09:15-15:30", "2025-02-01": "09:15-15:30"}, ["2024-01-22", "2025-02-08"]),
        # Sundays, until the week became Monday to Friday in 2026.
        (
            "XTAE",
            {"2023-10-08": "09:59-15:40", "2026-01-09": "09:59-13:50"},
            ["2024-10-03", "2025-01-03", "2026-01-11"],
        ),
        # Saturdays until 1998; the first day of a year begins an hour later.
        pytest.param(
            "XKRX",
            {"1998-12-05": "09:30-15:00", "2024-01-02": "10:00-15:30"},
            ["1998-12-12", "2024-12-31"],
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_special_sessions_are_those_of_the_exchange_or_its_calendar_is_refused(
    name: str, sessions: dict[str, str], closed: list[str]
) -> None:
    # pandas 3.1 does not call the package's offsets.
    if not pd.__version__.startswith("3.0."):
        with pytest.raises(InputError, match=rf"with pandas {pd.__version__} gives other sessions .*'pandas<3\.1'"):
            calendar(name)
        return
    found = {date: hours(name, date) for date in (*sessions, *closed)}
    assert found == {**sessions, **dict.fromkeys(closed)}


@pytest.mark.parametrize(
    ("name", "sessions", "closed"),
    [
        (
            "XNYS",
            {"2024-07-03": "09:30-13:00", "2024-07-05": "09:30-16:00"},
            ["2001-09-11", "2012-10-29", "2025-01-09"],
        ),
        ("NASDAQ", {HALF_DAY: "09:30-13:00"}, ["2025-01-09"]),
        ("XLON", {"2024-12-24": "08:00-12:30"}, ["2022-09-19", "2023-05-08"]),
        ("XETR", {"2024-12-30": "09:00-14:00"}, ["2024-12-24"]),
        ("XTKS", {"2024-11-01": "09:00-15:00", "2024-11-05": "09:00-15:30"}, ["2019-05-01", "2024-12-31"]),
        ("XHKG", {"2024-12-24": "09:30-12:00"}, ["2024-02-12"]),
    ],
)
def test_half_days_and_closures_of_other_exchanges(name: str, sessions: dict[str, str], closed: list[str]) -> None:
    assert {date: hours(name, date) for date in (*sessions, *closed)} == {**sessions, **dict.fromkeys(closed)}


def test_the_days_of_new_york_are_those_of_the_bundled_prices() -> None:
    panel, report = build_panel(small_config(calendar="XNYS"))
    own = calendar("XNYS").sessions
    np.testing.assert_array_equal(panel.dates, own[(own >= panel.dates[0]) & (own <= panel.dates[-1])])
    assert len(panel.dates) == 8_313
    assert report.calendar == ("Sessions are those of XNYS, and all others that prices show.",)


@pytest.mark.parametrize("data", [None, "us5"])
def test_trades_are_the_same_where_calendar_and_prices_agree(data: str | None) -> None:
    config = small_config(data)
    (one, plain), (own, named) = (build_panel(small_config(data, calendar=name)) for name in ("prices", "XNYS"))
    assert not plain.calendar
    assert len(named.calendar) == 1
    assert one.fingerprint != own.fingerprint
    before, after = (Prices.of_panel(panel, CPU) for panel in (one, own))
    assert torch.equal(before.session, after.session)
    fills, others = (vars(prices.fills(config.trading)) for prices in (before, after))
    for name, values in fills.items():
        if isinstance(values, torch.Tensor):
            assert torch.equal(values.nan_to_num(-1.0), others[name].nan_to_num(-1.0)), name


def test_coins_without_gaps_are_always_open(tmp_path: Path) -> None:
    days = pd.date_range("2023-01-01", periods=200)
    bars = pd.concat([random_bars([symbol], 200, 3).assign(date=days) for symbol in ("BTC", "ETH")])
    path = write_csv(tmp_path / "coins.csv", bars)
    panels = [build_panel(small_config(path, calendar=name), tmp_path / "cache")[0] for name in ("prices", "24/7")]
    sessions = [Prices.of_panel(panel, CPU).session for panel in panels]
    assert torch.equal(*sessions)
    assert sessions[0].all()


def stock_and_coin(folder: Path) -> Path:
    """Write daily prices of a stock, halted for two weeks and traded on a holiday, and of a coin with a gap."""
    days = pd.date_range("2024-10-01", "2025-02-28")
    coin = random_bars(["BTC"], len(days), 1).assign(date=days)
    coin = coin[coin["date"] != "2024-12-10"]
    stock = random_bars(["ACME"], len(days), 2).assign(date=days)
    open_days = np.isin(days, calendar("XNYS").sessions) | (days == CLOSED)
    halted = np.isin(days, pd.date_range("2024-12-02", "2024-12-13"))
    return write_csv(folder / "mixed.csv", pd.concat([coin, stock[open_days & ~halted]]))


def test_prices_add_sessions_to_a_calendar_and_the_calendar_to_prices(tmp_path: Path) -> None:
    path = stock_and_coin(tmp_path)
    (one, _), (own, report) = (
        build_panel(small_config(path, calendar=name), tmp_path / "cache") for name in ("prices", "XNYS")
    )
    day, stock = {str(date): row for row, date in enumerate(own.dates)}, own.symbols.index("ACME")
    inferred, named = (Prices.of_panel(panel, CPU).session[:, stock].numpy() for panel in (one, own))
    # The exchange is closed, but the stock trades; on the other days of its halt, no other stock shows that it is open.
    assert named[day[CLOSED]]
    wanted = np.isin(own.dates, calendar("XNYS").sessions) | (own.dates == np.datetime64(CLOSED))
    np.testing.assert_array_equal(named, wanted)
    assert not inferred[day["2024-12-03"]]
    assert named[day["2024-12-03"]]
    said = " ".join(report.calendar)
    # Of all bars those of the coin: weekends, holidays.
    assert "with prices on days closed in XNYS, the first on 2024-10-05." in said
    assert "1 session of XNYS without a price, the first on 2024-12-10." in said
    assert set(report.calendar) <= set(report.lines())


def five_minutes(first: str = "2024-10-28", last: str = "2024-12-06") -> pd.DataFrame:
    """Return 5-minute bars from 4:00 to 20:00 in New York, on a half day to 17:00, by opens in local time."""
    own = calendar("XNYS").sessions
    dates = own[(own >= np.datetime64(first)) & (own <= np.datetime64(last))]
    opens = pd.DatetimeIndex(
        [
            pd.Timestamp(date) + pd.Timedelta(minutes=minute)
            for date in dates
            for minute in range(240, 1_020 if str(date) == HALF_DAY else 1_200, 5)
        ]
    )
    return random_bars(["ACME"], len(opens), 5).assign(date=opens)


def regular(opens: "pd.Series[pd.Timestamp]") -> "pd.Series[bool]":
    """Return which bars of 5 minutes begin within the regular hours of New York."""
    minute = opens.dt.hour * 60 + opens.dt.minute
    is_half = opens.dt.strftime("%Y-%m-%d") == HALF_DAY
    return (minute >= 570) & (minute < np.where(is_half, 780, 960))


@pytest.mark.parametrize("zoned", [False, True])
def test_regular_sessions_leave_out_bars_before_and_after_hours(tmp_path: Path, zoned: bool) -> None:
    bars = five_minutes()
    utc = bars["date"].dt.tz_localize(NEW_YORK).dt.tz_convert("UTC")
    path = write_csv(tmp_path / "p.csv", bars.assign(date=utc) if zoned else bars)
    settings = {"bar_stamp": "open", "calendar": "XNYS"} | ({"time_zone": NEW_YORK} if zoned else {})
    prices, report = cleaned(path, session="regular", **settings)
    ends = (utc[regular(bars["date"])] + pd.Timedelta(minutes=5)).dt.tz_localize(None)
    np.testing.assert_array_equal(prices.days, ends.to_numpy().astype("datetime64[s]"))
    assert report.irregular_bars == len(bars) - len(ends)
    assert f"{report.irregular_bars:,} given bars outside the regular hours" in " ".join(report.lines())
    np.testing.assert_array_equal(
        cleaned(path, **settings)[0].days, (utc + pd.Timedelta(minutes=5)).dt.tz_localize(None)
    )


def test_days_are_made_of_regular_bars(tmp_path: Path) -> None:
    bars = five_minutes()
    path = write_csv(tmp_path / "p.csv", bars)
    prices, _ = cleaned(path, bar="1d", bar_stamp="open", calendar="XNYS", session="regular")
    own = bars[regular(bars["date"])]
    closes = own.groupby(own["date"].dt.normalize())["close"].last()
    np.testing.assert_array_equal(prices.days, closes.index.to_numpy().astype("datetime64[D]"))
    np.testing.assert_array_equal(prices.close[:, 0], closes)
    alone, _ = cleaned(path, bar_stamp="open", calendar="XNYS", last_date="2024-10-28T08:05:00")
    assert calendar("XNYS").describe(alone.days, alone.traded) == (
        "Sessions are those of XNYS, and all others that prices show.",
    )
    refused(path, "market.bar_stamp=open", bar="1d", calendar="XNYS", session="regular")


@pytest.mark.parametrize(
    ("session", "bar", "last"),
    [("all", "1d", HALF_DAY), ("regular", "1d", HALF_DAY), ("regular", "4h", f"{HALF_DAY}T21:00:00")],
)
def test_a_half_day_is_finished_at_its_close(tmp_path: Path, session: str, bar: str, last: str) -> None:
    bars = five_minutes(last=HALF_DAY)
    if session == "regular":
        bars = bars[regular(bars["date"])]
    own = {"bar": bar, "bar_stamp": "open"}
    path = write_csv(tmp_path / "p.csv", bars)
    assert str(cleaned(path, **own)[0].days[-1]) < HALF_DAY + "T17"
    prices, report = cleaned(path, **own, calendar="XNYS", session=session)
    assert str(prices.days[-1]) == last
    assert not report.suspicious
    # A file of 11:00 has no finished last bar.
    early = write_csv(tmp_path / "early.csv", bars[bars["date"] < f"{HALF_DAY} 11:00"])
    assert prices.days[-1] > cleaned(early, **own, calendar="XNYS", session=session)[0].days[-1]


def test_a_closed_day_with_volume_stays_in_a_regular_session(tmp_path: Path) -> None:
    bars = five_minutes()
    closed = bars["date"].dt.normalize() == "2024-12-04"
    # The prices of a Wednesday, on the holiday before.
    moved = bars[closed].assign(date=bars["date"][closed] - pd.Timedelta(days=6))
    settings = {"bar_stamp": "open", "calendar": "XNYS", "session": "regular"}
    for volume, kept in ((5.0, len(moved)), (0.0, 0)):
        path = write_csv(tmp_path / "p.csv", pd.concat([bars, moved.assign(volume=volume)]).sort_values("date"))
        prices, _ = cleaned(path, **settings)
        assert int((prices.days.astype("datetime64[D]") == np.datetime64(CLOSED)).sum()) >= min(kept, 1) * 100
        assert len(prices.days) == regular(bars["date"]).sum() + kept


def test_dates_beyond_a_calendar_are_said_and_have_no_hours(tmp_path: Path) -> None:
    days = pd.bdate_range("2026-11-02", "2027-01-29")
    daily = random_bars(["AAA"], len(days), 4).assign(date=days)
    path = write_csv(tmp_path / "p.csv", daily)
    panel, report = build_panel(small_config(path, calendar="XSHG"), tmp_path / "cache")
    assert "21 days not from 1990-12-03 to 2026-12-31, the first on 2027-01-01." in report.calendar
    assert Prices.of_panel(panel, CPU).session.all()
    assert panel.calendar is not None
    assert not panel.calendar.after(panel.dates[-1]).size
    bars = five_minutes("2024-11-11")
    bars["date"] += np.datetime64("2027-01-04") - np.datetime64("2024-11-11")
    path = write_csv(tmp_path / "bars.csv", bars)
    refused(path, "known from 1990-12-03 to 2026-12-31", bar_stamp="open", calendar="XSHG", session="regular")


def test_refusals_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_csv(tmp_path / "p.csv", random_bars(["AAA"], 60, 1))
    refused(path, "'MOON' is no calendar: use one of prices, 24/7, .*XNYS", calendar="MOON")
    refused(path, "daily rows, of which market.session=regular leaves out none", calendar="XNYS", session="regular")
    with pytest.raises(InputError, match=r"set market\.calendar to the exchange's"):
        read(path, "market.session=regular")
    monkeypatch.setitem(sys.modules, "exchange_calendars", None)
    old = write_csv(
        tmp_path / "old.csv", random_bars(["AAA"], 60, 1).assign(date=pd.bdate_range("1971-01-04", periods=60))
    )
    refused(old, r"needs the package exchange_calendars, .*`pip install 'eigen-trader\[calendars\]'`", calendar="XNYS")
    assert build_panel(small_config(old, calendar="24/7"), tmp_path / "cache")[0].calendar is not None
