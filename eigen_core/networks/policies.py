"""Policies: the actions of an actor, given its outputs and noise, and their probability densities.

Every operation rounds each value by itself, so that the bits of an action do not depend on the other actions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from eigen_core.networks.layout import Parameters, ParameterShape, linear, linear_shapes


@dataclass(frozen=True)
class Heads:
    """What a learner needs of the networks and transitions that a task provides.

    Attributes:
        critics: number of critics.
        action_values: true: critics value an observation with an action, Q(s, a); false: the observation alone, V(s).
        spread: where the logarithm of the actor's standard deviation comes from. `none`: the actor is deterministic;
            `free`: one parameter for each value of an action; `observed`: outputs of the actor.
        initial_log_std: initial value of the parameters of `free`.
        whole_episodes: true: a batch mixes steps of whole episodes; false: a `BatchSampler` draws it from one block.
        return_steps: most steps of an episode that a transition spans (n-step returns).
        outcomes: for how many settings (sale targets) of an asset the actor predicts outcomes; 0: it predicts none.
    """

    critics: Literal[0, 1, 2] = 1
    action_values: bool = True
    spread: Literal["none", "free", "observed"] = "none"
    initial_log_std: float = 0.0
    whole_episodes: bool = False
    return_steps: int = 1
    outcomes: int = 0


_LOWEST_LOG_STD, _HIGHEST_LOG_STD = -20.0, 2.0


class SampledActions(NamedTuple):
    """Actions in the task's units, float32 `[agents, ..., *action]`, and `stored`, the form that `log_prob` reads."""

    actions: Tensor
    stored: Tensor


class Policy(Protocol):
    """A distribution over actions for each observation; actions are float32 `[agents, batch, *action]`."""

    @property
    def mode(self) -> Tensor:
        """Actions without noise, in the task's units (natural units)."""

    def play(self, noise: Tensor | None) -> SampledActions:
        """Return actions; `noise`, `[agents, count, *action]`, is for the first `count` observations, others get none.

        An action without noise is the mode. For a stochastic policy the noise is standard normal numbers, for a
        deterministic one it is added to actions, in fractions of an action's range.
        """

    def sample(self, noise: Tensor) -> Tensor:
        """Draw actions (`SampledActions.stored`) from standard normal noise; a Gaussian policy's have a gradient."""

    def log_prob(self, stored: Tensor) -> Tensor:
        """Return the log-density of actions (`SampledActions.stored`): float32 `[agents, batch]`."""

    @property
    def entropy(self) -> Tensor:
        """Entropy for each observation, in nats: float32 `[agents, batch]`."""


