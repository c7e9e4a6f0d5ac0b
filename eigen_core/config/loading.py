"""Build a configuration from a preset and `key=value` settings, with errors in sentences."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from eigen_core.common.errors import InputError
from eigen_core.common.text import json_or_text, listed, quoted
from eigen_core.config.explain import Setting, flatten, section_names, settings
from eigen_core.config.instruments import read_instruments
from eigen_core.config.learning import VARIANTS
from eigen_core.config.machine_settings import MACHINE_SETTINGS
from eigen_core.config.model import Config, merge

_SHOWN_KEYS = 5
_NAMED_CHARACTERS = 60
_BRACKETS_AND_QUOTES = frozenset("[]{}\"'")


def load_config(
    preset: str | None = None, assignments: Iterable[str] = (), environ: Mapping[str, str] | None = None
) -> Config:
    """Return the configuration of `preset`, changed by `assignments`.

    Args:
        preset: one of `PRESET_NAMES`; None: the one that `assignments` set, or the default preset.
        assignments: settings as `key=value`, for example `learner.batch_size=64`; numbers, truth values and lists of
            numbers are JSON.
        environ: environment variables, from which `MACHINE_SETTINGS` that no assignment sets are read; None: none.

    Raises:
        InputError: an assignment, an environment variable or the resulting configuration is invalid.
    """
    values = merge(values_of_environment(environ or {}), parse_assignments(assignments))
    if preset is not None:
        if values.get("preset", preset) != preset:
            raise InputError(
                f"preset is given twice, as {quoted(preset)} and as {quoted(values['preset'])}: give it once."
            )
        values["preset"] = preset
    return config_from_values(values)


def config_from_values(values: Mapping[str, Any]) -> Config:
    """Return the configuration with nested settings `values`; `InputError` for an unknown key or an invalid value."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise InputError(_sentence(error)) from error


def changed(config: Config, values: Mapping[str, Any]) -> Config:
    """Return `config` with nested settings `values`; `InputError` as `config_from_values`."""
    return config_from_values(merge(config.model_dump(), values)) if values else config


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Return `key=value` settings as nested dictionaries; raise `InputError` for unknown or repeated keys."""
    values: dict[str, Any] = {}
    seen: set[str] = set()
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals or not key:
            raise InputError(
                f"{quoted(assignment)} is no setting: write it as key=value, for example learner.batch_size=64."
            )
        if key in seen:
            raise InputError(f"{key} is given twice: give it once.")
        seen.add(key)
        if key not in settings():
            raise InputError(_unknown(key))
        value = _parse_value(settings()[key], text)
        *sections, name = key.split(".")
        inner = values
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return values


def values_of_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return `MACHINE_SETTINGS` from environment variables, as nested dictionaries; `InputError` for invalid values.

    `EIGEN_STORE` is left out (see `store_from_environment`), and so is `MLFLOW_TRACKING_URI`, which MLflow reads itself
    and which may contain a password.
    """
    values: dict[str, Any] = {}
    for key, setting in MACHINE_SETTINGS.items():
        text = environ.get(setting.variable, "").strip()
        if not text or key in ("checkpoint.store", "reporting.mlflow_uri"):
            continue
        given = parse_assignments([f"{key}={text}"])
        try:
            config_from_values(given)
        except InputError as error:
            raise InputError(f"The environment variable {setting.variable} is invalid. {error}") from error
        values = merge(values, given)
    return values


def differing_keys(one: Config, other: Config) -> tuple[str, ...]:
    """Return the dotted keys of settings that both configurations have, with different values, in `Config`'s order."""
    left, right = flatten(one.model_dump(mode="json")), flatten(other.model_dump(mode="json"))
    return tuple(key for key in settings() if key in left and key in right and left[key] != right[key])


