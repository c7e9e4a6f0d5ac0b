"""The settings of runs in words: what is not the preset's, by which command it is given, and how runs differ."""

import json
import shlex
from collections.abc import Mapping
from pathlib import PurePath

from eigen_core.config import Config
from eigen_core.config.explain import explain, settings
from eigen_core.config.machine import MACHINE_SETTINGS
from eigen_core.reporting.report import Setting

# Reports are sent to others, whom folders of this machine do not concern.
_PATHS = frozenset({"market.data", *MACHINE_SETTINGS})
_HERE = (*MACHINE_SETTINGS, "device", "cuda_graphs", "threads", "workers")


def settings_of(config: Config) -> list[Setting]:
    """Return all settings of a run, and what its preset has in those that differ; of paths the last part alone."""
    preset = {row.setting.key: row.value for row in explain(Config(preset=config.preset))}
    rows = explain(config)
    return [
        Setting(
            row.setting.key,
            _shown(row.setting.key, row.value),
            _shown(row.setting.key, preset.get(row.setting.key, row.setting.default))
            if row.source == "given" and row.setting.key not in _HERE
            else None,
        )
        for row in rows
    ]


def training_command(config: Config, run: str) -> str:
    """Return the command line that trains a run like this one; where it is kept and computed is left out."""
    return shlex.join(["eigen", "train", "--run", run, *options_of(config)])


def options_of(config: Config) -> list[str]:
    """Return the options that give a configuration to a command that trains."""
    rows = [row for row in explain(config) if row.source == "given" and row.setting.key not in _HERE]
    given = {row.setting.key: row.value for row in rows}
    data = given.pop("market.data", None)
    options = ["--preset", config.preset]
    options += [] if data is None else ["--data", _shown("market.data", data)]
    for key, value in given.items():
        options += ["--set", f"{key}={_entered(value)}"]
    return options


def differing_settings(configs: Mapping[str, Config]) -> dict[str, dict[str, str]]:
    """Return the settings in which runs differ: dotted key, then the value of each run that has it."""
    values = {run: {row.setting.key: row.value for row in explain(config)} for run, config in configs.items()}
    return {
        key: {run: _shown(key, of_run.get(key)) for run, of_run in values.items()}
        for key in settings()
        if len({_entered(of_run.get(key)) for of_run in values.values()}) > 1
    }


def _shown(key: str, value: object) -> str:
    if key in _PATHS and isinstance(value, str):
        return PurePath(value).name or value
    return _entered(value) or "–"


def _entered(value: object) -> str:
    """Return a value as a command line takes it."""
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return value if isinstance(value, str) else json.dumps(value)
