"""How the configuration is offered as a form: by Prefect's pages, and by the schema that its server returns."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from eigen_core.config import LEARNER_CONFIGS, PRESET_NAMES, Config, LearnerConfig, preset_values
from eigen_core.config.explain import settings
from eigen_core.config.machine import MACHINE_SETTINGS


class _Form:
    """The schema of a configuration without values of its own.

    A form sends every value that it shows. Were the defaults shown, a user who chose another preset would get them
    under that preset's name; so descriptions say what a setting is that is left alone.

    It has no settings that are a machine's own: a worker takes them from its own environment alone, and the server
    refuses parameters that its form does not have.
    """

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        reference = handler(core_schema)
        presets = {name: preset_values(name) for name in PRESET_NAMES}
        properties = handler.resolve_ref_schema(reference)["properties"]
        _remove_machine_settings(properties, "")
        properties["learner"] = _of_all_algorithms(properties["learner"], handler)
        for name, setting in properties.items():
            if "properties" in setting:
                for inner_name, inner in setting["properties"].items():
                    _without_value(inner, (name, inner_name), presets)
            elif "$ref" in setting:
                setting.pop("default", None)
                inner_properties = handler.resolve_ref_schema(setting)["properties"]
                _remove_machine_settings(inner_properties, f"{name}.")
                for inner_name, inner in inner_properties.items():
                    _without_value(inner, (name, inner_name), presets)
            else:
                _without_value(setting, (name,), presets)
            if name == "preset":
                setting["enum"] = list(PRESET_NAMES)
        return reference


def _of_all_algorithms(learner: Mapping[str, Any], handler: GetJsonSchemaHandler) -> JsonSchemaValue:
    """Return the schemas of all algorithms as one: an algorithm must have all settings that are given.

    Prefect's pages choose among several schemas by the names of the values that were entered, and algorithms share
    most of them. The pages do not show `then`; the server reads it.
    """
    properties: dict[str, Any] = {}
    for one in learner["oneOf"]:
        for name, setting in handler.resolve_ref_schema(one)["properties"].items():
            having = settings()[f"learner.{name}"].algorithms
            described = f"{setting['description']} With {', '.join(having)}." if having else setting["description"]
            properties.setdefault(name, {**setting, "description": described})
    algorithm = settings()["learner.algorithm"]
    properties["algorithm"] = {
        "title": "Algorithm",
        "description": algorithm.meaning,
        "default": algorithm.default,
        "enum": list(LEARNER_CONFIGS),
    }
    return {
        "title": "Learner",
        "description": LearnerConfig.__doc__,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "if": {"properties": {"algorithm": {"enum": list(LEARNER_CONFIGS)}}},
        "then": {
            "anyOf": [
                {"properties": {"algorithm": {"const": name}}, "propertyNames": {"enum": list(kind.model_fields)}}
                for name, kind in LEARNER_CONFIGS.items()
            ]
        },
    }


def _remove_machine_settings(properties: dict[str, Any], prefix: str) -> None:
    for name in [name for name in properties if f"{prefix}{name}" in MACHINE_SETTINGS]:
        del properties[name]


FormConfig = Annotated[Config, _Form()]
"""`Config`, as a parameter that is filled in as a form."""


def _without_value(setting: dict[str, Any], path: tuple[str, ...], presets: Mapping[str, Any]) -> None:
    if "default" in setting:
        default = setting.pop("default")
        values_shown = [f"Default: {_json(default)}"]
        if path != ("preset",):
            values = [(name, value) for name, preset in presets.items() for value in _values_at(path, preset)]
            values_shown += [f"{name}: {_json(value)}" for name, value in values if value != default]
        setting["description"] = f"{setting['description']} {'; '.join(values_shown)}."
    if "const" in setting:
        # A field of a single choice: a form would show it as one that cannot be filled in.
        setting["enum"] = [setting.pop("const")]
    if setting.get("type") == "boolean":
        # An untouched check box is sent as false.
        del setting["type"]
        setting["enum"] = [True, False]


def _values_at(path: tuple[str, ...], preset: Any) -> list[Any]:  # noqa: ANN401 - sections, or a value
    """Return the value that a preset gives a setting, as a list of one; of none if it leaves it alone."""
    found = preset
    for key in path:
        if key not in found:
            return []
        found = found[key]
    return [found]


def _json(value: object) -> str:
    return "empty" if value is None else json.dumps(value, ensure_ascii=False)