class Box:
    """Bounds of continuous actions, between which real numbers are squashed.

    A number x becomes `low + (high - low) * (1 + tanh(steepness * x)) / 2`, and `low + softplus(x)` where there is no
    upper bound.

    Args:
        low: lower bound of each value of an action.
        high: upper bound of each value; may be infinite.
        steepness: 0.5 gives the logistic function, 1 gives tanh.
        initial: action of an actor with weights of 0, as a fraction of each value's range; None: the middle.

    Attributes:
        low, high, initial: float32 `[values]`.
        offset: added to an actor's outputs before squashing, so that they begin at `initial`: `[values]`; None: 0.
    """

    def __init__(
        self,
        low: Sequence[float],
        high: Sequence[float],
        device: torch.device,
        steepness: float = 0.5,
        initial: Sequence[float] | None = None,
    ) -> None:
        lows, highs = (torch.tensor(bounds, dtype=torch.float64) for bounds in (low, high))
        unbounded = highs.isinf()
        self.values = len(low)
        self.low, self.high = lows.float().to(device), highs.float().to(device)
        self._range = (highs - lows).masked_fill(unbounded, 1.0).float().to(device)
        self._unbounded = unbounded.to(device) if bool(unbounded.any()) else None
        self._steepness = steepness
        fractions = torch.tensor(initial or [0.5] * self.values, dtype=torch.float64)
        self.initial = fractions.float().to(device)
        self.offset = self.raw(2.0 * fractions - 1.0).float().to(device) if bool((fractions != 0.5).any()) else None

    def actions(self, raw: Tensor) -> Tensor:
        """Squash numbers `[..., values]` to actions between the bounds."""
        # By way of tanh, whose bits do not depend on where a value lies in its tensor.
        actions = self.low + self._range * (0.5 + 0.5 * torch.tanh(self._steepness * raw))
        if self._unbounded is None:
            return actions
        softplus = torch.relu(raw) + torch.log1p(torch.exp(-raw.abs()))
        return torch.where(self._unbounded, self.low + softplus, actions)

    def fractions(self, actions: Tensor) -> Tensor:
        """Return actions as fractions of their range, from 0 to 1; as distances from `low` where `high` is infinite."""
        return (actions - self.low) / self._range

    def raw(self, fractions: Tensor) -> Tensor:
        """Invert squashing: return the numbers that become actions scaled to the open interval (-1, 1)."""
        return (torch.log1p(fractions) - torch.log1p(-fractions)) / (2.0 * self._steepness)

    def log_slope(self, raw: Tensor) -> Tensor:
        """Return log |dy/dx|, where y is the action of x, scaled to [-1, 1] unless `high` is infinite.

        1 - tanh(u)^2 = 4 exp(-2|u|) / (1 + exp(-2|u|))^2, whose logarithm is exact where tanh has become 1.
        """
        u = (self._steepness * raw).abs()
        slope = math.log(4.0 * self._steepness) - 2.0 * (u + torch.log1p(torch.exp(-2.0 * u)))
        if self._unbounded is None:
            return slope
        logistic = raw.clamp_max(0.0) - torch.log1p(torch.exp(-raw.abs()))
        return torch.where(self._unbounded, logistic, slope)

    def explore(self, actions: Tensor, noise: Tensor) -> Tensor:
        """Add noise, in fractions of the range (of 1 where `high` is infinite), and clip actions to their bounds."""
        return torch.clamp(actions + noise * self._range, self.low, self.high)


class Choices(Box):
    """Discrete actions: one of `count` choices, as a one-hot vector."""

    def __init__(self, count: int, device: torch.device) -> None:
        super().__init__([0.0] * count, [1.0] * count, device)


@dataclass(frozen=True)
class SquashedGaussian:
    """Implements `Policy`: normally distributed numbers that are squashed between the bounds of a box.

    Haarnoja et al. 2018 (arXiv:1812.05905), appendix C. Densities are of actions scaled to [-1, 1].

    Attributes:
        mean: float32 `[agents, batch, ..., values]`, before squashing.
        log_std: the same shape; None: the policy is deterministic.
        box: bounds of the actions.
    """

    mean: Tensor
    log_std: Tensor | None
    box: Box

    @property
    def mode(self) -> Tensor:
        return self.box.actions(self.mean)

    def play(self, noise: Tensor | None) -> SampledActions:
        if self.log_std is None:
            actions = self.mode
            if noise is not None:
                actions = _continued(self.box.explore(actions[:, : noise.shape[1]], noise), actions)
            return SampledActions(actions, actions)
        raw = self.mean
        if noise is not None:
            count = noise.shape[1]
            first = replace(self, mean=self.mean[:, :count], log_std=self._spread[:, :count])
            raw = _continued(first.sample(noise), raw)
        return SampledActions(self.box.actions(raw), raw)

    def sample(self, noise: Tensor) -> Tensor:
        return self.mean + torch.exp(self._spread) * noise

    def log_prob(self, stored: Tensor) -> Tensor:
        """Return the log-density summed over an action's values; `stored` are the numbers before squashing."""
        spread = self._spread
        score = (stored - self.mean) * torch.exp(-spread)
        normal = -0.5 * score * score - spread - 0.5 * math.log(2.0 * math.pi)
        return (normal - self.box.log_slope(stored)).flatten(2).sum(-1)

    @property
    def entropy(self) -> Tensor:
        """Entropy before squashing, summed over an action's values; for squashed actions there is no closed form."""
        return (self._spread + 0.5 * math.log(2.0 * math.pi * math.e)).flatten(2).sum(-1)

    @property
    def _spread(self) -> Tensor:
        if self.log_std is None:
            raise ValueError("A deterministic policy (Heads.spread is none) has no log_prob, entropy or sample.")
        return self.log_std


