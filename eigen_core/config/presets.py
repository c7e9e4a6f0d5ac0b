"""Presets: small YAML files that override the defaults, or (`extends`) what another preset makes of them."""

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from yaml.resolver import BaseResolver

from eigen_core.common.errors import InputError
from eigen_core.common.text import plain_value, shown
from eigen_core.config.learning import LEARNER_CONFIGS

_FOLDER = files("eigen_core.config") / "presets"

PRESET_NAMES: tuple[str, ...] = tuple(sorted(entry.name.removesuffix(".yaml") for entry in _FOLDER.iterdir()))


def preset_values(name: str) -> dict[str, Any]:
    """Return what preset `name` (one of `PRESET_NAMES`) overrides, as nested dictionaries."""
    return {"preset": name, **deepcopy(_overrides(name))}


@cache
def _overrides(name: str) -> dict[str, Any]:
    # The form in Prefect's pages asks for each setting of each preset.
    values = parse_preset((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    base = values.pop("extends", None)
    return values if base is None else merge(_overrides(base), values)


def parse_preset(text: str) -> dict[str, Any]:
    """Return what the text of a preset's file overrides, as nested dictionaries.

    The file is YAML of sections, settings and lists; a value is what `plain_value` makes of it, unless it is quoted.

    Raises:
        InputError: it is something else, or names a section or a setting twice.
    """
    try:
        root = yaml.compose(text, yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError("The preset is no YAML of sections and settings.") from error
    values = {}
    for key, node in _entries(root).items():
        is_section = isinstance(node, yaml.MappingNode)
        values[key] = (
            {name: _value(name, one) for name, one in _entries(node).items()} if is_section else _value(key, node)
        )
    return values


def _entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise InputError("The preset is no YAML of sections and settings.")
    entries: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise InputError("The preset has a key that is no name.")
        if key.value in entries:
            raise InputError(f"The preset gives {shown(key.value)} twice: give it once.")
        entries[key.value] = value
    return entries


def _value(name: str, node: yaml.Node) -> object:
    if isinstance(node, yaml.SequenceNode):
        return [_scalar(name, item) for item in node.value]
    return _scalar(name, node)


def _scalar(name: str, node: yaml.Node) -> object:
    if not isinstance(node, yaml.ScalarNode) or node.tag != BaseResolver.DEFAULT_SCALAR_TAG:
        raise InputError(f"The preset has more in {shown(name)} than values and lists of them.")
    return node.value if node.style else plain_value(node.value)


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `override` laid over it, section by section.

    If `override` gives another `learner.algorithm`, the settings of `base` that this algorithm does not have are left
    out.
    """
    merged = dict(base)
    for key, value in override.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = merge(_settings_shared(below, value) if key == "learner" else below, value)
        else:
            merged[key] = value
    return merged


def _settings_shared(learner: Mapping[str, Any], override: Mapping[str, Any]) -> Mapping[str, Any]:
    algorithm = override.get("algorithm", learner.get("algorithm"))
    kind = LEARNER_CONFIGS.get(algorithm) if isinstance(algorithm, str) else None
    if kind is None or algorithm == learner.get("algorithm"):
        return learner
    return {name: value for name, value in learner.items() if name in kind.model_fields}
