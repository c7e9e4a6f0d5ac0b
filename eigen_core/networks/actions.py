"""Actions of agents for each asset, and the choice of actions by predicted outcomes.

An actor of counterfactual learning predicts the gain of each alternative, which is an asset with a sale target (gain at
which it is sold), and takes the best. An asset that is bought is blocked until it is sold, so its predicted gain is
compared with a reserve price for that time. This price is `selectivity` standard deviations above the mean of each
asset's best prediction. Evolution moves the selectivity; mean and standard deviation follow the predictions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from eigen_core.config import Config
from eigen_core.machine.reproducibility import compute_reproducibly
from eigen_core.networks.layout import Parameters, ParameterShape, linear
from eigen_core.networks.policies import Box
from eigen_core.trading.environment import EPISODE_TIME_VALUES, PORTFOLIO_VALUES
from eigen_core.trading.equity import Values

_SELECTION_SHARPNESS = 30.0
_SMALLEST_RANGE = 1e-6
_UP_TO_FULL_SIZE = 5.0
"""Added to the coefficient of an asset to buy, before squashing, so that the position has nearly its full size."""
_MARGIN_OF_HELD_ASSETS = -9.0
_STEEPNESS, _UP_TO_MOST_OF_IT = 4.0, 3.0
"""Factor on margins of a linear score, before squashing, and what is added to the coefficient of an asset to buy: less
than `_UP_TO_FULL_SIZE`, so that the network beside it can still change the order of assets to buy, and their sizes."""
_WITHIN_THE_BOUNDS = 0.999
_SATURATED = 20.0
_SELECTIVITY = ParameterShape("actor.selectivity", (1,), 16, 0.6, learned=False, gene=(-1.0, 3.0))
"""Agents start with a selectivity within 1/sqrt(16), a quarter of a standard deviation, of the start."""
_SELECTIVITY_BESIDE_LINEAR = replace(_SELECTIVITY, fan_in=2, start=0.8)
"""With a linear part agents trade sensibly before they learn, so that a wide range of selectivities can be compared."""
_GENES_OF_PORTFOLIOS = (
    ParameterShape("actor.gain", (1,), 1, 2.0, learned=False, gene=(0.0, 8.0)),
    ParameterShape("actor.speed", (1,), 1, 0.0, learned=False, gene=(-2.0, 4.0)),
)
"""Target score for a linear score of 1, and speed before squashing, less that of `portfolio.initial_speed`."""
_START_OF_SPREAD = 0.1
_RESERVE_RATE = 0.1
_SMALLEST_SPREAD = 1e-4


@dataclass(frozen=True)
class AssetActions:
    """The values of an asset's action, and of what agents observe of their portfolio and of the time.

    Attributes:
        box: bounds of the values of one asset's action.
        portfolio_values: number of values that agents observe of their position in an asset; 0: they observe none.
        time_values: number of values that agents observe of the time in the episode; 0: none.
        preference: returns the logits of a softmax over assets, by which critics select them, float32 `[..., assets]`.
            Arguments: actions `scaled`, float32 `[..., assets, values]`; the observed positions, float32
            `[..., assets, portfolio values]`, or None.
        buy: returns actions before squashing, float32 `[..., assets, values]`, that buy the assets not held with the
            highest positive margins. Arguments: `margins`, and sale targets as shares of their range, float32
            `[..., assets]` each; the observed positions, or None. None if the task's actions do not buy assets.
        follow: returns what a linear part adds to actions before squashing, float32 `[agents, days, assets, values]`.
            Arguments: the actors; the linear part's scores of assets, the higher the better and with a standard
            deviation of 1, float32 `[agents, days, assets]`; the observed positions, or None.
        genes: the parameters of actors that `follow` reads.
    """

    box: Box
    portfolio_values: int
    time_values: int
    preference: Callable[[Tensor, Tensor | None], Tensor]
    follow: Callable[[Parameters, Tensor, Tensor | None], Tensor]
    genes: tuple[ParameterShape, ...]
    buy: Callable[[Tensor, Tensor, Tensor | None], Tensor] | None = None

    @property
    def values(self) -> int:
        return self.box.values

    def scaled(self, actions: Tensor) -> Tensor:
        """Return actions as shares of their range, from 0 to 1; without an upper bound, as distance from the lower."""
        width = (self.box.high - self.box.low).clamp_min(_SMALLEST_RANGE)
        return (actions - self.box.low) / torch.where(width.isinf(), 1.0, width)


def market_actions(config: Config, device: torch.device) -> AssetActions:
    """Return the market task's actions: coefficient, sale target, and rank if `trading.rank` is `separate`."""
    # Must precede the first computation, in `Box`.
    compute_reproducibly(config.instructions, device)
    trading, observes = config.trading, config.trading.observe_portfolio
    highest = math.inf if trading.max_coefficient is None else trading.max_coefficient
    ranks = trading.rank == "separate"
    ranked_by = 2 if ranks else 0
    box = Box((0.0, trading.min_target, *[0.0] * ranks), (highest, trading.max_target, *[1.0] * ranks), device)
    threshold = _raw_coefficient(trading.buy_threshold, highest)

    def joined(margin: Tensor, up: float, target: Tensor) -> Tensor:
        parts = [threshold + margin + up * (margin > 0.0), target]
        return torch.stack([*parts, margin] if ranks else parts, dim=-1)

    def free(margin: Tensor, portfolio: Tensor | None) -> Tensor:
        return margin if portfolio is None else margin.masked_fill(portfolio[..., 0] > 0.0, _MARGIN_OF_HELD_ASSETS)

    def buy(margin: Tensor, share: Tensor, portfolio: Tensor | None) -> Tensor:
        target = box.raw((2.0 * share - 1.0) * _WITHIN_THE_BOUNDS)
        return joined(free(margin, portfolio), _UP_TO_FULL_SIZE, target)

    def follow(actor: Parameters, scores: Tensor, portfolio: Tensor | None) -> Tensor:
        margin = _STEEPNESS * free(scores - actor["actor.selectivity"][:, :, None], portfolio)
        return joined(margin, _UP_TO_MOST_OF_IT, torch.zeros_like(margin))

    return AssetActions(
        box,
        PORTFOLIO_VALUES if observes else 0,
        EPISODE_TIME_VALUES if observes else 0,
        # The asset of the highest rank is bought first. If several are bought, equal shares of them would have no
        # gradient by which one is preferred to another.
        lambda scaled, portfolio: _SELECTION_SHARPNESS * scaled[..., ranked_by],  # noqa: ARG005 - of the portfolio task
        follow,
        (_SELECTIVITY_BESIDE_LINEAR,),
        buy,
    )


