"""The parameters of the training flow as a form: what a preset says is not overruled by untouched fields."""

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from prefect.utilities.callables import parameter_schema

from eigen_core.config import PRESET_NAMES, Config
from eigen_core.config.machine import run_values
from flows.server.flows import train_flow


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """What the server is told of the parameters."""
    return parameter_schema(train_flow.fn).model_dump()


def settings(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All settings of the configuration with their names."""
    for name, setting in schema["definitions"]["Config"]["properties"].items():
        section = schema["definitions"].get(setting.get("$ref", "").rsplit("/", 1)[-1], setting)
        if "properties" in section:
            assert "default" not in setting
            for inner_name, inner in section["properties"].items():
                yield f"{name}.{inner_name}", inner
        else:
            yield name, setting


def test_no_setting_has_a_value_that_a_form_would_send(schema: dict[str, Any]) -> None:
    found = dict(settings(schema))
    assert len(found) > 80
    assert [name for name, setting in found.items() if "default" in setting] == []
    # A form sends an untouched check box as false.
    assert [name for name, setting in found.items() if setting.get("type") == "boolean"] == []
    assert schema["required"] == ["config"]
    assert schema["properties"]["config"].get("default") is None


def test_every_parameter_and_setting_is_described(schema: dict[str, Any]) -> None:
    assert [name for name, setting in settings(schema) if not setting.get("description")] == []
    assert [name for name, parameter in schema["properties"].items() if not parameter.get("description")] == []
    found = dict(settings(schema))
    assert found["market.window"]["description"].endswith("Default: 64; eigen2: 504; eigen2-classic: 504.")
    assert found["market.validation_days"]["description"].endswith("Default: 252.")
    assert found["memory.limit_gb"]["description"].endswith("Default: empty.")
    assert found["preset"]["enum"] == list(PRESET_NAMES)


def test_a_setting_of_a_single_choice_is_offered_as_a_choice(schema: dict[str, Any]) -> None:
    assert [name for name, setting in settings(schema) if "const" in setting] == []
    assert "ddpg" in dict(settings(schema))["learner.algorithm"]["enum"]


def test_the_model_keeps_its_defaults(schema: dict[str, Any]) -> None:
    assert schema["definitions"]["Config"] != Config.model_json_schema()
    assert Config.model_json_schema()["properties"]["generations"]["default"] == 25


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_every_preset_is_accepted_whole_and_by_name(schema: dict[str, Any], preset: str) -> None:
    for config in ({"preset": preset}, run_values(Config(preset=preset).model_dump(mode="json"))):
        jsonschema.validate({"config": config, "run": None, "resume": False}, schema)


@pytest.mark.parametrize(
    "config",
    [
        {"preset": "eigen3"},
        {"generations": 0},
        {"generation": 3},
        {"learner": {"gamma": 1.5}},
        {"learner": {"algorithm": "ddpg", "clip_range": 0.1}},
        {"learner": {"clip_range": 0.1, "tau": 0.1}},
        {"evolution": {"method": "cem", "mutation_rate": 0.1}},
        {"threads": "two"},
    ],
    ids=lambda config: "-".join(config),
)
def test_what_our_own_validation_refuses_is_refused(schema: dict[str, Any], config: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"config": config}, schema)
