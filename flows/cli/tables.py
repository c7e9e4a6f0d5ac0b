"""Tables and JSON of the command line: runs, one run, presets, settings."""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from eigen_core.config import PRESET_NAMES, Config, preset_values
from eigen_core.config.explain import explain, flatten
from eigen_core.units import size
from flows.cli.plain_table import PlainTable

if TYPE_CHECKING:
    from eigen_core.records import Telemetry
    from flows.runs import RunStatus

_SHOWN_GENERATIONS = 40
_PIPE_WIDTH = 120


def output_console() -> Console:
    """Return the console of standard output. A pipe has no width: there it is that of COLUMNS, or 120."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_PIPE_WIDTH)


def resume_command(config: Config, run: str) -> str:
    """Return the command that continues a run."""
    return f"eigen resume {run}{_store_option(config)}"


def show_command(config: Config, run: str) -> str:
    """Return the command that shows a run."""
    return f"eigen show {run}{_store_option(config)}"


def memory_command(config: Config, run: str) -> str:
    """Return the command that shows what took the memory of a run."""
    return f"eigen memory {run}{_store_option(config)}"


def _store_option(config: Config) -> str:
    store = config.checkpoint.store
    return "" if store == Config().checkpoint.store else f" --store {shlex.quote(store)}"


def print_ending(console: Console, status: "RunStatus", how: str) -> None:
    """Print the table of a run, and where to find and how to see more."""
    print_history(console, status)
    console.print(
        f"Run [bold]{escape(status.run)}[/] {how}: generation {status.generation} of {status.config.generations}",
        highlight=False,
    )
    if status.holdout:
        # Loaded here, because it brings pandas, which help and presets do without.
        from eigen_core.reporting import holdout_sentence

        console.print(holdout_sentence(status.holdout), highlight=False, soft_wrap=True)
    if status.goodput:
        console.print(f"  {status.goodput}", highlight=False, soft_wrap=True)
    if status.uploads:
        console.print(f"  {escape(str(status.uploads))}", highlight=False, soft_wrap=True)
    show = show_command(status.config, status.run)
    checkpoints = f"{status.store.rstrip('/')}/{status.run}"
    for label, value in (("plots", status.folder / "plots"), ("checkpoints", checkpoints), ("look again", show)):
        console.print(f"  {label:<12}{escape(str(value))}", highlight=False, soft_wrap=True)


def print_history(console: Console, status: "RunStatus") -> None:
    """Print the newest generations of a run, one row each."""
    if not status.history:
        return
    table = PlainTable(
        "generation",
        "best fitness",
        "mean fitness",
        "validation",
        "champion",
        "buffer",
        "time",
        "RSS",
        "peak",
        least_important=("RSS", "peak", "buffer", "mean fitness", "time", "validation", "best fitness"),
    )
    took = {entry.generation: entry for entry in status.telemetry}
    for record in status.history[-_SHOWN_GENERATIONS:]:
        entry = took.get(record.generation)
        table.add_row(
            str(record.generation),
            f"{record.best_fitness:,.1f}",
            f"{record.mean_fitness:,.1f}",
            f"{record.validation:,.1f}",
            f"{record.champion_validation:,.1f}",
            f"{record.transitions:,}",
            f"{entry.seconds:,.1f} s" if entry else "",
            size(entry.rss_bytes) if entry else "",
            size(entry.rss_peak_bytes) if entry else "",
        )
    table.print(console)
    hidden = len(status.history) - _SHOWN_GENERATIONS
    if hidden > 0:
        console.print(f"The first {hidden} generations are not shown; --json has them all.", highlight=False)


def print_run(console: Console, status: "RunStatus") -> None:
    """Print one run."""
    print_ending(console, status, f"is {status.state}")
    if status.computed_by is not None:
        console.print(f"  {'computed by':<12}{status.computed_by}", highlight=False, markup=False, soft_wrap=True)
    if status.state == "unfinished":
        console.print(f"  {'go on':<12}{resume_command(status.config, status.run)}", highlight=False, soft_wrap=True)
    if status.state == "blocked":
        console.print(f"  {'why':<12}{memory_command(status.config, status.run)}", highlight=False, soft_wrap=True)


def run_document(status: "RunStatus") -> dict[str, Any]:
    """Return what `eigen show --json` prints. Its keys are a contract."""
    took = {entry.generation: entry for entry in status.telemetry}
    return {
        "run": status.run,
        "state": status.state,
        "generation": status.generation,
        "generations": status.config.generations,
        "config": status.config.model_dump(mode="json"),
        "store": status.store,
        "computed_by": None if status.computed_by is None else status.computed_by.model_dump(mode="json"),
        "history": [
            {
                "generation": record.generation,
                "best_fitness": record.best_fitness,
                "mean_fitness": record.mean_fitness,
                "validation": record.validation,
                "champion_validation": record.champion_validation,
                **_took(took.get(record.generation)),
                "transitions": record.transitions,
                "weights_sha256": record.weights_sha256,
                "replay_sha256": record.replay_sha256,
            }
            for record in status.history
        ],
        "goodput": None if status.goodput is None else {"share": status.goodput.share, **asdict(status.goodput)},
        "uploads": None if status.uploads is None else status.uploads.model_dump(mode="json"),
    }


def _took(entry: "Telemetry | None") -> dict[str, Any]:
    if entry is None:
        return {"seconds": None, "rss_peak_bytes": None}
    return {"seconds": entry.seconds, "rss_peak_bytes": entry.rss_peak_bytes}


def print_runs(console: Console, statuses: Sequence["RunStatus"], unreadable: Mapping[str, str]) -> None:
    """Print the runs of a store, one row each, and why some cannot be read."""
    table = PlainTable(
        "run",
        "state",
        "generation",
        "champion validation",
        "preset",
        left=("run", "state", "preset"),
        least_important=("preset", "champion validation", "generation"),
    )
    for status in statuses:
        validation = f"{status.history[-1].champion_validation:,.1f}" if status.history else ""
        generation = f"{status.generation}/{status.config.generations}"
        table.add_row(escape(status.run), status.state, generation, validation, status.config.preset)
    table.print(console)
    for sentence in unreadable.values():
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def runs_document(statuses: Sequence["RunStatus"], unreadable: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what `eigen runs --json` prints."""
    readable = [
        {
            "run": status.run,
            "state": status.state,
            "generation": status.generation,
            "generations": status.config.generations,
            "champion_validation": status.history[-1].champion_validation if status.history else None,
            "preset": status.config.preset,
            "store": status.store,
        }
        for status in statuses
    ]
    return readable + [{"run": run, "state": "unreadable", "error": sentence} for run, sentence in unreadable.items()]


def presets_document() -> list[dict[str, Any]]:
    """Return what `eigen presets --json` prints: each preset, what it is for, and what it overrides."""
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
        table.add_row(preset["preset"], escape(preset["description"]), escape(overrides), ends_section=True)
    table.print(console)
    console.print("All settings of one, explained: eigen presets NAME", highlight=False)


def settings_document(config: Config) -> list[dict[str, Any]]:
    """Return what `eigen presets NAME --json` prints: every setting with its value, default and meaning."""
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


def print_settings(console: Console, config: Config) -> None:
    """Print every setting of a preset with its value and meaning; what the preset overrides is marked."""
    headers = ("setting", "value", "default", "meaning")
    table = PlainTable(*headers, left=headers, least_important=("default", "meaning"))
    rows = explain(config)
    sections = [row.setting.key.rpartition(".")[0] for row in rows]
    for row, section, following in zip(rows, sections, [*sections[1:], ""], strict=True):
        setting = row.setting
        unit = f" {setting.unit}" if setting.unit in ("days", "reward") else ""
        marked = row.source == "preset" and row.value != setting.default
        table.add_row(
            setting.key,
            escape(_value(row.value) + unit) if not marked else f"[bold]{escape(_value(row.value) + unit)}[/]",
            escape(_value(setting.default)) if marked else "",
            escape(f"{setting.meaning} Give {setting.accepts}."),
            ends_section=section != following,
        )
    table.print(console)
    console.print("Bold: what the preset overrides. Change a setting: eigen train --set KEY=VALUE", highlight=False)


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _overrides(preset: str) -> dict[str, Any]:
    return {key: value for key, value in preset_values(preset).items() if key != "preset"}


def _description(preset: str) -> str:
    text = (files("eigen_core.config") / "presets" / f"{preset}.yaml").read_text(encoding="utf-8")
    return " ".join(re.findall(r"^# ?(.*)$", text, flags=re.MULTILINE))
