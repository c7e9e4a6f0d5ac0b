"""Presets: small YAML files that override the defaults."""

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

_FOLDER = files("eigen_core.config") / "presets"

PRESET_NAMES: tuple[str, ...] = tuple(sorted(entry.name.removesuffix(".yaml") for entry in _FOLDER.iterdir()))


def preset_values(name: str) -> dict[str, Any]:
    """Return what preset `name` (one of `PRESET_NAMES`) overrides, as nested dictionaries."""
    return {"preset": name, **deepcopy(_overrides(name))}


@cache
def _overrides(name: str) -> dict[str, Any]:
    # The form in Prefect's pages asks for each setting of each preset.
    found: dict[str, Any] = yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `override` laid over it, section by section."""
    merged = dict(base)
    for key, value in override.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged
