"""From a preset and `key=value` settings to a configuration, with errors as sentences."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from eigen_core.config.explain import Setting, flatten, section_names, settings
from eigen_core.config.model import Config
from eigen_core.config.presets import merge
from eigen_core.errors import InputError

_SHOWN_CHARACTERS = 40


def load_config(preset: str | None = None, assignments: Iterable[str] = ()) -> Config:
    """Return the configuration of `preset` with `assignments` laid over it.

    Args:
        preset: one of `eigen_core.config.PRESET_NAMES`; None: the model's default.
        assignments: settings as `key=value`, for example `learner.batch_size=64`; the value is read as YAML.

    Raises:
        InputError: an assignment or the configuration they make together cannot be used.
    """
    values = parse_assignments(assignments)
    if preset is not None:
        if values.get("preset", preset) != preset:
            raise InputError(f"preset is given twice, as {preset} and as {values['preset']}: give it once.")
        values["preset"] = preset
    return config_from_values(values)


def config_from_values(values: Mapping[str, Any]) -> Config:
    """Return the configuration that nested `values` describe.

    Raises:
        InputError: a key is unknown, or a value is of the wrong type, out of bounds or at odds with another.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise InputError(_sentence(error)) from error


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Return `key=value` settings as nested dictionaries.

    Raises:
        InputError: an assignment has no `=`, names no setting, repeats a key, or its value is no YAML.
    """
    values: dict[str, Any] = {}
    seen: set[str] = set()
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals or not key:
            raise InputError(f"'{assignment}' is no setting: write it as key=value, for example learner.batch_size=64.")
        if key in seen:
            raise InputError(f"{key} is given twice: give it once.")
        seen.add(key)
        value: Any = _parse_value(_known(key), text)
        for name in reversed(key.split(".")):
            value = {name: value}
        values = merge(values, value)
    return values


def differing_keys(one: Config, other: Config) -> tuple[str, ...]:
    """Return the dotted keys of the settings in which two configurations differ, in the order of the model."""
    left, right = flatten(one.model_dump(mode="json")), flatten(other.model_dump(mode="json"))
    return tuple(key for key in settings() if left[key] != right[key])


def _known(key: str) -> Setting:
    if key not in settings():
        raise InputError(_unknown(key))
    return settings()[key]


def _unknown(key: str) -> str:
    if key in section_names():
        example = next(name for name in settings() if name.startswith(f"{key}."))
        return f"{key} is a section of settings, not a setting: give one of its keys, for example {example}."
    known = list(settings())
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if not near:
        last_names = {name.rsplit(".", 1)[-1]: name for name in known}
        near = [last_names[name] for name in difflib.get_close_matches(key.rsplit(".", 1)[-1], last_names, n=1)]
    if near:
        return f"{key}: unknown setting; did you mean {near[0]}?"
    return f"{key}: unknown setting; `eigen presets quickstart` lists all settings."


def _parse_value(setting: Setting, text: str) -> object:
    is_list = setting.kind in ("integers", "strings")
    if is_list and not text.lstrip().startswith("["):
        text = f"[{text}]"
    # The base loader leaves words alone: ON, NO and 123 are symbols, not truth values and numbers.
    loader = yaml.BaseLoader if setting.kind == "strings" else yaml.SafeLoader
    try:
        value = yaml.load(text, Loader=loader)
    except yaml.YAMLError:
        raise InputError(_refusal(setting, text)) from None
    if value is None and setting.optional:
        return None
    if setting.kind == "string":
        return text.strip()
    if isinstance(value, bool) and setting.kind != "boolean":
        # pydantic would read true as 1.
        raise InputError(_refusal(setting, text))
    return value


def _refusal(setting: Setting, value: object) -> str:
    return f"{setting.key}: {_shown(value)} cannot be used; give {setting.accepts}."


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else "" if value is None else repr(value)
    text = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    return f"'{text}'"


def _sentence(error: ValidationError) -> str:
    details = error.errors(include_url=False)
    first = details[0]
    message = _sentence_of(first["loc"], first["type"], first["msg"], first["input"])
    elsewhere = sorted({_key(detail["loc"]) for detail in details[1:]} - {_key(first["loc"]), ""})
    return f"{message} Also wrong: {', '.join(elsewhere)}." if elsewhere else message


def _key(location: tuple[int | str, ...]) -> str:
    return ".".join(part for part in location if isinstance(part, str))


def _sentence_of(location: tuple[int | str, ...], kind: str, message: str, value: object) -> str:
    key = _key(location)
    if kind == "extra_forbidden":
        return _unknown(key)
    if kind == "value_error":
        return message.removeprefix("Value error, ").rstrip(".") + "."
    if key in settings():
        return _refusal(settings()[key], value)
    if key in section_names():
        return f"{key}: {_shown(value)} cannot be used; it is a section of settings and takes keys and values."
    return f"The configuration is {_shown(value)}; it must be keys and values."
