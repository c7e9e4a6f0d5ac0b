"""Base classes of learners, which draw batches and take Adam steps of critics and actors for a group of agents at once.

A group is some agents whose tensors are stacked (`Population`). Adam's update is a sequence of operations that each
round every value once, and norms are summed in pieces of fixed size. So the bits of an agent's weights do not depend on
the other agents in its group or on the number of threads.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import ClassVar, Generic, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.randomness import keyed_generator
from eigen_core.common.records import Curve
from eigen_core.common.text import FLOAT32_BYTES
from eigen_core.config import (
    ActorCriticConfig,
    BatchLearnerConfig,
    BatchSamplingConfig,
    Config,
    LearnerConfig,
    OffPolicyConfig,
)
from eigen_core.learning.interface import LearningResult, learner_settings, setting
from eigen_core.machine.gpu import CapturedStep, on_device
from eigen_core.machine.performance import noise_at_once
from eigen_core.networks.encoders import FirstDay
from eigen_core.networks.layout import Parameters
from eigen_core.networks.policies import Policy
from eigen_core.networks.population import Population
from eigen_core.task.interface import BatchSampler, Encoded, KnownReturns, Observed, Task, Transitions
from eigen_core.task.replay import Replay

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8
_PIECE = 1_024


class BaseLearner(Generic[Observed, Encoded]):
    """Keeps the moments and the step count of each agent's Adam optimizer, which serves its critic and its actor.

    Subclasses add the rest of `Learner`. An agent takes at most `most_steps` optimizer steps in a generation.
    """

    curves: ClassVar[tuple[Curve, ...]]
    settings: ClassVar[type[LearnerConfig]]
    """Pydantic model of the configuration's section `learner` for this learner."""

    def __init__(self, config: Config, task: Task[Observed, Encoded], most_steps: int) -> None:
        self._config, self._task, self._most_steps = config, task, most_steps
        self._learner = learner_settings(config, self.settings)
        critic, actor = task.critic_layout.size, task.actor_layout
        self._critic, self._actor = slice(0, critic), slice(critic, critic + actor.size)
        self._learned_actor = slice(critic, critic + actor.learned)

    def new_agents(self, weights: Tensor, teacher: Population | None = None) -> Population:
        if teacher is not None:
            return teacher.with_weights(weights)
        state = {
            "first_moment": torch.zeros_like(weights),
            "second_moment": torch.zeros_like(weights),
            "steps": torch.zeros(len(weights), dtype=torch.int64, device=weights.device),
        }
        return Population(weights, state)

    def bounds(self, generation: int) -> dict[str, tuple[float, float]]:
        return {"second_moment": (0.0, math.inf), "steps": (0.0, float(generation * self._most_steps))}

    def _whole_actor(self, group: Population, learned: Tensor) -> Tensor:
        """Return the actors' rows of weights, given the part that gradient steps change, `self._learned_actor`."""
        return torch.cat([learned, group.weights[:, self._learned_actor.stop : self._actor.stop]], dim=1)


@dataclass(frozen=True)
class BatchPlan:
    """Transitions that each agent learns from in a generation. Implements `LearningPlan`.

    Attributes:
        slots: indices in the replay buffer, int64 `[agents, gradient steps, accumulation steps, batch]`.
        blocks: first day of the block of days that each batch is from, `[gradient steps][accumulation steps]`.
        earlier_steps: `learner.gradient_steps` times the number of earlier generations, even if some did not learn.
        generation: number of the generation, from 1.
        first_agent: index in the population of the first agent of this plan.
    """

    slots: Tensor
    blocks: tuple[tuple[int, ...], ...]
    earlier_steps: int = 0
    generation: int = 1
    first_agent: int = 0

    @property
    def gradient_steps(self) -> int:
        return int(self.slots.shape[1])

    def rows(self, agents: slice) -> "BatchPlan":
        return replace(self, slots=self.slots[agents], first_agent=self.first_agent + agents.start)

    def noise(self, seed: int, purpose: str, shape: Sequence[int], device: torch.device) -> Callable[[int], Tensor]:
        """Return a function that takes a number of gradient steps and draws the standard normal noise of the next ones.

        The noise is float32 `[gradient steps, accumulation steps, agents, batch, *shape]`; `shape` is that of an
        action. An agent's noise depends on the seed, the generation, its index, `purpose` and the steps drawn before.
        """
        agents, _, accumulation_steps, batch = self.slots.shape
        generators = [
            keyed_generator(seed, self.generation, "train", self.first_agent + agent, purpose)
            for agent in range(agents)
        ]

        def draw(steps: int) -> Tensor:
            batches = (steps, accumulation_steps, agents)
            noise = np.empty((*batches, batch, *shape), dtype=np.float32)
            for index in np.ndindex(batches):
                generators[index[-1]].standard_normal(dtype=np.float32, out=noise[index])
            return on_device(noise, device)

        return draw


