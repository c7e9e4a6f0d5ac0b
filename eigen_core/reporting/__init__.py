"""Plots, tables, pages and reports of a run, and experiment trackers (TensorBoard, MLflow)."""

from eigen_core.reporting.tables import training_frame

__all__ = ["training_frame"]
