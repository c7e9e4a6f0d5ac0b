"""Settings that make a run fit: what they promise is what planning with them gives."""

from collections.abc import Mapping

import pytest

from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.market import PanelFacts
from eigen_core.planning import Limit, Plan, Suggestion, plan_of, suggestions_for

_FACTS = PanelFacts(days=3_700, columns=669, assets=108, features=9)


def _limits(gigabytes: float) -> Mapping[str, Limit]:
    return {"host": Limit(int(gigabytes * 1e9), "here")}


def _judged(config: Config, gigabytes: float) -> tuple[Plan, list[Suggestion]]:
    plan = plan_of(config, _FACTS, device="cpu", limits=_limits(gigabytes))
    return plan, suggestions_for(config, _FACTS, plan, _limits(gigabytes))


def _with(suggestion: Suggestion, *settings: str) -> Config:
    changed = dict(setting.split("=") for setting in settings) | dict(suggestion.settings)
    return load_config("eigen2", [f"{key}={value}" for key, value in changed.items()])


def test_a_run_that_fits_needs_no_suggestion() -> None:
    plan, found = _judged(load_config("eigen2", []), 20.0)
    assert plan.fits
    assert found == []


def test_each_suggestion_does_what_it_says() -> None:
    settings = ("network.column_chunk=669", "population.group_size=4")
    plan, found = _judged(load_config("eigen2", settings), 2.0)
    assert found
    for suggestion in found:
        new = plan_of(_with(suggestion, *settings), _FACTS, device="cpu", limits=_limits(2.0))
        assert new.fits
        assert suggestion.fits
        assert suggestion.saved_bytes == plan.peak_host_bytes - new.peak_host_bytes
    assert any(key == "network.column_chunk" for suggestion in found for key, _ in suggestion.settings)
    assert any("network.column_chunk=" in str(one) and "saves" in str(one) and "GB" in str(one) for one in found)


def test_what_leaves_the_run_as_it_is_comes_first_and_the_mildest_value_is_given() -> None:
    settings = ("population.group_size=16",)
    plan, found = _judged(load_config("eigen2", settings), 1.6)
    assert not plan.fits
    assert found[0].same_result
    ((key, value),) = found[0].settings
    assert key == "population.group_size"
    milder = load_config("eigen2", [f"{key}={2 * int(value)}"])
    assert not plan_of(milder, _FACTS, device="cpu", limits=_limits(1.6)).fits
    keys = [suggestion.settings[0][0] for suggestion in found]
    assert len(keys) == len(set(keys))


def test_groups_of_another_size_are_not_the_same_run_on_a_gpu() -> None:
    config = load_config("eigen2", ["population.group_size=16"])
    limits = {"device": Limit(int(2.8e9), "here")}
    plan = plan_of(config, _FACTS, device="cuda", limits=limits)
    assert not plan.fits
    found = suggestions_for(config, _FACTS, plan, limits)
    (group,) = [one for one in found if [key for key, _ in one.settings] == ["population.group_size"]]
    assert group.fits
    assert not group.same_result


def test_many_agents_fit_on_a_gpu_in_groups_chosen_by_bytes() -> None:
    config = load_config("eigen2", ["population.size=256", "replay.capacity=200000"])
    assert plan_of(config, _FACTS, device="cuda", limits={"device": Limit(int(22e9), "here")}).fits


@pytest.mark.cpu  # a torch built for CUDA takes more of the 1.4 GB
def test_where_no_setting_is_enough_they_are_combined() -> None:
    settings = ("network.column_chunk=669", "population.group_size=64", "population.size=64")
    plan, found = _judged(load_config("eigen2", settings), 1.4)
    *single, combined = found
    assert not plan.fits
    assert single
    assert not any(one.fits for one in single)
    assert combined.fits
    assert len(combined.settings) > 1
    assert plan_of(_with(combined, *settings), _FACTS, device="cpu", limits=_limits(1.4)).fits


def test_what_cannot_be_reached_is_not_promised() -> None:
    _, found = _judged(load_config("eigen2", []), 0.1)
    assert found
    assert not any(suggestion.fits for suggestion in found)


def _first_of_each(found: list[Suggestion]) -> list[str]:
    return [suggestion.settings[0][0] for suggestion in found]


def test_what_changes_rounding_alone_comes_before_what_changes_the_run() -> None:
    plan, found = _judged(load_config("eigen2", ["network.column_chunk=669", "population.group_size=16"]), 6.0)
    assert not plan.fits
    keys = _first_of_each([one for one in found if len(one.settings) == 1])
    milder = [key for key in keys if key in ("population.group_size", "network.column_chunk")]
    assert milder
    assert keys[: len(milder)] == milder
    if "network.column_chunk" in keys:
        assert not found[keys.index("network.column_chunk")].same_result


def test_a_suggested_replay_holds_a_generation_and_values_are_round() -> None:
    run = ("population.size=60", "replay.capacity=200000")
    settings = (*run, "network.encoder=filter_bank", "population.group_size=4")
    _, found = _judged(load_config("eigen2", settings), 1.2)
    values = dict(one.settings[0] for one in found if len(one.settings) == 1)
    # 60 agents play 5 episodes of 145 days: 43,500 transitions a generation.
    assert int(values["replay.capacity"]) in (50_000, 100_000)
    for key in ("replay.capacity", "population.size", "population.group_size"):
        if key in values:
            assert len(values[key].rstrip("0")) <= 2, (key, values[key])


def test_a_change_that_saves_next_to_nothing_is_not_suggested() -> None:
    plan, found = _judged(load_config("eigen2", []), 0.1)
    assert found
    assert all(suggestion.saved_bytes > 0.01 * plan.peak_host_bytes for suggestion in found)


def test_half_of_an_odd_number_of_days_is_rounded() -> None:
    # All 3,197 train days at once; half of them are 1,598.5.
    _, found = _judged(
        load_config("eigen2", ["learner.block_days=0", "network.column_chunk=669", "population.group_size=4"]), 6.0
    )
    values = dict(one.settings[0] for one in found if len(one.settings) == 1)
    assert values["learner.block_days"] in ("1500", "750", "370", "180")
