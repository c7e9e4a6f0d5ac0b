"""Server, worker and flow runs: what surrounds a training that Prefect runs, and its pages."""
