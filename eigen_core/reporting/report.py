"""The report of a run or a walk: verdict, settings, tables and plots in one HTML file without network or script."""

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from eigen_core.checkpoint.run_contents import no_such_run
from eigen_core.checkpoint.store_location import open_store
from eigen_core.common.errors import InputError
from eigen_core.common.files import require_place, write_file
from eigen_core.common.text import count, listed, money, number, percent, ratio, text_or_json
from eigen_core.config import Config
from eigen_core.config.explain import explain, settings
from eigen_core.config.machine_settings import MACHINE_SETTINGS
from eigen_core.config.model import CheckpointConfig
from eigen_core.judging.backtest import SpanResult
from eigen_core.judging.run_backtests import Backtest, backtest
from eigen_core.judging.significance import FEWEST_DAYS
from eigen_core.judging.verdicts import Verdict
from eigen_core.judging.walk_forward import Fold, WalkResult, is_walk, load_walk, play_walk, walks_in
from eigen_core.market import build_panel
from eigen_core.market.formats import unit_of
from eigen_core.reporting.report_plots import (
    AGENT,
    BASELINE_COLOURS,
    NAMES,
    drawdown_plot,
    equity_plot,
    exposure_plot,
    matched_plot,
    variable,
    variables,
    weights_plot,
)
from eigen_core.reporting.style import CHAMPION
from eigen_core.runs.evaluation_log import Looks
from eigen_core.runs.handle import Run, RunStatus, status_of
from eigen_core.trading.equity import EquityCurve
from eigen_core.trading.metrics import Metrics


@dataclass(frozen=True)
class Fact:
    """A figure of a report as text; `note`: smaller text beside the value."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Setting:
    """A setting of a run as text; `preset`: the preset's value, None if it is the same or depends on the machine."""

    key: str
    value: str
    preset: str | None


@dataclass(frozen=True)
class Report:
    """Content of a report about agents of a run, or about a walk (a walk-forward test, `Walk`).

    Attributes:
        run, agent, span: name of the run or walk; the agents in words; holdout, validation, walk, or two dates.
        facts: figures on which the verdict rests.
        looks: sentences on the number of results of agents on these days in the evaluation log.
        warnings: sentences on a champion that was chosen on these days, and on a damaged evaluation log.
        data: source of the prices and findings in them, as sentences.
        commands: command lines that reproduce this report, in order.
        hashes: of the weights, the replay buffer and the data; also the CPU or GPU that computed the run, if known.
        folds: folds of a walk; empty for a run.
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


# Reports are sent to others: they must not show folders of this machine.
_PATHS = frozenset({"market.data", *MACHINE_SETTINGS})
_OF_THIS_MACHINE = (*MACHINE_SETTINGS, "device", "cuda_graphs", "threads", "workers")


def settings_of(config: Config) -> list[Setting]:
    """Return all settings of a run, with the preset's values that differ; of a path only its last part, its name."""
    preset = {row.setting.key: row.value for row in explain(Config(preset=config.preset))}
    return [
        Setting(
            row.setting.key,
            _setting_text(row.setting.key, row.value),
            _setting_text(row.setting.key, preset.get(row.setting.key, row.setting.default))
            if row.source == "given" and row.setting.key not in _OF_THIS_MACHINE
            else None,
        )
        for row in explain(config)
    ]


def training_command(config: Config, run: str) -> str:
    """Return the command line that trains the same run, without settings of a machine, such as the store or device."""
    return shlex.join(["eigen", "train", "--run", run, *options_of(config)])


def options_of(config: Config) -> list[str]:
    rows = [row for row in explain(config) if row.source == "given" and row.setting.key not in _OF_THIS_MACHINE]
    given = {row.setting.key: row.value for row in rows}
    data = given.pop("market.data", None)
    options = ["--preset", config.preset]
    options += [] if data is None else ["--data", _setting_text("market.data", data)]
    for key, value in given.items():
        options += ["--set", f"{key}={_option_text(value)}"]
    return options


