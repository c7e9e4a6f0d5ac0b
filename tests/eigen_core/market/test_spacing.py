"""Weekly, monthly and quarterly bars are refused by name; daily prices with gaps are not."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from market_cases import cleaned, random_bars, write_csv

from eigen_core.common.errors import InputError
from eigen_core.market.trading_days import refuse_longer_bars

DAYS = pd.bdate_range("2015-01-01", "2019-12-31")


def prices(*spacings: pd.DatetimeIndex) -> pd.DataFrame:
    parts = []
    for number, days in enumerate(spacings):
        bars = random_bars([f"S{number}"], len(days), number)
        parts.append(bars.assign(date=days))
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize(
    ("frequency", "words"),
    [
        ("W-FRI", "about 7 days: these look like weekly bars"),
        ("W-MON", "weekly"),
        ("BME", "these look like monthly bars"),
        ("MS", "monthly"),
        ("28D", "about 28 days: these look like monthly"),
        ("BQE", "quarterly"),
        ("3D", "about 3 days: these look like 3-day bars"),
    ],
)
def test_longer_bars_are_refused(tmp_path: Path, frequency: str, words: str) -> None:
    days = pd.date_range("2010-01-01", "2019-12-31", freq=frequency)
    path = write_csv(tmp_path / "p.csv", prices(days, days[5:], days))
    with pytest.raises(InputError, match=f"3 of 3 symbols, 'S0' first.*{words}.*give daily bars"):
        cleaned(path)


def test_weekly_bars_with_holidays_are_refused(tmp_path: Path) -> None:
    days = pd.date_range("2010-01-01", "2019-12-31", freq="W-FRI")
    moved = days.where(np.arange(len(days)) % 9 != 0, days - pd.Timedelta(days=1)).delete([30, 31, 77])
    with pytest.raises(InputError, match="weekly bars"):
        cleaned(write_csv(tmp_path / "p.csv", prices(moved)))


def test_weekly_columns_of_closes_are_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"A": 1.0, "B": 2.0}, index=pd.date_range("2015-01-01", periods=100, freq="W"))
    frame.to_csv(tmp_path / "p.csv", index_label="Date")
    with pytest.raises(InputError, match="2 of 2 symbols, 'A' first"):
        cleaned(tmp_path / "p.csv", layout="wide")


def test_weekly_symbols_beside_daily_ones_are_read(tmp_path: Path) -> None:
    weekly = DAYS[DAYS.day_of_week == 2]
    path = write_csv(tmp_path / "p.csv", prices(DAYS, DAYS, weekly, weekly))
    assert cleaned(path)[0].symbols == ("S0", "S1", "S2", "S3")
    with pytest.raises(InputError, match="2 of 3 symbols, 'S1' first"):
        cleaned(write_csv(tmp_path / "p.csv", prices(DAYS, weekly, weekly)))


def test_context_columns_may_be_weekly(tmp_path: Path) -> None:
    weekly = DAYS[DAYS.day_of_week == 2]
    path = write_csv(tmp_path / "p.csv", prices(DAYS, weekly, weekly))
    assert cleaned(path, context=("S1", "S2"))[0].assets == 1


@given(seed=st.integers(0, 10_000), kept=st.floats(0.02, 1.0), always_open=st.booleans())
def test_daily_prices_with_gaps_are_not_refused(seed: int, kept: float, always_open: bool) -> None:
    days = (pd.date_range("2015-01-01", periods=1_500) if always_open else DAYS).to_numpy().astype("datetime64[D]")
    known = np.random.default_rng(seed).random((len(days), 3)) < kept
    refuse_longer_bars(days, known, ("A", "B", "C"), "prices")
