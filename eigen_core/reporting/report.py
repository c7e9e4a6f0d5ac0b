"""Content of a report: the input of its page."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from eigen_core.config import Config
from eigen_core.config.explain import explain, settings
from eigen_core.config.machine import MACHINE_SETTINGS
from eigen_core.judging.backtest import PlayedSpan
from eigen_core.judging.verdicts import Verdict
from eigen_core.judging.walks import Fold

NAMES = {
    "cash": "Cash",
    "equal_weight": "Equal weight (held)",
    "rebalanced": "Equal weight (daily)",
    "momentum": "Momentum",
    "reversal": "Reversal",
    "classic": "Classic rule",
    "initial_population": "Initial agents",
}
"""Names of the baselines in reports."""


@dataclass(frozen=True)
class Fact:
    """A value with its name and a note."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Setting:
    """A setting of a run, and the value of the preset; None: the same."""

    key: str
    value: str
    preset: str | None


@dataclass(frozen=True)
class Report:
    """Content of a report about agents of a run, or about a walk.

    Attributes:
        run, agent, span: in words.
        played: earnings.
        verdict: on them.
        facts: basis of the verdict.
        looks: number of looks at these days, in a sentence.
        data: source of the prices and findings in them, as sentences.
        preset, settings: the run's.
        commands: command lines that make this report again, in order.
        hashes: of weights, replay and data; the machine that computed them.
        warnings: limits of the metrics, as sentences.
        folds: of a walk; empty for a run.
    """

    run: str
    agent: str
    span: str
    played: PlayedSpan
    verdict: Verdict
    facts: Sequence[Fact]
    looks: str
    data: Sequence[str]
    preset: str
    settings: Sequence[Setting]
    commands: Sequence[str]
    hashes: Sequence[Fact]
    warnings: Sequence[str] = ()
    folds: Sequence[Fold] = ()

    @property
    def sentence(self) -> str:
        """The verdict, beginning with a capital."""
        return self.verdict.sentence[:1].upper() + self.verdict.sentence[1:]

    @property
    def quantile(self) -> float | None:
        """Share of the matched random traders that earned less than the agent; None without any."""
        return self.played.matched.quantile_of(self.played.figures.total_return)

    @property
    def first(self) -> str:
        """The first day, as 2013-01-02."""
        return str(self.played.curve.dates[0])

    @property
    def last(self) -> str:
        """The last day."""
        return str(self.played.curve.dates[-1])


# Reports are sent to others, whom folders of this machine do not concern.
_PATHS = frozenset({"market.data", *MACHINE_SETTINGS})
_HERE = (*MACHINE_SETTINGS, "device", "cuda_graphs", "threads", "workers")


def settings_of(config: Config) -> list[Setting]:
    """Return all settings of a run, and the preset's value of those that differ; of paths the last part only."""
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
    """Return the command line that trains such a run, without its store and machine."""
    return shlex.join(["eigen", "train", "--run", run, *options_of(config)])


def options_of(config: Config) -> list[str]:
    """Return the options of a training command that give a configuration."""
    rows = [row for row in explain(config) if row.source == "given" and row.setting.key not in _HERE]
    given = {row.setting.key: row.value for row in rows}
    data = given.pop("market.data", None)
    options = ["--preset", config.preset]
    options += [] if data is None else ["--data", _shown("market.data", data)]
    for key, value in given.items():
        options += ["--set", f"{key}={_entered(value)}"]
    return options


def differing_settings(configs: Mapping[str, Config]) -> dict[str, dict[str, str]]:
    """Return the settings in which runs differ: dotted key, then the value of each run."""
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
    """Return a value as the command line takes it."""
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return value if isinstance(value, str) else json.dumps(value)
