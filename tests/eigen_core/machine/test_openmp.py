"""How threads of OpenMP wait in a program that uses the library, without the command line."""

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cpu

PROGRAM = """
import sys
import eigen_core
assert "torch" not in sys.modules
import torch
"""


def spins(program: str, **given: str) -> int:
    """How often a thread of torch's OpenMP looks for work before it sleeps."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "OMP_DISPLAY_ENV": "verbose", **given},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = re.search(r"GOMP_SPINCOUNT = '(\w+)'", ended.stderr)
    if found is None:
        pytest.skip("torch computes with another OpenMP than GNU's")
    return sys.maxsize if found[1] == "INFINITY" else int(found[1])


@pytest.mark.thorough
def test_threads_sleep_while_they_wait_unless_the_user_wants_otherwise() -> None:
    assert spins(PROGRAM) == 0
    assert spins(PROGRAM, OMP_WAIT_POLICY="ACTIVE") > 0
    assert spins("import torch") > 0
