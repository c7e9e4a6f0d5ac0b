"""Runs of a store: opening, status, journals, and listeners of a training."""
