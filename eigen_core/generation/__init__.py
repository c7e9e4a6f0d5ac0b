"""The phases of a generation (evaluate, train, evolve) and the training state that they change; no files are used."""

from eigen_core.generation.phases import evaluate, evolve, hold_out, train
from eigen_core.generation.state import (
    EvaluationResult,
    TrainingState,
    record_telemetry,
    require_same_data,
    resolve_device,
    restore,
    snapshot,
    snapshot_form,
    start_training,
)

__all__ = [
    "EvaluationResult",
    "TrainingState",
    "evaluate",
    "evolve",
    "hold_out",
    "record_telemetry",
    "require_same_data",
    "resolve_device",
    "restore",
    "snapshot",
    "snapshot_form",
    "start_training",
    "train",
]
