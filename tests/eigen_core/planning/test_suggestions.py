"""Settings with which a run fits: the order in which they are tried, and combined."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from plan_cases import MB, MEASURED
from science_cases import random_panel, small_config

from eigen_core.config import Config
from eigen_core.config.learning import batch_size_of
from eigen_core.machine.limits import Limit
from eigen_core.planning.plan import Plan, plan_of
from eigen_core.planning.probe import Peak
from eigen_core.planning.sizes import Sizes
from eigen_core.planning.suggestions import suggestions_for
from eigen_core.task import TaskData

CONFIG = small_config(
    population={"size": 8}, learner={"batch_size": 32, "block_days": 60}, replay={"capacity": 4_000}, generations=50
)
PANEL = random_panel(CONFIG)
LIMIT = 655 * MB


def planner(train_bytes: Callable[[Config], int], limit: int = LIMIT) -> Callable[[Config], Plan]:
    """Return what plans a run whose learning takes what is given."""

    def plan_with(config: Config) -> Plan:
        phases = {**MEASURED.phases, "train": Peak(train_bytes(config))}
        sizes = Sizes.of(config, TaskData(PANEL))
        measured = replace(MEASURED, phases=phases, playing=8)
        on_cpu = config.model_copy(update={"device": "cpu"})
        return plan_of(on_cpu, sizes, measured, limits={"host": Limit(limit, "here")})

    return plan_with


def test_a_run_that_fits_needs_no_suggestion() -> None:
    plan_with = planner(lambda _: 1 * MB, limit=5_000 * MB)
    assert suggestions_for(CONFIG, plan_with(CONFIG), plan_with) == []


def test_what_leaves_the_run_as_it_is_is_tried_first_and_is_enough() -> None:
    plan_with = planner(lambda config: 40 * MB * (config.population.group_size or 8))
    plan = plan_with(CONFIG)
    (found,) = suggestions_for(CONFIG, plan, plan_with)
    assert found.settings == (("population.group_size", "1"),)
    assert found.fits
    assert found.same_result
    # Then playing takes most.
    assert found.saved_bytes == 240 * MB
    assert "population.group_size=1 saves 240 MB and makes it fit (the same run, bit for bit)" in str(found)


def test_what_does_not_help_is_not_said_and_what_is_not_enough_is_combined() -> None:
    def train_bytes(config: Config) -> int:
        return 4 * MB * batch_size_of(config.learner) + 8 * MB * config.population.size

    plan_with = planner(train_bytes)
    found = suggestions_for(CONFIG, plan_with(CONFIG), plan_with)
    keys = [{key for key, _ in suggestion.settings} for suggestion in found]
    assert {"population.group_size"} not in keys
    assert {"learner.batch_size", "learner.accumulation_steps"} in keys
    assert keys[-1] == {"learner.batch_size", "learner.accumulation_steps", "population.size"}
    assert [suggestion.fits for suggestion in found] == [False] * (len(found) - 1) + [True]
    assert not found[-1].same_result


def test_where_nothing_is_enough_none_fits() -> None:
    plan_with = planner(lambda _: 5_000 * MB)
    assert not any(suggestion.fits for suggestion in suggestions_for(CONFIG, plan_with(CONFIG), plan_with))


@pytest.mark.parametrize("encoder", ["tcn", "filter_bank"])
def test_fewer_columns_at_a_time_are_suggested_only_where_columns_are_chunked(encoder: str) -> None:
    config = CONFIG.model_copy(update={"network": CONFIG.network.model_copy(update={"encoder": encoder})})
    plan_with = planner(lambda config: 10 * MB * (config.network.column_chunk or 32))
    settings = [
        suggestion.settings for suggestion in suggestions_for(config, plan_with(config), plan_with) if suggestion.fits
    ]
    assert settings == ([(("network.column_chunk", "8"),)] if encoder == "tcn" else [])


def test_what_could_not_be_trained_is_not_suggested() -> None:
    plan_with = planner(lambda _: 500 * MB)
    assert suggestions_for(CONFIG, plan_with(CONFIG), lambda _: None) == []
