"""Equity of accounts: several as one, and the length of a year in days of the market."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from equity_cases import CAPITAL, curve_of
from numpy.typing import NDArray

from eigen_core.config import AccountConfig, Config
from eigen_core.market import build_panel
from eigen_core.task import open_data
from eigen_core.trading import EquityCurve
from eigen_core.trading.equity import concat_curves, mean_curve, periods_per_year


def random_curve(first: str, days: int, seed: int) -> EquityCurve:
    generator = np.random.default_rng(seed)
    returns = pd.Series(0.01 * generator.standard_normal(days), index=pd.bdate_range(first, periods=days))
    return curve_of(returns, exposure=generator.random(days), traded=100.0 * generator.random(days))


def test_capital_is_carried_from_span_to_span() -> None:
    spans = [random_curve("2020-01-01", 30, 1), random_curve("2020-03-02", 20, 2), random_curve("2020-05-01", 10, 3)]
    joined = concat_curves(spans)
    assert joined.capital == CAPITAL
    np.testing.assert_allclose(joined.returns, np.concatenate([span.returns for span in spans]), rtol=0.0, atol=1e-14)
    np.testing.assert_array_equal(joined.dates, np.concatenate([span.dates for span in spans]))
    money, day = CAPITAL, 0
    for span in spans:
        begun = money
        for place in range(len(span.dates)):
            money *= 1.0 + span.returns[place]
            assert joined.equity[day] == pytest.approx(money, rel=1e-12)
            assert joined.traded[day] == pytest.approx(span.traded[place] * begun / CAPITAL)
            assert joined.exposure[day] == span.exposure[place]
            day += 1
    with pytest.raises(ValueError, match="order of their days"):
        concat_curves([spans[1], spans[0]])


def test_a_share_of_the_capital_is_in_each_account() -> None:
    curves = [random_curve("2020-01-01", 30, seed) for seed in (1, 2, 3)]
    mean = mean_curve(curves)
    for day in range(30):
        assert mean.equity[day] == pytest.approx(sum(curve.equity[day] for curve in curves) / 3.0)
        invested = sum(curve.equity[day] * curve.exposure[day] for curve in curves) / 3.0
        assert mean.exposure[day] * mean.equity[day] == pytest.approx(invested)
    np.testing.assert_allclose(mean_curve(curves[:1]).equity, curves[0].equity)


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


def test_a_setting_goes_before_the_data_and_the_data_report_says_how_many(tmp_path: Path) -> None:
    random = np.random.default_rng(0).normal(0.0, 0.02, (900, 2))
    table = pd.DataFrame(np.exp(np.cumsum(random, axis=0)), index=EVERY_DAY[:900], columns=["BTC", "ETH"])
    path = tmp_path / "coins.csv"
    table.to_csv(path, index_label="date")
    for settings, year in ({}, 365), ({"periods_per_year": 360}, 360):
        config = Config.model_validate({"market": {"data": str(path), "layout": "wide"}, "account": settings})
        assert any(f"{year} of these days" in line for line in open_data(config).lines)
