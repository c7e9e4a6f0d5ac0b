"""Importance is zero for what cannot reach a decision, and found for what decides alone."""

import json
from pathlib import Path

import pytest
from cli_cases import eigen
from science_cases import random_panel, small_config
from torch import Tensor
from trained_run_cases import RUN, trained

from eigen_core.config import Config
from eigen_core.generation import start_training
from eigen_core.judging.importance import Importance, importance, over_agents
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


@pytest.mark.parametrize(
    ("task", "unheard"), [("market", [0, 2]), ("market", [1, 2, 3]), ("portfolio", [0, 2]), ("portfolio", [3])]
)
def test_what_has_no_weight_has_no_importance(task: str, unheard: list[int]) -> None:
    config = small_config(market={"holdout_days": 0}, trading={"buy_threshold": 0.0}, task=task)
    panel = random_panel(config)
    features, columns = found_for(deaf_to(unheard, config, panel), config, panel)
    names = list(panel.feature_names)
    for index in unheard:
        assert (features[names[index]].changed, features[names[index]].excess_lost) == (0.0, 0.0)
    heard = [features[name] for index, name in enumerate(names) if index not in unheard]
    assert 0.0 < max(one.changed for one in heard) <= 1.0
    assert any(one.excess_lost for one in heard)
    assert max(one.changed for one in columns.values()) > 0.0
    changes = [one.changed for one in features.values()]
    assert changes == sorted(changes, reverse=True)
    assert set(columns) == set(panel.symbols)
    for one in (*features.values(), *columns.values()):
        low, high = one.changed_interval
        assert 0.0 <= low <= one.changed <= high <= 1.0


ONE = Importance("A", 0.2, (0.1, 0.3), 1.0, (0.5, 1.5)), Importance("B", 0.0, (0.0, 0.0), 0.0, (0.0, 0.0))
OTHER = Importance("B", 0.6, (0.5, 0.7), None, None), Importance("A", 0.0, (0.0, 0.0), 3.0, (2.0, 4.0))


@pytest.mark.thorough
def test_json_is_about_every_feature_and_column(tmp_path: Path) -> None:
    trained(tmp_path, of=1, market={"data": "us5", "context": ["IBM"]})
    asked = ("importance", RUN, "--store", str(tmp_path), "--draws", "2")
    document, table = json.loads(eigen(*asked, "--json").stdout), eigen(*asked).stdout
    assert (document["agent"], document["agents"], document["draws"]) == ("champion", 1, 2)
    assert len(document["features"]) == 15
    assert {column["name"] for column in document["columns"]} == {"AAPL", "FB", "GOOG", "MSFT", "IBM"}
    low = {column["name"] for column in document["columns"] if column["changed_interval"][1] <= 0.01}
    assert set(document["low_columns"]) == low
    assert all(one["name"] in table for one in (*document["features"], *document["columns"]))


def test_importance_over_agents_is_the_mean_with_the_widest_bounds() -> None:
    first, second = over_agents([ONE, OTHER])
    assert first == Importance("B", 0.3, (0.0, 0.7), 0.0, (0.0, 0.0))
    assert second == Importance("A", 0.1, (0.0, 0.3), 2.0, (0.5, 4.0))
