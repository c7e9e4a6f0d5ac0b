"""The panel: the whole market as arrays over days and columns."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eigen_core.config import Config, MarketConfig
from eigen_core.errors import InputError


@dataclass(frozen=True)
class Splits:
    """Days of training, validation and holdout, in this order and without overlap.

    Windows reach back across a border, episodes and their trades do not cross one. `market.purge_days` days between the
    splits belong to none of them (Lopez de Prado 2018, "Advances in Financial Machine Learning", section 7.4): so that,
    with as many days as a window and a trade take, no day is observed or traded on both sides of a border.
    """

    train: range
    validation: range
    holdout: range

    @classmethod
    def of_days(cls, days: int, market: MarketConfig) -> "Splits":
        """Split `days` days: holdout is the end, validation comes before it, the rest trains."""
        training = days - market.days_after_training
        validation = training + market.purge_days
        return cls(
            train=range(training),
            validation=range(validation, validation + market.validation_days),
            holdout=range(days - market.holdout_days, days),
        )


def episode_starts(split: range, window: int, episode_days: int) -> range:
    """Return the days on which an episode of `episode_days` may start inside `split` with a whole window before it.

    Raises:
        InputError: the split holds no such day.
    """
    starts = range(max(split.start, window - 1), split.stop - episode_days + 1)
    if not starts:
        raise InputError(
            f"no episode of {episode_days} days with a window of {window} fits into days {split.start} to "
            f"{split.stop}: give more data or lower market.window or trading.trading_days."
        )
    return starts


@dataclass(frozen=True)
class Panel:
    """A market, ready to be traded.

    Attributes:
        features: float32 `[days, columns, features]`, normalised; zero where unknown.
        valid: bool `[days, columns]`: the column has a price on that day.
        open, high, low, close: float64 `[days, assets]`, prices at which the tradable columns trade, NaN where there is
            none or its volume is zero.
        dates: datetime64[D] `[days]`, increasing.
        symbols: one name a column; the tradable ones come first.
        feature_names: one name a feature.
        splits: train, validation and holdout days.
        fingerprint: SHA-256 of everything that the panel was built from.
    """

    features: NDArray[np.float32]
    valid: NDArray[np.bool_]
    open: NDArray[np.float64]
    high: NDArray[np.float64]
    low: NDArray[np.float64]
    close: NDArray[np.float64]
    dates: NDArray[np.datetime64]
    symbols: tuple[str, ...]
    feature_names: tuple[str, ...]
    splits: Splits
    fingerprint: str

    @property
    def days(self) -> int:
        """Number of days."""
        return int(self.features.shape[0])

    @property
    def columns(self) -> int:
        """Number of columns, tradable and context."""
        return int(self.features.shape[1])

    @property
    def assets(self) -> int:
        """Number of tradable columns."""
        return int(self.close.shape[1])

    def last_days(self) -> NDArray[np.int64]:
        """Return the last day of the split of each day, int64 `[days]`; that of the panel between splits."""
        last = np.full(self.days, self.days - 1)
        for split in (self.splits.train, self.splits.validation, self.splits.holdout):
            last[split.start : split.stop] = split.stop - 1
        return last

    def training_starts(self, config: Config) -> range:
        """Days on which a training episode may start."""
        return episode_starts(self.splits.train, config.market.window, config.trading.episode_days)

    def validation_starts(self, config: Config) -> range:
        """Days on which a validation episode may start."""
        return episode_starts(self.splits.validation, config.market.window, config.trading.episode_days)

    def holdout_starts(self, config: Config) -> range:
        """Days on which a holdout episode may start."""
        return episode_starts(self.splits.holdout, config.market.window, config.trading.episode_days)


def panel_of_prices(
    features: NDArray[np.float32],
    open: NDArray[np.float64],
    high: NDArray[np.float64],
    low: NDArray[np.float64],
    close: NDArray[np.float64],
    dates: NDArray[np.datetime64],
    symbols: Sequence[str],
    feature_names: Sequence[str],
    market: MarketConfig,
) -> Panel:
    """Make a panel of arrays, for example of a market made by a generator.

    Args:
        features: `[days, columns, features]`, taken as they are.
        open, high, low, close: `[days, assets]`, prices of the first columns, NaN where there is none.
        dates: `[days]`, strictly increasing.
        symbols: one name a column.
        feature_names: one name a feature.
        market: gives the splits.

    A tradable column is valid where it has a close, a context column everywhere. The fingerprint is that of the arrays.

    Raises:
        InputError: there are fewer days than validation and holdout take.
        ValueError: the shapes do not fit together, or the dates do not increase.
    """
    features = np.ascontiguousarray(features, dtype=np.float32)
    days, columns, width = features.shape
    prices = tuple(np.ascontiguousarray(values, dtype=np.float64) for values in (open, high, low, close))
    assets = prices[3].shape[-1]
    if any(values.shape != (days, assets) for values in prices) or not 1 <= assets <= columns:
        shapes = ", ".join(str(values.shape) for values in prices)
        raise ValueError(f"prices of shapes {shapes} do not fit features of shape {features.shape}")
    if len(symbols) != columns or len(feature_names) != width:
        raise ValueError(f"{len(symbols)} symbols and {len(feature_names)} names do not fit features {features.shape}")
    dates = np.asarray(dates).astype("datetime64[D]")
    if dates.shape != (days,) or not np.all(dates[1:] > dates[:-1]):
        raise ValueError("dates must be one a day and strictly increasing")
    if days <= market.days_after_training:
        raise InputError(
            f"{days:,} days leave none to train on beside {market.validation_days} validation and "
            f"{market.holdout_days} holdout days, and {market.purge_days} purged before each: give more or lower "
            "market.validation_days, market.holdout_days or market.purge_days."
        )
    valid = np.ones((days, columns), dtype=np.bool_)
    valid[:, :assets] = ~np.isnan(prices[3])
    return Panel(
        features=features,
        valid=valid,
        open=prices[0],
        high=prices[1],
        low=prices[2],
        close=prices[3],
        dates=dates,
        symbols=tuple(symbols),
        feature_names=tuple(feature_names),
        splits=Splits.of_days(days, market),
        fingerprint=_fingerprint_of_arrays((features, *prices, dates), (*symbols, *feature_names), market),
    )


def _fingerprint_of_arrays(arrays: Sequence[NDArray[np.generic]], names: Sequence[str], market: MarketConfig) -> str:
    digest = hashlib.sha256()
    described = [(str(array.dtype), array.shape) for array in arrays]
    purged = (market.purge_days,) if market.purge_days else ()
    digest.update(repr((described, tuple(names), market.validation_days, market.holdout_days, *purged)).encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()
