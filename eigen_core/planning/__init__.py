"""Memory, disk, uploads and time of a run before it starts, and settings that would make it fit."""

from eigen_core.planning.plan import (
    PHASES,
    Device,
    Part,
    Phase,
    Plan,
    Verdict,
    WorkerPlan,
    plan_of,
    worker_plans,
)
from eigen_core.planning.probe import ProbeFailure, ProbeResult, Shape, measure, probe, remember, remembered
from eigen_core.planning.sizes import DiskPlan, Sizes
from eigen_core.planning.suggestions import Suggestion, suggestions_for

__all__ = [
    "PHASES",
    "Device",
    "DiskPlan",
    "Part",
    "Phase",
    "Plan",
    "ProbeFailure",
    "ProbeResult",
    "Shape",
    "Sizes",
    "Suggestion",
    "Verdict",
    "WorkerPlan",
    "measure",
    "plan_of",
    "probe",
    "remember",
    "remembered",
    "suggestions_for",
    "worker_plans",
]
