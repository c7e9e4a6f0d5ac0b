"""What the tests of workers share."""

from collections.abc import Iterator

import pytest

from eigen_core.workers import LocalWorkers


@pytest.fixture(scope="module")
def workers() -> Iterator[LocalWorkers]:
    with LocalWorkers(2) as started:
        yield started
