"""Nothing that happens after a day changes what is known on it."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from eigen_core.config import MarketConfig
from eigen_core.market.cleaning import CleanPrices, clean_prices
from eigen_core.market.features import PanelFeatures, feature_names
from eigen_core.market.formats import PRICE_ROLES, Role
from eigen_core.market.panel import FEATURE_BOUND, normalise
from eigen_core.market.trading_days import PriceRows

SYMBOLS = ("AAA", "BBB", "CCC", "DDD")
DAYS = 260
TRAIN = range(150)
STRANGE = np.array([np.nan, 0.0, -1.0, np.inf, 1e20, 1e-20, 1e-3, 1e6, 50.0])


def random_rows(generator: np.random.Generator) -> PriceRows:
    """Rows of random walks with gaps, late starts, early ends, bad prices, duplicates and no order.

    The first symbol has a price on every day, so that the calendar is never in question.
    """
    shape = (DAYS, len(SYMBOLS))
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
        first, last = np.sort(generator.integers(0, DAYS, 2))
        present[:first, column] = False
        present[last + 1 :, column] = False
        gap = generator.integers(0, DAYS)
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
@given(seed=st.integers(0, 2**32 - 1), day=st.integers(5, DAYS - 2))
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
