"""Executors let agents play episodes and learn, in this process or in workers; the results do not depend on where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.progress import report_progress
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.learning import learner_class
from eigen_core.learning.interface import LearningPlan
from eigen_core.learning.population_method import NOISE_FACTOR
from eigen_core.machine.gpu import on_device
from eigen_core.machine.performance import ThreadTrial, agents_at_once, playing_at_once
from eigen_core.machine.reproducibility import compute_reproducibly, is_reproducible
from eigen_core.networks.population import Population, agent_groups
from eigen_core.task import task_class
from eigen_core.task.interface import Rollout
from eigen_core.task.replay import Replay

# Random actions are drawn from this share of an action's range, around its middle: squashing never reaches the ends.
_LARGEST = 1.0 - 2.0**-20


@dataclass(frozen=True)
class Episodes:
    """Episodes that consecutive agents play in the evaluate phase of `generation`.

    Attributes:
        first_agent: index in the population of the first of these agents.
        training: starts (`Task.training_starts`) of each agent's training episodes, int64 `[agents, episodes]`.
        fixed: starts of the fitness and validation episodes, which all agents play without noise, int64 `[episodes]`.
        noise_scale: standard deviation of the exploration noise, as a fraction of an action's range.
        random: whether agents play training episodes with random actions instead of their own.
        task_state: `Task.state`, which normalises observations.
    """

    generation: int
    first_agent: int
    training: NDArray[np.int64]
    fixed: NDArray[np.int64]
    noise_scale: float
    random: bool
    task_state: Mapping[str, Tensor]

    def rows(self, agents: slice) -> "Episodes":
        return replace(self, training=self.training[agents], first_agent=self.first_agent + agents.start)


@dataclass(frozen=True)
class EpisodeResults:
    """Results of the training episodes, with their transitions, and of those without noise (`Episodes.fixed`)."""

    training: Rollout
    fixed: Rollout

    @property
    def transitions(self) -> Mapping[str, Tensor]:
        assert self.training.transitions is not None
        return self.training.transitions

    @classmethod
    def of(cls, rollout: Rollout, training: int) -> "EpisodeResults":
        """Split a rollout: the first `training` episodes of each agent are training episodes, the others fixed."""
        first, others = (rollout.part(slice(None), part) for part in (slice(training), slice(training, None)))
        return cls(replace(first, transitions=rollout.transitions), others)

    @classmethod
    def joined(cls, parts: Sequence["EpisodeResults"]) -> "EpisodeResults":
        return cls(Rollout.joined([part.training for part in parts]), Rollout.joined([part.fixed for part in parts]))


class Executor(Protocol):
    """Lets agents play and learn; an agent's results depend neither on the process nor on the other agents in it."""

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of arrays sent between processes since this process started or resumed the run."""

    def play(self, population: Population, episodes: Episodes) -> EpisodeResults:
        """Let all agents of a population play their `episodes`."""

    def learn(
        self,
        population: Population,
        agents: slice,
        plan: LearningPlan,
        replay: Replay,
        task_state: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Let the slice `agents` of a population learn; `task_state` (`Task.state`) normalises their observations.

        These agents are overwritten; after an exception their values are undefined. Returns the learner's curves by
        name, float64 `[agents of the slice, gradient steps]` each, on the host.
        """


