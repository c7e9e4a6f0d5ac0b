"""Keyed randomness: a draw is named by what it is for, and by nothing else."""

import random

import torch
from hypothesis import given, strategies as st

from eigen_core.common.randomness import keyed_generator

KEYS = st.lists(
    st.integers(0, 5) | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=3), max_size=4
).map(tuple)
SEEDS = st.sampled_from([0, 1, 2**63 - 1])


def words(seed: int, key: tuple[int | str, ...]) -> list[int]:
    return [int(word) for word in keyed_generator(seed, *key).integers(0, 2**63, 4)]


@given(SEEDS, KEYS, SEEDS, KEYS)
def test_equal_names_have_equal_draws_and_different_names_different_ones(
    seed: int, key: tuple[int | str, ...], other_seed: int, other_key: tuple[int | str, ...]
) -> None:
    assert words(seed, key) == words(seed, key)
    assert (words(seed, key) == words(other_seed, other_key)) == ((seed, key) == (other_seed, other_key))


def test_draws_do_not_depend_on_what_was_drawn_before() -> None:
    first = keyed_generator(3, 1, "evaluate", 0, "noise")
    second = keyed_generator(3, 1, "evaluate", 1, "noise")
    alternating = [(first.random(), second.random()) for _ in range(5)]
    in_turn = [keyed_generator(3, 1, "evaluate", agent, "noise").random(5).tolist() for agent in (1, 0)]
    assert [list(column) for column in zip(*alternating, strict=True)] == in_turn[::-1]


def test_no_global_generator_is_read_or_moved() -> None:
    before = random.getstate(), torch.random.get_rng_state()
    drawn = words(5, ("a",))
    assert random.getstate() == before[0]
    assert torch.equal(torch.random.get_rng_state(), before[1])
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(77)
        assert words(5, ("a",)) == drawn


def test_a_run_that_began_with_an_older_version_can_be_continued() -> None:
    """The bits of a name are part of the format of a run: a change would make every resume differ."""
    raw = keyed_generator(1, 2, "evaluate", 3, "noise").bit_generator.random_raw(3)
    assert raw.tolist() == [5073992335381196119, 14906014620050346357, 9070192191501785662]