def differing_settings(configs: Mapping[str, Config]) -> dict[str, dict[str, str]]:
    """Return the settings in which runs differ: by dotted key, the value of each run as text."""
    values = {run: {row.setting.key: row.value for row in explain(config)} for run, config in configs.items()}
    return {
        key: {run: _setting_text(key, of_run.get(key)) for run, of_run in values.items()}
        for key in settings()
        if len({_option_text(of_run.get(key)) for of_run in values.values()}) > 1
    }


def _setting_text(key: str, value: object) -> str:
    if key in _PATHS and isinstance(value, str):
        return PurePath(value).name or value
    return _option_text(value) or "–"


def _option_text(value: object) -> str:
    """Return the value of a setting in the form that `--set` accepts."""
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return text_or_json(value)


UNDEFINED = "–"
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

# Limits of tables in the report; the files of `eigen backtest` have all trades.
_SHOWN_TRADES = 5
_SHOWN_ASSETS = 20
_TRADE_COLUMNS = ("Symbol", "Bought", "Sold", "Exit", "Shares", "Paid", "Received", "Costs", "Gain", "Return")
# Returns of this size get the full shade.
_FULL_MONTH, _FULL_YEAR = 0.08, 0.30

_fraction = partial(percent, digits=2)
_whole = partial(percent, digits=0)

METRICS: dict[str, tuple[str, Callable[[float], str]]] = {
    "total_return": ("Total Return", _fraction),
    "cagr": ("CAGR", _fraction),
    "volatility": ("Volatility (ann.)", _fraction),
    "sharpe": ("Sharpe", ratio),
    "probabilistic_sharpe": ("Prob. Sharpe Ratio", _whole),
    "sortino": ("Sortino", ratio),
    "calmar": ("Calmar", ratio),
    "max_drawdown": ("Max Drawdown", _fraction),
    "longest_drawdown_days": ("Longest DD Days", money),
    "ulcer_index": ("Ulcer Index", lambda value: f"{value:.3f}"),
    "expected_shortfall": ("Expected Shortfall (5 %)", _fraction),
    "time_in_market": ("Time in Market", _whole),
    "turnover": ("Turnover (a year)", ratio),
    "win_days": ("Win Days", _whole),
    "beta": ("Beta", ratio),
    "alpha": ("Alpha (ann.)", _fraction),
    "information_ratio": ("Information Ratio", ratio),
}
"""By field of `Metrics`: its title and a function that formats it, in the order of the table."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table; `shade`: its background, from 1 (gain, full green) to -1 (loss, full orange); 0: none."""

    text: str
    shade: float = 0.0


@dataclass(frozen=True)
class Table:
    """A table of an HTML page; the first cell of a row is the row's heading. `left`: columns that are left-aligned."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left: frozenset[str] = frozenset()


def metrics_table(columns: Mapping[str, Metrics], caption: str) -> Table:
    rows = [
        [Cell(title), *(Cell(_text(getattr(figures, name), text)) for figures in columns.values())]
        for name, (title, text) in METRICS.items()
    ]
    return Table(caption, ("", *columns), rows)


def _text(value: float | None, text: Callable[[float], str]) -> str:
    return UNDEFINED if value is None else text(value)


def basis_of_metrics(played: SpanResult) -> str:
    """Return a sentence on what annual metrics are computed from: returns, periods a year, risk-free rate."""
    year, risk_free = count(played.periods_per_year, unit := unit_of(played.curve.dates)), percent(played.risk_free, 2)
    return f"Returns of one {unit}, {year} a year, risk-free rate {risk_free} a year."


def calendar_table(curve: EquityCurve) -> Table:
    """Return a table of an account's returns by month and year; an incomplete month counts the days of the account."""
    months = _compounded(curve, "M")
    rows = []
    for year, total in _compounded(curve, "Y").items():
        cells = [_cell(months.get(f"{year}-{month:02}"), _FULL_MONTH) for month in range(1, 13)]
        rows.append([Cell(year), *cells, _cell(total, _FULL_YEAR)])
    return Table("Returns of the agent by month and year", ("", *MONTHS, "Year"), rows)


