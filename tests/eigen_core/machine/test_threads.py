"""Threads are chosen by steps that are needed anyway, and sleep while they wait."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from training_cases import advance, small_state

from eigen_core.machine.threads import ThreadTrial

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Three threads, as on a machine of three cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Clock:
    """Time that a step of so many threads takes; the first with each count takes long."""

    def __init__(self, seconds: dict[int, list[float]]) -> None:
        self.now = 0.0
        self._seconds = {count: iter(steps) for count, steps in seconds.items()}

    def __call__(self) -> float:
        return self.now

    def compute(self) -> None:
        self.now += next(self._seconds[torch.get_num_threads()])


@pytest.mark.parametrize(
    ("three", "one", "chosen"),
    [
        ([9.0, 1.0, 1.1, 1.2, 1.1, 1.1], [0.1, 2.0, 2.1, 2.2, 2.1, 2.1], 3),
        ([0.1, 2.0, 2.1, 2.2, 2.0, 2.1], [9.0, 5.0, 1.0, 5.0, 5.0, 5.0], 1),
        ([1.0] * 6, [1.0] * 6, 1),
    ],
    ids=["three are faster", "one was faster once", "no difference"],
)
def test_what_computes_a_step_sooner_is_chosen_for_good(three: list[float], one: list[float], chosen: int) -> None:
    clock = Clock({3: [*three, *[0.5] * 4], 1: [*one, *[0.5] * 4]})
    trial = ThreadTrial(clock)
    seen = []
    for _ in range(5):
        trial.begin()
        for _ in range(3):
            seen.append(torch.get_num_threads())
            clock.compute()
            trial.step()
        # What comes between two rows of steps is no step.
        clock.now += 100.0
    assert seen == [3, 1] * 6 + [chosen] * 3
    assert torch.get_num_threads() == chosen


def test_a_training_that_tries_threads_has_the_bits_of_one_that_does_not() -> None:
    tried, fixed = (
        advance(small_state(learner={"gradient_steps": 10}, threads=threads), 2).history for threads in (0, 1)
    )
    assert [record.weights_sha256 for record in tried] == [record.weights_sha256 for record in fixed]
    assert tried[-1].learning == fixed[-1].learning
    assert tried[-1].learning is not None


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
