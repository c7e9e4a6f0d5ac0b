"""Nothing that happens after a day changes what is known on it; what uses a later day is found or suspected."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from feature_cases import install_features
from hypothesis import given, settings, strategies as st
from market_cases import bars_of, random_bars, small_config, write_csv
from numpy.typing import NDArray

from benchmarks.audit import informed_column, suspected_in
from eigen_core.common.errors import InputError
from eigen_core.config import Config, MarketConfig
from eigen_core.market import Bars, build_panel
from eigen_core.market.audit import MarketAudit, SuspectedLeak, audit_market
from eigen_core.market.build import read_prices
from eigen_core.market.cleaning import CleanPrices, clean_prices
from eigen_core.market.features import FeatureFunction, PanelFeatures, feature_names, look_ahead_of_function
from eigen_core.market.formats import PRICE_ROLES, Role
from eigen_core.market.panel import FEATURE_BOUND, normalise
from eigen_core.market.report import DataReport
from eigen_core.market.trading_days import PriceRows

LEAKS = ("centred", "whole_score", "next_return")
DAYS = 400


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "prices.csv", random_bars(["AAA", "BBB"], DAYS, seed=1))


def audited(path: Path, days: int = 3, **market: object) -> MarketAudit:
    return audit_market(small_config(path, **market), days)


@pytest.mark.parametrize("features", ["returns", "classic"])
def test_feature_sets_are_clean_on_the_bundled_prices(features: str) -> None:
    found = audit_market(Config.model_validate({"market": {"data": "us5", "features": features}}), 2)
    assert found.is_clean
    assert (len(found.days), found.symbols) == (2, 5)


def test_planted_look_ahead_is_named(prices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_features(monkeypatch, tmp_path / "package", [*LEAKS, "gap", "calendar"])
    found = audited(prices, own_features=[*LEAKS, "gap", "calendar"])
    assert {finding.feature for finding in found.found} == set(LEAKS)
    for finding in found.found:
        assert finding.files == ("prices.csv",)
        assert finding.day <= finding.last_known
        assert (finding.last_known in found.days, finding.symbols, finding.normalised) == (True, 2, False)
        assert f"of {finding.symbol} (prices.csv) on {finding.day} changes when the days after" in str(finding)
    assert {leak.feature for leak in found.suspected} == {"centred", "next_return"}
    next_return = next(finding for finding in found.found if finding.feature == "next_return")
    assert next_return.day == next_return.last_known


def test_closes_that_bounce_between_bid_and_ask_are_no_look_ahead(tmp_path: Path) -> None:
    """A column of the next bar's return is found on the same bars of five minutes, and is said to be of bars."""
    generator, bars = np.random.default_rng(1), 3_000
    times = pd.date_range("2024-01-01", periods=bars, freq="5min")
    parts = []
    for symbol in "ABCDEF":
        middle = np.cumsum(0.001 * generator.standard_normal(bars))
        # The last trade is at the bid or at the ask, wherever the next one will be.
        close = 50.0 * np.exp(middle + 0.001 * generator.choice([-1.0, 1.0], bars))
        ahead = np.append(np.diff(np.log(close)), 0.0) + 0.003 * generator.standard_normal(bars)
        parts.append(pd.DataFrame({"date": times, "symbol": symbol, "close": close, "hint": ahead}))
    path = write_csv(tmp_path / "bars.csv", pd.concat(parts))
    given: dict[str, Any] = {"bar_stamp": "close", "window": 64, "validation": 300, "holdout": 300}
    assert audited(path, 1, **given).is_clean
    found = audited(path, 1, own_features=["columns"], **given)
    assert [leak.feature for leak in found.suspected] == ["hint"]
    assert " day" not in str(found.suspected[0]) + found.unseen


