"""An edge of known strength, planted into a market as a feature that knows something of the coming returns."""

import hashlib
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import TradingConfig
from eigen_core.market import Panel
from eigen_core.trading.prices import Prices

Values = NDArray[np.float64]

FEATURE = "planted_edge"
_FEWEST_ASSETS = 3


def with_planted_edge(panel: Panel, trading: TradingConfig, strength: float, seed: int) -> Panel:
    """Return a panel with one more feature: `planted_signal` of its assets, 0 of its context columns.

    Raises:
        InputError: there are too few tradable columns to choose from.
    """
    signal = planted_signal(panel, trading, strength, seed)
    values = np.zeros((panel.days, panel.columns))
    values[:, : panel.assets] = signal
    return with_feature(panel, FEATURE, values, f"{strength} {trading.holding_days} {trading.fill} {seed}")


def planted_signal(panel: Panel, trading: TradingConfig, strength: float, seed: int) -> Values:
    """Return values whose information coefficient with the coming returns is `strength`: float64 `[days, assets]`.

    The value of an asset on a day is `strength` times `coming_returns`, plus noise, both normalised over the assets of
    the day: the mean over days of the correlation of value and return over assets is `strength`. The noise is a moving
    sum over as many days as the return spans, and so about as persistent: a mean of the values over some days knows no
    more than the last one. Where the return is not known there is noise alone.

    Args:
        panel: the market.
        trading: when an order is filled, and how long a position is held.
        strength: the information coefficient, from 0 to 1.
        seed: of the noise.

    Raises:
        InputError: there are too few tradable columns to choose from.
    """
    if panel.assets < _FEWEST_ASSETS:
        raise InputError(
            f"An edge among assets cannot be planted with {panel.assets} tradable symbols: give {_FEWEST_ASSETS} or "
            "more."
        )
    returns = coming_returns(panel, trading)
    days, assets = returns.shape
    noise = _over_assets(persistent_noise(seed, days, assets, trading.holding_days))
    signal: Values = strength * _over_assets(returns) + np.sqrt(1.0 - strength**2) * noise
    return signal


def persistent_noise(seed: int, days: int, columns: int, horizon: int) -> Values:
    """Return moving sums over `horizon` days of normal draws: float64 `[days, columns]`."""
    generator = keyed_generator(seed, 0, "market", "planted", "noise")
    sums = np.cumsum(generator.standard_normal((days + horizon, columns)), axis=0)
    noise: Values = sums[horizon:] - sums[:-horizon]
    return noise


def with_feature(panel: Panel, name: str, values: Values, definition: str) -> Panel:
    """Return a panel with one more feature.

    Args:
        panel: the market.
        name: of the feature.
        values: float64 `[days, columns]`, taken as they are.
        definition: what determines the values beside the panel; the new fingerprint depends on it.
    """
    return replace(
        panel,
        features=np.concatenate([np.asarray(panel.features), values[..., None].astype(np.float32)], axis=2),
        feature_names=(*panel.feature_names, name),
        fingerprint=hashlib.sha256(f"{panel.fingerprint} {name} {definition}".encode()).hexdigest(),
    )


def coming_returns(panel: Panel, trading: TradingConfig) -> Values:
    """Return the log return from the fill of a day's order to the sale that ends its holding time.

    float64 `[days, assets]`; NaN where no order is filled, and on the last days, whose returns are not known.
    """
    prices = Prices.of_panel(panel, torch.device("cpu"))
    fills = prices.fills(trading)
    entry, exit_price = fills.entry.numpy(), fills.exit.numpy()
    returns = np.full(entry.shape, np.nan)
    horizon = trading.holding_days
    returns[:-horizon] = np.log(exit_price[:-horizon] / entry[:-horizon])
    return returns


def _over_assets(values: Values) -> Values:
    """Normalise the known values of each day over the assets; zero where unknown or where all are equal."""
    known = ~np.isnan(values)
    count = np.maximum(known.sum(axis=1, keepdims=True), 1)
    deviation = np.where(known, values - np.nansum(values, axis=1, keepdims=True) / count, 0.0)
    spread = np.sqrt((deviation**2).sum(axis=1, keepdims=True) / count)
    normalised: Values = np.divide(deviation, spread, out=np.zeros_like(deviation), where=spread > 0.0)
    return normalised
