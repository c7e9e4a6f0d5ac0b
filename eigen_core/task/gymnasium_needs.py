"""What a Gymnasium environment needs of memory as a task; each function follows the code that it is about."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from eigen_core.config import Config, merge
from eigen_core.errors import InputError
from eigen_core.needs import DOUBLE, SINGLE, Change, Kept, Operation
from eigen_core.networks import Heads
from eigen_core.networks.layout import product_bytes
from eigen_core.networks.mlp import MlpNetwork
from eigen_core.networks.policies import Box, Choices
from eigen_core.pieces import device_kind, playing_at_once
from eigen_core.replay import Column
from eigen_core.task.gymnasium_environment import EnvironmentFacts, opened_for
from eigen_core.task.gymnasium_rollouts import gymnasium_columns
from eigen_core.task.needs import BatchNeeds, Sample, row_bytes

_ENVIRONMENT_BYTES = 1_100_000
_TIMED_STEPS = 21


@dataclass(frozen=True)
class GymnasiumNeeds:
    """Implements `TaskNeeds`.

    Attributes:
        config: the run.
        facts: the size of its environment.
        heads: what its learner needs of the networks.
    """

    config: Config
    facts: EnvironmentFacts
    heads: Heads

    @cached_property
    def _network(self) -> MlpNetwork:
        values = self.facts.action_values
        box = box_of(self.facts, [-1.0] * values, [1.0] * values, torch.device("cpu"))
        return MlpNetwork(self.facts.observation_values, box, self.config.network, self.heads)

    @property
    def critic(self) -> int:
        """Values of one agent's critics."""
        return self._network.critic_layout.size

    @property
    def actor(self) -> int:
        """Values of one agent's actor."""
        return self._network.actor_layout.size

    @property
    def kept(self) -> list[Kept]:
        """The environments of a group."""
        evaluation = self.config.evaluation
        episodes = max(evaluation.slices, evaluation.fixed_episodes, evaluation.holdout_episodes)
        config = self.config
        count = playing_at_once(config.population, self.play_bytes, device_kind(config.device)) * episodes
        how = (
            f"{count:,} environments, one for each agent and episode of a group, {_ENVIRONMENT_BYTES / 1e6:.1f} MB "
            "each: measured on HalfCheetah-v5, others may take more."
        )
        return [Kept("environments", how, host_bytes=count * _ENVIRONMENT_BYTES)]

    @property
    def columns(self) -> Mapping[str, Column]:
        """What one stored transition consists of."""
        return gymnasium_columns(self.facts.observation_values, self.facts.action_values)

    @property
    def episode_steps(self) -> int:
        """Most steps of an episode."""
        return self.facts.episode_steps

    @property
    def holds_out(self) -> bool:
        """There are always seeds that neither training nor validation knows."""
        return True

    @property
    def noise_values(self) -> int:
        """Values of the exploration noise of one agent in one episode."""
        return self.facts.episode_steps * self.facts.action_values

    @property
    def recorded_row_bytes(self) -> int:
        """A transition."""
        return row_bytes(self.columns)

    @property
    def names_listed(self) -> int:
        """None."""
        return 0

    @property
    def learning(self) -> str:
        """Nothing."""
        return ""

    @property
    def block_bytes(self) -> int:
        """A hidden layer of a batch, or what is observed."""
        width = max(self.config.network.head_width, self.facts.observation_values)
        return SINGLE * self.config.learner.batch_size * width

    def _layers(self, rows: int) -> tuple[int, int]:
        """Bytes of a hidden layer, and the most at once while one is computed beside those before it."""
        product, hidden = product_bytes(rows, self.config.network.head_width)
        return hidden, max(product + hidden, 2 * hidden)

    @property
    def play_bytes(self) -> int:
        """What is held of its episodes."""
        return self.evaluate(1)

    def evaluate(self, agents: int) -> int:
        """All steps of the episodes of a generation, and the rows made of those that are recorded."""
        evaluation = self.config.evaluation
        drawn, fixed = agents * evaluation.slices, agents * evaluation.fixed_episodes
        recorded = drawn * self.facts.episode_steps * self.recorded_row_bytes
        return max(self._roll_out(drawn, drawn), recorded + self._roll_out(fixed, 0))

    def hold_out(self, agents: int) -> int:
        """All steps of the holdout episodes."""
        return self._roll_out(agents * self.config.evaluation.holdout_episodes, 0)

    def _roll_out(self, count: int, recorded: int) -> int:
        """The most at once in `GymnasiumTask.roll_out`."""
        facts = self.facts
        step = SINGLE * (facts.observation_values + facts.action_values) + DOUBLE
        steps = count * (facts.episode_steps * step + SINGLE * facts.observation_values)
        rows = recorded * facts.episode_steps * self.recorded_row_bytes
        _, computing = self._layers(count)
        return steps + max(rows, computing)

    def sampler(self, rows: int) -> Operation:  # noqa: ARG002
        """Nothing: it draws numbers of slots."""
        return Operation(0, plain=0)

    def batch(self, agents: int, batch_size: int) -> BatchNeeds:
        """What learning from a batch needs."""
        rows, facts, layers = agents * batch_size, self.facts, self.config.network.head_layers
        observed, acted = SINGLE * rows * facts.observation_values, SINGLE * rows * facts.action_values
        normalised = observed if self.config.environment.normalise_observations else 0
        hidden, computing = self._layers(rows)
        critics = self.heads.critics
        # Critics of observations alone read them as they are.
        inputs = observed + acted if self.heads.action_values else 0
        acting = Operation(
            acted,
            plain=hidden + computing,
            forward=(layers - 1) * hidden + computing + 4 * acted,
            remembered=layers * hidden + 4 * acted,
        )
        remembered = inputs + critics * layers * hidden
        values = Operation(
            SINGLE * critics * rows,
            plain=inputs + max(acted, hidden + computing),
            forward=remembered - hidden + computing,
            remembered=remembered,
            backward=remembered + 3 * hidden,
            to_inputs=remembered + 2 * hidden,
        )
        return BatchNeeds(
            transitions=2 * observed + acted + (SINGLE * self.heads.return_steps + DOUBLE + 1) * rows,
            encode=Operation(normalised, plain=2 * normalised, forward=2 * normalised),
            act=acting,
            values=values,
        )

    def changes(self) -> Iterator[Change]:
        """Yield nothing: networks and episodes are small beside what else a run keeps."""
        yield from ()

    def sample(self, *, whole_group: bool) -> Sample:  # noqa: ARG002
        """Return a run that evaluates as this one does, and learns for a few steps."""
        steps, epochs = min(self.config.learner.gradient_steps, _TIMED_STEPS), min(self.config.learner.epochs, 2)
        learner = {"gradient_steps": steps, "epochs": epochs}
        sections = {"generations": 1, "replay": {"minimum": 1}, "learner": learner}
        piece = Config(**merge(self.config.model_dump(mode="json"), sections))
        return Sample(piece, opened_for(self.config), self.facts, evaluated=1.0, learned=1.0)


