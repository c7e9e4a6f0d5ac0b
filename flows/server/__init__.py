"""Prefect's server, the worker, the flow runs that train, and their pages."""
