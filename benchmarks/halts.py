"""What halts of single symbols cost: the environment and an evaluation on a market with halts and without, in turns."""

import time

import numpy as np
import torch

from benchmarks.results import Section
from eigen_core.config import Config
from eigen_core.generation import evaluate, start_training
from eigen_core.market.panel import Panel, panel_of_prices
from eigen_core.trading.environment import TradingEnvironment
from eigen_core.trading.prices import Prices

_DAYS, _ASSETS, _EPISODES, _ROUNDS = 1_500, 20, 88, 15


def run() -> Section:
    panels = {halts: market(halts=halts) for halts in (False, True)}
    rows = []
    for name, work in {"environment, step by step": play, "phase evaluate": evaluated}.items():
        work(panels[True])
        seconds = np.array([[work(panel) for panel in panels.values()] for _ in range(_ROUNDS)])
        without, beside = 1e3 * np.median(seconds, axis=0)
        ratio = np.median(seconds[:, 1] / seconds[:, 0])
        rows.append((name, f"{without:.1f}", f"{beside:.1f}", f"{ratio:.2f}"))
    return Section(
        title="Markets with halts",
        method=f"{_ASSETS} assets over {_DAYS:,} days, without halts and with four halts of 20 to 59 days in every "
        f"fifth asset. Environment: {_EPISODES} episodes with random actions, portfolios read every day. CPU time; "
        f"medians of {_ROUNDS} turns, and of the ratios of turns.",
        columns=("", "without halts: ms", "with halts: ms", "ratio"),
        rows=rows,
        remarks=("The goal is a ratio of at most 1.15.",),
    )


def config() -> Config:
    return Config(preset="ddpg", device="cpu", market={"window": 60})


def market(*, halts: bool) -> Panel:
    """Return random prices, in every fifth asset with four halts."""
    generator = np.random.default_rng(1)
    close = 50.0 * np.exp(np.cumsum(generator.normal(0.0, 0.02, (_DAYS, _ASSETS)), axis=0))
    for asset in range(0, _ASSETS, 5) if halts else ():
        for first in generator.integers(60, _DAYS, 4):
            close[first : first + generator.integers(20, 60), asset] = np.nan
    features = np.random.default_rng(2).normal(size=(_DAYS, _ASSETS, 3)).astype(np.float32)
    names, settings = [f"S{asset}" for asset in range(_ASSETS)], config().market
    dates = np.datetime64("2015-01-05") + np.arange(_DAYS)
    ohlc = (close * 0.995, close * 1.01, close * 0.99, close)
    return panel_of_prices(features, *ohlc, dates, names, ("one", "two", "three"), settings)


def play(panel: Panel) -> float:
    trading, generator = config().trading, torch.Generator().manual_seed(1)
    environment = TradingEnvironment(Prices.of_panel(panel, torch.device("cpu")), trading)
    wanted = 3.0 * torch.rand(_EPISODES, _ASSETS, generator=generator)
    last = panel.splits.train.stop - trading.episode_bars
    first_days = torch.randint(0, last, (_EPISODES,), generator=generator)
    started = time.process_time()
    environment.reset(first_days)
    while not environment.done:
        environment.portfolio()
        environment.step(wanted.roll(environment.step_index, 1), wanted / 10.0)
    return time.process_time() - started


def evaluated(panel: Panel) -> float:
    state = start_training(config(), panel)
    started = time.process_time()
    evaluate(state)
    return time.process_time() - started
