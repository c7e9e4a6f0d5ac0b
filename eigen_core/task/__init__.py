"""Tasks (environments): market, portfolio, Gymnasium."""

from typing import Any, cast

from eigen_core.config import Config
from eigen_core.config.registry import TASKS, load_class, task_choice
from eigen_core.task.interface import (
    BatchSampler,
    DifferentiableGrowth,
    Encoded,
    KnownOutcomes,
    Observed,
    Outcomes,
    Rollout,
    Task,
    TaskData,
    Transitions,
)

__all__ = [
    "BatchSampler",
    "DifferentiableGrowth",
    "Encoded",
    "KnownOutcomes",
    "Observed",
    "Outcomes",
    "Rollout",
    "Task",
    "TaskData",
    "Transitions",
    "open_data",
    "task_class",
]


def task_class(config: Config) -> type[Task[Any, Any]]:
    """Return the class of the task that a configuration names."""
    return cast("type[Task[Any, Any]]", load_class(TASKS, task_choice(config.task)))


def open_data(config: Config) -> TaskData:
    """Open the data of the task that a configuration names.

    Raises:
        InputError: they cannot be used, or do not fit the configuration.
    """
    return task_class(config).open_data(config)
