"""Synthetic markets: returns that cannot be predicted, and edges of a known strength."""

import numpy as np
import pytest
from science_cases import random_panel, small_config
from scipy.signal import lfilter

from eigen_core.common.randomness import keyed_generator
from eigen_core.market.cleaning import CleanPrices, prices_fingerprint
from eigen_core.trading.synthetic import FEATURE, coming_returns, unpredictable_prices, with_planted_edge

DAYS, COLUMNS, LATE = 2_500, 6, 700


@pytest.fixture(scope="module")
def prices() -> CleanPrices:
    """Columns with momentum, a common factor, clustered volatility and different variances; the last begins late."""
    generator = keyed_generator(1, 0, "test", "resampled")
    level = lfilter([1.0], [1.0, -0.98], 0.12 * generator.standard_normal(DAYS))
    shocks = generator.standard_normal((DAYS, COLUMNS)) + generator.standard_normal((DAYS, 1))
    shocks *= np.exp(level)[:, None] * np.linspace(0.004, 0.02, COLUMNS)
    returns = lfilter([1.0], [1.0, -0.3], shocks, axis=0) + np.linspace(-0.001, 0.001, COLUMNS)
    close = 50.0 * np.exp(np.cumsum(returns, axis=0))
    close[:LATE, -1] = np.nan
    close[1_000:1_020, 2] = np.nan
    opened = close * np.exp(0.004 * generator.standard_normal(close.shape))
    return CleanPrices(
        days=np.datetime64("2001-01-01") + np.arange(DAYS),
        symbols=tuple("ABCDEF"),
        assets=COLUMNS,
        open=opened,
        high=np.maximum(opened, close) * 1.002,
        low=np.minimum(opened, close) * 0.999,
        close=close,
        volume=np.full_like(close, np.nan),
        has_range=True,
        has_volume=False,
        own={"day": np.where(np.isnan(close), np.nan, np.arange(DAYS)[:, None])},
    )


def _returns(prices: CleanPrices) -> np.ndarray:
    return np.diff(np.log(prices.close), axis=0)


def _autocorrelation(values: np.ndarray, lag: int) -> float:
    return float(np.mean([_correlation(column[lag:], column[:-lag]) for column in values.T]))


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    known = ~np.isnan(one) & ~np.isnan(other)
    return float(np.corrcoef(one[known], other[known])[0, 1])


def test_returns_are_unpredictable_while_volatility_still_clusters(prices: CleanPrices) -> None:
    real, noise = _returns(prices), [_returns(unpredictable_prices(prices, seed)) for seed in range(10)]
    for lag in (1, 2, 5):
        assert abs(np.mean([_autocorrelation(each, lag) for each in noise])) < 0.03
    assert _autocorrelation(real, 1) > 0.2
    assert _correlation(real[1:, 1], real[:-1, 0]) > 0.1
    assert abs(np.mean([_correlation(each[1:, 1], each[:-1, 0]) for each in noise])) < 0.03
    clustering = np.mean([_autocorrelation(np.abs(each), 5) for each in noise])
    assert clustering > 0.6 * _autocorrelation(np.abs(real), 5) > 0.05
    # So are correlations of columns on a day.
    for one, other in ((0, 1), (1, 3), (3, 4)):
        mean = np.mean([_correlation(each[:, one], each[:, other]) for each in noise])
        assert mean == pytest.approx(_correlation(real[:, one], real[:, other]), abs=0.06)


def test_every_column_rises_by_the_same_mean_whatever_its_variance(prices: CleanPrices) -> None:
    """A return that is symmetric in logarithms alone would make volatile columns the better choice."""
    growth = [np.expm1(_returns(unpredictable_prices(prices, seed))) for seed in range(40)]
    means = np.nanmean(np.concatenate(growth), axis=0)
    errors = np.nanstd(np.concatenate(growth), axis=0) / np.sqrt(sum(map(len, growth)))
    expected = np.nanmean(np.expm1(_returns(prices)))
    assert (np.abs(means - expected) < 4.0 * errors).all()


def test_days_and_bars_stay_whole_and_equal_seeds_give_equal_prices(prices: CleanPrices) -> None:
    noise = unpredictable_prices(prices, 3)
    assert np.array_equal(np.isnan(noise.close), np.isnan(prices.close))
    known = ~np.isnan(noise.close) & ~np.isnan(noise.open)
    assert (noise.low[known] <= np.minimum(noise.open, noise.close)[known] * (1 + 1e-12)).all()
    assert (noise.high[known] >= np.maximum(noise.open, noise.close)[known] * (1 - 1e-12)).all()
    taken = noise.own["day"]
    assert np.array_equal(taken[:, 0], taken[:, 1])
    blocks = np.diff(taken[:, 0]) == 1.0
    assert 0.96 < blocks.mean() < 0.995
    assert prices_fingerprint(noise) == prices_fingerprint(unpredictable_prices(prices, 3))
    assert prices_fingerprint(noise) != prices_fingerprint(unpredictable_prices(prices, 4))


_CONFIG = small_config()


def _coefficient(feature: np.ndarray, returns: np.ndarray) -> float:
    """Mean over days of the correlation over assets."""
    found = []
    for one, other in zip(feature, returns, strict=True):
        known = ~np.isnan(other)
        if known.sum() > 2:
            found.append(np.corrcoef(one[known], other[known])[0, 1])
    return float(np.mean(found))


@pytest.mark.parametrize("strength", [0.0, 0.1, 0.3, 1.0])
def test_the_information_coefficient_is_the_nominal_one(strength: float) -> None:
    panel = random_panel(_CONFIG, days=2_000, assets=20)
    planted = with_planted_edge(panel, _CONFIG.trading, strength, seed=1)
    feature, returns = planted.features[:, :20, -1], coming_returns(panel, _CONFIG.trading)
    assert planted.feature_names[-1] == FEATURE
    assert _coefficient(feature, returns) == pytest.approx(strength, abs=0.03)
    smooth = np.mean([feature[lag : len(feature) - 4 + lag] for lag in range(5)], axis=0)
    assert _coefficient(smooth, returns[4:]) < strength + 0.03


def test_the_returns_are_those_of_an_order_of_the_day() -> None:
    panel, trading = random_panel(_CONFIG), _CONFIG.trading
    returns = coming_returns(panel, trading)
    day = int(np.flatnonzero(~np.isnan(returns[:, 2]) & ~np.isnan(np.roll(panel.close[:, 2], -5)))[0])
    fill = panel.open[day + 1, 2] if not np.isnan(panel.open[day + 1, 2]) else panel.close[day + 1, 2]
    paid = fill * (1.0 + trading.slippage_bps / 10_000.0)
    assert returns[day, 2] == pytest.approx(np.log(panel.close[day + 5, 2] / paid))
    assert np.isnan(returns[-5:]).all()


def test_everything_else_stays_and_equal_seeds_give_equal_features() -> None:
    panel = random_panel(_CONFIG)
    one, same, other = (with_planted_edge(panel, _CONFIG.trading, 0.2, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.features[..., :-1], panel.features)
    assert np.array_equal(one.features, same.features)
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert not one.features[:, 6:, -1].any()
