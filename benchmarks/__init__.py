"""Measurements of what the design promises; `python -m benchmarks` runs them and writes `benchmarks/RESULTS.md`.

One thread computes, and threads that wait sleep, as importing `eigen_core` lets them: on a shared machine spinning
threads stall each other, and ratios of two such times say nothing. OpenMP reads this when torch is loaded, so it is set
before anything else is imported; where torch is there already, it would only reach the children of a process that has
other plans.
"""

import os
import sys

import eigen_core  # noqa: F401 - before a module here imports torch

if "torch" not in sys.modules:
    os.environ["OMP_NUM_THREADS"] = "1"
