"""Seeded markets whose edge is known, to see whether agents learn."""

import numpy as np

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.market.cleaning import CleanPrices, Grid
from eigen_core.market.formats import Days
from eigen_core.market.panel import Panel, panel_of_prices

_EVEN_DAYS = 50


def leaking_market(config: Config, days: int, assets: int, seed: int, drift: float = 0.002) -> Panel:
    """A random walk whose first feature leaks each asset's return after the fill.

    The leak of day t is log(close[t + holding days] / open[t + 1]), in units of its standard deviation; two more
    features are noise. Nothing else can be known. Daily returns have a standard deviation of 1 % around `drift`
    (a fraction a day), so that with losses counted ten times an agent that acts at random earns a little.
    """
    generator = keyed_generator(seed, 0, "market", "leaking", "prices")
    shocks = generator.standard_normal((days, assets))
    for start in range(0, days, _EVEN_DAYS):
        shocks[start : start + _EVEN_DAYS] -= shocks[start : start + _EVEN_DAYS].mean(axis=0)
    close = 100.0 * np.exp(np.cumsum(drift + 0.01 * shocks, axis=0))
    opened, high, low = _ranges(close, generator)
    holding = config.trading.holding_bars
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


def random_walk_prices(days: int, assets: int, seed: int, factor: bool) -> CleanPrices:
    """Prices that nothing predicts: of each asset its own, and with `factor` a part that all have in common.

    A close is the one before it times 1 plus a return whose mean is 0, or with the factor 0.03 % a day. Standard
    deviations of daily log returns are 2 % of an asset alone and 1 % of the factor, in which assets take part with a
    share between 0.5 and 1.5 each.
    """
    generator = keyed_generator(seed, 0, "market", "random walk", "prices")
    steps = _log_steps(0.02, generator.standard_normal((days, assets)))
    if factor:
        shares = generator.uniform(0.5, 1.5, assets)
        steps += _log_steps(0.01 * shares, generator.standard_normal((days, 1))) + 0.0003 * shares
    close = 100.0 * np.exp(np.cumsum(steps, axis=0))
    opened, high, low = _ranges(close, generator)
    return CleanPrices(
        days=_dates(days),
        symbols=_symbols(assets),
        assets=assets,
        open=opened,
        high=high,
        low=low,
        close=close,
        volume=np.full_like(close, np.nan),
        has_range=True,
        has_volume=False,
        own={},
    )


def _log_steps(deviation: "float | Grid", shocks: Grid) -> Grid:
    """Log returns of this standard deviation, of which the mean of the returns themselves is 0."""
    steps: Grid = deviation * shocks - deviation**2 / 2.0
    return steps


def _ranges(close: Grid, generator: np.random.Generator) -> tuple[Grid, Grid, Grid]:
    overnight = 0.002 * generator.standard_normal(close.shape)
    opened = np.vstack([close[:1], close[:-1]]) * np.exp(overnight)
    reach = 0.003 * np.abs(generator.standard_normal(close.shape))
    return opened, np.maximum(opened, close) * np.exp(reach), np.minimum(opened, close) * np.exp(-reach)


def _dates(days: int) -> Days:
    return np.busday_offset("2000-01-03", np.arange(days), roll="forward").astype("datetime64[D]")


def _symbols(assets: int) -> tuple[str, ...]:
    return tuple(f"S{asset:03d}" for asset in range(assets))


def _panel(
    config: Config, features: np.ndarray, prices: tuple[np.ndarray, ...], feature_names: tuple[str, ...]
) -> Panel:
    days, assets = prices[0].shape
    opened, high, low, close = prices
    return panel_of_prices(
        features, opened, high, low, close, _dates(days), _symbols(assets), feature_names, config.market
    )
