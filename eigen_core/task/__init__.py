"""Tasks that agents learn: trading (`market`), `portfolio`, and Gymnasium environments (`gym:...`)."""

from typing import Any, cast

from eigen_core.config import Config
from eigen_core.config.registry import TASKS, load_class, task_choice
from eigen_core.task.interface import Task, TaskData


def task_class(config: Config) -> type[Task[Any, Any]]:
    return cast("type[Task[Any, Any]]", load_class(TASKS, task_choice(config.task)))


def open_data(config: Config) -> TaskData:
    """Read the data of the task that a configuration names; see `Task.open_data`."""
    return task_class(config).open_data(config)
