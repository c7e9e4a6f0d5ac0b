"""Synthetic markets for `eigen trust`: prices that cannot be predicted, and a feature that predicts returns."""

import hashlib
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.common.text import count
from eigen_core.config import TradingConfig
from eigen_core.market import Panel
from eigen_core.market.cleaning import CleanPrices, Grid
from eigen_core.trading.equity import Values
from eigen_core.trading.prices import Prices

MEAN_BLOCK_DAYS = 60
"""Mean length of a block of drawn days: |returns| keep (1 - 1 / 60)^k of their autocorrelation at a lag of k days."""


def unpredictable_prices(prices: CleanPrices, seed: int) -> CleanPrices:
    """Return prices of the same symbols on the same days, whose returns cannot be predicted.

    A stationary bootstrap draws days with replacement, in blocks (Politis and Romano 1994, "The stationary bootstrap"):
    each day of the result takes all symbols' returns from its drawn day. The deviations of the log returns from each
    symbol's mean are multiplied by a random sign, one for each day (the wild bootstrap of Liu 1988, "Bootstrap
    procedures under some non-i.i.d. models"). With x the deviation, g the sign and m the mean return of all tradable
    symbols, a close is the one before it times (1 + m) exp(g x) / cosh(x); the mean over both signs is 1 + m for any x.

    Kept: variances, tails, correlations of symbols on a day, and within blocks the clustering of volatility. Lost:
    autocorrelation, effects of one symbol on a later day of another, momentum, reversal, differences between the mean
    returns of symbols, skewness. All symbols rise by m a day in the mean, so that the market as a whole earns something
    and no choice among its symbols earns more.

    A day's open, high and low keep their distances to the close, mirrored where the sign is negative; volume and
    further columns of the files (`CleanPrices.own`) are those of the drawn day. Each symbol has prices on the same days
    as in the data: it begins as late, and has the same gaps. A symbol without a return on the drawn day takes, of its n
    days with a return, number (drawn day modulo n): blocks stay whole, and only its correlation with others is lost.
    """
    days = len(prices.days)
    generator = keyed_generator(seed, 0, "market", "resampled", "days")
    drawn = _stationary_days(days, generator)
    signs = np.where(generator.random(days) < 0.5, -1.0, 1.0)
    growth = _mean_growth(prices.close[:, : prices.assets])
    opened, high, low, close, volume = grids = [np.full_like(prices.close, np.nan) for _ in range(5)]
    own = {name: np.full_like(values, np.nan) for name, values in prices.own.items()}
    for column in range(prices.close.shape[1]):
        priced = np.flatnonzero(~np.isnan(prices.close[:, column]))
        taken = _days_taken(drawn[priced], priced)
        bars = _bars(prices, column, priced, taken, signs[priced], growth)
        for grid, values in zip(grids, bars, strict=True):
            grid[priced, column] = values
        for name, values in prices.own.items():
            own[name][priced, column] = values[taken, column]
    return replace(prices, open=opened, high=high, low=low, close=close, volume=volume, own=own)


