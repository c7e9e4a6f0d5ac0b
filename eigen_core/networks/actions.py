"""What agents decide for each asset, and what they observe of what they decided before."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eigen_core.config import Config
from eigen_core.networks.policies import Box
from eigen_core.trading import EPISODE_TIME_VALUES, PORTFOLIO_VALUES

_SELECTION_SHARPNESS = 30.0
_SMALLEST_RANGE = 1e-6


@dataclass(frozen=True)
class AssetActions:
    """The values of an asset's action and of its portfolio state.

    Attributes:
        box: bounds of an action's values.
        portfolio_values: values of an asset's portfolio state that are observed; 0: none is.
        time_values: values of the time in the episode that are observed.
        preference: returns how much actions prefer each asset, float32 `[..., assets]`, as what a softmax takes, from
            actions scaled to their range, float32 `[..., assets, values]`, and the portfolio state, float32 `[...,
            assets, portfolio values]`, None where it is not observed.
    """

    box: Box
    portfolio_values: int
    time_values: int
    preference: Callable[[Tensor, Tensor | None], Tensor]

    @property
    def values(self) -> int:
        """Values of an asset's action."""
        return self.box.values

    def scaled(self, actions: Tensor) -> Tensor:
        """Return actions as shares of their range, from 0 to 1; without an upper bound, the distance from the lower."""
        width = (self.box.high - self.box.low).clamp_min(_SMALLEST_RANGE)
        return (actions - self.box.low) / torch.where(width.isinf(), 1.0, width)


def market_actions(config: Config, device: torch.device) -> AssetActions:
    """Return coefficient and sale target, and the portfolio as `TradingEnvironment.portfolio` gives it."""
    trading, observes = config.trading, config.trading.observe_portfolio
    highest = math.inf if trading.max_coefficient is None else trading.max_coefficient
    return AssetActions(
        Box((0.0, trading.min_target), (highest, trading.max_target), device),
        PORTFOLIO_VALUES if observes else 0,
        EPISODE_TIME_VALUES if observes else 0,
        # The highest coefficient is what will be bought.
        lambda scaled, portfolio: _SELECTION_SHARPNESS * scaled[..., 0],  # noqa: ARG005 - of the portfolio task
    )


def portfolio_actions(config: Config, device: torch.device) -> AssetActions:
    """Return score and speed of a portfolio of weights, and the scores as shares of their bound.

    The speed is the share of the way from an asset's score to the new one that is gone at once, from 0 to 1.
    """
    most = config.portfolio.max_score

    def reached(scaled: Tensor, portfolio: Tensor | None) -> Tensor:
        wanted = most * (2.0 * scaled[..., 0] - 1.0)
        if portfolio is None:
            return wanted
        scores = most * portfolio[..., 0]
        return scores + scaled[..., 1] * (wanted - scores)

    return AssetActions(
        Box((-most, 0.0), (most, 1.0), device), 1 if config.trading.observe_portfolio else 0, 0, reached
    )
