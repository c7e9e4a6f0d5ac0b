"""Columns of the data that know later returns are suspected, features of prices are not."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.audit import false_alarms, informed_column, suspected_in
from eigen_core.config import Config
from eigen_core.market.audit import SuspectedLeak
from eigen_core.market.build import read_market
from eigen_core.market.cleaning import CleanPrices


@pytest.fixture(scope="module")
def config() -> Config:
    return Config.model_validate({"market": {"features": "columns"}, "trading": {"holding_days": 5}})


@pytest.fixture(scope="module")
def prices(config: Config) -> CleanPrices:
    return read_market(Config(market=config.market.model_copy(update={"features": "returns"})))


def suspected(config: Config, prices: CleanPrices, column: np.ndarray) -> tuple[SuspectedLeak, ...]:
    return suspected_in(replace(prices, own={"Score": column}), config)


@pytest.mark.thorough
@pytest.mark.parametrize("symbols", [1, 4, 20])
@pytest.mark.parametrize("horizon", [1, 2, 30])
def test_perfect_knowledge_is_suspected(config: Config, prices: CleanPrices, symbols: int, horizon: int) -> None:
    (leak,) = suspected(config, prices, informed_column(prices, config, 1.0, symbols, horizon, 0, 1))
    assert leak.feature == "Score"
    if symbols < 20:
        assert leak.symbol in prices.symbols[:symbols]
    if horizon < 30:
        assert leak.horizon == horizon


@pytest.mark.thorough
def test_knowledge_of_the_last_days_is_suspected_of_all_symbols(config: Config, prices: CleanPrices) -> None:
    (leak,) = suspected(config, prices, informed_column(prices, config, 1.0, 20, 1, 300, 1))
    assert leak.first_day > "2011"


@pytest.mark.thorough
def test_days_held_out_are_not_looked_at(config: Config, prices: CleanPrices) -> None:
    """Knowledge of the days held out is not seen, as the audit says."""
    column = informed_column(prices, config, 0.0, 20, 1, 0, 1)
    held_out = config.market.holdout_days
    column[-held_out - 1 : -1] = np.diff(np.log(prices.close), axis=0)[-held_out:]
    assert not suspected(config, prices, column)


@pytest.mark.thorough
def test_features_of_prices_are_not_suspected() -> None:
    alarms, tried = false_alarms(Config(), markets=2)
    assert tried == 3 * (13 + 9)
    assert alarms == 0
