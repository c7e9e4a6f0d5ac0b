"""Inputs drawn at random whose right treatment is known: `make fuzz`, or `python -m benchmarks.fuzz NAME`."""