def test_normalisation_by_all_days_is_found(prices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_all_days(columns: Iterable[np.ndarray], shape: tuple[int, int, int], _: range) -> np.ndarray:
        return normalise(columns, shape, slice(shape[0]))

    monkeypatch.setattr("eigen_core.market.audit.normalise", by_all_days)
    found = audited(prices, 1).found
    assert {finding.feature for finding in found} >= {"log_return_1", "rsi"}
    assert all(finding.normalised for finding in found)
    assert "The normalised log_return_1 of AAA (prices.csv)" in str(found[0])


def test_prices_filled_from_later_days_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars = random_bars(["AAA", "BBB"], DAYS, seed=2)
    path = write_csv(tmp_path / "p.csv", bars.drop(index=range(DAYS + 5, 2 * DAYS - 20)))

    def filled_backwards(*arguments: Any) -> tuple[CleanPrices, DataReport]:
        cleaned, report = clean_prices(*arguments)
        high, low, close = (
            pd.DataFrame(grid).bfill().to_numpy() for grid in (cleaned.high, cleaned.low, cleaned.close)
        )
        return replace(cleaned, high=high, low=low, close=close), report

    assert audited(path).is_clean
    monkeypatch.setattr("eigen_core.market.audit.clean_prices", filled_backwards)
    close = next(finding for finding in audited(path).found if finding.feature == "close")
    assert (close.symbol, close.symbols) == ("BBB", 1)


def test_a_column_of_the_data_that_knows_the_next_day_is_suspected(tmp_path: Path) -> None:
    bars = random_bars(["AAA", "BBB"], DAYS, seed=3)
    following = bars.groupby("symbol")["close"].shift(-1) / bars["close"]
    noise = np.random.default_rng(4).standard_normal((2, len(bars)))
    bars["Score"], bars["Mood"] = following.fillna(1.0) + 0.02 * noise[0], noise[1]
    found = audited(write_csv(tmp_path / "p.csv", bars), features="columns")
    assert found.features == found.report.own_features == ("Score", "Mood")
    assert not found.found
    assert [leak.feature for leak in found.suspected] == ["Score"]
    assert 0.5 < found.suspected[0].correlation < 0.8


def test_training_refuses_functions_that_use_later_days(
    prices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_features(monkeypatch, tmp_path / "package", [*LEAKS, "gap"])
    for leak in LEAKS:
        config = small_config(prices, own_features=["gap", leak])
        for _ in ("built", "from the cache"):
            with pytest.raises(InputError, match=f"The {leak} of AAA on .* A feature must not use later days"):
                build_panel(config, tmp_path / "cache")
    allowed = small_config(prices, own_features=["next_return", "gap"], look_ahead="allow")
    panel, report = build_panel(allowed, tmp_path / "cache")
    assert panel.feature_names[-2:] == ("next_return", "gap")
    assert len(report.look_ahead) == 1
    assert report.look_ahead[0] in report.lines()
    assert build_panel(small_config(prices, own_features=["gap"]), tmp_path / "cache")[1].look_ahead == ()


@settings(max_examples=30, deadline=None)
@given(offset=st.integers(-6, 6), length=st.sampled_from([1, 3, 10]), seed=st.integers(0, 1_000))
def test_a_moving_mean_is_found_as_soon_as_it_reaches_beyond_its_day(offset: int, length: int, seed: int) -> None:
    """A mean of `length` days of which the last is `offset` days after the day that it stands on."""
    bars = bars_of(random_bars(["AAA"], 200, seed=seed))

    def mean(bars: Bars) -> np.ndarray:
        return pd.Series(bars.close).rolling(length).mean().shift(-offset).to_numpy()

    found = list(look_ahead_of_function(FeatureFunction("mean", mean), bars, "AAA"))
    assert bool(found) == (offset > 0)
    assert all(finding.feature == "mean" and finding.day <= finding.last_known for finding in found)


def test_a_task_without_prices_and_too_few_days_are_refused(prices: Path) -> None:
    with pytest.raises(InputError, match="has no prices to audit"):
        audit_market(Config(preset="pendulum"), 2)
    with pytest.raises(InputError, match="the panel has 400"):
        audited(prices, validation=500)


@pytest.fixture(scope="module")
def config() -> Config:
    return Config.model_validate({"market": {"features": "columns"}, "trading": {"holding_bars": 5}})


@pytest.fixture(scope="module")
def market_prices(config: Config) -> CleanPrices:
    return read_prices(Config(market=config.market.model_copy(update={"features": "returns"})))


def suspected(config: Config, market_prices: CleanPrices, column: np.ndarray) -> tuple[SuspectedLeak, ...]:
    return suspected_in(replace(market_prices, own={"Score": column}), config)


@pytest.mark.thorough
@pytest.mark.parametrize(("symbols", "horizon"), [(1, 1), (4, 2), (20, 2), (1, 30), (20, 30)])
def test_perfect_knowledge_is_suspected(config: Config, market_prices: CleanPrices, symbols: int, horizon: int) -> None:
    (leak,) = suspected(config, market_prices, informed_column(market_prices, config, 1.0, symbols, horizon, 0, 1))
    assert leak.feature == "Score"
    if symbols < 20:
        assert leak.symbol in market_prices.symbols[:symbols]
    if horizon < 30:
        assert leak.horizon == horizon


@pytest.mark.thorough
def test_knowledge_of_the_last_days_is_suspected_but_not_of_those_held_out(
    config: Config, market_prices: CleanPrices
) -> None:
    (leak,) = suspected(config, market_prices, informed_column(market_prices, config, 1.0, 20, 1, 300, 1))
    assert leak.first_day > "2011"
    column = informed_column(market_prices, config, 0.0, 20, 1, 0, 1)
    held_out = 251
    column[-held_out - 1 : -1] = np.diff(np.log(market_prices.close), axis=0)[-held_out:]
    assert not suspected(config, market_prices, column)


def without_sign(close: np.ndarray) -> dict[str, tuple[np.ndarray, bool]]:
    """Columns by name, each with whether it knows later days."""
    daily = pd.DataFrame(np.diff(np.log(close), axis=0, prepend=np.log(close[:1])))
    known = {
        "size": daily.abs().shift(-1),
        "square with noise": (daily.abs().shift(-1) / 0.02 + np.random.default_rng(0).normal(0.0, 2.0, daily.shape)),
        "volatility": daily.rolling(5).std().shift(-5),
        "month": daily.rolling(20).std().shift(-20),
        "product": daily.shift(-1) * np.sign(daily),
    }
    honest = {f"{days} days": daily.rolling(days).std() for days in (5, 20, 60, 120)}
    honest |= {
        "today": daily.abs(),
        "weighted": daily.pow(2).ewm(halflife=10).mean(),
        "year": daily * 0.0 + np.arange(len(daily))[:, None],
    }
    return {name: (one.to_numpy(), name in known) for name, one in (known | honest).items()}


@pytest.mark.thorough
def test_knowledge_without_a_sign_is_suspected_and_past_volatility_is_not(
    config: Config, market_prices: CleanPrices
) -> None:
    tried = without_sign(market_prices.close)
    own = {name: column for name, (column, _) in tried.items()}
    found = {leak.feature for leak in suspected_in(replace(market_prices, own=own), config)}
    assert found == {name for name, (_, knows) in tried.items() if knows}


SYMBOLS = ("AAA", "BBB", "CCC", "DDD")
MADE_DAYS = 260
TRAIN = slice(150)
STRANGE = np.array([np.nan, 0.0, -1.0, np.inf, 1e20, 1e-20, 1e-3, 1e6, 50.0])


def random_rows(generator: np.random.Generator) -> PriceRows:
    """Rows of random walks with gaps, late starts, early ends, bad prices, duplicates and no order.

    The first symbol has a price on every day, so that the calendar is never in question.
    """
    shape = (MADE_DAYS, len(SYMBOLS))
    close = 50.0 * np.exp(np.cumsum(0.02 * generator.standard_normal(shape), axis=0))
    fields: dict[Role, NDArray[np.float64]] = {
        role: close * np.exp(0.02 * generator.standard_normal(shape)) for role in PRICE_ROLES
    }
    fields["close"] = close
    fields["volume"] = generator.integers(0, 1_000, shape).astype(np.float64)
    for role, grid in fields.items():
        strange = generator.random(shape) < 0.05
        strange[:, 0] &= role != "close"
        grid[strange] = generator.choice(STRANGE, int(strange.sum()))
    present = generator.random(shape) < 0.95
    for column in range(1, len(SYMBOLS)):
        first, last = np.sort(generator.integers(0, MADE_DAYS, 2))
        present[:first, column] = False
        present[last + 1 :, column] = False
        gap = generator.integers(0, MADE_DAYS)
        present[gap : gap + generator.integers(1, 60), column] = False
    present[:, 0] = True
    day, symbol = np.nonzero(present)
    again = generator.integers(0, len(day), 20)
    day, symbol = np.concatenate([day, day[again]]), np.concatenate([symbol, symbol[again]])
    order = generator.permutation(len(day))
    day, symbol = day[order], symbol[order]
    return rows_of(day, symbol, {role: grid[day, symbol] for role, grid in fields.items()})


def rows_of(day: NDArray[np.intp], symbol: NDArray[np.intp], prices: dict[Role, NDArray[np.float64]]) -> PriceRows:
    days = np.datetime64("2020-01-01") + day.astype("timedelta64[D]")
    return PriceRows("long", SYMBOLS, symbol, days, prices)


def changed_after(rows: PriceRows, day: int, generator: np.random.Generator) -> PriceRows:
    """Change prices on days after `day`, to sensible and to strange ones, leave out rows, end some symbols."""
    number = (rows.days - np.datetime64("2020-01-01")).astype(np.int64)
    later = number > day
    # Rows of one symbol and day have the same prices.
    _, first, own = np.unique([number, rows.codes], axis=1, return_index=True, return_inverse=True)
    prices = {}
    for role, values in rows.prices.items():
        hit = later & (generator.random(len(values)) < generator.choice([0.02, 0.5, 1.0]))
        new = np.where(
            generator.random(len(values)) < 0.5, 50.0 * generator.random(len(values)), generator.choice(STRANGE)
        )
        prices[role] = np.where(hit, new, values)[first][own]
    anchor = rows.codes == 0
    prices["close"] = np.where(anchor & ~(prices["close"] > 0.0), 40.0, prices["close"])
    ended = np.isin(rows.codes, np.flatnonzero(generator.random(len(SYMBOLS)) < 0.3))
    kept = ~later | anchor | (~ended & (generator.random(len(number)) < 0.8))
    return rows_of(number[kept], rows.codes[kept], {role: values[kept] for role, values in prices.items()})


def raw_of(prices: CleanPrices, market: MarketConfig) -> NDArray[np.float64]:
    return np.stack([PanelFeatures(prices, market).of_column(column) for column in range(len(prices.symbols))], axis=1)


def normalised_of(raw: NDArray[np.float64]) -> NDArray[np.float32]:
    days, columns, features = raw.shape
    return normalise((raw[:, column] for column in range(columns)), (days, columns, features), TRAIN)


@pytest.mark.thorough
@pytest.mark.parametrize("feature_set", ["returns", "classic"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), day=st.integers(5, MADE_DAYS - 2))
def test_later_prices_change_nothing_before(feature_set: str, seed: int, day: int) -> None:
    generator = np.random.default_rng(seed)
    rows = random_rows(generator)
    market = MarketConfig(features=feature_set)
    before, _ = clean_prices(rows, "prices", ())
    after, _ = clean_prices(changed_after(rows, day, generator), "prices", ())
    shared = [symbol for symbol in before.symbols if symbol in after.symbols]
    old = [before.symbols.index(symbol) for symbol in shared]
    new = [after.symbols.index(symbol) for symbol in shared]
    days = slice(0, day + 1)
    np.testing.assert_array_equal(before.days, after.days)
    for field in ("open", "high", "low", "close", "volume", "traded"):
        np.testing.assert_array_equal(getattr(before, field)[days, old], getattr(after, field)[days, new])
    raw_before, raw_after = raw_of(before, market), raw_of(after, market)
    names = feature_names(market.features, before.has_range, before.has_volume)
    assert names == feature_names(market.features, after.has_range, after.has_volume)
    np.testing.assert_array_equal(raw_before[days, old], raw_after[days, new])
    if day >= TRAIN.stop:
        np.testing.assert_array_equal(normalised_of(raw_before[:, old])[days], normalised_of(raw_after[:, new])[days])


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_features_are_finite_bounded_and_zero_where_unknown(seed: int) -> None:
    prices, _ = clean_prices(random_rows(np.random.default_rng(seed)), "prices", ())
    values = normalised_of(raw_of(prices, MarketConfig()))
    assert np.isfinite(values).all()
    assert np.abs(values).max() <= FEATURE_BOUND
    for column in range(len(prices.symbols)):
        known = np.flatnonzero(~np.isnan(prices.close[:, column]))
        assert not values[: known[0] + 1, column, 0].any()
        assert not values[known[-1] + 11 :, column].any()
