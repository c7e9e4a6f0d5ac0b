"""Prefect with a home of its own, its embedded server started and stopped by us."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.measure import seconds_of
from flows.prefect_environment import PrefectServer, prepare_environment

_DRAIN_SECONDS = 10


@contextmanager
def isolated_prefect() -> Iterator[float]:
    """Let flows inside the block run on an embedded server whose database is removed afterwards.

    Yields the time that the server took to start (seconds).

    Raises:
        RuntimeError: Prefect was imported before, so that its home cannot be chosen any more.
    """
    if "prefect" in sys.modules:
        raise RuntimeError("Prefect was imported before its home could be set: it would use the user's.")
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="eigen-prefect-", ignore_cleanup_errors=True) as home:
        os.environ["PREFECT_HOME"] = home
        # Records go to Prefect's API as in every run; the terminal belongs to the tables.
        os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "ERROR"
        prepare_environment()
        server = PrefectServer()

        def start() -> None:
            server.start()
            server.wait_until_ready()

        started = seconds_of(start)
        from prefect.logging.handlers import APILogWorker

        try:
            yield started
        finally:
            APILogWorker.drain_all(timeout=_DRAIN_SECONDS)
            server.stop()
