"""What long markets with halts cost: bars of five minutes, held for up to a day, beside daily prices."""

import time
from statistics import median

import numpy as np
import torch

from benchmarks.measure import in_own_process
from benchmarks.results import Section
from eigen_core.config import Config
from eigen_core.generation import evaluate, evolve, start_training, train
from eigen_core.judging.backtest import DRAWS, backtest_class
from eigen_core.machine.memory_usage import peak_resident_bytes, tune_allocator
from eigen_core.market.panel import Panel, panel_of_prices

_DAYS, _BARS, _ASSETS, _FEATURES, _GENERATIONS = 8_313, 300_000, 10, 13, 3
_JUDGED = {_DAYS: 2_000, _BARS: 100_000}


def run() -> Section:
    found = [(*in_own_process(trained, days), *in_own_process(judged, days)) for days in _JUDGED]
    names = ("start, CPU s", "generation, CPU s", "training, peak, GB", "backtest, CPU s", "backtest, peak, GB")
    return Section(
        title="Long markets",
        method=f"Preset `quickstart` on {_ASSETS} assets with {_FEATURES} features, two of them with halts of 20 to "
        f"299 rows: {_DAYS:,} days, and {_BARS:,} bars of five minutes with `trading.holding_bars=288` and "
        f"`trading.decide_every=6h`. A backtest of the baseline `ridge`, beside {DRAWS:,} random traders, takes "
        f"{_JUDGED[_DAYS]:,} days or {_JUDGED[_BARS]:,} bars. One thread; generation: median of {_GENERATIONS}.",
        columns=("", "days", "bars"),
        rows=[(name, *(f"{value:.2f}" for value in values)) for name, *values in zip(names, *found, strict=True)],
        remarks=("The goals of bars: 8 s, 1.3 times as much as of days, 1.5 GB, 60 s and 1.5 GB.",),
    )


def config(days: int) -> Config:
    bars = {"holding_bars": 288, "settlement_bars": 288, "decide_every": "6h"} if days == _BARS else {}
    market = {"window": 64, "holdout": _JUDGED[days], "validation": days // 15}
    return Config(preset="quickstart", device="cpu", market=market, trading=bars)


def market(config: Config, days: int) -> Panel:
    """Return random prices with halts in every fifth asset; the first feature knows a part of the return to come."""
    tune_allocator()
    generator, held = np.random.default_rng(1), config.trading.holding_bars
    close = 50.0 * np.exp(np.cumsum(generator.normal(0.0, 0.002, (days, _ASSETS)), axis=0))
    features = generator.standard_normal((days, _ASSETS, _FEATURES), dtype=np.float32)
    features[:-held, :, 0] += np.log(close[held:] / close[:-held]) / (0.006 * held**0.5)
    for asset in range(0, _ASSETS, 5):
        for first in generator.integers(60, days, days // 2_500):
            close[first : first + generator.integers(20, 300), asset] = np.nan
    dates = np.datetime64("2000-01-03T00:00") + np.arange(days) * np.timedelta64(5 if days == _BARS else 1_440, "m")
    names, ohlc = "abcdefghijklm", (close * 0.9995, close * 1.001, close * 0.999, close)
    return panel_of_prices(features, *ohlc, dates, names[:_ASSETS], names[:_FEATURES], config.market)


def trained(days: int) -> tuple[float, float, float]:
    """Return the CPU seconds of a start and of a generation, and the peak of the resident memory (GB)."""
    settings = config(days)
    panel, times = market(settings, days), [time.process_time()]
    state = start_training(settings, panel)
    for phase in (lambda _: None, *(evaluate, train, evolve) * _GENERATIONS):
        phase(state)
        times.append(time.process_time())
    start, *generations = np.diff(times[:1] + times[1::3]).tolist()
    return start, median(generations), peak_resident_bytes() / 1e9


def judged(days: int) -> tuple[float, float]:
    """Return the CPU seconds of a backtest, and the peak of the resident memory (GB)."""
    settings = config(days)
    panel, started = market(settings, days), time.process_time()
    backtest_class(settings)(settings, panel, torch.device("cpu")).play_ridge(panel.splits.holdout)
    return time.process_time() - started, peak_resident_bytes() / 1e9
