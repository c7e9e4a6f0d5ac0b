"""Content of a report: the input of its page."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import PurePath

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.config import Config
from eigen_core.config.explain import explain, settings
from eigen_core.config.machine import MACHINE_SETTINGS
from eigen_core.judging.verdicts import Claim
from eigen_core.trading import EquityCurve
from eigen_core.trading.metrics import Metrics, compute_metrics

Values = NDArray[np.float64]

NAMES = {
    "cash": "Cash",
    "equal_weight": "Equal weight (held)",
    "rebalanced": "Equal weight (daily)",
    "momentum": "Momentum",
    "reversal": "Reversal",
    "classic": "Classic rule",
    "initial_population": "Initial agents",
}
"""How a report calls the baselines."""


@dataclass(frozen=True)
class Fact:
    """A value with its name, and what has to be known about it."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Fold:
    """The days that one fold of a walk-forward plays."""

    name: str
    first: date
    last: date


@dataclass(frozen=True)
class Setting:
    """A setting of the run, and what the preset has instead; None: the same."""

    key: str
    value: str
    preset: str | None


@dataclass(frozen=True)
class Report:
    """Content of a report about one agent of a run over a span of days.

    Attributes:
        run, agent, span: what was played, in words.
        claim, sentence: the verdict.
        warnings: what keeps the figures from meaning what they seem to mean, as sentences.
        facts: what the verdict rests on.
        curve: the agent's account.
        baselines: other accounts on the same days, by name.
        benchmark: the one of them that beta, alpha and information ratio are against; None: there is none.
        matched: total returns of random traders matched to the agent, float64 `[draws]`; may be empty.
        matched_description: what they have in common with the agent, in words.
        quantile: share of them that earned less than the agent; None without any.
        trades: one row a trade: `symbol`, `fill`, `exit` (dates; NaT: still held), `shares`, `paid`, `received`,
            `costs`, `gain` (money), `reason` of the exit; or orders of a portfolio, of which `fill`, `shares`, `paid`,
            `received` and `costs` are used.
        by_asset: one row an asset, the highest gain first: `symbol`, `trades`, `won` (share), `gain` (money).
        weights: share of the equity in each asset at each close, a row a day, a column a symbol; None where the agent
            makes trades.
        periods_per_year, risk_free: of the figures.
        folds: of a walk-forward; empty without one.
        looks: how often these days were looked at, in a sentence.
        looked: the looks, rows of a table.
        data: what was read and what was found in it, as sentences.
        preset: the run's.
        settings: all of the run's.
        commands: what has to be entered to get this report again, in order.
        hashes: of weights, replay and data; what computed them.
    """

    run: str
    agent: str
    span: str
    claim: Claim
    sentence: str
    facts: Sequence[Fact]
    curve: EquityCurve
    baselines: Mapping[str, EquityCurve]
    benchmark: str | None
    matched: Values
    quantile: float | None
    trades: pd.DataFrame
    by_asset: pd.DataFrame
    periods_per_year: float
    risk_free: float
    preset: str
    matched_description: str = "matched random traders"
    weights: pd.DataFrame | None = None
    warnings: Sequence[str] = ()
    folds: Sequence[Fold] = ()
    looks: str = ""
    looked: Sequence[Mapping[str, str]] = ()
    data: Sequence[str] = ()
    settings: Sequence[Setting] = ()
    commands: Sequence[str] = ()
    hashes: Sequence[Fact] = ()
    figures: Metrics = field(init=False)
    baseline_figures: Mapping[str, Metrics] = field(init=False)

    def __post_init__(self) -> None:
        """Compute the figures of all accounts."""
        object.__setattr__(self, "figures", self._figures(self.curve))
        others = {name: self._figures(curve) for name, curve in self.baselines.items()}
        object.__setattr__(self, "baseline_figures", others)

    def _figures(self, curve: EquityCurve) -> Metrics:
        benchmark = None if self.benchmark is None else self.baselines[self.benchmark]
        return compute_metrics(curve, benchmark, periods_per_year=self.periods_per_year, risk_free=self.risk_free)

    @property
    def first(self) -> str:
        """The first day, as 2013-01-02."""
        return str(self.curve.dates[0])

    @property
    def last(self) -> str:
        """The last day."""
        return str(self.curve.dates[-1])


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
