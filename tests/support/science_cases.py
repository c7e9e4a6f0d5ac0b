"""Small markets and configurations on which the science is tested."""

from typing import Any

import numpy as np
from tested_device import DEVICE

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import VARIANTS, Config, merge
from eigen_core.config.registry import LEARNERS
from eigen_core.market import Panel, panel_of_prices

_SMALL: dict[str, Any] = {
    "preset": "ddpg",
    "seed": 3,
    "device": DEVICE,
    "market": {"window": 8, "validation": 30, "holdout": 24},
    "trading": {"trading_bars": 12, "settlement_bars": 5, "holding_bars": 5},
    "network": {"scales": [1, 3, 8], "channels": 8, "embedding": 6, "queries": 2, "head_width": 8},
    "population": {"size": 5},
    "replay": {"capacity": 400, "minimum": 100},
    "learner": {
        "gradient_steps": 3,
        "batch_size": 7,
        "accumulation_steps": 2,
        "block_bars": 40,
        "epochs": 2,
        "stretch_bars": 15,
    },
    "evaluation": {
        "slices": 2,
        "lowest": 1,
        "fitness_slices": 0,
        "validation_slices": 2,
        "validation_lowest": 1,
        "champion_validation_share": 1.0,
        "champion_standard_errors": 0.0,
    },
}


LEARNER_OF_TASK = {"direct": "portfolio", "counterfactual": "market"}
"""Learners that play only one task."""
LEARNERS_OF_ANY_TASK = [name for name in LEARNERS if name not in LEARNER_OF_TASK]


def learner_with(algorithm: str, **settings: Any) -> dict[str, Any]:
    """The section of an algorithm, with those of the settings that it has."""
    known = VARIANTS["learner"].models[algorithm].model_fields
    return {"algorithm": algorithm, **{name: value for name, value in settings.items() if name in known}}


def method_with(method: str, **settings: Any) -> dict[str, Any]:
    """The section of a population method, with those of the settings that it has."""
    known = VARIANTS["evolution"].models[method].model_fields
    return {"method": method, **{name: value for name, value in settings.items() if name in known}}


def small_config(**sections: Any) -> Config:
    """A configuration that trains in a fraction of a second, with sections laid over it; its learner plays its task."""
    learner = sections.get("learner", {}).get("algorithm")
    task = {"task": LEARNER_OF_TASK[learner]} if learner in LEARNER_OF_TASK else {}
    small = merge(_SMALL, {"learner": {"algorithm": learner or "ddpg"}})
    return Config(**merge(small, task | sections))


def random_panel(config: Config, days: int = 160, assets: int = 6, context: int = 2, seed: int = 5) -> Panel:
    """Random prices with gaps, late starts and early ends, random features, and context columns."""
    generator = keyed_generator(seed, 0, "test", "panel")
    close = 50.0 * np.exp(np.cumsum(0.02 * generator.standard_normal((days, assets)), axis=0))
    opened = close * np.exp(0.01 * generator.standard_normal((days, assets)))
    high, low = np.maximum(opened, close) * 1.01, np.minimum(opened, close) * 0.99
    missing = generator.random((days, assets)) < 0.05
    missing[:10, 0] = True
    missing[-20:, assets - 1] = True
    for prices in (opened, high, low, close):
        prices[missing] = np.nan
    opened[generator.random((days, assets)) < 0.05] = np.nan
    features = generator.standard_normal((days, assets + context, 4)).astype(np.float32)
    dates = np.datetime64("2001-01-01") + np.arange(days)
    symbols = [f"S{column}" for column in range(assets + context)]
    return panel_of_prices(features, opened, high, low, close, dates, symbols, ["a", "b", "c", "d"], config.market)
