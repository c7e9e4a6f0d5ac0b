"""Measurements of what the design promises; `python -m benchmarks` runs them and writes `benchmarks/RESULTS.md`.

One thread computes, since spinning threads stall each other on a shared machine. OpenMP reads its settings when torch
is loaded, so they are set before anything else is imported.
"""

import os
import sys
from pathlib import Path

import eigen_core  # noqa: F401 - before a module here imports torch

if "torch" not in sys.modules:
    os.environ["OMP_NUM_THREADS"] = "1"
# The emulator of a bucket, its faults, and processes of `eigen up` are those of the tests.
sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