def yearly_table(curves: Mapping[str, EquityCurve]) -> Table:
    by_year = {name: _compounded(curve, "Y") for name, curve in curves.items()}
    years = sorted({year for returns in by_year.values() for year in returns})
    rows = [[Cell(year), *(_cell(returns.get(year), _FULL_YEAR) for returns in by_year.values())] for year in years]
    return Table("Returns by year", ("", *curves), rows)


def _compounded(curve: EquityCurve, unit: Literal["M", "Y"]) -> dict[str, float]:
    """Return the account's return in each month or year (a fraction), by name: 2013-01, 2013."""
    periods = curve.dates.astype(f"datetime64[{unit}]").astype(str)
    names, which = np.unique(periods, return_inverse=True)
    growth = [float(np.prod(1.0 + curve.returns[which == index])) for index in range(len(names))]
    return {str(name): value - 1.0 for name, value in zip(names, growth, strict=True)}


def _cell(fraction: float | None, full: float) -> Cell:
    return Cell("") if fraction is None else Cell(percent(fraction), float(np.clip(fraction / full, -1.0, 1.0)))


def trade_tables(trades: pd.DataFrame) -> list[Table]:
    """Return tables of the first, last, best and worst of `SpanResult.trades`, or of up to 10 trades one table."""
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
        made = _cell(trade["gain"] / trade["paid"], _FULL_MONTH)
        rows.append([Cell(trade["symbol"]), *days, Cell(trade["reason"]), *amounts, *gain, made])
    return Table(caption, _TRADE_COLUMNS, rows, frozenset({"Bought", "Sold", "Exit"}))


