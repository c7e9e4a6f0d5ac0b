"""What the tests of uploads share."""

from pathlib import Path

import pytest
from upload_cases import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "here")
