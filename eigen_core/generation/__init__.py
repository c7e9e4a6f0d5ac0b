"""The phases of a generation (evaluate, train, evolve) and the training state that they change; no files are used."""

from eigen_core.generation.phases import evaluate as evaluate, evolve as evolve, hold_out as hold_out, train as train
from eigen_core.generation.state import (
    EvaluationResult as EvaluationResult,
    TrainingState as TrainingState,
    record_telemetry as record_telemetry,
    require_same_data as require_same_data,
    resolve_device as resolve_device,
    restore as restore,
    snapshot as snapshot,
    snapshot_form as snapshot_form,
    start_training as start_training,
)
