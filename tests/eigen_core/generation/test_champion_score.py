"""Scores, holdout and diversity of agents, against plain code."""

from itertools import combinations, product
from math import sqrt
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from known import known
from record_cases import record
from science_cases import random_panel, small_config
from trading_cases import SlowEpisode
from training_cases import advance, content_of, market_of, small_state

from eigen_core.common.records import Lineage, ancestors_after, champion_path
from eigen_core.generation import TrainingState, evaluate, evolve, hold_out, start_training, train
from eigen_core.generation.phases import fitness_slices, mean_distance, policy_distance, validation_slices
from eigen_core.learning.fitness import standard_errors
from eigen_core.networks.population import initial_weights

_STEPS = 12
_BOUND: dict[str, Any] = {
    "fitness_slices": 4,
    "validation_slices": 3,
    "validation_lowest": 2,
    "champion_validation_share": 0.25,
    "champion_standard_errors": 1.5,
}


def plain_error(rewards: list[float], starts: list[int]) -> float:
    days = [set(range(start, start + _STEPS)) for start in starts]
    pairs = list(product(range(len(days)), repeat=2))
    common = sum(len(days[one] & days[other]) / _STEPS for one, other in pairs) / len(pairs)
    mean = fmean(rewards)
    squares = fmean([(reward - mean) ** 2 for reward in rewards])
    return sqrt(squares * common / (1.0 - common))


def plain_score(state: TrainingState, weights: Any) -> tuple[float, float, float]:
    def played(starts: list[int]) -> list[float]:
        return [float(state.task.roll_out(weights[None], np.array([[start]])).rewards[0, 0]) for start in starts]

    training, validation = fitness_slices(state).tolist(), validation_slices(state).tolist()
    trained, validated = played(training), played(validation)
    fitness, validates = fmean(trained), fmean(sorted(validated)[:2])
    error = sqrt((0.75 * plain_error(trained, training)) ** 2 + (0.25 * plain_error(validated, validation)) ** 2)
    return fitness, validates, 0.75 * fitness + 0.25 * validates - 1.5 * error


def test_fitness_champion_and_score_are_those_of_plain_code() -> None:
    state = small_state(evaluation=_BOUND)
    slices, starts = fitness_slices(state), state.task.training_starts
    assert (slices[0], slices[-1], len(slices)) == (starts[0], starts[-1], 4)
    best: tuple[float, int, int, float] | None = None
    for generation in range(1, 5):
        expected = [plain_score(state, weights) for weights in state.population.weights.clone()]
        result = evaluate(state)
        np.testing.assert_allclose(result.fitness, [one[0] for one in expected], rtol=1e-5)
        np.testing.assert_allclose(result.validations, [one[1] for one in expected], rtol=1e-5)
        np.testing.assert_allclose(result.scores, [one[2] for one in expected], rtol=1e-4)
        for agent, (_, validation, score) in enumerate(expected):
            if best is None or score > best[0]:
                best = score, generation, agent, validation
        train(state)
        record = evolve(state)
        assert best is not None
        assert (record.champion_generation, record.champion_agent) == best[1:3]
        assert record.champion_score == pytest.approx(best[0], rel=1e-4)
        assert record.champion_validation == pytest.approx(best[3], rel=1e-5)
    assert (fitness_slices(state) == slices).all()
    scores = [record.champion_score for record in state.history]
    assert scores == sorted(scores)


def test_noise_changes_what_is_learned_from_and_not_the_fitness() -> None:
    loud, still = (small_state(evaluation=_BOUND, exploration={"scale": scale, "minimum": 0.0}) for scale in (0.5, 0.0))
    assert evaluate(loud).fitness.tolist() == evaluate(still).fitness.tolist()
    assert content_of(loud)["replay"] != content_of(still)["replay"]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.floats(-1e3, 1e3)), min_size=2, max_size=8, unique_by=lambda one: one[0])
)
def test_standard_errors_are_those_of_counted_days(episodes: list[tuple[int, float]]) -> None:
    starts, rewards = [one[0] for one in episodes], [one[1] for one in episodes]
    errors = standard_errors(np.array([rewards, rewards[::-1]]), np.array(starts), _STEPS)
    expected = [plain_error(rewards, starts), plain_error(rewards[::-1], starts)]
    np.testing.assert_allclose(errors, expected, rtol=1e-6, atol=1e-9)


def test_one_agent_that_earns_the_same_everywhere_has_no_error() -> None:
    rewards = np.array([[2.0, 2.0, 2.0], [1.0, 2.0, 3.0]])
    assert standard_errors(rewards, np.array([0, 30, 60]), 17).tolist() == [0.0, pytest.approx(1.0 / sqrt(3.0))]
    assert standard_errors(rewards, np.array([5, 5, 5]), 17).tolist() == [0.0, 0.0]
    assert standard_errors(rewards[:, :1], np.array([5]), 17).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("group_size", [1, 2, 0])
