"""Content of a report: verdict, settings and tables."""

import json
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Literal

import numpy as np
import pandas as pd

from eigen_core.common.text import money, number, percent, ratio
from eigen_core.config import Config
from eigen_core.config.explain import explain, settings
from eigen_core.config.machine import MACHINE_SETTINGS
from eigen_core.judging.backtest import SpanResult
from eigen_core.judging.verdicts import Verdict
from eigen_core.judging.walk_forward import Fold
from eigen_core.trading import EquityCurve
from eigen_core.trading.metrics import Metrics

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
        facts: basis of the verdict.
        looks, warnings: number of looks at these days, and limits of the metrics, as sentences.
        data: source of the prices and findings in them, as sentences.
        commands: command lines that make this report again, in order.
        hashes: of weights, replay and data; the machine that computed them.
        folds: of a walk; empty for a run.
    """

    run: str
    agent: str
    span: str
    played: SpanResult
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
    def first(self) -> str:
        return str(self.played.curve.dates[0])

    @property
    def last(self) -> str:
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
            _setting_text(row.setting.key, row.value),
            _setting_text(row.setting.key, preset.get(row.setting.key, row.setting.default))
            if row.source == "given" and row.setting.key not in _HERE
            else None,
        )
        for row in rows
    ]


def training_command(config: Config, run: str) -> str:
    """Return the command line that trains such a run, without its store and machine."""
    return shlex.join(["eigen", "train", "--run", run, *options_of(config)])


def options_of(config: Config) -> list[str]:
    rows = [row for row in explain(config) if row.source == "given" and row.setting.key not in _HERE]
    given = {row.setting.key: row.value for row in rows}
    data = given.pop("market.data", None)
    options = ["--preset", config.preset]
    options += [] if data is None else ["--data", _setting_text("market.data", data)]
    for key, value in given.items():
        options += ["--set", f"{key}={_entered(value)}"]
    return options


def differing_settings(configs: Mapping[str, Config]) -> dict[str, dict[str, str]]:
    """Return the settings in which runs differ: dotted key, then the value of each run."""
    values = {run: {row.setting.key: row.value for row in explain(config)} for run, config in configs.items()}
    return {
        key: {run: _setting_text(key, of_run.get(key)) for run, of_run in values.items()}
        for key in settings()
        if len({_entered(of_run.get(key)) for of_run in values.values()}) > 1
    }


def _setting_text(key: str, value: object) -> str:
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


UNDEFINED = "–"
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

# Enough of a table for a reader to see what the agent did; all trades are in the files of `eigen backtest`.
_SHOWN_TRADES = 5
_SHOWN_ASSETS = 20
_TRADE_COLUMNS = ("Symbol", "Bought", "Sold", "Exit", "Shares", "Paid", "Received", "Costs", "Gain", "Return")
# Returns of this size have the full shade.
_FULL_MONTH, _FULL_YEAR = 0.08, 0.30


def _fraction(value: float) -> str:
    return percent(value, 2)


FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "total_return": ("Total Return", _fraction),
    "cagr": ("CAGR", _fraction),
    "volatility": ("Volatility (ann.)", _fraction),
    "sharpe": ("Sharpe", ratio),
    "probabilistic_sharpe": ("Prob. Sharpe Ratio", partial(percent, digits=0)),
    "sortino": ("Sortino", ratio),
    "calmar": ("Calmar", ratio),
    "max_drawdown": ("Max Drawdown", _fraction),
    "longest_drawdown_days": ("Longest DD Days", money),
    "ulcer_index": ("Ulcer Index", lambda value: f"{value:.3f}"),
    "expected_shortfall": ("Expected Shortfall (5 %)", _fraction),
    "time_in_market": ("Time in Market", partial(percent, digits=0)),
    "turnover": ("Turnover (a year)", ratio),
    "win_days": ("Win Days", partial(percent, digits=0)),
    "beta": ("Beta", ratio),
    "alpha": ("Alpha (ann.)", _fraction),
    "information_ratio": ("Information Ratio", ratio),
}
"""Title and format of each figure, in the order of a table."""


@dataclass(frozen=True)
class Cell:
    """A cell: its text, and its shade, from 1 (gain) to -1 (loss)."""

    text: str
    shade: float = 0.0


@dataclass(frozen=True)
class Table:
    """A table of a page; the first cell of a row is its heading. `left`: headings of columns of text, not numbers."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left: frozenset[str] = frozenset()


def figures_table(columns: Mapping[str, Metrics], caption: str) -> Table:
    rows = [
        [Cell(title), *(Cell(shown(getattr(figures, name), text)) for figures in columns.values())]
        for name, (title, text) in FIGURES.items()
    ]
    return Table(caption, ("", *columns), rows)


def shown(value: float | None, text: Callable[[float], str]) -> str:
    return UNDEFINED if value is None else text(value)


def stated(played: SpanResult) -> str:
    """Return the basis of annual metrics, in a sentence."""
    risk_free = percent(played.risk_free, 2)
    return f"Daily returns, {played.periods_per_year} periods a year, risk-free rate {risk_free} a year."


