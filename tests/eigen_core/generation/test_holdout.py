"""The last look: the champion and random agents on the holdout days, and nothing is changed by looking."""

import numpy as np
import pytest
from science_cases import random_panel, small_config
from trading_cases import SlowEpisode
from training_cases import advance, content_of, market_of, small_state

from eigen_core.generation import hold_out, start_training
from eigen_core.networks.population import initial_weights


def test_rewards_are_those_of_direct_rollouts() -> None:
    state = advance(small_state(evaluation={"validation_slices": 3, "slices": 1}), 2)
    result = hold_out(state)
    assert result is not None
    holdout = market_of(state).panel.splits.holdout
    assert len(result.slices) == 3
    assert result.slices[0] == holdout.start
    assert result.slices[-1] + 17 == holdout.stop
    assert state.champion is not None
    starts = np.array([result.slices])
    champion = market_of(state).evaluator.roll_out(state.champion.weights[None], starts, record=True)
    assert list(result.champion_rewards) == champion.rewards[0].tolist()
    random = initial_weights(market_of(state).network.layouts, 5, state.config.seed, state.device)
    expected = [
        market_of(state).evaluator.roll_out(random[agent : agent + 1], starts).rewards[0].mean() for agent in range(5)
    ]
    assert list(result.random_rewards) == expected
    assert result.champion_reward == pytest.approx(float(np.mean(result.champion_rewards)))
    assert result.random_reward == pytest.approx(float(np.mean(expected)))
    assert result.share_of_random_beaten == sum(reward < result.champion_reward for reward in expected) / 5

    assert champion.episodes is not None
    trades = []
    for first_day, actions in zip(result.slices, champion.episodes.actions.double().cpu().numpy(), strict=True):
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
    first, second = hold_out(state), hold_out(state)
    assert first == second
    assert first is not None
    assert content_of(state) == before
    assert content_of(advance(state, 1)) == content_of(advance(small_state(), 2))


def test_without_holdout_days_or_a_champion_there_is_nothing_to_see() -> None:
    assert hold_out(small_state()) is None
    assert hold_out(advance(small_state(market={"holdout_days": 0}), 1)) is None


def test_the_champion_is_played_as_it_was_validated() -> None:
    """On a market whose holdout days repeat its validation days, the champion gets its validation fitness again."""
    config = small_config(
        market={"window": 1, "validation_days": 24, "holdout_days": 24},
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
    result = hold_out(state)
    assert result is not None
    assert state.champion is not None
    assert result.champion_reward == pytest.approx(state.champion.validation)
