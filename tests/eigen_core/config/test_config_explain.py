"""Every setting is explained: value, default, bounds, unit, meaning."""

import math
import re
from typing import Any

import pytest
from pydantic import ValidationError

from eigen_core.config import VARIANTS, Config
from eigen_core.config.explain import Setting, explain, flatten, settings
from eigen_core.config.loading import load_config


def test_every_setting_of_the_model_has_one_row_and_a_meaning() -> None:
    values = flatten(Config().model_dump(mode="json"))
    rows = explain(Config())
    assert [row.setting.key for row in rows] == list(values)
    for row in rows:
        assert row.value == values[row.setting.key]
        assert row.setting.meaning.endswith(".")
        assert "\n" not in row.setting.meaning
        assert row.setting.accepts


def test_a_configuration_is_explained_by_the_settings_of_its_algorithm() -> None:
    config = load_config("quickstart", ["learner.algorithm=ppo", "learner.epochs=3"])
    rows = {row.setting.key: row for row in explain(config)}
    assert rows.keys() == flatten(config.model_dump()).keys()
    assert [rows[f"learner.{name}"].source for name in ("algorithm", "epochs", "reward_clip", "clip_range")] == [
        *("given", "given", "preset", "default")
    ]
    assert settings()["learner.epochs"].variants == ("ppo",)
    assert settings()["learner.weight_decay"].variants == ()
    assert settings()["evolution.mutation_rate"].variants == ("genetic", "erl")
    assert "evolution.mutation_rate" not in settings("cem")
    assert [settings(name)["learner.policy_delay"].default for name in ("ddpg", "td3")] == [1, 2]


NAMES = [name for variants in VARIANTS.values() for name in variants.models]


def _refused(setting: Setting, value: object) -> bool:
    key = setting.key
    values: Any = value
    for name in reversed(key.split(".")):
        values = {name: values}
    if setting.variants:
        section = key.partition(".")[0]
        values[section][VARIANTS[section].key] = setting.variants[0]
    try:
        Config.model_validate(values)
    except ValidationError as error:
        places = [[str(part) for part in detail["loc"] if part not in NAMES] for detail in error.errors()]
        # Of a setting with alternatives, a place names the one that was tried after the key.
        return any(key in (".".join(place[:1]), ".".join(place[:2])) for place in places)
    return False


NUMBERS = [setting for setting in settings().values() if setting.kind in ("integer", "number", "integers")]


@pytest.mark.parametrize("setting", NUMBERS)
def test_every_number_is_bounded_as_its_bounds_say(setting: Setting) -> None:
    words = r"(from|of at least|above) (-?[\d,.]+) (to|and of at most|and below) ([\d,.]+)"
    found = re.fullmatch(words, setting.bounds)
    assert found is not None
    low, high = (float(found[place].replace(",", "")) for place in (2, 4))
    low_is_inside, high_is_inside = found[1] != "above", found[3] != "and below"
    if setting.kind == "number":
        outside: list[float] = [math.nextafter(low, -math.inf), math.nextafter(high, math.inf)]
        edges: list[float] = [low, high]
    else:
        outside, edges = [int(low) - 1, int(high) + 1], [int(low), int(high)]
    for value, refused in zip([*outside, *edges], [True, True, not low_is_inside, not high_is_inside], strict=True):
        assert _refused(setting, [value] if setting.kind == "integers" else value) == refused
