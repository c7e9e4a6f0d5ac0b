"""Values that would do harm if a store or a flow run's parameters could give this machine's own settings."""

from typing import Any

HOSTILE: dict[str, Any] = {
    "scheduler": "tcp://192.0.2.1:8786",
    "checkpoint.store": "/etc",
    "checkpoint.local": "/etc",
    "reporting.trackers": ["mlflow"],
    "reporting.tensorboard_folder": "/etc",
    "reporting.mlflow_uri": "http://192.0.2.1",
    "reporting.mlflow_experiment": "theirs",
}


def nested(key: str, value: object) -> dict[str, Any]:
    """Return a setting as nested values: `market.columns.date` is three levels deep."""
    *sections, name = key.split(".")
    values = {name: value}
    for section in reversed(sections):
        values = {section: values}
    return values