@dataclass(frozen=True)
class Categorical:
    """Implements `Policy` for discrete actions (`Choices`): a softmax of logits.

    Attributes:
        logits: float32 `[agents, batch, ..., choices]`.
    """

    logits: Tensor

    @property
    def mode(self) -> Tensor:
        return _one_hot(self.logits)

    def play(self, noise: Tensor | None) -> SampledActions:
        chosen = self.mode
        if noise is not None:
            chosen = _continued(Categorical(self.logits[:, : noise.shape[1]]).sample(noise), chosen)
        return SampledActions(chosen, chosen)

    def sample(self, noise: Tensor) -> Tensor:
        """Return the choice with the highest sum of logit and Gumbel noise, which draws each with its probability.

        The distribution function turns standard normal `noise` into Gumbel noise (Gumbel 1954, "Statistical theory of
        extreme values", section 5). There is no gradient.
        """
        gumbel = -torch.log(-torch.special.log_ndtr(noise.double()))
        return _one_hot(self.logits + gumbel)

    def log_prob(self, stored: Tensor) -> Tensor:
        return (stored * self._log_probabilities).flatten(2).sum(-1)

    @property
    def entropy(self) -> Tensor:
        logarithms = self._log_probabilities
        return -(torch.exp(logarithms) * logarithms).flatten(2).sum(-1)

    @property
    def _log_probabilities(self) -> Tensor:
        # By hand: the rounding of torch's backward pass depends on the number of threads.
        shifted = self.logits - self.logits.detach().amax(-1, keepdim=True)
        return shifted - torch.log(torch.exp(shifted).sum(-1, keepdim=True))


def _continued(first: Tensor, whole: Tensor) -> Tensor:
    """Return `whole`, `[agents, batch, ...]`, with the first ones of the batch replaced by `first`."""
    count = first.shape[1]
    return torch.cat([first, whole[:, count:]], dim=1) if count < whole.shape[1] else first


def _one_hot(scores: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).float()


def action_shapes(name: str, inputs: int, box: Box, heads: Heads) -> list[ParameterShape]:
    """Return the shapes of the parameters of a Gaussian actor's last layer, called `name`."""
    outputs = 2 * box.values if heads.spread == "observed" else box.values
    shapes = linear_shapes(name, inputs, outputs)
    if heads.spread == "free":
        shapes.append(ParameterShape(f"{name}.log_std", (box.values,), 0, heads.initial_log_std))
    return shapes


def policy_of(parameters: Parameters, name: str, hidden: Tensor, box: Box, heads: Heads) -> SquashedGaussian:
    """Return the policy of a Gaussian actor, given the input of its last layer, `name`: `[agents, ..., inputs]`."""
    outputs = linear(parameters, name, hidden)
    if heads.spread == "none":
        return SquashedGaussian(outputs if box.offset is None else outputs + box.offset, None, box)
    if heads.spread == "observed":
        mean, log_std = outputs.chunk(2, dim=-1)
    else:
        mean, free = outputs, parameters[f"{name}.log_std"]
        log_std = free.reshape(len(free), *[1] * (outputs.ndim - 2), -1).expand_as(outputs)
    if box.offset is not None:
        mean = mean + box.offset
    return SquashedGaussian(mean, log_std.clamp(_LOWEST_LOG_STD, _HIGHEST_LOG_STD), box)
