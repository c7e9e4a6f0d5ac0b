"""A Prefect server of its own, with an empty database, for flows that a benchmark runs."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from flows.server.environment import prepare_environment


@contextmanager
def isolated_prefect() -> Iterator[None]:
    """Let flows inside the block run on a server whose database is removed afterwards.

    Raises:
        RuntimeError: Prefect was imported before, so that the environment of its server cannot be chosen any more.
    """
    if "prefect" in sys.modules:
        raise RuntimeError("Prefect was imported before its environment could be set: it would use the user's.")
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        del os.environ[name]
    # Records go to Prefect's API as in every run; the terminal belongs to the tables.
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "ERROR"
    prepare_environment()
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield
