"""The champion's excess is that of its own validation episodes, whichever group of agents it was in."""

from itertools import pairwise

import numpy as np
import pytest
from science_cases import random_panel, small_config

from eigen_core.common.records import Excess
from eigen_core.generation import TrainingState, evaluate, evolve, start_training, train
from eigen_core.generation.phases import validation_slices


def trained(group_size: int, generations: int, assets: int = 6) -> TrainingState:
    config = small_config(population={"group_size": group_size})
    state = start_training(config, random_panel(config, assets=assets))
    for _ in range(generations):
        evaluate(state)
        train(state)
        evolve(state)
    return state


def played_again(state: TrainingState) -> Excess | None:
    assert state.champion is not None
    rollout = state.task.roll_out(state.champion.weights[None], validation_slices(state)[None])
    return state.task.excess([rollout])


@pytest.mark.parametrize("group_size", [1, 2, 0])
def test_the_record_holds_the_champions_excess(group_size: int) -> None:
    state = trained(group_size, generations=4)
    found = state.history[-1].champion_excess
    assert found is not None
    again = played_again(state)
    assert again is not None
    assert found.trades == again.trades
    np.testing.assert_allclose([found.mean, found.standard_error], [again.mean, again.standard_error], rtol=1e-9)


def test_it_stays_while_the_champion_does() -> None:
    history = trained(2, generations=6).history
    for before, after in pairwise(history):
        if after.champion_generation == before.champion_generation:
            assert after.champion_excess == before.champion_excess
    assert len({record.champion_generation for record in history}) < len(history)


def test_one_asset_is_the_market_itself() -> None:
    state = trained(0, generations=2, assets=1)
    assert state.history[-1].trading["trades"] > 2
    assert [record.champion_excess for record in state.history] == [None, None]
