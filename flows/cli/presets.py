"""The command `eigen presets`: the presets, or every setting of one."""

import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from flows.cli.common import Json, sentences
from flows.cli.output import PlainTable, print_line, print_result

if TYPE_CHECKING:
    from eigen_core.config import Config


@sentences
def presets(
    name: Annotated[str | None, typer.Argument(help="Explain every setting of this preset.", metavar="[NAME]")] = None,
    as_json: Json = False,
) -> None:
    """List the presets, or explain every setting of one."""
    from eigen_core.config.loading import load_config

    if name is None:
        print_result(as_json, presets_document, print_presets)
    else:
        print_result(as_json, settings_document, print_settings, load_config(name))


def presets_document() -> list[dict[str, Any]]:
    """Return what `eigen presets --json` prints: each preset, what it is for, and what it overrides."""
    from eigen_core.config import PRESET_NAMES
    from eigen_core.config.explain import flatten

    return [
        {"preset": name, "description": _description(name), "overrides": flatten(_overrides(name))}
        for name in PRESET_NAMES
    ]


def print_presets(console: Console) -> None:
    """Print the presets, what they are for and what they override."""
    headers = ("preset", "what it is", "overrides")
    table = PlainTable(*headers, left=headers, least_important=("overrides",))
    for preset in presets_document():
        overrides = "\n".join(f"{key}={json.dumps(value)}" for key, value in preset["overrides"].items())
        table.add_row(preset["preset"], preset["description"], overrides, ends_section=True)
    table.print(console)
    print_line(console, "All settings of one, explained: eigen presets NAME")


def settings_document(config: "Config") -> list[dict[str, Any]]:
    """Return what `eigen presets NAME --json` prints: every setting with its value, default and meaning."""
    from eigen_core.config.explain import explain

    return [
        {
            "key": row.setting.key,
            "value": row.value,
            "default": row.setting.default,
            "source": row.source,
            "accepts": row.setting.accepts,
            "unit": row.setting.unit,
            "meaning": row.setting.meaning,
        }
        for row in explain(config)
    ]


def print_settings(console: Console, config: "Config") -> None:
    """Print every setting with its value in a preset and its meaning; what the preset overrides is marked.

    Settings of other algorithms than the preset's have no value.
    """
    from eigen_core.config.explain import explain, settings

    headers = ("setting", "value", "default", "meaning")
    table = PlainTable(*headers, left=headers, least_important=("default", "meaning"))
    rows = {row.setting.key: row for row in explain(config)}
    sections = [key.rpartition(".")[0] for key in settings()]
    for setting, section, following in zip(settings().values(), sections, [*sections[1:], ""], strict=True):
        row = rows.get(setting.key)
        unit = f" {setting.unit}" if setting.unit in ("days", "reward") else ""
        marked = row is not None and row.source == "preset" and row.value != row.setting.default
        having = "" if row else f" With {', '.join(setting.algorithms)}."
        table.add_row(
            setting.key,
            (_value(row.value) + unit if row else "", "bold" if marked else ""),
            _value(row.setting.default) if row and marked else "",
            f"{setting.meaning} Give {setting.accepts}.{having}",
            ends_section=section != following,
        )
    table.print(console)
    print_line(console, "Bold: what the preset overrides. Change a setting: eigen train --set KEY=VALUE")


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _overrides(preset: str) -> dict[str, Any]:
    from eigen_core.config import preset_values

    return {key: value for key, value in preset_values(preset).items() if key != "preset"}


def _description(preset: str) -> str:
    text = (files("eigen_core.config") / "presets" / f"{preset}.yaml").read_text(encoding="utf-8")
    return " ".join(re.findall(r"^# ?(.*)$", text, flags=re.MULTILINE))
