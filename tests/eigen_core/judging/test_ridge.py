"""The baseline `ridge`: what it fits, that it finds an edge, and that it knows nothing of the holdout."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from trading_cases import CPU, panel_of

from eigen_core.config import Config
from eigen_core.judging.backtest import backtest_class
from eigen_core.judging.ridge import PENALTIES, fit_ridge, tuned_buying, tuned_holding
from eigen_core.market import Panel
from eigen_core.trading.prices import Prices
from eigen_core.trading.synthetic import with_planted_edge

DAYS, ASSETS, HELD = 1_500, 8, 5
TRADING = {"holding_days": HELD, "settlement_days": HELD, "trading_days": 60}


def config_of(task: str) -> Config:
    return Config(task=task, trading=TRADING, market={"window": 60, "validation_days": 300, "holdout_days": 300})


def market(assets: int = ASSETS) -> Panel:
    steps = np.random.default_rng(5).normal(0.0, 0.02, (DAYS, assets))
    close = 100.0 * np.exp(np.cumsum(steps, axis=0))
    return panel_of(close, close, close, window=60)


@pytest.mark.parametrize("task", ["market", "portfolio"])
def test_it_earns_a_planted_edge_and_knows_nothing_of_the_holdout(task: str) -> None:
    config, panel = config_of(task), market()
    panel = with_planted_edge(panel, config.trading, 0.3, seed=1)
    holdout, tuned = panel.splits.holdout, tuned_holding if task == "portfolio" else tuned_buying
    backtest = backtest_class(config)(config, panel, CPU)
    earned = backtest.play_ridge(holdout, draws=50)
    np.testing.assert_array_equal(earned.baselines["ridge"].equity, earned.curve.equity)
    assert earned.excess is not None
    assert earned.excess.interval[0] > 0.0

    names = ("open", "high", "low", "close", "features")
    changed: dict[str, Any] = {name: getattr(panel, name).copy() for name in names}
    for values in changed.values():
        values[holdout.start :] = 7.0
    other = replace(panel, **changed)
    fitted, without = fit_ridge(panel, config), fit_ridge(other, config)
    np.testing.assert_array_equal(fitted.coefficients, without.coefficients)
    assert tuned(fitted.of(panel), panel, config) == tuned(without.of(other), other, config)


def test_it_is_the_regression_of_gains_beyond_the_mean_of_the_day_chosen_in_validation() -> None:
    config = config_of("market")
    panel = with_planted_edge(market(), config.trading, 0.1, seed=2)
    cost = (1.0 - config.trading.cost_bps / 1e4) / (1.0 + config.trading.cost_bps / 1e4)
    slip = (1.0 - config.trading.slippage_bps / 1e4) / (1.0 + config.trading.slippage_bps / 1e4)
    gain = cost * slip * panel.close[HELD:] / panel.open[1 : 1 - HELD] - 1.0
    target = gain - gain.mean(axis=1, keepdims=True)

    def rows(days: range) -> tuple[np.ndarray, np.ndarray]:
        decided = slice(max(days.start, 59), days.stop - HELD)
        inputs = panel.features[decided].astype(np.float64)
        return inputs.reshape(-1, inputs.shape[2]), target[decided].ravel()

    (inputs, gained), (tested, expected) = rows(panel.splits.train), rows(panel.splits.validation)
    models = [Ridge(alpha=penalty).fit(inputs, gained) for penalty in PENALTIES]
    best = min(models, key=lambda model: np.square(model.predict(tested) - expected).mean())
    scores = best.predict(inputs) - gained.mean()
    found = fit_ridge(panel, config)
    np.testing.assert_allclose(inputs @ found.coefficients + found.intercept, scores / scores.std(), atol=1e-9)


def test_it_makes_no_copy_of_all_features_in_float64() -> None:
    features = np.random.default_rng(3).normal(size=(DAYS, ASSETS, 500)).astype(np.float32)
    panel = replace(market(), features=features)
    tracemalloc.start()
    score = fit_ridge(panel, config_of("market")).of(panel)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert score.shape == (DAYS, ASSETS)
    assert peak < 0.75 * 8 * features.size


@pytest.mark.parametrize("task", ["market", "portfolio"])
def test_of_one_asset_it_times_and_without_known_outcomes_it_stays_in_cash(task: str) -> None:
    config, single = config_of(task), market(1)
    assert np.isfinite(fit_ridge(single, config).coefficients).all()
    unknown = np.full_like(single.close, np.nan)
    panel = replace(single, open=unknown, high=unknown, low=unknown, close=unknown)
    backtest = backtest_class(config)(config, panel, torch.device("cpu"))
    curve = backtest.accounts(backtest.decided_by_ridge(panel.splits.holdout), panel.splits.holdout).curve(0)
    assert Prices.of_panel(panel, CPU).days == DAYS
    np.testing.assert_array_equal(curve.equity, curve.capital)