def assets_table(by_asset: pd.DataFrame, capital: float, weights: pd.DataFrame | None = None) -> Table:
    """Return a table of the gain of each asset, best first; of more than 20 assets only the 10 best and the 10 worst.

    Gains are also shown as shares of `capital`, the account's money before the first day. `by_asset`, `weights`: see
    `SpanResult`; with weights, the table has their means instead of the share of trades with a gain.
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
    """Return rows, which all have the same columns, as a table; columns in `numbers` are right-aligned."""
    columns = tuple(rows[0]) if rows else ()
    cells = [[Cell(str(row[column])) for column in columns] for row in rows]
    return Table(caption, columns, cells, frozenset(columns) - frozenset(numbers))


HEADLINES = {"skill": "Skill is likely", "none": "No skill shown", "undecided": "Too little data to tell"}

_WALK = "walk"
_DAYS = {"holdout": "Holdout", "validation": "Validation days", _WALK: "Walk-forward"}


def write_report(
    store: str, name: str, *, span: str | None, agent: str, file: Path, settings: Sequence[str] = ()
) -> Report:
    """Write the report of agents of a run (see `backtest`) or of a finished walk (see `load_walk`) to an HTML file.

    Raises as these two and `is_report_of_walk` do.
    """
    of_walk = is_report_of_walk(store, name, span=span, agent=agent)
    require_place(file)
    if of_walk:
        report = report_of_walk(play_walk(load_walk(store, name, settings)))
    else:
        report = report_of(backtest(store, name, span=span, agent=agent, settings=settings), status_of(store, name))
    write_file(file, report_page(report).encode())
    return report


def report_of(played: Backtest, status: RunStatus) -> Report:
    last = status.history[-1]
    hashes = [Fact("Weights of the last generation", last.weights_sha256), Fact("Replay", last.replay_sha256)]
    if status.computed_by is not None:
        hashes.append(Fact("Computed by", str(status.computed_by)))
    return _report(
        played,
        played.verdict,
        played.config,
        hashes,
        run=played.run,
        agent=agent_in_words(played, status),
        span=played.span,
        warnings=played.warnings,
        looks=looks_in_words(played.looks, played.verdict),
        commands=[
            training_command(played.config, played.run),
            shlex.join(["eigen", "report", played.run, "--slice", played.span, "--agent", played.agent]),
        ],
    )


def report_of_walk(result: WalkResult) -> Report:
    walk, verdict = result.walk, result.verdict
    shape = ["--folds", str(len(walk.folds)), "--seeds", str(walk.seeds)]
    shape += [] if walk.train_bars is None else ["--train-bars", str(walk.train_bars)]
    return _report(
        result,
        verdict,
        walk.config,
        [],
        run=walk.name,
        agent=f"champions of {count(len(walk.folds), 'fold')}, {count(walk.seeds, 'seed')} each",
        span=_WALK,
        warnings=result.warnings,
        folds=walk.folds,
        looks=f"The verdict is corrected for {count(verdict.looks, 'look')}: those at the days of the fold with most.",
        commands=[
            shlex.join(["eigen", "walk", walk.name, *shape, *options_of(walk.config)]),
            shlex.join(["eigen", "report", walk.name]),
        ],
    )


def _report(played: SpanResult, verdict: Verdict, config: Config, hashes: Sequence[Fact], **words: Any) -> Report:  # noqa: ANN401
    panel, found = build_panel(config)
    return Report(
        played=played,
        verdict=verdict,
        facts=facts_of(played, verdict),
        data=replace(found, source=Path(found.source).name).lines(config.trading),
        preset=config.preset,
        settings=settings_of(config),
        hashes=[*hashes, Fact("Data and features", panel.fingerprint)],
        **words,
    )


def agent_in_words(played: Backtest, status: RunStatus) -> str:
    """Return a description of the agents that traded, such as "champion, agent 3 of generation 7"."""
    if played.agent == "champion":
        last = status.history[-1]
        return f"champion, agent {last.champion_agent} of generation {last.champion_generation}"
    if played.agent.isdecimal():
        return f"agent {played.agent} of generation {played.generation}"
    return f"{played.agent} of generation {played.generation}, {count(played.agents, 'agent')}"


def looks_in_words(looks: Looks, verdict: Verdict) -> str:
    """Return sentences: how many results on these days the evaluation log has, and what corrects the verdict."""
    known = (
        f"{count(looks.count, 'result')} on these days, or on others of the same holdout, "
        f"{'is' if looks.count == 1 else 'are'} in the evaluation log"
    )
    runs = f"of {'run' if len(looks.runs) == 1 else 'runs'} {', '.join(looks.runs)}"
    sharpes = f"; the best daily Sharpe ratio among them is {max(looks.sharpes):.3f}" if looks.sharpes else ""
    return (
        f"{known}, {runs}{sharpes}. The verdict is corrected for {count(verdict.looks, 'look')}: these results, and "
        "validations on these days by which the agents were chosen."
    )


def facts_of(played: SpanResult, verdict: Verdict) -> list[Fact]:
    """Return the figures on which a verdict rests: the agents' earnings, the benchmark's, and probabilities of luck."""
    figures, benchmark = played.metrics, played.baseline_metrics[played.benchmark]
    excess, matched, interval = played.excess, played.matched, verdict.sharpe_interval
    name, looks = NAMES[played.benchmark].lower(), f"after {count(verdict.looks, 'look')}"
    bounds = "" if interval is None else f"{ratio(interval[0])} to {ratio(interval[1])} (95 %); "
    sharpe = f"{bounds}{name} {_text(benchmark.sharpe, ratio)}"
    by_luck, by_timing = (f"by luck {percent(p)} {looks}" for p in (verdict.matched_pvalue, verdict.timing_pvalue))
    draws = f"of {len(matched.total_returns):,} {matched.description}; {by_luck}"
    per, made = "trade" if excess is None else excess.per, "trade" if played.weights is None else "order"
    too_few = f"too few days: it needs {FEWEST_DAYS}" if len(played.curve.dates) < FEWEST_DAYS else None
    above = f"probability that Sharpe is above the best by luck of {count(verdict.looks, 'look')}"
    timing = None if played.by_timing else played.timing.quantile_of(figures.total_return)
    return [
        Fact("Total Return", percent(figures.total_return), f"{name} {percent(benchmark.total_return)}"),
        Fact("Sharpe", _text(figures.sharpe, ratio), sharpe),
        Fact("Max Drawdown", percent(figures.max_drawdown), f"longest {count(figures.longest_drawdown_days, 'day')}"),
        Fact(f"Excess a {per}", UNDEFINED if excess is None else excess.short, count(len(played.trades), made)),
        Fact("Earned more than", _text(matched.quantile_of(figures.total_return), _whole), draws),
        *(
            []
            if timing is None
            else [Fact("Timing", _whole(timing), f"of shifts of its decisions in time earned less; {by_timing}")]
        ),
        Fact("Deflated Sharpe", _text(verdict.deflated_sharpe, percent), too_few or above),
        Fact("SPA p-value", _text(verdict.spa_pvalue, ratio), too_few or "against the best baseline (Hansen 2005)"),
        *(Fact(f"Capital x {times}", percent(gain), "total return") for times, gain in played.capacity.items()),
        Fact("Smallest edge", _text(verdict.smallest_edge, "{:.2f} %".format), f"a {per}, that would have been found"),
    ]


def is_report_of_walk(store: str, name: str, *, span: str | None, agent: str) -> bool:
    """Return whether `name` means a walk (True) or a run; `span` and `agent`: as in `backtest`, `span` may be `walk`.

    Raises:
        InputError: there is no such run or walk; both exist and `span` is None; or a walk is given days or agents.
        StoreUnavailableError: the store does not answer.
    """
    run, walk = Run(CheckpointConfig(store=store), name).exists, is_walk(store, name)
    where = open_store(store).url
    if not run and not walk:
        walks = walks_in(store)
        held = f"Its walks: {listed(walks, 20)}." if walks else "It holds no walks either."
        raise InputError(f"{no_such_run(open_store(store), name)} {held}")
    if run and walk and span is None:
        raise InputError(
            f"'{name}' is a run and a walk in {where}: give --slice walk for the walk, --slice holdout for the run."
        )
    if span == _WALK and not walk:
        raise InputError(f"There is no walk '{name}' in {where}, only a run: leave out --slice walk.")
    if not walk or (run and span != _WALK):
        return False
    if span not in (None, _WALK) or agent != "champion":
        raise InputError(
            f"'{name}' is a walk, whose champions play the days of its folds: leave out --slice and --agent, or name "
            f"one of its runs, such as {name}-fold-1-seed-1."
        )
    return True


def report_page(report: Report) -> str:
    played, headline = report.played, HEADLINES[report.verdict.claim]
    curve, benchmark = played.curve, NAMES[played.benchmark]
    curves = {AGENT: curve, **{NAMES[name]: held for name, held in played.baselines.items()}}
    colours = {AGENT: CHAMPION, **{NAMES[name]: BASELINE_COLOURS[name] for name in played.baselines}}
    of_baselines = {NAMES[name]: figures for name, figures in played.baseline_metrics.items()}
    weights, shares = (None, {}) if played.weights is None else weights_plot(played.weights)
    settings = [{"Setting": one.key, "Value": one.value} for one in report.settings]
    changed = [
        {"Setting": one.key, "Value": one.value, f"Preset {report.preset}": one.preset}
        for one in report.settings
        if one.preset is not None
    ]
    context = {
        "report": report,
        "played": played,
        "title": f"{headline}: {report.run}",
        "headline": headline,
        "days": _DAYS.get(report.span, "Days"),
        "sentence": _after_headline(report),
        "capital": money(curve.capital),
        "equity": equity_plot(curves, colours, [fold.played.last for fold in report.folds]),
        "drawdowns": drawdown_plot(played),
        "deepest": percent(played.metrics.max_drawdown),
        "basis": f"{basis_of_metrics(played)} Beta, alpha and information ratio are relative to {benchmark.lower()}. "
        "“–” is undefined.",
        "figures": metrics_table({AGENT: played.metrics, **of_baselines}, "Agent and baselines"),
        "yearly": yearly_table(curves),
        "calendar": calendar_table(curve),
        "exposed": percent(float(curve.exposure.mean()), 0),
        "exposure": exposure_plot(curve),
        "weights": weights,
        "shares": {name: variable(colour) for name, colour in shares.items()},
        "matched": matched_plot(played) if len(played.matched.total_returns) else None,
        "traded": _trades_sentence(played),
        "trades": trade_tables(played.trades) if played.weights is None else [],
        "assets": assets_table(played.by_asset, curve.capital, played.weights),
        "folds": rows_table("Folds", _fold_rows(report), (AGENT, benchmark)) if report.folds else None,
        "changed": rows_table(f"Settings that are not those of preset {report.preset}", changed),
        "settings": rows_table("All settings", settings),
    }
    return page("report.html", context)


def page(template: str, context: dict[str, Any]) -> str:
    """Return the HTML page of a template of this package with the variables `context`; inserted text is escaped."""
    return _environment().get_template(template).render(context | {"variables": variables()})


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("eigen_core.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        # Keep a number and its percent sign on one line.
        finalize=lambda value: value.replace(" %", "\N{NO-BREAK SPACE}%") if isinstance(value, str) else value,
    )


def _after_headline(report: Report) -> str:
    """Return the verdict's sentence, without its beginning if that repeats the headline."""
    claim, colon, rest = report.verdict.statement.partition(": ")
    repeated = colon and claim.casefold() == HEADLINES[report.verdict.claim].casefold()
    return rest[:1].upper() + rest[1:] if repeated else report.verdict.statement