def _raw_coefficient(coefficient: float, highest: float) -> float:
    if math.isinf(highest):
        raw = math.log(math.expm1(coefficient)) if coefficient else -math.inf
    else:
        share = coefficient / highest
        raw = math.log(share / (1.0 - share)) if 0.0 < share < 1.0 else math.copysign(math.inf, share - 0.5)
    return min(max(raw, -_SATURATED), _SATURATED)


def portfolio_actions(config: Config, device: torch.device) -> AssetActions:
    """Return the portfolio task's actions: target score (`PortfolioConfig`), and speed, the share of the way to it."""
    # Must precede the first computation, in `Box`.
    compute_reproducibly(config.instructions, device)
    most = config.portfolio.max_score

    def reached(scaled: Tensor, portfolio: Tensor | None) -> Tensor:
        wanted = most * (2.0 * scaled[..., 0] - 1.0)
        if portfolio is None:
            return wanted
        scores = most * portfolio[..., 0]
        return scores + scaled[..., 1] * (wanted - scores)

    box = Box((-most, 0.0), (most, 1.0), device, initial=(0.5, config.portfolio.initial_speed))

    def follow(actor: Parameters, scores: Tensor, portfolio: Tensor | None) -> Tensor:  # noqa: ARG001 - of the market task
        gain, speed = (actor[f"actor.{name}"][:, :, None] for name in ("gain", "speed"))
        # Scores are 2 `most` times the logistic function, less its middle, where its slope is a quarter.
        return torch.stack([2.0 / most * gain * scores, speed.expand_as(scores)], dim=-1)

    return AssetActions(box, 1 if config.trading.observe_portfolio else 0, 0, reached, follow, _GENES_OF_PORTFOLIOS)


@dataclass(frozen=True)
class ExpectedOutcomes:
    """Predicted outcomes of each alternative, float32 `[agents, batch, assets, sale targets]`.

    Attributes:
        learned: the network's prediction of the trade's reward, scaled (`learner.reward_scale`).
        shares: predicted time for which the trade blocks its asset, as a share of the longest holding time.
        linear: the reward that the linear part of the actor predicts; None: it has none.
        gate: the share of `learned` that is added to `linear`, `[agents, 1, 1, 1]`.
    """

    learned: Tensor
    shares: Tensor
    linear: Tensor | None = None
    gate: Tensor | None = None

    @property
    def rewards(self) -> Tensor:
        """Predicted reward of the trade, scaled, by which agents act."""
        return self.learned if self.linear is None or self.gate is None else self.linear + self.gate * self.learned

    @property
    def whole(self) -> Tensor:
        """Prediction with the whole output of the network, which gradient steps fit."""
        return self.learned if self.linear is None else self.linear + self.learned

    def detach(self) -> "ExpectedOutcomes":
        return replace(self, learned=self.learned.detach(), shares=self.shares.detach())


