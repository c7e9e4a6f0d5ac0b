"""Runs that store actions in half precision: planned, saved and continued like others."""

import pytest
import torch
from training_cases import advance, content_of, market_of, saved_of, small_state

from eigen_core.config import Config
from eigen_core.generation import restore
from eigen_core.planning import Sizes
from eigen_core.task import TaskData

HALF = {"actions": "float16"}


def test_what_is_planned_is_what_is_stored() -> None:
    state = advance(small_state(replay=HALF), 1)
    assert state.replay.tensors()["action"].dtype == torch.float16
    sizes = Sizes.of(state.config, TaskData(market_of(state).panel))
    assert sizes.row_bytes == state.replay.bytes_per_transition


def test_a_run_goes_on_from_its_snapshot_with_the_same_bits() -> None:
    state = advance(small_state(replay=HALF), 2)
    other = small_state(replay=HALF)
    restore(other, saved_of(state))
    assert content_of(advance(other, 2)) == content_of(advance(state, 2))


def test_without_a_bound_of_actions_it_is_refused() -> None:
    with pytest.raises(ValueError, match=r"replay\.actions float16 .* trading\.max_coefficient is empty"):
        Config(replay=HALF, trading={"max_coefficient": None})
