"""The sizes of a run that can be counted before it computes: its data, its agents, its transitions."""

import json
from dataclasses import dataclass
from math import prod

import torch

from eigen_core.config import Config
from eigen_core.learning import learner_class, method_class
from eigen_core.machine.arithmetic import set_cpu_mode
from eigen_core.machine.owned import owned_bytes
from eigen_core.task import TaskData, task_class
from eigen_core.task.replay import Column


@dataclass(frozen=True)
class Sizes:
    """A run in numbers.

    Attributes:
        config: the run.
        data_bytes: tensors and arrays of the data and of the task made of them.
        parameters: weights of one agent.
        agent_bytes: an agent, with what the learner keeps beside its weights.
        row_bytes, float_bytes, column_bytes: a stored transition; its float32 values; its largest column.
        episode_steps: most steps of an episode.
        facts_bytes: what each checkpoint says of the task.
        learning_agents: agents that learn; 0 if none ever does.
    """

    config: Config
    data_bytes: int
    parameters: int
    agent_bytes: int
    row_bytes: int
    float_bytes: int
    column_bytes: int
    episode_steps: int
    facts_bytes: int
    learning_agents: int

    @classmethod
    def of(cls, config: Config, data: TaskData) -> "Sizes":
        """Count the sizes of a run on its data; the task is built on the CPU for that.

        Raises:
            InputError: configuration and data do not fit together.
        """
        device = torch.device("cpu")
        set_cpu_mode(config.instructions, device)
        learning = learner_class(config.learner)
        task = task_class(config)(config, data.content, device, learning.heads(config))
        parameters = task.critic_layout.size + task.actor_layout.size
        agent = learning(config, task).new_agents(torch.zeros(1, parameters))
        columns = [_column_bytes(column) for column in task.columns.values()]
        agents = range(config.population.size)[method_class(config.evolution).learning(config)]
        return cls(
            config=config,
            data_bytes=owned_bytes((data.content, task)),
            parameters=parameters,
            agent_bytes=agent.nbytes,
            row_bytes=sum(columns),
            float_bytes=sum(_column_bytes(held) for held in task.columns.values() if held.dtype == torch.float32),
            column_bytes=max(columns),
            episode_steps=task.episode_steps,
            facts_bytes=len(json.dumps(task.facts())),
            learning_agents=len(agents) if config.learner.learns else 0,
        )

    @property
    def rows_per_generation(self) -> int:
        """Transitions that a generation appends to the replay, at most."""
        return self.config.population.size * self.config.evaluation.slices * self.episode_steps

    @property
    def rows_written(self) -> int:
        """Transitions that the whole run appends to the replay."""
        return self.rows_per_generation * self.config.generations

    @property
    def rows_stored(self) -> int:
        """Transitions in the replay at the run's end."""
        return min(self.rows_written, self.config.replay.capacity)

    @property
    def replay_bytes(self) -> int:
        """The transitions in the replay at the run's end."""
        return self.rows_stored * self.row_bytes

    @property
    def champion_bytes(self) -> int:
        """The weights of one agent."""
        return self.parameters * torch.float32.itemsize

    @property
    def population_bytes(self) -> int:
        """All agents."""
        return self.agent_bytes * self.config.population.size


def _column_bytes(column: Column) -> int:
    return column.dtype.itemsize * prod(column.shape)