def box_of(facts: EnvironmentFacts, low: Sequence[float], high: Sequence[float], device: torch.device) -> Box:
    """Return the actions of an environment of this size, with these bounds unless they are choices."""
    if facts.discrete:
        return Choices(facts.action_values, device)
    return Box(low, high, device, steepness=1.0)


def require_heads(config: Config, facts: EnvironmentFacts, heads: Heads) -> None:
    """Refuse a learner whose policy cannot choose where actions are discrete.

    Raises:
        InputError: it cannot.
    """
    if facts.discrete and heads.action_values:
        raise InputError(
            f"task {config.task}: its actions are Discrete, and learner.algorithm {config.learner.algorithm} learns "
            "continuous ones: use learner.algorithm ppo."
        )


def require_capacity(config: Config, facts: EnvironmentFacts) -> None:
    """Refuse a replay that may not hold the transitions of a generation.

    Raises:
        InputError: it may not.
    """
    most = config.population.size * config.evaluation.slices * facts.episode_steps
    if most > config.replay.capacity:
        raise InputError(
            f"replay.capacity {config.replay.capacity:,} is below the {most:,} transitions that a generation can have "
            f"({config.population.size} agents x {config.evaluation.slices} episodes x {facts.episode_steps:,} steps): "
            "raise it or lower evaluation.slices."
        )
