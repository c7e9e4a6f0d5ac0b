"""No look-ahead through the whole chain: file, features, encoder, policy, orders, fills."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import Phase, example, given, settings, strategies as st
from numpy.typing import NDArray
from science_cases import random_panel, small_config
from trading_cases import trades_of

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.market import Panel, build_panel, panel_of_prices
from eigen_core.networks.policies import Heads
from eigen_core.networks.population import initial_weights
from eigen_core.task.market import MarketTask
from eigen_core.trading.environment import TradingEnvironment

CPU = torch.device("cpu")
DAYS = 330
# A failure is told as it was found: making it smaller would take minutes and say no more.
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
_COLUMNS = ["open", "high", "low", "close", "volume"]


@dataclass(frozen=True)
class Trace:
    """Everything that agents saw and did in one episode each, with the days on which they did it."""

    features: NDArray[np.float32]
    days: NDArray[np.int64]
    portfolios: NDArray[np.float16]
    actions: NDArray[np.float32]
    orders: pd.DataFrame

    def until(self, day: int) -> "Trace":
        seen = self.days <= day
        orders = self.orders[self.orders["decision_day"] <= day].copy()
        # What a fill or an exit after `day` will be is not known on it.
        for event, price in (("fill_day", "entry"), ("exit_day", "exit")):
            orders.loc[orders[event] > day, [event, price]] = -1
        orders = orders[
            ["episode", "asset", "decision_day", "fill_day", "exit_day", "entry", "exit", "coefficient"]
        ].reset_index(drop=True)
        return Trace(self.features[: day + 1], self.days[seen], self.portfolios[:, seen], self.actions[:, seen], orders)


def assert_equal(first: Trace, second: Trace) -> None:
    for name in ("features", "days", "portfolios", "actions"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
    pd.testing.assert_frame_equal(first.orders, second.orders)


def trace(panel: Panel, config: Config, start: int) -> Trace:
    task = MarketTask(config, panel, CPU, Heads())
    weights = initial_weights(task.network.layouts, 3, config.seed, CPU)
    starts = np.full((3, 1), start, dtype=np.int64)
    rows = task.roll_out(weights, starts, record=True).transitions
    assert rows is not None
    portfolios, actions = (torch.unflatten(rows[name], 0, (3, -1)) for name in ("portfolio", "action"))
    environment = TradingEnvironment(task.prices, config.trading)
    environment.reset(torch.full((3,), start))
    while not environment.done:
        # No decision of a day of settlement counts.
        action = actions[:, min(environment.step_index, config.trading.trading_bars - 1)]
        environment.step(action[..., 0], action[..., 1])
    days = np.arange(start, start + config.trading.trading_bars)
    return Trace(np.asarray(panel.features), days, portfolios.numpy(), actions.numpy(), trades_of(environment))


def price_table(seed: int) -> pd.DataFrame:
    generator = keyed_generator(seed, 0, "test", "table")
    frames = []
    for index, days in enumerate((range(DAYS), range(DAYS), range(60, DAYS), range(DAYS - 40))):
        close = 30.0 * np.exp(np.cumsum(0.02 * generator.standard_normal(len(days))))
        opened = close * np.exp(0.01 * generator.standard_normal(len(days)))
        frame = pd.DataFrame({"day": days, "symbol": f"S{index}", "open": opened, "close": close})
        frame["high"], frame["low"] = frame[["open", "close"]].max(axis=1) * 1.02, frame[["open", "close"]].min(axis=1)
        frame["volume"] = generator.integers(1_000, 9_000, len(days)).astype(float)
        frames.append(frame[generator.random(len(days)) > 0.03])
    table = pd.concat(frames, ignore_index=True)
    table["date"] = pd.Timestamp("2001-01-01") + pd.to_timedelta(table["day"], unit="D")
    return table


def changed_after(table: pd.DataFrame, date: np.datetime64, seed: int) -> pd.DataFrame:
    changed = table.copy()
    later = changed["date"] > date
    generator = keyed_generator(seed, 0, "test", "change")
    factors = np.exp(0.3 * generator.standard_normal((int(later.sum()), len(_COLUMNS))))
    changed.loc[later, _COLUMNS] = changed.loc[later, _COLUMNS].to_numpy() * factors
    return changed


def panel_of(table: pd.DataFrame, config: Config) -> Panel:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "prices.csv"
        table[["date", "symbol", *_COLUMNS]].to_csv(path, index=False)
        values = config.model_dump()
        values["market"] |= {"data": str(path), "suspicious": "keep"}
        panel, _ = build_panel(Config(**values), Path(folder) / "cache")
        return panel


@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
@pytest.mark.parametrize("fill", ["next_open", "same_close"])
@settings(max_examples=5, deadline=None, phases=_PHASES)
@given(seed=st.integers(0, 2**20), offset=st.integers(0, 52))
@example(seed=396, offset=34)  # a day without any row
def test_nothing_up_to_a_day_of_validation_or_holdout_knows_what_follows(
    encoder: str, fill: str, seed: int, offset: int
) -> None:
    config = small_config(network={"encoder": encoder}, trading={"fill": fill})
    table = price_table(seed)
    panel = panel_of(table, config)
    day = panel.splits.validation.start + offset
    changed = panel_of(changed_after(table, panel.dates[day], seed), config)
    assert not np.array_equal(np.asarray(panel.close)[day + 1 :], np.asarray(changed.close)[day + 1 :], equal_nan=True)
    latest = panel.days - config.trading.episode_bars
    for start in {min(max(day - 9, panel.splits.validation.start), latest), panel.splits.holdout.start}:
        first, second = trace(panel, config, start), trace(changed, config, start)
        assert_equal(first.until(day), second.until(day))


@settings(max_examples=20, deadline=None, phases=_PHASES)
@given(seed=st.integers(0, 2**20), day=st.integers(8, 100))
def test_in_training_only_the_normalisation_looks_ahead(seed: int, day: int) -> None:
    config = small_config(network={"encoder": "tcn"})
    panel = random_panel(config, seed=seed)
    later = np.arange(panel.days) > day
    generator = keyed_generator(seed, 0, "test", "change")
    factors = np.where(later[:, None], np.exp(0.3 * generator.standard_normal(panel.close.shape)), 1.0)
    features = panel.features + later[:, None, None] * generator.standard_normal(panel.features.shape)
    prices = (panel.open * factors, panel.high * factors, panel.low * factors, panel.close * factors)
    changed = panel_of_prices(
        features.astype(np.float32), *prices, panel.dates, panel.symbols, panel.feature_names, config.market
    )
    start = max(day - 9, config.market.window - 1)
    assert_equal(trace(panel, config, start).until(day), trace(changed, config, start).until(day))
