"""Every setting is explained: value, default, bounds, unit, meaning."""

import math

import pytest
from pydantic import ValidationError

from eigen_core.config import PRESET_NAMES, Config
from eigen_core.config.explain import Setting, explain, flatten, section_names, settings
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


def test_sources_tell_default_preset_and_user_apart() -> None:
    source = {row.setting.key: row.source for row in explain(load_config("eigen2-classic", ["learner.gamma=0.5"]))}
    assert source["learner.gamma"] == "given"
    assert source["trading.fill"] == "preset"
    assert source["trading.min_target"] == "default"
    assert source["preset"] == "preset"


def test_units_leave_the_meaning() -> None:
    window = settings()["market.window"]
    assert window.unit == "days"
    assert "(days)" not in window.meaning
    assert settings()["trading.cost_bps"].unit.startswith("basis points")
    assert settings()["learner.twin_critics"].unit == ""


@pytest.mark.parametrize(
    ("key", "accepts"),
    [
        ("preset", f"one of {', '.join(PRESET_NAMES)}"),
        ("learner.batch_size", "a whole number from 1 to 65,536"),
        ("trading.max_coefficient", "a number above 0, or null"),
        ("learner.gamma", "a number of at least 0 and below 1"),
        ("learner.twin_critics", "true or false"),
        ("trading.fill", "one of next_open, next_close, same_close"),
        ("network.scales", "a list of whole numbers of at least 1, for example [1, 5]"),
        ("market.context", "a list of names"),
        ("market.data", "text, or null"),
    ],
)
def test_what_a_setting_accepts_is_said_in_words(key: str, accepts: str) -> None:
    assert settings()[key].accepts == accepts


def _refused(key: str, value: object) -> bool:
    values: object = value
    for name in reversed(key.split(".")):
        values = {name: values}
    try:
        Config.model_validate(values)
    except ValidationError as error:
        return any(".".join(map(str, detail["loc"])) == key for detail in error.errors())
    return False


@pytest.mark.parametrize("setting", [one for one in settings().values() if " at least " in one.bounds])
def test_the_bounds_said_are_the_bounds_enforced(setting: Setting) -> None:
    low = float(setting.bounds.split(" at least ")[1].split(" ")[0].replace(",", ""))
    below: object = low - 1 if setting.kind != "number" else math.nextafter(low, -math.inf)
    if setting.kind == "integers":
        assert not _refused(setting.key, [int(low)])
        return
    assert _refused(setting.key, int(low) - 1 if setting.kind == "integer" else below)
    assert not _refused(setting.key, int(low) if setting.kind == "integer" else low)


def test_sections_are_no_settings() -> None:
    assert "learner" in section_names()
    assert not set(section_names()) & set(settings())