class StepInputs(NamedTuple):
    """Inputs that differ from one gradient step of a group to the next (see `BatchPlan`).

    Attributes:
        slots: replay indices of each agent's batches, int64 `[agents, accumulation steps, batch]`.
        blocks: for each accumulation step the first day of the block that its batches are from.
        corrections: `bias_corrections` of each optimizer, float32 `[agents, 2]`; None if it takes no step this time.
        noise: noise for each of `BatchLearner.noises`, float32 `[accumulation steps, agents, batch, *action]`.
    """

    slots: Tensor
    blocks: Sequence[FirstDay]
    corrections: tuple[Tensor | None, ...]
    noise: tuple[Tensor, ...]

    @property
    def batches(self) -> list[tuple[Tensor, FirstDay]]:
        """For each accumulation step its replay indices, int64 `[agents, batch]`, and the first day of its block."""
        return list(zip(self.slots.unbind(1), self.blocks, strict=True))


class BatchLearner(BaseLearner[Observed, Encoded]):
    """Takes gradient steps on batches sampled from the replay buffer; subclasses implement one step (`_step`)."""

    noises: ClassVar[tuple[str, ...]] = ()
    """Purposes for which a gradient step draws noise; each agent has one random generator for each purpose."""
    settings: ClassVar[type[LearnerConfig]] = BatchSamplingConfig
    _learner: BatchSamplingConfig

    def __init__(self, config: Config, task: Task[Observed, Encoded]) -> None:
        super().__init__(config, task, learner_settings(config, BatchSamplingConfig).gradient_steps)

    def plan(self, replay: Replay, agents: int, generation: int) -> BatchPlan | None:
        """Draw the batches of a generation; the n-th batches of all agents are from the same block of days.

        Returns None if `learner.gradient_steps` is 0, or while the replay holds too few transitions (`_sampler`).
        """
        learner, seed = self._learner, self._config.seed
        sampler = self._sampler(replay) if learner.gradient_steps else None
        if sampler is None:
            return None
        batches = (learner.gradient_steps, learner.accumulation_steps)
        blocks = sampler.draw_blocks(keyed_generator(seed, generation, "train", "shared", "blocks"), batches)
        slots = np.empty((agents, *batches, learner.batch_size), dtype=np.int64)
        for agent in range(agents):
            generator = keyed_generator(seed, generation, "train", agent, "batches")
            for step, index in np.ndindex(*batches):
                slots[agent, step, index] = sampler.draw(generator, int(blocks[step, index]))
        return BatchPlan(
            slots=torch.tensor(slots),
            blocks=tuple(tuple(int(block) for block in row) for row in blocks),
            earlier_steps=(generation - 1) * learner.gradient_steps,
            generation=generation,
        )

    def learn(
        self, group: Population, plan: BatchPlan, replay: Replay, between_steps: Callable[[], None]
    ) -> LearningResult:
        device, config = group.weights.device, self._config
        slots = plan.slots.to(device)
        blocks: Sequence[Sequence[FirstDay]] = plan.blocks
        if device.type != "cpu":
            # As tensors, so that a captured step computes any block.
            blocks = [list(first_days) for first_days in on_device(np.array(plan.blocks), device)]
        shape = self._task.noise_shape(1)[2:]
        draws = [plan.noise(config.seed, purpose, shape, device) for purpose in self.noises]
        corrections = [count_steps(group, name, moves) for name, moves in self._moves(plan).items()]
        step_bytes = FLOAT32_BYTES * slots[:, 0].numel() * prod(shape) * len(draws)
        at_once = noise_at_once(plan.gradient_steps, step_bytes, device.type)
        take_step = CapturedStep(partial(self._step, group, replay), device, captures=config.cuda_graphs)
        drawn: list[Tensor] = []
        steps = []
        for index, first_days in enumerate(blocks):
            if index % at_once == 0:
                # Frees the previous noise first: no step keeps its inputs.
                drawn.clear()
                drawn.extend(draw(min(at_once, plan.gradient_steps - index)) for draw in draws)
            optimizers = tuple(optimizer[index] for optimizer in corrections)
            noise = tuple(of_steps[index % at_once] for of_steps in drawn)
            steps.append(take_step(StepInputs(slots[:, index], first_days, optimizers, noise)))
            between_steps()
        return LearningResult.of(group, self.curves, steps)

    def _sampler(self, replay: Replay) -> BatchSampler | None:
        """Return the sampler; None while the replay holds fewer transitions than `replay.minimum` or than a batch."""
        if replay.size < self._config.replay.minimum:
            return None
        return self._task.sampler(replay, self._learner.batch_size)

    def _moves(self, plan: BatchPlan) -> dict[str, list[bool]]:
        """Return, by the name of an optimizer's step count in `Population.state`, in which gradient steps it steps."""
        return {"steps": [True] * plan.gradient_steps}

    def _step(self, group: Population, replay: Replay, step: StepInputs) -> list[Tensor]:
        """Take one gradient step of a group, in place; return the values of `curves`, float32 `[agents]` each."""
        raise NotImplementedError