def _unknown(key: str) -> str:
    if key in section_names():
        example = next(name for name in settings() if name.startswith(f"{key}."))
        return f"{key} is a section of settings, not a setting: give one of its keys, for example {example}."
    known = list(settings())
    last_names, last = {name.rsplit(".", 1)[-1]: name for name in known}, key.rsplit(".", 1)[-1]
    near = [last_names[last]] if last in last_names else difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if not near:
        near = [last_names[name] for name in difflib.get_close_matches(last, last_names, n=1)]
    if near:
        return f"{_named(key)}: unknown setting; did you mean {near[0]}?"
    return f"{_named(key)}: unknown setting; `eigen presets quickstart` lists all settings."


def _named(key: str) -> str:
    return key if len(key) <= _NAMED_CHARACTERS and key.isprintable() else quoted(key)


def _parse_value(setting: Setting, text: str) -> object:
    text = text.strip()
    if setting.optional and text in ("", "null"):
        return None
    if setting.kind in ("string", "date"):
        return text
    if setting.key == "market.instruments" and text.lower().endswith(".csv"):
        return read_instruments(text)
    if setting.kind == "strings":
        return _names(text)
    if setting.kind == "integers" and not text.startswith("["):
        text = f"[{text}]"
    return json_or_text(text)


def _names(text: str) -> list[str] | str:
    """Return the names in a text like `a, b` or `["a", "b"]`; the text itself if it is not a list of names."""
    listed_names = json_or_text(text)
    if isinstance(listed_names, list) and listed_names and all(isinstance(name, str) for name in listed_names):
        return list(map(str, listed_names))
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    names = [_unquoted(name.strip()) for name in inner.split(",")] if inner.strip() else []
    return names if all(name and not _BRACKETS_AND_QUOTES & set(name) for name in names) else text


def _unquoted(name: str) -> str:
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] in "\"'" else name


def _refusal(setting: Setting, value: object) -> str:
    return f"{setting.key}: {quoted(value)} cannot be used; give {setting.accepts}."


def _sentence(error: ValidationError) -> str:
    details = error.errors(include_url=False)
    first = details[0]
    message = _sentence_of(first["loc"], first["type"], first["msg"], first["input"])
    elsewhere = [_named(key) for key in sorted({_key(detail["loc"]) for detail in details} - {_key(first["loc"]), ""})]
    return f"{message} Also wrong: {listed(elsewhere, _SHOWN_KEYS)}." if elsewhere else message


def _key(location: tuple[int | str, ...]) -> str:
    parts = [part for part in location if isinstance(part, str)]
    if _variant_at(location):
        del parts[1]
    # For a setting with alternatives, pydantic appends the alternative to the location.
    keys = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return next((key for key in keys if key in settings()), ".".join(parts))


def _variant_at(location: tuple[int | str, ...]) -> str:
    """Return the algorithm or method that pydantic's location of an error names after the section; empty if none."""
    section, variant, *_ = *location, "", ""
    return str(variant) if section in VARIANTS and variant in VARIANTS[str(section)].models else ""


def _of_another_variant(key: str, variant: str) -> str:
    section = key.partition(".")[0]
    variants = VARIANTS[section]
    having = ", ".join(settings()[key].variants)
    own = ", ".join(name for name in variants.models[variant].model_fields if name != variants.key)
    return (
        f"{key} is a setting of {having}, and {section}.{variants.key} is {variant}, which has {own}: leave it out, or "
        f"choose another {variants.key}."
    )


def _sentence_of(location: tuple[int | str, ...], kind: str, message: str, value: object) -> str:
    key = _key(location)
    if kind == "extra_forbidden":
        return _of_another_variant(key, _variant_at(location)) if key in settings() else _unknown(key)
    if kind == "union_tag_invalid" and isinstance(value, Mapping):
        chosen = VARIANTS[key].key
        return _refusal(settings()[f"{key}.{chosen}"], value.get(chosen))
    if kind == "value_error":
        return message.removeprefix("Value error, ").rstrip(".") + "."
    if key in settings():
        return _refusal(settings()[key], value)
    if key in section_names():
        return f"{key}: {quoted(value)} cannot be used; it is a section of settings and takes keys and values."
    return f"The configuration is {quoted(value)}; it must be keys and values."