class LocalExecutor:
    """Lets the agents of a run play and learn in this process, a group at a time. Implements `Executor`."""

    exchanged_bytes = 0

    def __str__(self) -> str:
        return f"{self.device} (at a time {self.playing_size} agents play, {self.group_size} learn)"

    def __init__(self, config: Config, content: Any, device: torch.device) -> None:  # noqa: ANN401 - the task's own
        self.config = config
        self.device = device
        compute_reproducibly(config.instructions, device)
        learner = learner_class(config.learner)
        self.heads = learner.heads(config)
        self.task = task_class(config)(config, content, device, self.heads)
        self.learner = learner(config, self.task)
        is_tried = device.type == "cpu" and config.threads == 0 and is_reproducible(device, config.instructions)
        self._trial = ThreadTrial() if is_tried else None
        self.group_size = agents_at_once(config.population, self.task.block_bytes, device.type)
        self.playing_size = playing_at_once(config.population, self.task.play_bytes, device.type)

    def play(self, population: Population, episodes: Episodes) -> EpisodeResults:
        groups = agent_groups(population.size, self.playing_size)
        parts = []
        with self.task.at(episodes.task_state):
            for index, group in enumerate(groups):
                weights, own = population.weights[group], episodes.rows(group)
                fixed = np.tile(own.fixed, (len(weights), 1))
                if own.random:
                    training = self.task.roll_out(*self._random_play(weights, own), record=True)
                    parts.append(EpisodeResults(training, self.task.roll_out(weights, fixed)))
                else:
                    noise = self._noise(own, population.hyperparameters.get(NOISE_FACTOR), group)
                    starts = np.hstack([own.training, fixed])
                    played = self.task.roll_out(weights, starts, noise, record=True, fixed=len(own.fixed))
                    parts.append(EpisodeResults.of(played, own.training.shape[1]))
                report_progress("evaluate", index + 1, len(groups))
        return EpisodeResults.joined(parts)

    def learn(
        self,
        population: Population,
        agents: slice,
        plan: LearningPlan,
        replay: Replay,
        task_state: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        groups = agent_groups(agents.stop, self.group_size, agents.start)
        total, done = len(groups) * plan.gradient_steps, 0

        def count_step() -> None:
            nonlocal done
            done += 1
            report_progress("train", done, total)
            if self._trial is not None:
                self._trial.step()

        def learn(rows: slice) -> dict[str, Tensor]:
            # A group of all agents is the population itself: no memory for a second one.
            group = population if rows == slice(0, population.size) else population.rows(rows)
            if self._trial is not None:
                self._trial.begin()
            learned = self.learner.learn(group, plan.rows(rows), replay, count_step)
            if learned.group is not population:
                population.put(rows, learned.group)
            return learned.curves

        with self.task.at(task_state):
            curves = [learn(rows) for rows in groups]
        return {name: torch.cat([group[name] for group in curves]) for name in curves[0]}

    def _noise(self, episodes: Episodes, factors: Tensor | None, group: slice) -> Tensor:
        shape = self.task.noise_shape(episodes.training.shape[1])
        rows = [generator.standard_normal(shape, dtype=np.float32) for generator in self._generators(episodes, "noise")]
        noise = on_device(np.stack(rows), self.device)
        # A stochastic policy scales the noise by its own standard deviation.
        if self.heads.spread != "none":
            return noise
        noise.mul_(episodes.noise_scale)
        return noise if factors is None else noise.mul_(factors[group].reshape(-1, *[1] * len(shape)))

    def _random_play(self, weights: Tensor, episodes: Episodes) -> tuple[Tensor, NDArray[np.int64], Tensor]:
        """Return weights, starts and noise for `Task.roll_out` to play actions drawn uniformly from their range."""
        shape = self.task.noise_shape(episodes.training.shape[1])
        rows = [generator.uniform(-1.0, 1.0, shape) for generator in self._generators(episodes, "random actions")]
        fractions = on_device(np.stack(rows).astype(np.float32), self.device).clamp_(-_LARGEST, _LARGEST)
        # With weights of 0 an actor plays its box's initial action, with a standard deviation of 1 if it has one.
        deterministic, box = self.heads.spread == "none", self.task.box
        drawn = fractions / 2.0 if deterministic else box.raw(fractions)
        if box.offset is not None:
            drawn = drawn - (box.initial - 0.5 if deterministic else box.offset)
        return weights.new_zeros(()).expand_as(weights), episodes.training, drawn

    def _generators(self, episodes: Episodes, purpose: str) -> list[np.random.Generator]:
        agents = range(episodes.first_agent, episodes.first_agent + len(episodes.training))
        seed, generation = self.config.seed, episodes.generation
        return [keyed_generator(seed, generation, "evaluate", agent, purpose) for agent in agents]