def count_steps(group: Population, name: str, moves: Sequence[bool]) -> list[Tensor | None]:
    """Add the coming steps of an optimizer, those gradient steps whose `moves` are true, to `group.state[name]`.

    Returns `bias_corrections` of each gradient step, float32 `[agents, 2]`; None if the optimizer does not step.
    """
    counts = group.state[name]
    numbers = counts.cpu().numpy() + np.cumsum(moves)[:, None]
    counts.copy_(torch.from_numpy(numbers[-1]))
    moving = iter(bias_corrections(numbers[list(moves)], group.weights.device))
    return [next(moving) if moved else None for moved in moves]


def bias_corrections(counts: NDArray[np.int64], device: torch.device) -> Tensor:
    """Return Adam's factors 1 / (1 - beta^count) of both moments for counts `[...]` of at least 1: `[..., 2]`."""
    # Plain Python powers: a vectorised power rounds differently at the end of a row.
    factors = [[1.0 / (1.0 - beta**count) for beta in (_BETA1, _BETA2)] for count in counts.flatten().tolist()]
    return on_device(np.array(factors, dtype=np.float32).reshape(*counts.shape, 2), device)


def row_norms(rows: Tensor) -> Tensor:
    """Return the Euclidean norm of each row of float32 `[agents, values]`: float32 `[agents]`."""
    squares = rows * rows
    padded = torch.nn.functional.pad(squares, (0, -squares.shape[1] % _PIECE))
    return padded.reshape(len(rows), -1, _PIECE).sum(-1).sum(-1).sqrt()


def clip_rows(gradients: Tensor, limit: float) -> Tensor:
    """Scale rows `[agents, values]` to a norm of at most `limit`, in place; return the norms before: `[agents]`."""
    norms = row_norms(gradients)
    gradients.mul_((limit / norms.clamp_min(1e-12)).clamp_max(1.0)[:, None])
    return norms


