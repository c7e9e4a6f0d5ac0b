"""Importance is zero for what cannot reach a decision, and found for what decides alone."""

import pytest
from science_cases import random_panel, small_config
from torch import Tensor

from eigen_core.config import Config
from eigen_core.generation import start_training
from eigen_core.judging.importance import Importance, importance
from eigen_core.market import Panel

_FEATURES = 4


def deaf_to(features: list[int], config: Config, panel: Panel) -> Tensor:
    """The weights of an agent whose encoder gives some features no weight at all."""
    state = start_training(config, panel)
    weights = state.initial_weights()[0].clone()
    critic = state.task.critic_layout.views(weights[None, : state.task.critic_layout.size])
    # Moving means of all features over one scale, then over the next.
    by_scale = critic["encoder.hidden.weight"].view(1, len(config.network.scales), _FEATURES, -1)
    by_scale[:, :, features] = 0.0
    return weights


def found_for(weights: Tensor, config: Config, panel: Panel) -> tuple[dict[str, Importance], dict[str, Importance]]:
    starts = [110, 115]
    ((features, columns),) = importance(config, panel, weights[None], starts, range(100, 140), draws=3)
    return {one.name: one for one in features}, {one.name: one for one in columns}


@pytest.mark.parametrize("unheard", [[0, 2], [1, 2, 3]])
def test_what_has_no_weight_has_no_importance(unheard: list[int]) -> None:
    config = small_config(market={"holdout_days": 0}, trading={"buy_threshold": 0.0})
    panel = random_panel(config)
    features, columns = found_for(deaf_to(unheard, config, panel), config, panel)
    names = list(panel.feature_names)
    for index in unheard:
        assert features[names[index]].changed == 0.0
        assert features[names[index]].excess_lost == 0.0
    assert max(features[name].changed for index, name in enumerate(names) if index not in unheard) > 0.0
    assert max(one.changed for one in columns.values()) > 0.0


def test_it_is_ranked_within_its_interval_and_repeatable() -> None:
    config = small_config(market={"holdout_days": 0}, trading={"buy_threshold": 0.0})
    panel = random_panel(config)
    weights = deaf_to([], config, panel)
    features, columns = found_for(weights, config, panel)
    changes = [one.changed for one in features.values()]
    assert changes == sorted(changes, reverse=True)
    assert set(columns) == set(panel.symbols)
    for one in (*features.values(), *columns.values()):
        low, high = one.changed_interval
        assert 0.0 <= low <= one.changed <= high <= 1.0
    assert found_for(weights, config, panel)[0] == features


def test_of_a_portfolio_it_is_the_share_that_is_in_other_assets() -> None:
    config = small_config(market={"holdout_days": 0}, task="portfolio")
    panel = random_panel(config)
    features, columns = found_for(deaf_to([0, 2], config, panel), config, panel)
    names = list(panel.feature_names)
    assert (features[names[0]].changed, features[names[0]].excess_lost) == (0.0, 0.0)
    assert 0.0 < features[names[1]].changed < 0.5
    assert features[names[1]].excess_lost != 0.0
    assert max(one.changed for one in columns.values()) > 0.0
