"""How many days a year has is taken from the days of the market, unless it is set."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from eigen_core.config import AccountConfig, Config
from eigen_core.market import build_panel
from eigen_core.task import open_data
from eigen_core.trading.equity import periods_per_year

FROM_DATA = AccountConfig()
EVERY_DAY = pd.date_range("2016-01-01", "2023-12-31")
WEEKDAYS = pd.bdate_range("2010-01-01", "2023-12-31")


def days(index: pd.DatetimeIndex) -> NDArray[np.datetime64]:
    return index.to_numpy().astype("datetime64[D]")


@pytest.mark.parametrize("data", [None, "us5"])
def test_bundled_stocks_have_252_days_a_year_whichever_days_are_judged(data: str | None) -> None:
    dates = build_panel(Config.model_validate({"market": {"data": data}}))[0].dates
    found = {
        periods_per_year(dates, FROM_DATA, range(first, min(first + length, len(dates))))
        for first in range(50, len(dates) - 20, 41)
        for length in (20, 60, 251, 1_300)
    }
    assert found | {periods_per_year(dates, FROM_DATA)} == {252}


def test_coins_have_365_and_a_gap_changes_nothing() -> None:
    coins = days(EVERY_DAY)
    assert periods_per_year(coins, FROM_DATA) == 365
    assert periods_per_year(np.concatenate([coins[:1000], coins[1400:]]), FROM_DATA) == 365
    # One day in twenty is missing everywhere.
    assert periods_per_year(np.delete(coins, np.s_[::20]), FROM_DATA) == 347


def test_stocks_that_coins_join_have_the_calendar_of_the_days_that_are_judged() -> None:
    stocks, mixed = days(pd.bdate_range("2010-01-01", "2018-12-31")), days(pd.date_range("2019-01-01", "2023-12-31"))
    both = np.concatenate([stocks, mixed])
    assert periods_per_year(both, FROM_DATA) == 365
    assert periods_per_year(both, FROM_DATA, range(len(both) - 251, len(both))) == 365
    assert periods_per_year(both, FROM_DATA, range(900, 1_151)) == 261


def test_other_calendars_are_counted_as_they_are() -> None:
    assert periods_per_year(days(pd.date_range("2010-01-01", "2023-12-31", freq="W")), FROM_DATA) == 52
    assert periods_per_year(days(pd.date_range("2010-01-01", "2023-12-31", freq="ME")), FROM_DATA) == 12
    # An exchange that is closed for two weeks at a time, twice a year.
    rests = (WEEKDAYS.month.isin([2, 10])) & (WEEKDAYS.day <= 12)
    assert 243 <= periods_per_year(days(WEEKDAYS[~rests]), FROM_DATA) <= 246


def test_a_setting_goes_before_the_data_and_the_data_report_says_which() -> None:
    coins = days(EVERY_DAY)
    assert periods_per_year(coins, AccountConfig(periods_per_year=300)) == 300


def test_the_data_report_says_how_many(tmp_path: Path) -> None:
    random = np.random.default_rng(0).normal(0.0, 0.02, (900, 2))
    table = pd.DataFrame(np.exp(np.cumsum(random, axis=0)), index=EVERY_DAY[:900], columns=["BTC", "ETH"])
    path = tmp_path / "coins.csv"
    table.to_csv(path, index_label="date")
    for settings, year in ({}, 365), ({"periods_per_year": 360}, 360):
        config = Config.model_validate({"market": {"data": str(path), "layout": "wide"}, "account": settings})
        assert any(f"{year} of these days" in line for line in open_data(config).lines)
