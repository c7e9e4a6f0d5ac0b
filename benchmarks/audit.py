"""How often `eigen audit` suspects columns of the data that know later returns, and columns that do not."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from benchmarks.results import Section
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.market.audit import SuspectedLeak, audit_correlations
from eigen_core.market.build import read_prices
from eigen_core.market.cleaning import CleanPrices
from eigen_core.market.features import PanelFeatures
from eigen_core.market.panel import Splits
from eigen_core.trading.synthetic import unpredictable_prices

_STRENGTHS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
_DRAWS = 10
_SEED = 0
_MARKETS = 5
# Symbols that are known, days of the return that is known, last days on which it is known (0: all).
_CASES = (
    *((symbols, horizon, 0) for symbols in (20, 4, 1) for horizon in (1, 2, 20, 30)),
    *((symbols, 1, days) for symbols in (20, 1) for days in (900, 600, 300)),
)

Values = NDArray[np.float64]


def run() -> Section:
    config = Config()
    market = config.market.model_copy(update={"features": "columns"})
    prices = read_prices(config)
    rows = []
    for symbols, horizon, last in _CASES:
        shares = []
        for strength in _STRENGTHS:
            columns = {
                f"{draw}": informed_column(prices, config, strength, symbols, horizon, last, draw)
                for draw in range(_DRAWS)
            }
            found = suspected_in(replace(prices, own=columns), config.model_copy(update={"market": market}))
            shares.append(f"{len({leak.feature for leak in found}) / _DRAWS:.0%}")
        days = f"last {last} days seen" if last else "all days"
        rows.append([f"{symbols}, {horizon}, {days}", *shares])
    alarms, tried = false_alarms(config, _MARKETS)
    return Section(
        title="What `eigen audit` sees of a column that knows later returns",
        method=(
            f"On the bundled prices, {_DRAWS} columns each: in so many of 20 symbols, with a sign drawn for each, the "
            "normal score of the return of the next so many days times the strength, the rest noise; else noise alone. "
            f"Returns of 1 to {config.trading.holding_bars} days are tried. Shown is the share that is suspected."
        ),
        columns=("symbols, days of the return, when", *(f"strength {strength:g}" for strength in _STRENGTHS)),
        rows=rows,
        remarks=(
            f"Of {tried:,} features of the sets `returns` and `classic`, on the bundled prices and on {_MARKETS} "
            f"markets made of them in which nothing can be predicted, {alarms} are suspected.",
        ),
    )


def informed_column(
    prices: CleanPrices, config: Config, strength: float, symbols: int, horizon: int, last: int, draw: int
) -> Values:
    """Return a column of the data that knows later returns, `[days, symbols]`.

    Args:
        prices: closes without gaps.
        config: splits of the days.
        strength: correlation with the return's normal score.
        symbols: the number of symbols that it knows, each with its own sign.
        horizon: days of the return.
        last: number of days before the holdout on which it is known; 0: all.
        draw: of noise and signs.
    """
    generator = keyed_generator(_SEED, draw, "audit", f"{strength} {symbols} {horizon} {last}", "column")
    values = generator.standard_normal(prices.close.shape)
    signs = np.where(generator.random(symbols) < 0.5, -1.0, 1.0)
    stop = Splits.of(prices.days, config.market).validation.stop
    first = stop - last if last else 0
    log_close = np.log(prices.close[:, :symbols])
    known = log_close[first + horizon : stop + horizon] - log_close[first:stop]
    scores = signs * norm.ppf((rankdata(known, axis=0) - 0.5) / len(known))
    values[first:stop, :symbols] = strength * scores + np.sqrt(1.0 - strength**2) * values[first:stop, :symbols]
    return values


def suspected_in(prices: CleanPrices, config: Config) -> tuple[SuspectedLeak, ...]:
    stop = Splits.of(prices.days, config.market).validation.stop
    features = PanelFeatures(prices, config.market)
    return audit_correlations(features, range(stop), config.trading.holding_bars)[0]


def false_alarms(config: Config, markets: int) -> tuple[int, int]:
    """Return the numbers of suspected and of tried features, on real prices and on `markets` generated from them."""
    alarms, tried = 0, 0
    prices = read_prices(config)
    for known in _honest(prices, markets):
        for features in ("returns", "classic"):
            market = config.market.model_copy(update={"features": features})
            alarms += len(suspected_in(known, config.model_copy(update={"market": market})))
            tried += len(PanelFeatures(known, market).names)
    return alarms, tried


def _honest(prices: CleanPrices, markets: int) -> Iterator[CleanPrices]:
    yield prices
    for seed in range(markets):
        yield unpredictable_prices(prices, seed)
