"""What a run will take before it starts: memory by part and phase, disk, uploads, time; and what would make it fit."""

from eigen_core.planning.calibration import Calibration, calibrate
from eigen_core.planning.disk import DiskPlan
from eigen_core.planning.parts import PHASES, Device, Part, Phase
from eigen_core.planning.plan import Limit, Plan, Verdict, WorkerPlan, plan_of, worker_plans
from eigen_core.planning.suggestions import Suggestion, suggestions_for

__all__ = [
    "PHASES",
    "Calibration",
    "Device",
    "DiskPlan",
    "Limit",
    "Part",
    "Phase",
    "Plan",
    "Suggestion",
    "Verdict",
    "WorkerPlan",
    "calibrate",
    "plan_of",
    "suggestions_for",
    "worker_plans",
]
