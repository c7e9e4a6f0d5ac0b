"""Runs that store actions in half precision: planned, saved and continued like others."""

import pytest
import torch
from training_cases import advance, content_of, market_of, saved_of, small_state

from eigen_core.config import Config
from eigen_core.generation import restore
from eigen_core.market.panel import PanelFacts
from eigen_core.task.market import MarketTask

HALF = {"actions": "float16"}


def test_what_is_planned_is_what_is_stored() -> None:
    state = advance(small_state(replay=HALF), 1)
    assert state.replay.tensors()["action"].dtype == torch.float16
    facts = PanelFacts.of(market_of(state).panel)
    needs = MarketTask.needs(state.config, facts, state.learner.heads(state.config))
    assert needs.columns["action"] == state.task.columns["action"]


def test_a_run_goes_on_from_its_snapshot_with_the_same_bits() -> None:
    state = advance(small_state(replay=HALF), 2)
    other = small_state(replay=HALF)
    restore(other, saved_of(state))
    assert content_of(advance(other, 2)) == content_of(advance(state, 2))


def test_without_a_bound_of_actions_it_is_refused() -> None:
    with pytest.raises(ValueError, match=r"replay\.actions float16 .* trading\.max_coefficient is empty"):
        Config(replay=HALF, trading={"max_coefficient": None})
