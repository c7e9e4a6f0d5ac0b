"""The machine of a run: memory limits, use, guard, reports; threads, chunk sizes, GPUs, reproducibility."""
