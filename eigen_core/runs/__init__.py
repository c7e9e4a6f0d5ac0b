"""Training runs in a store: handle and status of a run, journals beside its checkpoints, listeners of a training."""
