"""Experiment trackers: what a run's history says, kept where TensorBoard or MLflow shows it.

The history in the checkpoints is the truth. A tracker compares what it holds with it, and adds what is missing.
"""

from eigen_core.trackers.interface import (
    TrackedRun,
    Tracker,
    metrics_of,
    metrics_since,
    require_packages,
    tracker_bytes,
    trackers_of,
)

__all__ = ["TrackedRun", "Tracker", "metrics_of", "metrics_since", "require_packages", "tracker_bytes", "trackers_of"]
