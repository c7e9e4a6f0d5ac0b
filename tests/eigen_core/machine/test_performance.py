"""Chunk sizes are parts of about the same size, threads are chosen by steps that are needed anyway."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, strategies as st
from training_cases import advance, small_state

from eigen_core.common.text import BYTES_PER_MB
from eigen_core.config import PopulationConfig
from eigen_core.machine.performance import (
    ThreadTrial,
    agents_at_once,
    columns_at_once,
    encoded_at_once,
    playing_at_once,
)

pytestmark = pytest.mark.cpu

_BYTES = st.integers(1, int(100 * BYTES_PER_MB))


@given(st.integers(1, 3_000), _BYTES)
def test_chunks_of_columns_are_of_one_size_and_few_megabytes(columns: int, column_bytes: int) -> None:
    chunk = columns_at_once(0, columns, column_bytes, "cpu")
    chunks = -(-columns // chunk)
    assert 1 <= chunk <= columns
    assert chunk == 1 or chunk * column_bytes <= 2 * BYTES_PER_MB
    assert chunk * chunks - columns < chunks
    assert columns_at_once(0, columns, column_bytes, "cuda") >= chunk


@pytest.mark.parametrize(
    ("at_once", "least", "most_mb", "most_mb_on_gpu"), [(agents_at_once, 2, 4, 1_024), (playing_at_once, 1, 96, 2_048)]
)
@given(agents=st.integers(2, 100), agent_bytes=_BYTES)
def test_groups_of_agents_are_of_few_megabytes(
    at_once: Callable[..., int], least: int, most_mb: int, most_mb_on_gpu: int, agents: int, agent_bytes: int
) -> None:
    population = PopulationConfig(size=agents)
    group, on_gpu = (at_once(population, agent_bytes, device) for device in ("cpu", "cuda"))
    assert least <= group <= on_gpu <= agents
    assert group == least or group * agent_bytes <= most_mb * BYTES_PER_MB
    assert on_gpu == agents or on_gpu * agent_bytes <= most_mb_on_gpu * BYTES_PER_MB


@given(st.integers(1, 100), st.integers(1, 3_000), _BYTES, st.integers(1, 300), st.integers(0, 100))
def test_days_are_encoded_in_pieces_of_few_megabytes(
    agents: int, days: int, day_bytes: int, steps: int, before: int
) -> None:
    together, piece = encoded_at_once(agents, days, day_bytes, "cpu", steps, before)
    assert 1 <= piece <= days
    assert 1 <= together <= agents
    assert piece == 1 or piece * day_bytes <= 64 * BYTES_PER_MB
    assert together == 1 or together * piece * day_bytes <= 4 * BYTES_PER_MB
    assert piece <= max(steps, 8 * before)
    # What comes before them is a small part of the work, as far as that takes little memory.
    assert piece >= min(days, 8 * before, 64 * BYTES_PER_MB // day_bytes)
    assert piece <= max(1, 8 * before) or piece * day_bytes <= 4 * BYTES_PER_MB


@given(st.integers(1, 100), st.integers(1, 100), _BYTES, st.sampled_from(["cpu", "cuda"]))
def test_what_is_set_is_taken(chosen: int, there: int, size: int, device: str) -> None:
    population = PopulationConfig(size=there + 1, group_size=chosen)
    assert columns_at_once(chosen, there, size, device) == min(chosen, there)
    assert agents_at_once(population, size, device) == min(chosen, there + 1)
    assert playing_at_once(population, size, device) == min(chosen, there + 1)


@pytest.fixture
def three_threads() -> Iterator[None]:
    """As on a machine of three cores."""
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


@pytest.mark.usefixtures("three_threads")
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


@pytest.mark.usefixtures("three_threads")
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