def clipped_step(
    population: Population,
    columns: slice,
    rows: Tensor,
    corrections: Tensor,
    learning_rate: str,
    config: LearnerConfig,
    *,
    agents: list[int] | None = None,
    annealing: float = 1.0,
) -> Tensor:
    """Clip the gradients in `rows.grad`, take an Adam step of some weights, in place, and return the norms unclipped.

    Args:
        columns: the weights to step, as a slice of an agent's row; `rows` is a copy of them, `[agents, weights]`.
        corrections: `bias_corrections` of the agents that step, float32 `[agents that step, 2]`.
        learning_rate: name of the learner's setting; its value is multiplied by `annealing`.
        agents: indices of the agents that step; the others keep their weights and moments. None: all step.
    """
    assert rows.grad is not None
    gradients, rate = rows.grad, annealing * setting(population, config, learning_rate)
    norms = clip_rows(gradients, config.gradient_clip)
    banks = (population.weights, population.state["first_moment"], population.state["second_moment"])
    weights, first, second = (bank[:, columns] for bank in banks)
    if agents is None or len(agents) == population.size:
        adam_update(weights, first, second, gradients, corrections, rate, config.weight_decay)
    elif agents:
        own = weights[agents], first[agents], second[agents]
        own_rate = rate[agents] if isinstance(rate, Tensor) else rate
        adam_update(*own, gradients[agents], corrections, own_rate, config.weight_decay)
        weights[agents], first[agents], second[agents] = own
    return norms


def adam_update(
    weights: Tensor,
    first: Tensor,
    second: Tensor,
    gradients: Tensor,
    corrections: Tensor,
    learning_rate: float | Tensor,
    decay: float = 0.0,
) -> None:
    """Move weights and both moments, float32 `[agents, values]` each, by one step, in place.

    Adam: Kingma & Ba 2015 (arXiv:1412.6980), algorithm 1. Decoupled decay: Loshchilov & Hutter 2019
    (arXiv:1711.05101), algorithm 2.

    Args:
        first, second: running means of the gradients and of their squares (the moments).
        corrections: `bias_corrections` for each agent's step count, float32 `[agents, 2]`.
        learning_rate: one number for all agents, or one for each, float32 `[agents, 1]`.
        decay: decoupled weight decay; it is multiplied by the learning rate.
    """
    first.mul_(_BETA1).add_(gradients * (1.0 - _BETA1))
    second.mul_(_BETA2).add_((gradients * gradients).mul_(1.0 - _BETA2))
    step = (first * corrections[:, :1]) / ((second * corrections[:, 1:]).sqrt_().add_(_EPSILON))
    step.add_(weights * decay)
    weights.sub_(step.mul_(learning_rate))


def scaled(rewards: Tensor, group: Population, config: BatchLearnerConfig) -> Tensor:
    """Multiply rewards, `[agents, ...]`, by `learner.reward_scale`, and clip them to +-`learner.reward_clip` if set."""
    scaled_rewards = rewards * setting(group, config, "reward_scale")
    clip = config.reward_clip
    return scaled_rewards if clip is None else scaled_rewards.clamp(-clip, clip)


def discounted_rewards(
    batch: Transitions[Observed], group: Population, config: BatchLearnerConfig
) -> tuple[Tensor, Tensor]:
    """Return the sum of the discounted rewards of each transition's steps, and the discount factor of the state after.

    The sum, plus this factor times the value of that state, is the n-step return: Watkins 1989, "Learning from delayed
    rewards"; Sutton & Barto 2018, "Reinforcement learning", equation 7.1. The later actions of a transition are those
    that were played, not the current actor's; as in Hessel et al. 2018 (arXiv:1710.02298), this is not corrected for.

    Returns:
        float32 `[agents, batch]` each; the factor is 0 where the episode has terminated.
    """
    given = setting(group, config, "gamma")
    # `where` would copy a number from the host, for which a GPU waits, and which a CUDA graph cannot capture.
    gamma = given if isinstance(given, Tensor) else torch.full((), given, device=batch.rewards.device)
    total, discount = scaled(batch.rewards[..., 0], group, config), gamma
    power = gamma
    for step in range(1, batch.rewards.shape[-1]):
        total = total + power * scaled(batch.rewards[..., step], group, config)
        power = power * gamma
        discount = torch.where(batch.steps > step, power, discount)
    return total, (~batch.terminal).float() * discount


def polyak_update(targets: Tensor, weights: Tensor, tau: float) -> None:
    """Move target networks' weights towards `weights` by `tau` times the difference, in place."""
    targets.add_((weights - targets).mul_(tau))


