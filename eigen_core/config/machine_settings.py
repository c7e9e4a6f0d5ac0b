"""Settings of this machine, which a store or a flow run's parameters cannot set, and settings of the training run.

A store and the parameters of a flow run are not trusted: they never choose an import, a connection, or a path outside
the run that is written to. They may set numbers, truth values, words of a list, and texts that only select rows,
columns, functions that are installed here, or a local price file (`eigen_core.runs.handle` checks the file and the
task).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eigen_core.common.text import has_credentials

_LONGEST_NAME = 60
_LEVELS = 8


@dataclass(frozen=True)
class MachineSetting:
    """A setting that only the command line or environment variables of this machine can set.

    Attributes:
        variable: environment variable that sets it for all runs that this machine starts.
        secret: environment variables that take a password for it, in words for messages; empty if it needs none.
    """

    variable: str
    secret: str = ""


MACHINE_SETTINGS: Mapping[str, MachineSetting] = {
    # A server at that address can run code in this process.
    "scheduler": MachineSetting(
        "EIGEN_SCHEDULER", "the variables of Dask's TLS certificates, such as DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY"
    ),
    # These are written to, outside of the run; a store does not know where it is.
    "checkpoint.store": MachineSetting("EIGEN_STORE", "GOOGLE_APPLICATION_CREDENTIALS"),
    "checkpoint.local": MachineSetting("EIGEN_LOCAL"),
    # These write outside of the run or beside other runs, or connect to a server, which is sent all metrics.
    "reporting.trackers": MachineSetting("EIGEN_TRACKERS"),
    "reporting.tensorboard_folder": MachineSetting("EIGEN_TENSORBOARD_FOLDER"),
    "reporting.mlflow_uri": MachineSetting(
        "MLFLOW_TRACKING_URI",
        "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or all of it in MLFLOW_TRACKING_URI",
    ),
    "reporting.mlflow_experiment": MachineSetting("MLFLOW_EXPERIMENT_NAME"),
}
"""Settings of this machine, which no store may choose, by dotted key."""

_RUN_SECTIONS = (
    "market trading portfolio environment network population exploration replay learner evolution evaluation account "
    "memory"
)
_RUN_SETTINGS = {
    "": "preset task seed generations device cuda_graphs threads workers instructions",
    "checkpoint": "keep_last keep_every keep_local queue_generations queue_mb upload_mb_per_second finish_seconds "
    "lease_seconds",
    "reporting": "plot_every",
}

TASK_VARIABLE = "EIGEN_TASK"
"""Environment variable that allows a stored run to import its task, `gym:module:Class`."""


def secrets_in(values: Mapping[str, Any], levels: int = _LEVELS) -> Iterator[str]:
    """Yield a sentence for each value that has a user or a password; search at most `levels` dictionaries deep."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            if levels:
                yield from secrets_in({f"{name}.{key}": inner for key, inner in value.items()}, levels - 1)
        elif any(
            has_credentials(text)
            for text in (value if isinstance(value, list | tuple) else [value])
            if text and isinstance(text, str)
        ):
            known = MACHINE_SETTINGS.get(name)
            where = f"use environment variables ({known.secret})" if known and known.secret else "leave them out"
            yield (
                f"{str(name)[:_LONGEST_NAME]} has a user or a password in it, and settings are kept in the store, in "
                f"pages and in reports: {where}"
            )


def names_module(task: object) -> bool:
    """Whether a task names a module to import, as `gym:module:Class` and `gym:module:Name-v0` do."""
    return isinstance(task, str) and ":" in task.partition(":")[2]


def belongs_to_run(key: str) -> bool:
    """Whether a store may give the setting `key`; `_RUN_SECTIONS` and `_RUN_SETTINGS` list what it may give."""
    section, _, name = key.rpartition(".")
    return name in _RUN_SETTINGS.get(section, "").split() or key.partition(".")[0] in _RUN_SECTIONS.split()


def run_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the nested `values` that a store may give (`belongs_to_run`)."""
    return values_where(values, belongs_to_run)


def machine_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the nested `values` in `MACHINE_SETTINGS`, and the task if it names a module to import."""
    own = values_where(values, lambda key: key in MACHINE_SETTINGS)
    return {"task": values["task"], **own} if names_module(values.get("task")) else own


def values_where(values: Mapping[str, Any], belongs: Callable[[str], bool]) -> dict[str, Any]:
    """Return those of the nested `values` for whose dotted keys `belongs` is true."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and name not in MACHINE_SETTINGS:
            if kept := {key: inner for key, inner in value.items() if belongs(f"{name}.{key}")}:
                found[name] = kept
        elif belongs(name):
            found[name] = value
    return found
