"""Days of a panel: which it has and how they are split; bars longer than a day; days without trade."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from market_cases import assert_equal_panels, cleaned, random_bars, small_config, write_csv
from science_cases import small_config as training_config

from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.market import Panel, build_panel
from eigen_core.market.panel import Splits, episode_starts
from eigen_core.market.report import DataReport
from eigen_core.market.trading_days import refuse_longer_bars
from eigen_core.trading import Prices

FIRST, LAST = "2020-03-07", "2020-09-30"


@st.composite
def split_days(draw: st.DrawFn) -> tuple[int, Config]:
    """A configuration whose purge is at least a window and a trade, and days that suffice for it."""
    window, holding = draw(st.integers(1, 40)), draw(st.integers(1, 10))
    trading = {
        "trading_days": draw(st.integers(1, 20)),
        "settlement_days": holding + draw(st.integers(0, 5)),
        "holding_days": holding,
    }
    episode = trading["trading_days"] + trading["settlement_days"]
    market = {
        "window": window,
        "validation_days": episode + draw(st.integers(0, 30)),
        "holdout_days": draw(st.sampled_from([0, episode, episode + 17])),
        "purge_days": window + holding + draw(st.integers(0, 9)),
    }
    config = Config.model_validate({"market": market, "trading": trading, "network": {"scales": [1]}})
    return config.required_days + draw(st.integers(0, 200)), config


@given(split_days())
def test_splits_never_overlap_and_keep_the_purge(case: tuple[int, Config]) -> None:
    days, config = case
    market = config.market
    splits = Splits.of_days(days, market)
    assert splits.train.start == 0
    assert (len(splits.validation), len(splits.holdout)) == (market.validation_days, market.holdout_days)
    assert splits.validation.start - splits.train.stop == market.purge_days
    if market.holdout_days:
        assert splits.holdout.start - splits.validation.stop == market.purge_days
        assert splits.holdout.stop == days
    else:
        assert splits.validation.stop == days
    # No day is traded in one split and observed or traded in the next.
    window, episode = market.window, config.trading.episode_days
    used = []
    for split in (splits.train, splits.validation, splits.holdout):
        if split:
            starts = episode_starts(split, window, episode)
            observed, last = starts[0] - window + 1, starts[-1] + episode - 1
            assert split.start <= starts[0]
            assert last < split.stop
            used.append((observed, last))
    for (_, last), (observed, _) in pairwise(used):
        assert last + config.trading.holding_days < observed


def test_without_a_purge_splits_are_as_they_were() -> None:
    assert Splits.of_days(100, small_config().market) == Splits(range(86), range(86, 94), range(94, 100))
    assert small_config().required_days == 5 + 5 + 8 + 6


def panel_of(path: Path, folder: Path, **market: Any) -> Panel:
    return build_panel(small_config(path, **{"suspicious": "keep", **market}), folder / "cache")[0]


@pytest.mark.parametrize(("first", "last"), [(FIRST, LAST), (None, LAST), (FIRST, None)])
def test_a_panel_between_dates_is_that_of_a_file_that_holds_no_others(
    tmp_path: Path, first: str | None, last: str | None
) -> None:
    bars = random_bars(["AAA", "BBB"], 300, seed=11)
    late = random_bars(["NEW"], 300, seed=12)
    bars = pd.concat([bars, late[late["date"] > LAST]], ignore_index=True)
    bars["sentiment"] = np.sin(np.arange(len(bars)))
    kept = bars[(bars["date"] >= (first or "1900")) & (bars["date"] <= (last or "2100"))]
    market = {"own_features": ["columns"], "first_date": first, "last_date": last}
    cut = panel_of(write_csv(tmp_path / "all.csv", bars), tmp_path, **market)
    expected = panel_of(write_csv(tmp_path / "kept.csv", kept), tmp_path, own_features=["columns"])
    assert "sentiment" in cut.feature_names
    assert_equal_panels(cut, expected)
    assert ("NEW" in cut.symbols) == (last is None)


def test_dates_without_any_price_are_refused_with_those_there_are(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "prices.csv", random_bars(["AAA"], 60, seed=1))
    with pytest.raises(InputError, match="no day from its first to 2019-05-01; its days are 2020-01-01 to 2020-03-24"):
        panel_of(path, tmp_path, last_date="2019-05-01")
    with pytest.raises(InputError, match="4 purged before each; the panel has 60"):
        panel_of(path, tmp_path, purge_days=4, window=50)


DAYS = pd.bdate_range("2015-01-01", "2019-12-31")


def prices_spaced(*spacings: pd.DatetimeIndex) -> pd.DataFrame:
    parts = []
    for number, days in enumerate(spacings):
        bars = random_bars([f"S{number}"], len(days), number)
        parts.append(bars.assign(date=days))
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize(
    ("frequency", "words"),
    [("W-FRI", "7 days apart, like weekly bars"), ("BME", "monthly"), ("BQE", "quarterly"), ("3D", "3-day bars")],
)
def test_longer_bars_are_refused(tmp_path: Path, frequency: str, words: str) -> None:
    days = pd.date_range("2010-01-01", "2019-12-31", freq=frequency)
    # As on holidays.
    moved = days.where(np.arange(len(days)) % 9 != 0, days - pd.Timedelta(days=1)).delete([30, 31])
    for dates in (days, moved) if frequency == "W-FRI" else (days,):
        path = write_csv(tmp_path / "p.csv", prices_spaced(dates, dates[5:], dates))
        with pytest.raises(InputError, match=f"3 of 3 symbols, such as 'S0'.*{words}.*give daily bars"):
            cleaned(path)


def test_weekly_symbols_beside_daily_ones_are_read(tmp_path: Path) -> None:
    weekly = DAYS[DAYS.day_of_week == 2]
    path = write_csv(tmp_path / "p.csv", prices_spaced(DAYS, DAYS, weekly, weekly))
    assert cleaned(path)[0].symbols == ("S0", "S1", "S2", "S3")
    with pytest.raises(InputError, match="2 of 3 symbols, such as 'S1'"):
        cleaned(write_csv(path, prices_spaced(DAYS, weekly, weekly)))
    assert cleaned(path, context=("S1", "S2"))[0].assets == 1


@given(seed=st.integers(0, 10_000), kept=st.floats(0.02, 1.0), always_open=st.booleans())
def test_daily_prices_with_gaps_are_not_refused(seed: int, kept: float, always_open: bool) -> None:
    days = (pd.date_range("2015-01-01", periods=1_500) if always_open else DAYS).to_numpy().astype("datetime64[D]")
    known = np.random.default_rng(seed).random((len(days), 3)) < kept
    refuse_longer_bars(days, known, ("A", "B", "C"), "prices")


def panel_suspended(folder: Path, *tables: pd.DataFrame) -> tuple[Panel, DataReport]:
    path = write_csv(folder / "prices.csv", pd.concat(tables))
    return build_panel(training_config(market={"data": str(path)}), folder / "cache")


def test_nothing_is_filled_on_a_day_with_a_volume_of_zero(tmp_path: Path) -> None:
    """A vendor repeats the last close, with a volume of zero and other prices of zero, while trading is suspended."""
    suspended = random_bars(["AAA"], 200, seed=1)
    days = [0, 60, 61, 62, 100]
    suspended.loc[days, ["open", "high", "low", "volume"]] = 0.0
    panel, report = panel_suspended(tmp_path, suspended, random_bars(["BBB"], 200, seed=2))
    config = training_config()
    fills = Prices.of_panel(panel, torch.device("cpu")).fills(config.trading)
    for day in days:
        assert fills.entry[day, 0].isnan()
        assert fills.entry[max(day - 1, 0), 0].isnan()
        assert not fills.entry[day, 1].isnan()
    # Decided on day 56, with the purchase of day 57; due on day 61.
    assert (56 + int(fills.exit_offset[56, 0]), float(fills.exit[56, 0])) == (63, panel.open[63, 0])
    assert panel.valid[:, 0].all()
    assert report.suspended_days == len(days)
    assert any("5 days of prices with a volume of zero" in line for line in report.lines())


def test_a_symbol_without_any_volume_is_traded(tmp_path: Path) -> None:
    """As a currency among stocks: its volume is zero on all days."""
    panel, report = panel_suspended(
        tmp_path, random_bars(["EURUSD"], 200, seed=1).assign(volume=0), random_bars(["BBB"], 200, seed=2)
    )
    assert not np.isnan(panel.close).any()
    assert report.suspended_days == 0