def with_known_returns(
    loss: Tensor,
    task: Task[Observed, Encoded],
    critic: Parameters,
    encoding: Encoded,
    config: ActorCriticConfig,
    batches: int = 1,
) -> Tensor:
    """Return the critics' loss of one of some batches, `[agents]`, plus the weighted loss of known returns.

    The encoder so learns what is known of every asset, not only of those that agents traded (an auxiliary task, as in
    Jaderberg et al. 2017, arXiv:1611.05397).
    """
    if not config.known_return_weight:
        return loss
    return loss + cast("KnownReturns", task).known_return_loss(critic, encoding) * config.known_return_weight / batches


class CriticUpdate(NamedTuple, Generic[Encoded]):
    """Result of one optimizer step of the critics of a group.

    Attributes:
        encodings: for each batch (accumulation step) its observations, encoded before the step, without a gradient.
        loss: squared temporal-difference error, summed over critics and averaged over batches, float32 `[agents]`.
        value: the first critic's mean value of the actions in the batches, float32 `[agents]`.
        gradient_norm: norm of the critics' gradient before clipping, float32 `[agents]`.
    """

    encodings: list[Encoded]
    loss: Tensor
    value: Tensor
    gradient_norm: Tensor


class OffPolicyLearner(BatchLearner[Observed, Encoded]):
    """Fits critics to temporal-difference targets (`_td_target`), and an actor to the critics (`_step`)."""

    _learner: OffPolicyConfig

    def _td_target(self, group: Population, batch: Transitions[Observed], noise: Sequence[Tensor]) -> Tensor:
        """Return the values that the critics shall predict for a batch, `[agents, batch]`, without a gradient."""
        raise NotImplementedError

    def _natural_actions(self, stored: Tensor) -> Tensor:
        """Convert actions from the form in the replay (`SampledActions.stored`) to the units that the task executes."""
        return stored

    def _fit_critics(self, group: Population, replay: Replay, step: StepInputs) -> CriticUpdate[Encoded]:
        task, corrections = self._task, step.corrections[0]
        assert corrections is not None
        rows = group.weights[:, self._critic].clone().requires_grad_()
        losses, values_seen = torch.zeros_like(rows[:, 0]), torch.zeros_like(rows[:, 0])
        encodings = []
        for index, (slots, block) in enumerate(step.batches):
            batch = task.transitions(replay, slots, block)
            target = self._td_target(group, batch, [drawn[index] for drawn in step.noise])
            critic = task.critic_layout.views(rows)
            encoding = task.encode(critic, batch.observations)
            values = task.values(critic, encoding, self._natural_actions(batch.actions))
            error = values - target
            loss = (error * error).mean(-1).sum(0) / len(step.blocks)
            whole = with_known_returns(loss, task, critic, encoding, self._learner, len(step.blocks))
            torch.autograd.backward(whole.sum())
            encodings.append(encoding.detach())
            losses += loss.detach()
            values_seen += values[0].detach().mean(-1) / len(step.blocks)
        norms = clipped_step(group, self._critic, rows, corrections, "critic_learning_rate", self._learner)
        return CriticUpdate(encodings, losses, values_seen, norms)

    def _fit_actor(
        self,
        group: Population,
        encodings: Sequence[Encoded],
        loss_of: Callable[[int, Policy, Callable[[Tensor], Tensor]], Tensor],
        corrections: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Take one optimizer step of the actors, in place; return loss and unclipped gradient norm: `[agents]` each.

        `loss_of` returns the losses of a batch, float32 `[agents, batch]`, given its index, the actor's policy, and a
        function from actions in the task's units to each critic's values.
        """
        task = self._task
        rows = group.weights[:, self._learned_actor].clone().requires_grad_()
        critic = task.critic_layout.views(group.weights[:, self._critic])
        losses = torch.zeros_like(rows[:, 0])
        for index, encoding in enumerate(encodings):
            policy = task.policy(task.actor_layout.views(self._whole_actor(group, rows)), encoding)
            loss = loss_of(index, policy, partial(task.values, critic, encoding)).mean(-1) / len(encodings)
            torch.autograd.backward(loss.sum())
            losses += loss.detach()
        return losses, clipped_step(group, self._learned_actor, rows, corrections, "actor_learning_rate", self._learner)
