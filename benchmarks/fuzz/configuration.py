"""One setting with a value that is fine, of another type, out of bounds, spelled oddly, or far too large.

It is given with `--set`, as a dictionary or in a stored configuration, and has to be accepted as the value that was
meant, or refused by one short sentence that names it.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz.cases import Outcome
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.errors import InputError
from eigen_core.config import PRESET_NAMES, Config
from eigen_core.config.explain import Setting, flatten, settings, with_variants_of
from eigen_core.config.loading import config_from_values, load_config
from eigen_core.config.machine_settings import MACHINE_SETTINGS
from eigen_core.config.stored import stored_values
from eigen_core.runs.handle import Run

_LONGEST_SENTENCE = 600
_MOST_SECONDS = 60.0


@dataclass(frozen=True)
class _Value:
    """A value, and what it may be taken for.

    Attributes:
        what: a row of the table.
        value: text for `--set`, else any object.
        meant: the only value that it can mean; None of them: it has to be refused.
        sure: it has to be accepted, unless it is at odds with another setting.
    """

    what: str
    value: Any
    meant: tuple[Any, ...] = ()
    sure: bool = False


def one_case(generator: np.random.Generator, folder: Path) -> Outcome:
    setting = _choice(generator, list(settings(Config().learner.algorithm, Config().evolution.method).values()))
    way = _choice(generator, _ways_of(setting))
    value = _choice(generator, _texts(setting, generator) if way == "--set" else _objects(setting, generator))
    kind = f"{value.what}, {way}"
    began = time.monotonic()
    try:
        config = _WAYS[way](setting.key, value.value, folder)
    except InputError as error:
        fault = _fault_of_refusal(setting, value, str(error))
        treatment = "refused"
    except Exception as error:  # noqa: BLE001 - whatever else comes is what is looked for
        fault, treatment = f"{type(error).__name__}: {str(error)[:200]}", "failed"
    else:
        fault, treatment = _fault_of_reading(setting, value, config), "accepted"
    if time.monotonic() - began > _MOST_SECONDS:
        fault = f"took {time.monotonic() - began:.0f} s"
    described = f"{setting.key}: {fault}" if fault else None
    return Outcome(kind, treatment, described)


def _ways_of(setting: Setting) -> list[str]:
    """Return the ways in which a setting can be given; a store cannot give one of this machine."""
    return [way for way in _WAYS if way != "config.json" or setting.key not in MACHINE_SETTINGS]


def _fault_of_refusal(setting: Setting, value: _Value, sentence: str) -> str | None:
    if value.sure and f"{setting.key}: '" in sentence:
        return f"{value.value!r} was refused: {sentence}"
    if setting.key not in sentence and setting.key != "preset":
        return f"a sentence that does not name it: {sentence[:200]}"
    if not sentence.isprintable() or len(sentence) > _LONGEST_SENTENCE:
        return f"a sentence of {len(sentence)} characters: {sentence[:200]!r}"
    return None


def _fault_of_reading(setting: Setting, value: _Value, config: Config) -> str | None:
    found = flatten(config.model_dump())
    read = found.pop(setting.key)
    if not any(type(read) is type(meant) and read == meant for meant in value.meant):
        return f"{str(value.value)[:80]!r} was read as {read!r}"
    expected = flatten(with_variants_of(config).model_dump())
    changed = [key for key, one in found.items() if one != expected[key]]
    return f"{changed[0]} is {found[changed[0]]!r}" if changed else None


def _given(key: str, text: str, folder: Path) -> Config:  # noqa: ARG001 - as all ways
    return load_config(None, [f"{key}={text}"])


def _as_dictionary(key: str, value: object, folder: Path) -> Config:  # noqa: ARG001 - as all ways
    return config_from_values(_nested(key, value))


def _stored(key: str, value: Any, folder: Path) -> Config:  # noqa: ANN401 - whatever JSON can hold
    base = Config(preset=value) if key == "preset" and value in PRESET_NAMES else Config()
    values: dict[str, Any] = stored_values(base)
    section = values
    *names, last = key.split(".")
    for name in names:
        section = section[name]
    section[last] = value
    try:
        RunDirectory.create(folder / "runs", "run", values)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{key} cannot be stored: {type(error).__name__}") from error
    config = Run.open(str(folder / "runs"), "run").config
    # A store may have been moved since.
    restored = config.checkpoint.model_copy(update={"store": value if key == "checkpoint.store" else "runs"})
    return config.model_copy(update={"checkpoint": restored})


_WAYS: Mapping[str, Callable[[str, Any, Path], Config]] = {
    "--set": _given,
    "dictionary": _as_dictionary,
    "config.json": _stored,
}


def _nested(key: str, value: object) -> dict[str, Any]:
    nested: Any = value
    for name in reversed(key.split(".")):
        nested = {name: nested}
    found: dict[str, Any] = nested
    return found


def _texts(setting: Setting, generator: np.random.Generator) -> list[_Value]:
    """Spellings of values, each with what it may mean."""
    number = int(generator.integers(2, 60))
    odd = [
        _Value("octal", f"0{number}", (number, float(number))),
        _Value("octal", f"0o{number % 8}"),
        _Value("sexagesimal", f"{number % 60}:30"),
        _Value("hexadecimal", f"0x{number}"),
        _Value("underscores", f"{number}_0", (number * 10, number * 10.0)),
        _Value("other digits", "".join(chr(0x0660 + int(digit)) for digit in str(number))),
        _Value("grouped digits", f"{number},000"),
        _Value("date", "2001-01-02"),
        _Value("truth value in words", _choice(generator, ["yes", "No", "on", "OFF", "y", "t"])),
        _Value("5,000 digits", "9" * 5_000),
        _Value("5,000 digits", "0." + "3" * 5_000, (1 / 3,)),
        _Value("huge", _choice(generator, ["1e308", "-1e308", "1e400", "10e99999", str(10**30)])),
        _Value("not finite", _choice(generator, ["nan", ".nan", "NaN", "inf", "-.inf", "Infinity", "-Infinity"])),
        _Value("nested deep", "[" * int(10 ** generator.uniform(1, 3.5))),
        _Value("nested deep", "[" * 900 + "1" + "]" * 900),
        _Value("nested deep", '{"a":' * 900 + "1" + "}" * 900),
        _Value("alias", "[&a 1, *a]"),
        _Value("alias", "&a [*a, *a]"),
        _Value("tag", "!!python/name:os.system"),
        _Value("half a list", "[1, 2"),
        _Value("keys and values", "{a: 1}"),
        _Value("control characters", "a\x00b\x1b[31m"),
    ]
    is_text = setting.kind in ("string", "strings", "date")
    fine = [_Value("fine", _spelled(value), (value,), sure=True) for value in _fine(setting, generator)]
    return fine if is_text else [*fine, *fine, *odd]


def _objects(setting: Setting, generator: np.random.Generator) -> list[_Value]:
    """Values of all types, each with what it may mean."""
    number = int(generator.integers(2, 60))
    fine = [_Value("fine", value, (value,), sure=True) for value in _fine(setting, generator)]
    odd: Sequence[Any] = [
        ("other type", str(number)),
        ("other type", True),
        ("other type", bytes([number])),
        ("other type", {"a": number}),
        ("other type", {number: number}),
        ("other type", object()),
        ("half", number + 0.5),
        ("5,000 digits", 10**5_000),
        ("huge", 10**30),
        ("huge", 1e308),
        ("not finite", math.nan),
        ("not finite", -math.inf),
        ("nested deep", _deep(int(10 ** generator.uniform(1, 5)))),
        ("long", [number] * 1_000_000),
        ("long", "x" * 1_000_000),
        ("control characters", "a\x00b\n\x1b[31m"),
        ("half a character", "\udcff"),
    ]
    return [*fine, *fine, *(_Value(what, value, _same(setting, value)) for what, value in odd)]


def _same(setting: Setting, value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a value of any type
    """Return the value as what it means where it has the setting's own type."""
    if setting.kind == "string" and isinstance(value, str):
        return (value,)
    if setting.kind == "boolean" and isinstance(value, bool):
        return (value,)
    if setting.kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
        return (float(value),) if abs(value) < 10**300 else ()
    if setting.kind in ("integers", "strings") and isinstance(value, list):
        return (tuple(value),)
    return ()


