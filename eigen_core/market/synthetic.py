"""Seeded markets whose edge is known, to see whether agents learn."""

import numpy as np

from eigen_core.config import Config
from eigen_core.market.panel import Panel, panel_of_prices
from eigen_core.randomness import keyed_generator

_EVEN_DAYS = 50


def leaking_market(config: Config, days: int, assets: int, seed: int, drift: float = 0.002) -> Panel:
    """A random walk whose first feature leaks each asset's return after the fill.

    The leak of day t is log(close[t + holding days] / open[t + 1]), in units of its standard deviation; two more
    features are noise. Nothing else can be known. Daily returns have a standard deviation of 1 % around `drift`
    (a fraction a day), so that with losses counted ten times an agent that acts at random earns a little.

    Args:
        config: splits, window and holding days.
        days, assets: size of the panel.
        seed: of the prices.
        drift: mean daily log return (a fraction a day).
    """
    generator = keyed_generator(seed, 0, "market", "leaking", "prices")
    shocks = generator.standard_normal((days, assets))
    for start in range(0, days, _EVEN_DAYS):
        shocks[start : start + _EVEN_DAYS] -= shocks[start : start + _EVEN_DAYS].mean(axis=0)
    close = 100.0 * np.exp(np.cumsum(drift + 0.01 * shocks, axis=0))
    overnight = 0.002 * generator.standard_normal((days, assets))
    opened = np.vstack([close[:1], close[:-1]]) * np.exp(overnight)
    reach = 0.003 * np.abs(generator.standard_normal((days, assets)))
    high, low = np.maximum(opened, close) * np.exp(reach), np.minimum(opened, close) * np.exp(-reach)
    holding = config.trading.holding_days
    leak = np.zeros((days, assets))
    leak[: days - holding] = np.log(close[holding:] / opened[1 : days - holding + 1])
    leak[: days - holding] -= drift * holding
    features = np.stack([leak / (0.01 * np.sqrt(holding)), *generator.standard_normal((2, days, assets))], axis=-1)
    return _panel(config, features.astype(np.float32), (opened, high, low, close), ("leak", "noise_1", "noise_2"))


def planted_edge_market(config: Config, days: int, assets: int, seed: int) -> Panel:
    """A random walk in which an asset jumps up by 15 % on some days, two days after a visible signal.

    About one day in five some asset shows the signal (feature 1, else 0) after the close; the price jumps during the
    day after the next, so an order at the next open catches it. The other feature is noise. Everything else drifts
    down by 0.05 % a day: trading at random loses.

    Args:
        config: splits and window.
        days, assets: size of the panel.
        seed: of the prices and the signals.
    """
    generator = keyed_generator(seed, 0, "market", "planted edge", "prices")
    signal = (np.arange(assets) == generator.integers(0, assets, days)[:, None]) & (generator.random((days, 1)) < 0.2)
    steps = -0.0005 + 0.01 * generator.standard_normal((days, assets))
    steps[2:] += np.log(1.15) * signal[:-2]
    close = 100.0 * np.exp(np.cumsum(steps, axis=0))
    opened = np.vstack([close[:1], close[:-1]])
    high, low = np.maximum(opened, close), np.minimum(opened, close)
    features = np.stack([signal.astype(np.float64), generator.standard_normal((days, assets))], axis=-1)
    return _panel(config, features.astype(np.float32), (opened, high, low, close), ("signal", "noise"))


def _panel(
    config: Config, features: np.ndarray, prices: tuple[np.ndarray, ...], feature_names: tuple[str, ...]
) -> Panel:
    days, assets = prices[0].shape
    opened, high, low, close = prices
    dates = np.busday_offset("2000-01-03", np.arange(days), roll="forward").astype("datetime64[D]")
    symbols = tuple(f"S{asset:03d}" for asset in range(assets))
    return panel_of_prices(features, opened, high, low, close, dates, symbols, feature_names, config.market)