def _trades_sentence(played: SpanResult) -> str:
    trades, costs = played.trades, money(float(played.curve.costs.sum()))
    if not len(trades):
        return "The agent did not trade."
    if played.weights is not None:
        return (
            f"{count(len(trades), 'order')} brought the account to its target weights: "
            f"{ratio(played.metrics.turnover)} times its mean equity was bought and sold a year, for {costs} of costs "
            "in all."
        )
    gains, closed = trades["gain"] / trades["paid"], trades.dropna(subset="exit")
    seconds, name = (86_400, "calendar days") if unit_of(played.curve.dates) == "day" else (3_600, "hours")
    held = (closed["exit"] - closed["fill"]).dt.total_seconds().mean() / seconds
    return (
        f"{count(len(trades), 'trade')}, {percent(float((gains > 0).mean()), 0)} of them with a gain; "
        f"{percent(float(gains.mean()), 2)} a trade on average, "
        f"{f'held {number(held)} {name}, ' if len(closed) else ''}{costs} of costs in all."
    )


def _fold_rows(report: Report) -> list[dict[str, str]]:
    played, rows = report.played, []
    earned = {AGENT: played.curve, NAMES[played.benchmark]: played.baselines[played.benchmark]}
    for fold in report.folds:
        first, last = fold.played.first, fold.played.last
        days = (played.curve.dates >= np.datetime64(first)) & (played.curve.dates <= np.datetime64(last))
        returns = {name: percent(float(np.prod(1.0 + curve.returns[days]) - 1.0)) for name, curve in earned.items()}
        rows.append({"Fold": f"fold {fold.number}", "First day": first, "Last day": last, **returns})
    return rows
