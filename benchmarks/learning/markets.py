"""Markets with a known edge, and the signal of an oracle.

The edge is the information coefficient of a signal: its correlation with the return from the fill to the end of the
holding time, over the assets of a day (mean over days).
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from benchmarks.synthetic import random_walk_prices
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.market import Panel
from eigen_core.market.build import build_panel, panel_of_clean_prices
from eigen_core.market.cleaning import prices_fingerprint
from eigen_core.trading.synthetic import (
    FEATURE,
    planted_signal,
    with_feature,
)

Values = NDArray[np.float64]

DAYS, ASSETS = 4_752, 20
YEAR = 252
"""Days of a year of these markets; their dates are made up."""
HOLDOUT_DAYS = 1_500
MEMORY_DAYS = 10
"""How long ago the signal of the market `memory` was visible (days)."""
REGIME, OTHER = "regime", "other"
_REGIME_DAYS = (150, 400)
_NOISE_FEATURES = 2


@dataclass(frozen=True)
class KnownMarket:
    """One of `MARKETS` with its edge; an oracle ranks assets by `signal`, float64 `[days, assets]`."""

    name: str
    panel: Panel
    signal: Values
    edge: float


@dataclass(frozen=True)
class Drawn:
    """Parameters of a market; `factor`: assets have a part of their returns in common."""

    name: str
    config: Config
    edge: float
    seed: int
    days: int
    assets: int
    factor: bool

    def panel(self) -> Panel:
        """Prices and the usual features."""
        prices = random_walk_prices(self.days, self.assets, self.seed, self.factor)
        return panel_of_clean_prices(prices, self.config.market, prices_fingerprint(prices))

    def signal(self, panel: Panel) -> Values:
        """What is planted, float64 `[days, assets]`."""
        return planted_signal(panel, self.config.trading, self.edge, self.seed)

    def noise(self, name: str) -> Values:
        """Standard normal noise about as persistent as the signal, of a generator with this name: `[days, assets]`."""
        horizon = self.config.trading.holding_bars
        generator = keyed_generator(self.seed, 0, "market", name, "noise")
        draws = generator.standard_normal((self.days + horizon - 1, self.assets))
        noise: Values = np.lib.stride_tricks.sliding_window_view(draws, horizon, axis=0).sum(axis=-1) / horizon**0.5
        return noise

    def with_feature(self, panel: Panel, name: str, values: Values) -> Panel:
        """The panel with one more feature of its assets; 0 in context columns."""
        columns = np.zeros((panel.days, panel.columns))
        columns[:, : panel.assets] = values
        trading = self.config.trading
        return with_feature(panel, name, columns, f"{self.edge} {trading.holding_bars} {trading.fill} {self.seed}")


Features = Callable[[Drawn, Values], Mapping[str, Values]]
"""Returns by name what a market shows of its signal; values are float64 `[days, assets]`."""


def _showing(features: Features) -> Callable[[Drawn], KnownMarket]:
    def make(drawn: Drawn) -> KnownMarket:
        panel = drawn.panel()
        signal = drawn.signal(panel)
        for name, values in features(drawn, signal).items():
            panel = drawn.with_feature(panel, name, values)
        return KnownMarket(drawn.name, panel, signal, drawn.edge)

    return make


_visible = _showing(lambda _, signal: {FEATURE: signal})


def _isolated(drawn: Drawn) -> KnownMarket:
    market = _visible(drawn)
    generator = keyed_generator(drawn.seed, 0, "market", "noise", "features")
    noise = generator.standard_normal((drawn.days, drawn.assets, _NOISE_FEATURES))
    names = (FEATURE, *(f"noise_{index + 1}" for index in range(_NOISE_FEATURES)))
    panel = replace(
        market.panel,
        features=np.concatenate([market.panel.features[..., -1:], noise.astype(np.float32)], axis=2),
        feature_names=names,
        fingerprint=hashlib.sha256(f"{market.panel.fingerprint} {names}".encode()).hexdigest(),
    )
    return replace(market, panel=panel)


def _bundled(drawn: Drawn) -> KnownMarket:
    panel, _ = build_panel(drawn.config)
    signal = drawn.signal(panel)
    return KnownMarket(drawn.name, drawn.with_feature(panel, FEATURE, signal), signal, drawn.edge)


def _before(*days: int) -> Callable[[Drawn], KnownMarket]:
    """A feature shows the signal so many days early: positions must be held for less, or today's value knows of it."""

    def early(_: Drawn, signal: Values) -> Mapping[str, Values]:
        visible = np.zeros_like(signal)
        for lag in days:
            visible[:-lag] += signal[lag:] / len(days) ** 0.5
        return {FEATURE: visible}

    return _showing(early)


