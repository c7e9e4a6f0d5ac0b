"""The sizes of a run that its configuration, its task and its learner give."""

from dataclasses import dataclass

from eigen_core.config import Config
from eigen_core.evolution import MethodNeeds, method_class
from eigen_core.learners import LearnerNeeds, learner_class
from eigen_core.needs import SINGLE, Facts
from eigen_core.pieces import agents_at_once, device_kind, playing_at_once
from eigen_core.task import TaskNeeds, task_class
from eigen_core.task.needs import row_bytes


@dataclass(frozen=True)
class Scale:
    """A run in numbers.

    Attributes:
        config: the run.
        task, learner, method: what they need.
        learning_agents: agents that learn.
        rows_per_generation: transitions that a generation appends to the replay.
    """

    config: Config
    task: TaskNeeds
    learner: LearnerNeeds
    method: MethodNeeds
    learning_agents: int
    rows_per_generation: int

    @classmethod
    def of(cls, config: Config, facts: Facts) -> "Scale":
        """The numbers of a configuration on data of which `facts` are known."""
        learning = learner_class(config.learner)
        task = task_class(config).needs(config, facts, learning.heads(config))
        rows = config.population.size * config.evaluation.slices * task.episode_steps
        method_of = method_class(config.evolution)
        agents = len(range(config.population.size)[method_of.learning(config)])
        group = min(_group(config, task), agents)
        learner = learning.needs(config, task, rows * config.generations, group)
        method = method_of.needs(config, task.critic, task.actor, learner.agent)
        return cls(config, task, learner, method, agents, rows)

    @property
    def parameters(self) -> int:
        """Values of one agent."""
        return self.task.critic + self.task.actor

    @property
    def group(self) -> int:
        """Agents computed at a time."""
        return _group(self.config, self.task)

    @property
    def playing_group(self) -> int:
        """Agents that play at a time."""
        return playing_at_once(self.config.population, self.task.play_bytes, device_kind(self.config.device))

    @property
    def learning_group(self) -> int:
        """Agents that learn at a time."""
        return min(self.group, self.learning_agents)

    @property
    def learning_share(self) -> float:
        """Share of the agents that learn."""
        return self.learning_agents / self.config.population.size

    @property
    def learns(self) -> bool:
        """Whether the run comes to learn by gradients at all."""
        return self.learning_agents > 0 and self.learner.learn > 0

    @property
    def rows_written(self) -> int:
        """Transitions that the whole run appends to the replay."""
        return self.rows_per_generation * self.config.generations

    @property
    def rows_stored(self) -> int:
        """Transitions in the replay at the run's end."""
        return min(self.rows_written, self.config.replay.capacity)

    @property
    def row_bytes(self) -> int:
        """Bytes of one transition."""
        return row_bytes(self.task.columns)

    @property
    def column_bytes(self) -> int:
        """Bytes of the largest column of the replay at the run's end."""
        return self.rows_stored * max(row_bytes({"": column}) for column in self.task.columns.values())

    @property
    def noise_bytes(self) -> int:
        """Exploration noise of a group of agents that play together."""
        return SINGLE * self.playing_group * self.config.evaluation.slices * self.task.noise_values

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one value for each parameter of each agent."""
        return SINGLE * self.config.population.size * self.parameters

    @property
    def population_bytes(self) -> int:
        """Bytes of all agents."""
        return self.learner.agent * self.config.population.size


def _group(config: Config, task: TaskNeeds) -> int:
    return agents_at_once(config.population, task.block_bytes, device_kind(config.device))
