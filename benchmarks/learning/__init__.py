"""What the agents learn of markets whose edge is known: `python -m benchmarks.learning --help`."""