def _changing(drawn: Drawn, signal: Values) -> Mapping[str, Values]:
    """A feature is the signal or its opposite, in long stretches that another feature names."""
    generator = keyed_generator(drawn.seed, 0, "market", "regimes", "lengths")
    lengths = generator.integers(*_REGIME_DAYS, drawn.days // _REGIME_DAYS[0] + 1)
    sign = np.repeat((-1.0) ** np.arange(len(lengths)), lengths)[: drawn.days, None]
    return {REGIME: np.broadcast_to(sign, signal.shape), FEATURE: sign * signal}


def _interacting(drawn: Drawn, signal: Values) -> Mapping[str, Values]:
    """A feature is the signal times the sign of another one, which is noise."""
    other = drawn.noise("interaction")
    return {OTHER: other, FEATURE: np.sign(other) * signal}


def _absolute(drawn: Drawn, signal: Values) -> Mapping[str, Values]:
    """The sizes of a feature, quantiles of a half normal distribution, have the signal's order; its sign is noise."""
    shares = (signal.argsort(axis=1).argsort(axis=1) + 0.5) / drawn.assets
    return {FEATURE: np.sign(drawn.noise("absolute")) * norm.ppf((1.0 + shares) / 2.0)}


def _unknown(drawn: Drawn) -> KnownMarket:
    return _visible(replace(drawn, edge=0.0))


@dataclass(frozen=True)
class MarketKind:
    """A kind of market: its description for a table, its function, and its holding days."""

    shown: str
    make: Callable[[Drawn], KnownMarket] = _visible
    holding_bars: int = 20
    factor: bool = False


MARKETS = {
    "plain": MarketKind("a feature knows; assets have nothing in common; held 20 days"),
    "isolated": MarketKind("as `plain`, but beside two features of noise instead of the usual ones", _isolated),
    "isolated_factor": MarketKind(
        "beside two features of noise instead of the usual ones; half of an asset's moves are the market's",
        _isolated,
        factor=True,
    ),
    "isolated_factor_5": MarketKind("as `isolated_factor`; held 5 days", _isolated, holding_bars=5, factor=True),
    "unblocked": MarketKind("a feature knows; held 5 days", holding_bars=5),
    "bundled": MarketKind(
        "the bundled prices, whose moves differ between years; held 5 days", _bundled, holding_bars=5
    ),
    "factor": MarketKind("a feature knows; half of an asset's moves are the market's", factor=True),
    "memory": MarketKind(f"a feature knew {MEMORY_DAYS} days ago; held 5 days", _before(MEMORY_DAYS), holding_bars=5),
    "memory_1": MarketKind(
        f"a feature knew {MEMORY_DAYS} days ago, and on no day beside that one; held 1 day",
        _before(MEMORY_DAYS),
        holding_bars=1,
    ),
    "regimes_5": MarketKind(
        "a feature knows, whose sign changes between stretches that another names; held 5 days",
        _showing(_changing),
        holding_bars=5,
    ),
    "interaction": MarketKind(
        "a feature times the sign of another knows; held 5 days", _showing(_interacting), holding_bars=5
    ),
    "absolute": MarketKind("the size of a feature knows; held 5 days", _showing(_absolute), holding_bars=5),
    "lagged": MarketKind(
        "a feature knew 5 and 10 days ago, and on no day that is not near these; held 5 days",
        _before(5, 10),
        holding_bars=5,
    ),
    "noise": MarketKind("nothing is known; half of an asset's moves are the market's", _unknown, factor=True),
}


def known_market(
    name: str, config: Config, edge: float, seed: int, days: int = DAYS, assets: int = ASSETS
) -> KnownMarket:
    """Return one of `MARKETS`; `edge` is the information coefficient, from 0 to 1."""
    kind = MARKETS[name]
    return kind.make(Drawn(name, config, edge, seed, days, assets, kind.factor))
