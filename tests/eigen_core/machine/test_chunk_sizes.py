"""How much is computed at a time: what is set, else by bytes; all of it, in parts of about the same size."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigen_core.common.text import BYTES_PER_MB
from eigen_core.config import PopulationConfig
from eigen_core.machine.chunk_sizes import agents_at_once, columns_at_once, encoded_at_once, playing_at_once

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
