"""Settings that make a run fit: what they promise is what planning with them gives."""

from collections.abc import Mapping

from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.planning import Limit, PanelFacts, Plan, Suggestion, plan_of, suggestions_for

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
    settings = ("network.column_chunk=0",)
    plan, found = _judged(load_config("eigen2", settings), 6.0)
    assert found
    for suggestion in found:
        new = plan_of(_with(suggestion, *settings), _FACTS, device="cpu", limits=_limits(6.0))
        assert new.fits
        assert suggestion.fits
        assert suggestion.saved_bytes == plan.peak_host_bytes - new.peak_host_bytes
    assert any(key == "network.column_chunk" for suggestion in found for key, _ in suggestion.settings)
    assert any("network.column_chunk=" in str(one) and "saves" in str(one) and "GB" in str(one) for one in found)


def test_what_leaves_the_run_as_it_is_comes_first_and_the_mildest_value_is_given() -> None:
    settings = ("population.group_size=16",)
    plan, found = _judged(load_config("eigen2", settings), 5.0)
    assert not plan.fits
    assert found[0].same_result
    ((key, value),) = found[0].settings
    assert key == "population.group_size"
    milder = load_config("eigen2", [f"{key}={2 * int(value)}"])
    assert not plan_of(milder, _FACTS, device="cpu", limits=_limits(5.0)).fits
    keys = [suggestion.settings[0][0] for suggestion in found]
    assert len(keys) == len(set(keys))


def test_where_no_setting_is_enough_they_are_combined() -> None:
    settings = ("network.column_chunk=0", "population.group_size=0", "population.size=64")
    plan, found = _judged(load_config("eigen2", settings), 1.9)
    *single, combined = found
    assert not plan.fits
    assert single
    assert not any(one.fits for one in single)
    assert combined.fits
    assert len(combined.settings) > 1
    assert plan_of(_with(combined, *settings), _FACTS, device="cpu", limits=_limits(1.9)).fits


def test_what_cannot_be_reached_is_not_promised() -> None:
    _, found = _judged(load_config("eigen2", []), 0.1)
    assert found
    assert not any(suggestion.fits for suggestion in found)
