"""Ways to learn that are compared, each as settings over the preset quickstart."""

import json
from dataclasses import dataclass

from eigen_core.config import preset_values


@dataclass(frozen=True)
class Method:
    """A way to learn.

    Attributes:
        settings: over the preset's, as `key=value`.
        generations: of the methods of the market, how many take about as many processor seconds as 10 of the preset's
            own. Those of a portfolio are not made equal: the direct one takes as many as its preset.
    """

    settings: tuple[str, ...] = ()
    generations: int = 10


_OF_THE_MARKET = ("trading.holding_days", "trading.settlement_days")


def _settings_of(preset: str, *sections: str) -> tuple[str, ...]:
    """Sections of a preset, as `key=value`, without what the market says."""
    values = preset_values(preset)
    settings = {f"{section}.{name}": value for section in sections for name, value in values[section].items()}
    shown = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
    return tuple(f"{name}={value}" for name, value in shown.items() if name not in _OF_THE_MARKET)


COUNTERFACTUAL = _settings_of("counterfactual", "learner", "evolution")
DIRECT = (
    "task=portfolio",
    *_settings_of(
        "portfolio",
        *(
            "trading",
            "portfolio",
            "network",
            "population",
            "exploration",
            "replay",
            "learner",
            "evolution",
            "evaluation",
        ),
    ),
)
MARKET_METHODS = {
    "both": Method(),
    "counterfactual": Method(COUNTERFACTUAL),
    "gradients": Method(("evolution.enabled=false",)),
    "evolution": Method(("learner.gradient_steps=0",), generations=50),
}
"""Those of the market, by name. `both` is the preset: gradients (DDPG) and evolution."""
_DIRECT_GENERATIONS = int(preset_values("portfolio")["generations"])
PORTFOLIO_METHODS = {
    "portfolio_direct": Method(DIRECT, _DIRECT_GENERATIONS),
    "portfolio_restarts": Method((*DIRECT, "evolution.enabled=false"), _DIRECT_GENERATIONS),
    "portfolio_ddpg": Method(("task=portfolio",)),
    "portfolio_ppo": Method(("task=portfolio", *_settings_of("ppo", "replay", "learner"))),
}
"""Those of the task `portfolio`, by name: the direct one with its preset's own network and population, the same without
evolution, so that its agents are restarts of the gradient alone, and the others with quickstart's network and
population. Counterfactual learning plays the task `market` alone."""
METHODS = MARKET_METHODS | PORTFOLIO_METHODS
