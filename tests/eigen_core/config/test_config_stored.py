"""Configurations that were stored by other versions of Eigen."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eigen_core.common.errors import InputError
from eigen_core.config import VARIANTS, Config, GeneticConfig, stored
from eigen_core.config.explain import flatten, settings
from eigen_core.config.loading import load_config
from eigen_core.config.stored import config_from_stored, stored_values


def test_a_stored_configuration_is_read_again() -> None:
    config = load_config("eigen2-classic", ["market.context=SPY", "seed=9"])
    assert config_from_stored(stored_values(config)) == config
    assert stored_values(config)["format_version"] == len(stored.MIGRATIONS) + 1
    # Before there were versions.
    assert config_from_stored(config.model_dump(mode="json")) == config


@pytest.mark.parametrize("values", [{"learner": 5}, {"evolution": None}, {"trading": [1]}])
def test_a_document_of_another_shape_is_refused_after_all_migrations(values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="it is a section of settings"):
        config_from_stored(values)


def test_a_newer_version_is_refused_in_a_sentence() -> None:
    values = stored_values(Config()) | {"format_version": 99, "unheard_of": 1}
    with pytest.raises(InputError, match=r"newer version of Eigen \(configuration format '99'.*upgrade Eigen\.$"):
        config_from_stored(values)


@pytest.mark.parametrize("version", [0, True, 1.0, None, "x" * 10_000])
def test_an_invalid_format_version_is_refused(version: object) -> None:
    with pytest.raises(InputError, match=r"version") as refused:
        config_from_stored(Config().model_dump() | {"format_version": version})
    assert len(str(refused.value)) < 200


def opened(version: int, **sections: Any) -> Config:
    """Return the configuration of preset ddpg with some sections, as if `version` had stored it."""
    values = Config(preset="ddpg").model_dump(mode="json")
    for name, given in sections.items():
        values[name] = {**values[name], **given} if isinstance(given, dict) else given
    return config_from_stored({**values, "format_version": version})


EVALUATION = ("fitness_slices", "champion_validation_share", "champion_standard_errors")


@pytest.mark.parametrize(
    ("version", "preset", "section", "old"),
    [
        (1, "eigen2-classic", "trading", {"bookkeeping": "exact"}),
        (3, "ddpg", "evaluation", dict(zip(EVALUATION, (0, 1.0, 0.0), strict=True))),
        (4, "ddpg", "replay", {"settlement_bars": True}),
        (5, "ddpg", "evolution", {"first_champion_plateau": True}),
        (6, "ddpg", "trading", {"delisting_loss": None}),
    ],
)
def test_a_run_of_before_a_setting_goes_on_as_it_did(
    version: int, preset: str, section: str, old: dict[str, object]
) -> None:
    values = Config(preset=preset).model_dump(mode="json")
    usual = {name: values[section].pop(name) for name in old}
    for newer, expected in ((0, old), (1, usual)):
        read = config_from_stored({**values, "format_version": version + newer}).model_dump()[section]
        assert {name: read[name] for name in old} == expected
    assert all(usual[name] != value for name, value in old.items())


@pytest.mark.parametrize(
    ("algorithm", "stored_delay", "delay"),
    [("ddpg", 1, 1), ("ddpg", 2, 2), ("td3", 2, 2), ("td3", 1, 1), ("sac", 1, None), ("ppo", 1, None)],
)
def test_the_usual_delay_of_version_2_is_that_of_now(algorithm: str, stored_delay: int, delay: int | None) -> None:
    for version in (1, 2):
        learner = opened(version, learner={"algorithm": algorithm, "policy_delay": stored_delay}).learner
        assert getattr(learner, "policy_delay", None) == delay


def test_a_portfolio_of_version_8_keeps_to_data_in_which_every_symbol_trades() -> None:
    """Positions that were not filled paid a part of the costs; where every symbol trades, the bits are the same."""
    assert opened(8, task="portfolio").trading.delisting_loss is None
    for newer in (opened(9, task="portfolio"), opened(8)):
        assert newer.trading.delisting_loss == Config(preset="ddpg").trading.delisting_loss


@pytest.mark.parametrize(
    ("version", "section", "old"),
    [
        (9, "evolution", {"islands": ["a", "b"], "migration_generations": 5}),
        (11, "replay", {"compression": "gzip"}),
        (13, "memory", {"trace": True}),
    ],
)
def test_a_run_with_a_setting_that_no_longer_exists_is_opened(version: int, section: str, old: dict[str, Any]) -> None:
    assert opened(version, **{section: old}) == Config(preset="ddpg")


def flat(section: str) -> dict[str, Any]:
    """Return settings of all algorithms or methods together, as earlier versions stored them, with other values."""
    changed: dict[type, Callable[[Any], Any]] = {bool: lambda old: not old, int: lambda old: old + 1}
    changed[float] = lambda old: 0.9 * old
    fields = [pair for model in VARIANTS[section].models.values() for pair in model.model_fields.items()]
    usual = {name: 0 if field.default is None else field.default for name, field in fields}
    return {name: changed[type(value)](value) for name, value in usual.items() if type(value) in changed}


@pytest.mark.parametrize("algorithm", VARIANTS["learner"].models)
def test_a_run_of_version_10_keeps_the_settings_that_its_learner_read(algorithm: str) -> None:
    stored = {**flat("learner"), "algorithm": algorithm, "policy_delay": None}
    config = opened(10, learner=stored)
    learner = config.learner.model_dump()
    assert config.network.linear_scales == ()
    assert learner.pop("policy_delay", None) == {"ddpg": 1, "td3": 2}.get(algorithm)
    assert learner == {name: stored[name] for name in learner}
    given = opened(10, learner={**stored, "policy_delay": 5}).learner.model_dump()
    assert given.get("policy_delay") == (5 if algorithm in ("ddpg", "td3") else None)


def test_ppo_of_version_10_that_did_not_learn_does_not_learn() -> None:
    values = Config(preset="ppo").model_dump(mode="json")
    values["learner"]["gradient_steps"] = 0
    config = config_from_stored({**values, "format_version": 10})
    assert config == load_config("ppo", ["learner.epochs=0"])
    values["learner"]["gradient_steps"] = 1
    assert config_from_stored({**values, "format_version": 10}) == load_config("ppo")


def test_an_unknown_setting_of_a_learner_is_refused() -> None:
    with pytest.raises(InputError, match=r"learner\.momentum: unknown setting"):
        opened(10, learner={"momentum": 0.5})
    with pytest.raises(InputError, match=r"learner\.clip_range is a setting of ppo"):
        opened(11, learner={"clip_range": 0.5})


@pytest.mark.parametrize("method", VARIANTS["evolution"].models)
def test_a_run_of_version_12_keeps_the_settings_that_its_method_read(method: str) -> None:
    stored = {**flat("evolution"), "method": method, "enabled": True}
    evolution = opened(12, evolution=stored).evolution.model_dump()
    assert evolution.pop("evolves", "weights") == "weights"
    assert evolution.pop("shared_critic", "fittest") == "fittest"
    assert evolution == {name: stored[name] for name in evolution}
    gradients_only = opened(12, evolution={**stored, "enabled": False}).evolution
    assert isinstance(gradients_only, GeneticConfig)
    assert (gradients_only.enabled, gradients_only.mutation_rate) == (False, stored["mutation_rate"])


def test_a_run_of_version_15_keeps_its_linear_part_or_has_none_whatever_its_preset_says_today() -> None:
    values = Config(learner={"algorithm": "counterfactual"}).model_dump(mode="json") | {"format_version": 15}
    del values["network"]["linear_scales"]
    assert config_from_stored(values).network.linear_scales == ()
    values["learner"]["linear_scales"] = [1, 5]
    assert config_from_stored(values).network.linear_scales == (1, 5)


CRITIC_OF_THE_FITTEST = ("evolution.method=cem", "evolution.shared_critic=fittest")


@pytest.mark.parametrize("method", VARIANTS["evolution"].models)
def test_agents_of_cem_in_version_17_go_on_with_the_critic_of_the_fittest(method: str) -> None:
    values = load_config("ddpg", [f"evolution.method={method}"]).model_dump(mode="json")
    usual = config_from_stored({**values, "format_version": 18})
    shared = values["evolution"].pop("shared_critic", None)
    then, now = (config_from_stored({**values, "format_version": version}) for version in (17, 18))
    assert (shared, now) == ("mean" if method == "cem" else None, usual)
    assert then == (load_config("ddpg", CRITIC_OF_THE_FITTEST) if method == "cem" else usual)


BARS_BEFORE_VERSION_20 = {
    "trading.trading_days": "trading.trading_bars",
    "trading.settlement_days": "trading.settlement_bars",
    "trading.holding_days": "trading.holding_bars",
    "trading.delisting_days": "trading.delisting_bars",
    "trading.purchases_per_day": "trading.purchases_per_bar",
    "market.validation_days": "market.validation",
    "market.holdout_days": "market.holdout",
    "market.purge_days": "market.purge",
    "learner.block_days": "learner.block_bars",
    "learner.stretch_days": "learner.stretch_bars",
    "replay.settlement_days": "replay.settlement_bars",
}


@pytest.mark.parametrize(("earlier", "now"), BARS_BEFORE_VERSION_20.items())
def test_names_of_settings_that_counted_days_are_refused_with_those_that_count_bars(earlier: str, now: str) -> None:
    with pytest.raises(InputError, match=f"did you mean {now}[?]"):
        load_config(None, [f"{earlier}=10"])


STORED_CONFIGURATIONS = sorted((Path(__file__).parents[2] / "support" / "stored_configurations").iterdir())


@pytest.mark.parametrize("file", STORED_CONFIGURATIONS, ids=lambda file: file.stem)
def test_a_run_keeps_its_settings_though_its_preset_has_others_today_or_is_gone(file: Path) -> None:
    stored = json.loads(file.read_text(encoding="utf-8"))
    config = config_from_stored(stored)
    expected = {key: setting.default for key, setting in settings(config.learner.algorithm, "genetic").items()}
    named = {BARS_BEFORE_VERSION_20.get(key, key): value for key, value in flatten(stored).items()}
    expected |= named | {"preset": "ddpg", "evolution.evolves": "weights"}
    del expected["format_version"], expected["market.intraday"]
    assert expected.pop("learner.linear_scales", []) == expected["network.linear_scales"] == []
    assert flatten(config.model_dump(mode="json")) == expected


def test_days_formed_of_bars_before_version_19_are_formed_still() -> None:
    for intraday, bar in (("aggregate", "1d"), ("refuse", "auto")):
        market = {name: value for name, value in Config().market.model_dump(mode="json").items() if name != "bar"}
        values = Config(preset="ddpg").model_dump(mode="json") | {"market": market | {"intraday": intraday}}
        assert config_from_stored(values | {"format_version": 18}).market.bar == bar
