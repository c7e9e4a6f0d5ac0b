"""Runs of a store: handle, status and journals of a run; listeners of a training."""