def test_the_record_holds_the_champions_excess_as_long_as_it_stays(group_size: int) -> None:
    state = small_state(population={"group_size": group_size})
    champions = list[int]()
    for _ in range(6):
        found = advance(state, 1).history[-1]
        champions.append(found.champion_generation)
        weights, excess = known(state.champion).weights[None], known(found.champion_excess)
        again = known(state.task.excess(state.task.roll_out(weights, validation_slices(state)[None])))
        assert excess.trades == again.trades
        found_errors, errors = ((one.mean, one.standard_error) for one in (excess, again))
        np.testing.assert_allclose(found_errors, errors, rtol=1e-9)
    assert 1 < len(set(champions)) < len(champions)


def test_one_asset_is_the_market_itself() -> None:
    state = advance(small_state(assets=1), 2)
    assert state.history[-1].trading["trades"] > 2
    assert [record.champion_excess for record in state.history] == [None, None]


def test_rewards_are_those_of_direct_rollouts() -> None:
    state = advance(small_state(evaluation={"validation_slices": 3, "slices": 1}), 2)
    result = known(hold_out(state))
    holdout = market_of(state).panel.splits.holdout
    assert len(result.slices) == 3
    assert result.slices[0] == holdout.start
    assert result.slices[-1] + 17 == holdout.stop
    starts = np.array([result.slices])
    champion = state.task.roll_out(known(state.champion).weights[None], starts, record=True)
    assert list(result.champion_rewards) == champion.rewards[0].tolist()
    random = initial_weights(market_of(state).network.layouts, 5, state.config.seed, state.device)
    expected = [state.task.roll_out(random[agent : agent + 1], starts).rewards[0].mean() for agent in range(5)]
    assert list(result.random_rewards) == expected
    assert result.champion_reward == pytest.approx(float(np.mean(result.champion_rewards)))
    assert result.random_reward == pytest.approx(float(np.mean(expected)))
    assert result.share_of_random_beaten == sum(reward < result.champion_reward for reward in expected) / 5

    played = known(champion.transitions)["action"].double().cpu().numpy().reshape(3, 12, -1, 2)
    trades = []
    for first_day, actions in zip(result.slices, played, strict=True):
        trades += (
            SlowEpisode(market_of(state).panel, state.config.trading, first_day)
            .run(actions[..., 0], actions[..., 1])
            .trades
        )
    statistics = dict(result.champion_statistics)
    assert statistics["trades"] == len(trades) / 3
    assert statistics["win_rate"] == sum(float(trade["gain"]) > 0 for trade in trades) / max(len(trades), 1)


def test_looking_changes_nothing_and_can_be_repeated() -> None:
    state = advance(small_state(), 1)
    before = content_of(state)
    assert hold_out(state) == known(hold_out(state))
    assert content_of(state) == before
    assert content_of(advance(state, 1)) == content_of(advance(small_state(), 2))


def test_without_holdout_days_or_a_champion_there_is_nothing_to_see() -> None:
    assert hold_out(small_state()) is None
    assert hold_out(advance(small_state(market={"holdout": 0}), 1)) is None


def test_the_champion_is_played_as_it_was_validated() -> None:
    """On a market whose holdout days repeat its validation days, the champion gets its validation fitness again."""
    config = small_config(
        market={"window": 1, "validation": 24, "holdout": 24},
        network={"scales": [1]},
        evaluation={"validation_slices": 3, "validation_lowest": 3},
    )
    panel = random_panel(config)
    validation, holdout = panel.splits.validation, panel.splits.holdout
    for values in (panel.features, panel.valid, panel.open, panel.high, panel.low, panel.close):
        values[holdout.start : holdout.stop] = values[validation.start : validation.stop]
    # What carries over a gap on the first of these days lies before them, and differs.
    for values in (panel.open, panel.high, panel.low, panel.close):
        values[validation.start] = values[holdout.start] = 50.0
    panel.valid[[validation.start, holdout.start], : panel.assets] = True
    state = advance(start_training(config, panel), 2)
    result = known(hold_out(state))
    assert result.champion_reward == pytest.approx(known(state.champion).validation)


@given(st.lists(st.lists(st.floats(-9, 9, width=32), min_size=3, max_size=3), min_size=2, max_size=7))
def test_the_mean_distance_is_that_of_all_pairs(points: list[list[float]]) -> None:
    pairs = [np.abs(np.subtract(one, other)).mean() for one, other in combinations(points, 2)]
    assert mean_distance(np.array(points, np.float32)) == pytest.approx(float(np.mean(pairs)), abs=1e-6)


def test_equal_agents_have_no_distance_and_others_have_one() -> None:
    state = small_state(learner={"gradient_steps": 0}, evolution={"enabled": False})
    evaluate(state)
    different = known(policy_distance(state))
    assert different > 0.0
    state.population.weights[:] = state.population.weights[0].clone()
    assert policy_distance(state) == 0.0


def test_there_is_no_distance_before_enough_is_stored() -> None:
    state = small_state(
        trading={"trading_bars": 4, "settlement_bars": 2, "holding_bars": 2},
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
