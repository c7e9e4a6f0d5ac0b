"""Runs of a store: opening, status and journals; listeners of a training."""
