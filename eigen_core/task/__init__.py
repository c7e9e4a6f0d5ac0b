"""What agents play."""

from typing import Any, cast

from eigen_core.config import Config
from eigen_core.config.choices import TASKS, chosen
from eigen_core.task.interface import BatchSampler, Encoded, Observed, Rollout, Task, Transitions

__all__ = ["BatchSampler", "Encoded", "Observed", "Rollout", "Task", "Transitions", "task_class"]


def task_class(config: Config) -> type[Task[Any, Any]]:
    """Return the class of the task that a configuration names."""
    return cast("type[Task[Any, Any]]", chosen(TASKS, config.task))