def _deep(depth: int) -> list[Any]:
    values: list[Any] = []
    for _ in range(depth):
        values = [values]
    return values


def _fine(setting: Setting, generator: np.random.Generator) -> list[Any]:
    key, default = setting.key, _default_of(setting)
    if setting.kind == "boolean":
        return [True, False]
    if setting.kind == "integers":
        return [(1,), (1, 5, 20), tuple(map(int, generator.integers(1, 60, 3)))]
    if setting.kind == "date":
        return ["1999-12-31", "2020-02-29"]
    if setting.kind == "strings" and setting.bounds:
        return [(), *((choice,) for choice in setting.bounds.removeprefix("out of ").split(", "))]
    if setting.kind == "strings":
        return [(), ("SPY",), ("ON", "NO", "007")]
    if setting.kind == "string":
        choices = setting.bounds.removeprefix("one of ").split(", ") if setting.bounds else []
        return choices or [f"runs-{generator.integers(99)}", default or "prices.csv"]
    low, high = _bounds(setting)
    if setting.kind == "integer":
        return [default, int(generator.integers(int(low), int(high))), int(low), int(high) - (key == "seed")]
    middle = float(low + (high - low) * generator.uniform(0.01, 0.99))
    return [one for one in (default, middle, middle / 1e3) if one is not None and low < one < high]


def _default_of(setting: Setting) -> Any:  # noqa: ANN401 - any setting's
    return flatten(Config().model_dump())[setting.key]


def _bounds(setting: Setting) -> tuple[float, float]:
    numbers = [word.rstrip(",") for word in setting.bounds.split() if word.lstrip("-")[0].isdigit()]
    low, high = (float(word.replace(",", "")) for word in numbers)
    return low, high


def _spelled(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _choice(generator: np.random.Generator, options: Sequence[Any]) -> Any:  # noqa: ANN401 - one of the options
    return options[int(generator.integers(len(options)))]