def calendar_table(curve: EquityCurve) -> Table:
    """Return the return of each month and year of an account; incomplete ones count as far as they go."""
    months = _compounded(curve, "M")
    rows = []
    for year, total in _compounded(curve, "Y").items():
        cells = [_return(months.get(f"{year}-{month:02}"), _FULL_MONTH) for month in range(1, 13)]
        rows.append([Cell(year), *cells, _return(total, _FULL_YEAR)])
    return Table("Returns of the agent by month and year", ("", *MONTHS, "Year"), rows)


def yearly_table(curves: Mapping[str, EquityCurve]) -> Table:
    by_year = {name: _compounded(curve, "Y") for name, curve in curves.items()}
    years = sorted({year for returns in by_year.values() for year in returns})
    rows = [[Cell(year), *(_return(returns.get(year), _FULL_YEAR) for returns in by_year.values())] for year in years]
    return Table("Returns by year", ("", *curves), rows)


def _compounded(curve: EquityCurve, unit: Literal["M", "Y"]) -> dict[str, float]:
    """Return the return of each month, as 2013-01, or year."""
    periods = curve.dates.astype(f"datetime64[{unit}]").astype(str)
    names, which = np.unique(periods, return_inverse=True)
    growth = [float(np.prod(1.0 + curve.returns[which == index])) for index in range(len(names))]
    return {str(name): value - 1.0 for name, value in zip(names, growth, strict=True)}


def _return(fraction: float | None, full: float) -> Cell:
    return Cell("") if fraction is None else Cell(percent(fraction), _shade(fraction, full))


def _shade(fraction: float, full: float) -> float:
    return float(np.clip(fraction / full, -1.0, 1.0))


def trade_tables(trades: pd.DataFrame) -> list[Table]:
    """Return the first and last trades and those of the largest and smallest gain; few trades are one table."""
    ordered = trades.sort_values("fill", kind="stable")
    if len(ordered) <= 2 * _SHOWN_TRADES:
        return [_trades("All trades", ordered)] if len(ordered) else []
    by_gain = ordered.sort_values("gain", kind="stable")
    return [
        _trades("First trades", ordered.head(_SHOWN_TRADES)),
        _trades("Last trades", ordered.tail(_SHOWN_TRADES)),
        _trades("Best trades", by_gain.tail(_SHOWN_TRADES)[::-1]),
        _trades("Worst trades", by_gain.head(_SHOWN_TRADES)),
    ]


def _trades(caption: str, trades: pd.DataFrame) -> Table:
    rows = []
    for trade in trades.to_dict("records"):
        days = [Cell(UNDEFINED if pd.isna(trade[day]) else str(trade[day])[:10]) for day in ("fill", "exit")]
        amounts = [Cell(number(trade["shares"])), *(Cell(money(trade[name])) for name in ("paid", "received"))]
        gain = [Cell(number(trade["costs"])), Cell(money(trade["gain"]))]
        made = _return(trade["gain"] / trade["paid"], _FULL_MONTH)
        rows.append([Cell(trade["symbol"]), *days, Cell(trade["reason"]), *amounts, *gain, made])
    return Table(caption, _TRADE_COLUMNS, rows, frozenset({"Bought", "Sold", "Exit"}))


def assets_table(by_asset: pd.DataFrame, capital: float, weights: pd.DataFrame | None = None) -> Table:
    """Return the gain of each asset, the best first; of many, the best and the worst ones.

    Of a portfolio, whose `weights` are a row a day and a column a symbol, with the mean weight instead of trades won.
    """
    held = None if weights is None else weights.mean()
    assets = by_asset.to_dict("records")
    shown = assets if len(assets) <= _SHOWN_ASSETS else assets[: _SHOWN_ASSETS // 2] + assets[-_SHOWN_ASSETS // 2 :]
    largest = max((abs(asset["gain"]) for asset in shown), default=0.0) or 1.0
    rows = [
        [
            Cell(asset["symbol"]),
            Cell(money(asset["trades"])),
            Cell(percent(asset["won"], 0) if held is None else percent(float(held[asset["symbol"]]))),
            Cell(money(asset["gain"]), asset["gain"] / largest),
            Cell(percent(asset["gain"] / capital, 2)),
        ]
        for asset in shown
    ]
    left_out = len(assets) - len(shown)
    caption = "Gain by asset" + (f"; {left_out} in the middle are not shown" if left_out else "")
    counted = ("Trades", "Won") if held is None else ("Orders", "Mean weight")
    return Table(caption, ("Asset", *counted, "Gain", "Of the capital"), rows)


def rows_table(caption: str, rows: Sequence[Mapping[str, str]], numbers: Collection[str] = ()) -> Table:
    """Return rows with the same columns as a table of texts; columns in `numbers` are aligned as numbers."""
    columns = tuple(rows[0]) if rows else ()
    cells = [[Cell(str(row[column])) for column in columns] for row in rows]
    return Table(caption, columns, cells, frozenset(columns) - frozenset(numbers))
