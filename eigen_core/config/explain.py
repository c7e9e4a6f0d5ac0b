"""Value, default, bounds, unit and meaning of every setting, for tables and error messages."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from eigen_core.config.learning import VARIANTS
from eigen_core.config.model import PRESET_NAMES, Config, preset_values
from eigen_core.config.registry import TASK_NAMES, Section

_UNIT = re.compile(r"\s*\((bars|reward|basis points(?: of its value)?)\)\.$")
_NAMED = {
    "preset": f"one of {', '.join(PRESET_NAMES)}",
    "task": f"one of {TASK_NAMES}",
    **{f"{section}.{one.key}": f"one of {', '.join(one.models)}" for section, one in VARIANTS.items()},
}
_DESCRIPTIONS = {
    f"{section}.{one.key}": " ".join(
        [str(one.common.model_fields[one.key].description)]
        + [f"`{name}`: {model.__doc__}" for name, model in one.models.items() if model.__doc__]
    )
    for section, one in VARIANTS.items()
}
_A_DURATION = "a time such as 60d, 12h or 30m"
_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "date": "a date as YYYY-MM-DD",
    "integers": "a list of whole numbers",
    "strings": "a list of names",
}


@dataclass(frozen=True)
class Setting:
    """Accepted values and meaning of one setting.

    Attributes:
        optional: whether the setting accepts null.
        kind: integer, number, boolean, string, date, integers or strings (the last two are lists).
        word: a word that the setting accepts besides values of its kind, such as auto; empty if none.
        bounds: accepted values in words; empty if the setting accepts any value of its kind.
        variants: values of `learner.algorithm` or `evolution.method` that have the setting; empty: all.
    """

    key: str
    kind: str
    optional: bool
    word: str
    default: Any
    bounds: str
    unit: str
    meaning: str
    variants: tuple[str, ...]

    @property
    def accepts(self) -> str:
        """Accepted values, in words: `a whole number from 1 to 65,536`, `one of cpu, cuda`."""
        words = self.bounds if self.bounds.startswith("one of") else f"{_KINDS[self.kind]} {self.bounds}".strip()
        if self.kind == "integers":
            words += ", for example [1, 5]"
        words += f", or {self.word}" if self.word else ""
        return f"{words}, or null" if self.optional else words


@dataclass(frozen=True)
class ExplainedSetting:
    setting: Setting
    value: Any
    source: Literal["default", "preset", "given"]


def explain(config: Config) -> list[ExplainedSetting]:
    """Return all settings of `config`; source: `given` if the value is not the preset's, else `preset` or `default`."""
    values = flatten(config.model_dump(mode="json"))
    chosen = {f"{section}.{one.key}": values[f"{section}.{one.key}"] for section, one in VARIANTS.items()}
    of_preset = flatten(with_variants_of(config).model_dump(mode="json"))
    preset = flatten(Config(preset=config.preset).model_dump(mode="json"))
    of_preset |= {key: preset[key] for key in chosen}
    overridden = flatten(preset_values(config.preset)).keys()
    rows = []
    for key, setting in settings(*chosen.values()).items():
        source: Literal["default", "preset", "given"] = "default"
        if values[key] != of_preset[key]:
            source = "given"
        elif key in overridden:
            source = "preset"
        rows.append(ExplainedSetting(setting, values[key], source))
    return rows


def with_variants_of(config: Config) -> Config:
    """Return the preset of `config` with the learning algorithm and population method of `config`."""
    chosen = {section: {one.key: getattr(getattr(config, section), one.key)} for section, one in VARIANTS.items()}
    return Config.model_validate({"preset": config.preset, **chosen})


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


@cache
def settings(*chosen: str) -> Mapping[str, Setting]:
    """Return settings by dotted key, in the order of `Config`; with an algorithm and a method as `chosen`, only theirs.

    Otherwise the default of a setting that several algorithms or methods have is that of the first, and the meaning
    says what it is with each.
    """
    found: dict[str, Setting] = {}
    meanings: dict[str, dict[str, list[str]]] = {}
    for variant, setting in _settings_of(Config, "", chosen):
        found.setdefault(setting.key, setting)
        meanings.setdefault(setting.key, {}).setdefault(setting.meaning, []).append(variant)
    for key, each in meanings.items():
        if len(each) > 1:
            parts = (f"With {', '.join(variants)}: {meaning}" for meaning, variants in each.items())
            found[key] = replace(found[key], meaning=" ".join(parts))
    return found


@cache
def section_names() -> tuple[str, ...]:
    return tuple(dict.fromkeys(section for key in settings() if (section := key.rpartition(".")[0])))


def _settings_of(
    section: type[Section], prefix: str, chosen: tuple[str, ...], variant: str = ""
) -> Iterator[tuple[str, Setting]]:
    properties = section.model_json_schema()["properties"]
    for name, field in section.model_fields.items():
        annotation = field.annotation
        if field.discriminator is not None:
            models = VARIANTS[name].models
            for one in [one for one in models if one in chosen] or models:
                yield from _settings_of(models[one], f"{prefix}{name}.", chosen, one)
        elif isinstance(annotation, type) and issubclass(annotation, Section):
            yield from _settings_of(annotation, f"{prefix}{name}.", chosen)
        else:
            yield variant, _setting(f"{prefix}{name}", properties[name])


def _setting(key: str, schema: Mapping[str, Any]) -> Setting:
    alternatives: list[Mapping[str, Any]] = schema.get("anyOf", [schema])
    accepted, *others = (alternative for alternative in alternatives if alternative["type"] != "null")
    description = " ".join(str(_DESCRIPTIONS.get(key) or schema["description"]).split())
    unit = _UNIT.search(description)
    kind = accepted.get("format", accepted["type"])
    return Setting(
        key=key,
        kind=f"{accepted['items']['type']}s" if kind == "array" else kind,
        optional=any(alternative["type"] == "null" for alternative in alternatives),
        word=next((other.get("const", _A_DURATION) for other in others), ""),
        default=schema["default"],
        bounds=_NAMED[key] if key in _NAMED else _bounds(accepted),
        unit=unit[1] if unit else "",
        meaning=_UNIT.sub(".", description) if unit else description,
        variants=_variants_with(key),
    )


def _variants_with(key: str) -> tuple[str, ...]:
    section, _, name = key.rpartition(".")
    models = VARIANTS[section].models if section in VARIANTS else {}
    having = tuple(one for one, model in models.items() if name in model.model_fields)
    return having if len(having) < len(models) else ()


def _bounds(schema: Mapping[str, Any]) -> str:
    choices = schema.get("enum") or [schema[name] for name in ("const",) if name in schema]
    if choices:
        return "one of " + ", ".join(map(str, choices))
    if schema["type"] == "array":
        bounds = _bounds(schema["items"])
        return f"out of {bounds.removeprefix('one of ')}" if bounds.startswith("one of") else bounds
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f"from {_number(low)} to {_number(high)}"
    parts = [
        f"{words} {_number(bound)}"
        for words, bound in (("of at least", low), ("above", above), ("of at most", high), ("below", below))
        if bound is not None
    ]
    return " and ".join(parts)


def _number(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:g}"