def _stationary_days(days: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw blocks of consecutive days, whose lengths are geometric; day 0 follows the last day: int64 `[days]`."""
    begins = generator.random(days) < 1.0 / MEAN_BLOCK_DAYS
    begins[0] = True
    first = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    starts = generator.integers(0, days, days)
    result: NDArray[np.int64] = (starts[first] + np.arange(days) - first) % days
    return result


def _days_taken(drawn: NDArray[np.int64], priced: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the drawn day for each `priced` day of a symbol; where it has no return then, another of its days."""
    own = priced[1:] if len(priced) > 1 else priced
    position = np.minimum(np.searchsorted(own, drawn), len(own) - 1)
    return np.where(own[position] == drawn, drawn, own[drawn % len(own)])


def _mean_growth(close: Grid) -> float:
    returns = [np.expm1(np.diff(np.log(column[~np.isnan(column)]))) for column in close.T]
    return float(np.concatenate(returns).mean()) if sum(map(len, returns)) else 0.0


def _bars(
    prices: CleanPrices, column: int, priced: NDArray[np.int64], taken: NDArray[np.int64], signs: Grid, growth: float
) -> tuple[Grid, ...]:
    """Return the new open, high, low, close and volume of a symbol on its `priced` days, from `taken` ones."""
    log_close = np.log(prices.close[:, column])
    returns = np.full(len(log_close), np.nan)
    returns[priced[1:]] = np.diff(log_close[priced])
    deviations = np.nan_to_num((returns - np.nanmean(returns[priced[1:]]))[taken]) if len(priced) > 1 else 0.0 * signs
    steps = np.log1p(growth) + signs * deviations - np.log(np.cosh(deviations))
    steps[0] = 0.0
    close = log_close[priced[0]] + np.cumsum(steps)
    above = np.log(prices.high[taken, column]) - log_close[taken]
    below = log_close[taken] - np.log(prices.low[taken, column])
    # Within the day too, the mean of close / open over the signs is 1.
    within = log_close[taken] - np.log(prices.open[taken, column])
    opened = close - (signs * within - np.log(np.cosh(within)))
    high = np.fmax(close + np.where(signs > 0.0, above, below), opened)
    low = np.fmin(close - np.where(signs > 0.0, below, above), opened)
    return *(np.exp(values) for values in (opened, high, low, close)), prices.volume[taken, column]


FEATURE = "planted_edge"
_FEWEST_ASSETS = 3


def require_choice(assets: int) -> None:
    """Raise `InputError` if `assets` tradable symbols are too few to plant an edge among them."""
    if assets < _FEWEST_ASSETS:
        raise InputError(
            f"A feature that predicts returns (an edge) cannot be planted with {count(assets, 'tradable symbol')}: "
            f"give prices of {_FEWEST_ASSETS} or more, or plant no edges (eigen trust --edges '')."
        )


def with_planted_edge(panel: Panel, trading: TradingConfig, strength: float, seed: int) -> Panel:
    """Return a panel with one more feature: `planted_signal` for its assets, 0 for symbols that cannot be traded."""
    signal = planted_signal(panel, trading, strength, seed)
    values = np.zeros((panel.days, panel.columns))
    values[:, : panel.assets] = signal
    return with_feature(panel, FEATURE, values, f"{strength} {trading.holding_bars} {trading.fill} {seed}")


def planted_signal(panel: Panel, trading: TradingConfig, strength: float, seed: int) -> Values:
    """Return values that predict the returns to come with information coefficient `strength`: float64 `[days, assets]`.

    The value of an asset on a day is `strength`, from 0 to 1, times `coming_returns`, plus noise, both normalised over
    the assets of the day: the correlation of value and return over assets, averaged over days, is `strength`. The noise
    is a moving sum over as many days as the return spans, and so about as persistent as the return: the mean of the
    values of some days predicts no better than the last value. Without a known return the value is noise alone.

    Raises:
        InputError: see `require_choice`.
    """
    require_choice(panel.assets)
    returns = coming_returns(panel, trading)
    days, assets = returns.shape
    noise = normalised_over_assets(persistent_noise(seed, days, assets, trading.holding_bars))
    signal: Values = strength * normalised_over_assets(returns) + np.sqrt(1.0 - strength**2) * noise
    return signal


def persistent_noise(seed: int, days: int, columns: int, horizon: int) -> Values:
    """Return moving sums over `horizon` days of standard normal draws: float64 `[days, columns]`."""
    generator = keyed_generator(seed, 0, "market", "planted", "noise")
    sums = np.cumsum(generator.standard_normal((days + horizon, columns)), axis=0)
    return sums[horizon:] - sums[:-horizon]


def with_feature(panel: Panel, name: str, values: Values, definition: str) -> Panel:
    """Return a panel with one more feature, `[days, columns]`; the new fingerprint hashes the text `definition` too."""
    return replace(
        panel,
        features=np.concatenate([np.asarray(panel.features), values[..., None].astype(np.float32)], axis=2),
        feature_names=(*panel.feature_names, name),
        fingerprint=hashlib.sha256(f"{panel.fingerprint} {name} {definition}".encode()).hexdigest(),
    )


def coming_returns(panel: Panel, trading: TradingConfig) -> Values:
    """Return the log returns from the fill of each day's order to the sale that ends its holding time.

    They are float64 `[days, assets]`; NaN where no order is filled, and on the last `trading.holding_bars` days.
    """
    prices = Prices.of_panel(panel, torch.device("cpu"))
    fills = prices.fills(trading)
    entry, exit_price = fills.entry.numpy(), fills.exit.numpy()
    returns = np.full(entry.shape, np.nan)
    horizon = trading.holding_bars
    returns[:-horizon] = np.log(exit_price[:-horizon] / entry[:-horizon])
    return returns


def normalised_over_assets(values: Values) -> Values:
    """Normalise the values of each day over the assets to mean 0 and variance 1; 0 for NaN, or if all are equal."""
    known = ~np.isnan(values)
    count = np.maximum(known.sum(axis=1, keepdims=True), 1)
    deviation = np.where(known, values - np.nansum(values, axis=1, keepdims=True) / count, 0.0)
    spread = np.sqrt((deviation**2).sum(axis=1, keepdims=True) / count)
    normalised: Values = np.divide(deviation, spread, out=np.zeros_like(deviation), where=spread > 0.0)
    return normalised