_fixed = partial(ParameterShape, fan_in=0, learned=False)


@dataclass(frozen=True)
class LinearStart:
    """Where the linear part of an actor begins: float64.

    Attributes:
        weight, bias: from an asset's features they predict the rewards of all sale targets, or a score of the asset
            (one output): `[features, outputs]`, and `[outputs]`.
        shares: mean of `Outcomes.shares`, `[targets]`.
        mean, spread: mean, in standard deviations, and standard deviation of each asset's best prediction.
    """

    weight: Values
    bias: Values
    shares: Values = field(default_factory=lambda: np.zeros(0))
    mean: float = 0.0
    spread: float = _START_OF_SPREAD

    @classmethod
    def unknown(cls, features: int, outputs: int) -> "LinearStart":
        """Return the start of an actor whose weights are replaced by stored ones, or that predicts nothing."""
        return cls(np.zeros((features, outputs)), np.zeros(outputs), np.zeros(outputs))

    @property
    def shapes(self) -> list[ParameterShape]:
        return [
            _fixed("actor.linear.weight", self.weight.shape, start=self.weight),
            _fixed("actor.linear.bias", self.bias.shape, start=self.bias),
        ]


def outcome_shapes(width: int, targets: int, start: LinearStart | None) -> list[ParameterShape]:
    """Return the parameters of the last layer of an actor that predicts outcomes, and of its reserve price.

    With a `start` it has a linear part too. Gradient steps change the last layer alone.
    """
    bias = [0.0] * (2 * targets)
    linear_part: list[ParameterShape] = []
    selectivity, mean, spread = _SELECTIVITY, 0.0, _START_OF_SPREAD
    if start is not None:
        bias[targets:] = start.shares.tolist()
        linear_part = [*start.shapes, _fixed("actor.gate", (1,))]
        selectivity, mean, spread = _SELECTIVITY_BESIDE_LINEAR, start.mean, start.spread
    return [
        ParameterShape("actor.expected.weight", (width, 2 * targets), 0),
        ParameterShape("actor.expected.bias", (2 * targets,), 0, np.array(bias)),
        *linear_part,
        selectivity,
        _fixed("actor.mean", (1,), start=mean),
        _fixed("actor.log_spread", (1,), start=math.log(spread)),
    ]


def expected_outcomes(parameters: Parameters, hidden: Tensor, linear_part: Tensor | None) -> ExpectedOutcomes:
    """Return the predictions from the last hidden layer, float32 `[agents, batch, assets, width]`.

    `linear_part` is the prediction of `actor.linear`, float32 `[agents, batch, assets, targets]`.
    """
    learned, shares = linear(parameters, "actor.expected", hidden).chunk(2, dim=-1)
    if linear_part is None:
        return ExpectedOutcomes(learned, shares)
    return ExpectedOutcomes(learned, shares, linear_part, parameters["actor.gate"][:, :, None, None])


def margins(parameters: Parameters, expected: ExpectedOutcomes) -> Tensor:
    """Return each alternative's excess over the reserve price, in standard deviations; shape as in `expected`."""
    selectivity, mean, log_spread = (
        parameters[f"actor.{name}"][:, :, None, None] for name in ("selectivity", "mean", "log_spread")
    )
    reserve = torch.relu(mean + selectivity)
    return expected.rewards * torch.exp(-log_spread) - reserve * expected.shares


@torch.no_grad()
def update_reserve(parameters: Parameters, expected: ExpectedOutcomes, known: Tensor) -> None:
    """Move the reserve price's mean and spread, in place, towards those of the assets' best predicted rewards.

    `known` is `Outcomes.known`, bool `[agents, batch, assets]`; predictions where it is false are ignored.
    """
    best, count = expected.rewards.amax(-1) * known, known.sum((1, 2)).clamp_min(1)
    mean = best.sum(-1).sum(-1) / count
    deviation = (best - mean[:, None, None]) * known
    set_reserve(parameters, mean, ((deviation * deviation).sum(-1).sum(-1) / count).sqrt(), _RESERVE_RATE)


@torch.no_grad()
def set_reserve(parameters: Parameters, mean: Tensor, spread: Tensor, rate: float = 1.0) -> None:
    """Move the reserve price's mean and spread, in place, to these of the assets' best predictions: `[agents]` each.

    `rate` is the share of the way.
    """
    spread = spread.clamp_min(_SMALLEST_SPREAD)
    for name, found in (("mean", mean / spread), ("log_spread", spread.log())):
        held = parameters[f"actor.{name}"]
        held.add_((found[:, None] - held) * rate)
