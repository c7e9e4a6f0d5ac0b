"""Shared by learners with critics: the regression of critics, scaled rewards, targets that follow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor

from eigen_core.config import BatchLearnerConfig, LearnerConfig
from eigen_core.learning.adam import clipped_step
from eigen_core.learning.interface import setting
from eigen_core.networks.population import Population
from eigen_core.task import Encoded, Observed, Task, Transitions


@dataclass(frozen=True)
class FittedCritics(Generic[Encoded]):
    """Result of one step of the critics.

    Attributes:
        encodings: each batch's observations, encoded before the step, without a gradient.
        loss: squared temporal-difference error, summed over critics and averaged over batches, float32 `[agents]`.
        value: mean value of the stored actions by the first critic, float32 `[agents]`.
        gradient_norm: before clipping, float32 `[agents]`.
    """

    encodings: list[Encoded]
    loss: Tensor
    value: Tensor
    gradient_norm: Tensor


def critic_columns(task: Task[Observed, Encoded]) -> slice:
    """Return the columns of a row that the critic's loss trains."""
    return slice(0, task.critic_layout.size)


def actor_columns(task: Task[Observed, Encoded]) -> slice:
    """Return the columns of a row that the actor's loss trains."""
    return slice(task.critic_layout.size, task.critic_layout.size + task.actor_layout.size)


def scaled(rewards: Tensor, group: Population, config: BatchLearnerConfig) -> Tensor:
    """Return rewards in the units of learning: scaled, then clipped."""
    scaled_rewards = rewards * setting(group, config, "reward_scale")
    clip = config.reward_clip
    return scaled_rewards if clip is None else scaled_rewards.clamp(-clip, clip)


def discounted_rewards(
    batch: Transitions[Observed], group: Population, config: BatchLearnerConfig
) -> tuple[Tensor, Tensor]:
    """Return the discounted rewards of each transition's steps, and the discount of what is observed after them.

    Their sum with the discounted value of that observation is the n-step return: Watkins 1989, "Learning from delayed
    rewards"; Sutton & Barto 2018, "Reinforcement learning", equation 7.1. The later steps are those that were played,
    whatever the actor would play now: nothing corrects for that, as in Hessel et al. 2018 (arXiv:1710.02298).

    Returns:
        float32 `[agents, batch]` each; the discount is 0 where the episode has ended.
    """
    given = setting(group, config, "gamma")
    # A number of the host in `where` is copied to the device, which a GPU waits for and cannot capture.
    gamma = given if isinstance(given, Tensor) else torch.full((), given, device=batch.rewards.device)
    total, discount = scaled(batch.rewards[..., 0], group, config), gamma
    power = gamma
    for step in range(1, batch.rewards.shape[-1]):
        total = total + power * scaled(batch.rewards[..., step], group, config)
        power = power * gamma
        discount = torch.where(batch.steps > step, power, discount)
    return total, (~batch.terminal).float() * discount


def follow(targets: Tensor, weights: Tensor, tau: float) -> None:
    """Move targets towards weights by the share `tau`, in place."""
    targets.add_((weights - targets).mul_(tau))


def fit_critics(
    task: Task[Observed, Encoded],
    group: Population,
    batches: Sequence[Transitions[Observed]],
    td_target: Callable[[Transitions[Observed]], Tensor],
    played: Callable[[Tensor], Tensor],
    corrections: Tensor,
    config: LearnerConfig,
) -> FittedCritics[Encoded]:
    """Take one optimizer step of all critics towards the temporal-difference targets of batches.

    Args:
        task: what is played.
        group: agents; their critics' weights and moments are changed in place.
        batches: whose gradients are averaged.
        td_target: returns what the values of a batch should be, float32 `[agents, batch]`, without a gradient.
        played: returns the actions in natural units of those that are stored.
        corrections: `bias_corrections` of each agent's critic steps, float32 `[agents, 2]`.
        config: learning rate, weight decay, bound of the gradient.
    """
    columns = critic_columns(task)
    rows = group.weights[:, columns].clone().requires_grad_()
    encodings = []
    losses, values_seen = torch.zeros_like(rows[:, 0]), torch.zeros_like(rows[:, 0])
    for batch in batches:
        target = td_target(batch)
        critic = task.critic_layout.views(rows)
        encoding = task.encode(critic, batch.observations)
        values = task.values(critic, encoding, played(batch.actions))
        error = values - target
        loss = (error * error).mean(-1).sum(0) / len(batches)
        torch.autograd.backward(loss.sum())
        encodings.append(encoding.detached())
        losses += loss.detach()
        values_seen += values[0].detach().mean(-1) / len(batches)
    learning_rate = setting(group, config, "critic_learning_rate")
    norms = clipped_step(group, columns, rows, corrections, learning_rate, config)
    return FittedCritics(encodings, losses, values_seen, norms)
