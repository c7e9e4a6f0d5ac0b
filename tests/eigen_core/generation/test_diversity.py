"""Ancestors and distances of policies, against plain code."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_cases import record
from science_cases import small_config
from training_cases import advance, small_state

from eigen_core.common.records import Lineage, ancestors_after, champion_path
from eigen_core.generation import evaluate, evolve
from eigen_core.generation.phases import mean_distance, policy_distance


@given(st.lists(st.lists(st.floats(-9, 9, width=32), min_size=3, max_size=3), min_size=2, max_size=7))
def test_the_mean_distance_is_that_of_all_pairs(points: list[list[float]]) -> None:
    pairs = [np.abs(np.subtract(one, other)).mean() for one, other in combinations(points, 2)]
    assert mean_distance(np.array(points, np.float32)) == pytest.approx(float(np.mean(pairs)), abs=1e-6)


def test_equal_agents_have_no_distance_and_others_have_one() -> None:
    state = small_state(learner={"gradient_steps": 0}, evolution={"enabled": False})
    evaluate(state)
    different = policy_distance(state)
    assert different is not None
    assert different > 0.0
    state.population.weights[:] = state.population.weights[0].clone()
    assert policy_distance(state) == 0.0


@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
@pytest.mark.cpu
def test_groups_change_no_bit_of_the_distance(encoder: str) -> None:
    found = set()
    for group_size in (0, 1, 2):
        state = small_state(
            network={"encoder": encoder}, population={"group_size": group_size}, learner={"gradient_steps": 1}
        )
        evaluate(state)
        found.add(policy_distance(state))
    assert len(found) == 1
    assert None not in found


def test_there_is_no_distance_before_enough_is_stored() -> None:
    state = small_state(
        trading={"trading_days": 4, "settlement_days": 2, "holding_days": 2},
        evaluation={"slices": 1, "lowest": 1},
        population={"size": 2},
        learner={"gradient_steps": 0},
    )
    evaluate(state)
    assert evolve(state).policy_distance is None


def test_ancestors_are_those_that_the_lines_of_main_parents_began_with() -> None:
    state = advance(small_state(learner={"gradient_steps": 0}, evolution={"mutation_std": 0.05}), 6)
    history = list(state.history)
    for newest in range(1, 7):
        known = history[:newest]
        record = known[-1]
        for agent, ancestor in enumerate(record.ancestors):
            # The line of an agent is the champion's, were it the next champion.
            heir = record.model_copy(
                update={"generation": newest + 1, "champion_generation": newest + 1, "champion_agent": agent}
            )
            assert champion_path([*known, heir])[0].agent == ancestor
    counts = [record.distinct_ancestors for record in history]
    assert all(count is not None for count in counts)
    assert counts == sorted(counts, reverse=True)  # type: ignore[type-var]
    assert 1 <= len(set(history[-1].ancestors)) < small_config().population.size


def test_ancestors_are_counted_anew_after_records_that_do_not_name_them() -> None:
    old = record(1)
    assert (old.ancestors, old.distinct_ancestors) == ((), None)
    descent = (Lineage(0, "offspring", (0, 1), blend=0.4), Lineage(1, "mutant", (0,)))
    assert ancestors_after([old], descent, 2, 1) == (1, 0)
