"""What a report says of a run's settings, and how to train it again."""

import shlex

import pytest

from eigen_core.config import PRESET_NAMES, Config
from eigen_core.config.loading import differing_keys, load_config
from eigen_core.reporting.report import differing_settings, settings_of, training_command

GIVEN = ("generations=3", "learner.batch_size=16", "market.context=AAPL,MSFT", "market.data=/home/user/my prices.csv")


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_the_command_trains_a_run_with_the_same_settings(preset: str) -> None:
    config = load_config(preset, ["seed=7", "checkpoint.store=/somewhere/else", "memory.limit_gb=3.5"])
    words = shlex.split(training_command(config, "mine"))
    assert words[:6] == ["eigen", "train", "--run", "mine", "--preset", preset]
    again = load_config(preset, words[7::2])
    assert set(words[6::2]) == {"--set"}
    assert differing_keys(again, config) == ("checkpoint.store",)


def test_names_and_paths_are_entered_as_they_are_given() -> None:
    config = load_config("quickstart", GIVEN)
    words = shlex.split(training_command(config, "mine"))
    assert words[words.index("--data") + 1] == "my prices.csv"
    assert "market.context=AAPL,MSFT" in words
    assert differing_keys(load_config("quickstart", words[9::2]), config) == ("market.data",)


def test_settings_have_what_the_preset_has_where_they_differ() -> None:
    shown = {setting.key: setting for setting in settings_of(load_config("quickstart", GIVEN))}
    changed = {key: setting.preset for key, setting in shown.items() if setting.preset is not None}
    assert set(changed) == {"generations", "learner.batch_size", "market.context", "market.data"}
    assert changed["generations"] == str(Config().generations)
    assert (shown["generations"].value, shown["market.data"].value) == ("3", "my prices.csv")
    assert len(shown) > 50


def test_of_runs_only_settings_that_differ_are_shown() -> None:
    configs = {"one": load_config("quickstart"), "two": load_config("quickstart", GIVEN[:2])}
    different = differing_settings(configs)
    assert different["generations"] == {"one": str(Config().generations), "two": "3"}
    assert set(different) == {"generations", "learner.batch_size"}
    assert differing_settings({"one": configs["one"], "same": configs["one"]}) == {}
