"""How much is computed at a time: what is set, else by bytes; all of it, in parts of about the same size."""

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


@given(st.integers(2, 100), _BYTES)
def test_groups_of_agents_are_of_one_size_and_few_megabytes(agents: int, block_bytes: int) -> None:
    population = PopulationConfig(size=agents)
    group = agents_at_once(population, block_bytes, "cpu")
    assert 2 <= group <= agents
    assert group == 2 or group * block_bytes <= 4 * BYTES_PER_MB
    on_gpu = agents_at_once(population, block_bytes, "cuda")
    assert group <= on_gpu <= agents
    assert on_gpu == agents or on_gpu * block_bytes <= 1_024 * BYTES_PER_MB


@given(st.integers(2, 100), _BYTES)
def test_what_agents_hold_that_play_together_is_some_tens_of_megabytes(agents: int, agent_bytes: int) -> None:
    population = PopulationConfig(size=agents)
    group = playing_at_once(population, agent_bytes, "cpu")
    assert 1 <= group <= agents
    assert group == 1 or group * agent_bytes <= 96 * BYTES_PER_MB
    on_gpu = playing_at_once(population, agent_bytes, "cuda")
    assert group <= on_gpu <= agents
    assert on_gpu == agents or on_gpu * agent_bytes <= 2_048 * BYTES_PER_MB


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
