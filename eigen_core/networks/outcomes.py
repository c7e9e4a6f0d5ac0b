"""An actor that predicts the gain of each asset at each sale target, and takes the best.

An asset that is bought is blocked until it is sold, so a predicted gain is compared with the reserve price of that
time. The price is `selectivity` standard deviations above the mean of the predictions. Evolution moves the selectivity;
the two moments follow the predictions while the actor learns.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eigen_core.networks.layout import Parameters, ParameterShape, linear

_START_OF_SELECTIVITY = 0.6
_FAN_IN_OF_SELECTIVITY = 16
"""Agents start with a selectivity within a quarter of a standard deviation of `_START_OF_SELECTIVITY`."""
_START_OF_SPREAD = 0.1
_FOLLOWED = 0.1
_SMALLEST_SPREAD = 1e-4


@dataclass(frozen=True)
class ExpectedOutcomes:
    """Predicted outcomes of each alternative, float32 `[agents, batch, assets, targets]`.

    Attributes:
        rewards: predicted reward of the trade, scaled.
        shares: predicted time for which the trade blocks its asset, as a share of the longest holding time.
    """

    rewards: Tensor
    shares: Tensor


RESERVE_VALUES = 3
"""Number of the last parameters of such an actor, which give its reserve price and have no gradient."""


def outcome_shapes(width: int, targets: int) -> list[ParameterShape]:
    """Return the parameters of the last layer of such an actor."""
    return [
        ParameterShape("actor.expected.weight", (width, 2 * targets), 0),
        ParameterShape("actor.expected.bias", (2 * targets,), 0),
        ParameterShape("actor.selectivity", (1,), _FAN_IN_OF_SELECTIVITY, _START_OF_SELECTIVITY),
        ParameterShape("actor.mean", (1,), 0),
        ParameterShape("actor.log_spread", (1,), 0, math.log(_START_OF_SPREAD)),
    ]


def expected_outcomes(parameters: Parameters, hidden: Tensor) -> ExpectedOutcomes:
    """Return the predictions from the last hidden layer, float32 `[agents, batch, assets, width]`."""
    return ExpectedOutcomes(*linear(parameters, "actor.expected", hidden).chunk(2, dim=-1))


def margins(parameters: Parameters, expected: ExpectedOutcomes) -> Tensor:
    """Return the excess of each alternative over the reserve price, in standard deviations: float32, as `expected`."""
    selectivity, mean, log_spread = (
        parameters[f"actor.{name}"][:, :, None, None] for name in ("selectivity", "mean", "log_spread")
    )
    reserve = torch.relu(mean + selectivity)
    return expected.rewards * torch.exp(-log_spread) - reserve * expected.shares


@torch.no_grad()
def follow_expected(parameters: Parameters, expected: ExpectedOutcomes, known: Tensor) -> None:
    """Move mean and spread, in place, towards the moments of each asset's best predicted reward.

    Args:
        known: bool `[agents, batch, assets]`; other predictions are ignored.
    """
    best, count = expected.rewards.amax(-1) * known, known.sum((1, 2)).clamp_min(1)
    mean = best.sum(-1).sum(-1) / count
    deviation = (best - mean[:, None, None]) * known
    spread = ((deviation * deviation).sum(-1).sum(-1) / count).sqrt().clamp_min(_SMALLEST_SPREAD)
    for name, found in (("mean", mean / spread), ("log_spread", spread.log())):
        held = parameters[f"actor.{name}"]
        held.add_((found[:, None] - held) * _FOLLOWED)
