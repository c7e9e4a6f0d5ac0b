"""The report of a run or a walk: one HTML file that needs no network and no script."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from eigen_core.checkpoint.location import no_such_run, open_store
from eigen_core.common.errors import InputError
from eigen_core.common.files import replacing, require_place
from eigen_core.common.records import Excess
from eigen_core.common.text import count, money, number, percent, ratio
from eigen_core.config.model import CheckpointConfig
from eigen_core.judging.backtests import Backtest, backtest
from eigen_core.judging.evaluation_log import Looks
from eigen_core.judging.verdicts import Verdict
from eigen_core.judging.walks import Walk, is_walk, stored_walk, walks_in
from eigen_core.market import build_panel
from eigen_core.reporting.report import NAMES, Fact, Fold, Report, options_of, settings_of, training_command
from eigen_core.reporting.report_plots import (
    AGENT,
    colours_of,
    drawdown_plot,
    equity_plot,
    exposure_plot,
    matched_plot,
    rolling_plots,
    variable,
    variables,
    weights_plot,
    window_of,
)
from eigen_core.reporting.report_tables import (
    UNDEFINED,
    assets_table,
    calendar_table,
    figures_table,
    rows_table,
    trade_tables,
    yearly_table,
)
from eigen_core.reporting.style import CHAMPION
from eigen_core.reporting.tables import Row, markdown_table
from eigen_core.reporting.walks import WalkResult, play_walk
from eigen_core.trading.metrics import gain_by_asset
from eigen_core.training.runs import Run, RunStatus, status_of

_DAYS = {"holdout": "Holdout", "validation": "Validation days", "walk": "Walk-forward"}
HEADLINES = {"skill": "Skill is likely", "none": "No skill shown", "undecided": "Too little data to tell"}


def report_page(report: Report) -> str:
    """Return the page of a report, HTML."""
    headline = HEADLINES[report.claim]
    names = {name: NAMES.get(name, name) for name in report.baselines}
    curves = {AGENT: report.curve, **{names[name]: curve for name, curve in report.baselines.items()}}
    colours = {AGENT: CHAMPION, **{names[name]: colour for name, colour in colours_of(list(names)).items()}}
    figures = {AGENT: report.figures, **{names[name]: found for name, found in report.baseline_figures.items()}}
    benchmark = None if report.benchmark is None else names[report.benchmark]
    compared = [AGENT] if benchmark is None else [AGENT, benchmark]
    weights, shares = (None, {}) if report.weights is None else weights_plot(report.weights)
    settings = [{"Setting": one.key, "Value": one.value} for one in report.settings]
    changed = [
        {"Setting": one.key, "Value": one.value, f"Preset {report.preset}": one.preset}
        for one in report.settings
        if one.preset is not None
    ]
    context = {
        "report": report,
        "title": f"{headline}: {report.run}",
        "headline": headline,
        "days": _DAYS.get(report.span, "Days"),
        "sentence": _after_headline(report),
        "capital": money(report.curve.capital),
        "colours": {name: variable(colour) for name, colour in colours.items()},
        "compared": {name: variable(colours[name]) for name in compared},
        "benchmark": benchmark,
        "equity": equity_plot(curves, colours, report.folds),
        "drawdowns": drawdown_plot(report),
        "deepest": percent(report.figures.max_drawdown),
        "stated": _stated(report),
        "figures": figures_table(figures, "Agent and baselines"),
        "yearly": yearly_table(curves),
        "calendar": calendar_table(report.curve),
        "rolling": rolling_plots(report),
        "window": window_of(len(report.curve.dates)),
        "exposed": percent(float(report.curve.exposure.mean()), 0),
        "exposure": exposure_plot(report),
        "weights": weights,
        "shares": {name: variable(colour) for name, colour in shares.items()},
        "matched": matched_plot(report) if len(report.matched) else None,
        "traded": _traded(report),
        "trades": trade_tables(report.trades) if report.weights is None else [],
        "assets": assets_table(report.by_asset, report.curve.capital, report.weights),
        "folds": rows_table("Folds", _folds(report), compared) if report.folds else None,
        "looked": rows_table("Looks", report.looked),
        "changed": rows_table(f"Settings that are not those of preset {report.preset}", changed),
        "settings": rows_table("All settings", settings),
    }
    return page("report.html", context | {"sections": _sections(context)})


def page(template: str, context: dict[str, Any]) -> str:
    """Return a page made from a template of this package; what is inserted is escaped."""
    return _environment().get_template(template).render(context | {"variables": variables()})


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("eigen_core.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_with_its_unit,
    )


def _with_its_unit(value: object) -> object:
    """Keep a number and its percent sign on one line."""
    return value.replace(" %", "\N{NO-BREAK SPACE}%") if isinstance(value, str) else value


def _sections(context: dict[str, Any]) -> list[tuple[str, str]]:
    report = context["report"]
    shown = {
        ("equity", "Equity"): True,
        ("drawdowns", "Drawdowns"): True,
        ("figures", "Metrics"): True,
        ("returns", "Years and months"): True,
        ("rolling", "Rolling figures"): context["rolling"],
        ("exposure", "Exposure"): True,
        ("weights", "Weights"): context["weights"],
        ("luck", "Luck"): context["matched"],
        ("trades", "Orders" if context["weights"] else "Trades"): True,
        ("folds", "Folds"): context["folds"],
        ("looks", "Looks"): report.looks,
        ("data", "Data"): report.data,
        ("settings", "Settings"): report.settings,
        ("again", "How to get this again"): report.commands or report.hashes,
    }
    return [section for section, is_there in shown.items() if is_there]


def _after_headline(report: Report) -> str:
    """Return the verdict's sentence without the claim that the headline makes."""
    claim, colon, rest = report.sentence.partition(": ")
    repeated = colon and claim.casefold() == HEADLINES[report.claim].casefold()
    return rest[:1].upper() + rest[1:] if repeated else report.sentence


def _stated(report: Report) -> str:
    against = (
        ""
        if report.benchmark is None
        else (
            f" Beta, alpha and information ratio are against {NAMES.get(report.benchmark, report.benchmark).lower()}."
        )
    )
    return (
        f"Daily returns, {number(report.periods_per_year)} periods a year, risk-free rate "
        f"{percent(report.risk_free, 2)} a year.{against} “–” is undefined."
    )


def _traded(report: Report) -> str:
    trades = report.trades
    if not len(trades):
        return "The agent did not trade."
    if report.weights is not None:
        return (
            f"{count(len(trades), 'order')} brought the account to its target weights: "
            f"{ratio(report.figures.turnover)} times its mean equity was bought and sold a year, for "
            f"{money(float(report.curve.costs.sum()))} of costs in all."
        )
    gains, closed = trades["gain"] / trades["paid"], trades.dropna(subset="exit")
    held = (closed["exit"] - closed["fill"]).dt.days.mean()
    return (
        f"{count(len(trades), 'trade')}, {percent(float((gains > 0).mean()), 0)} of them with a gain; "
        f"{percent(float(gains.mean()), 2)} a trade on average, "
        f"{f'held {number(held)} calendar days, ' if len(closed) else ''}"
        f"{money(float(report.curve.costs.sum()))} of costs in all."
    )


def _folds(report: Report) -> list[dict[str, str]]:
    rows = []
    for fold in report.folds:
        played = (report.curve.dates >= np.datetime64(fold.first)) & (report.curve.dates <= np.datetime64(fold.last))
        earned = {AGENT: report.curve} | (
            {} if report.benchmark is None else {NAMES[report.benchmark]: report.baselines[report.benchmark]}
        )
        returns = {name: percent(float(np.prod(1.0 + curve.returns[played]) - 1.0)) for name, curve in earned.items()}
        rows.append({"Fold": fold.name, "First day": str(fold.first), "Last day": str(fold.last), **returns})
    return rows


def report_markdown(report: Report, where: str) -> str:
    """Return the verdict of a report, what it rests on and its figures as markdown.

    Args:
        report: in full.
        where: the file with the plots and all tables.
    """
    others = {NAMES.get(name, name): found for name, found in report.baseline_figures.items()}
    table = figures_table({AGENT: report.figures} | others, "")
    columns = ("Figure", *table.columns[1:])
    rows: list[Row] = [{column: cell.text for column, cell in zip(columns, row, strict=True)} for row in table.rows]
    page = [
        f"# {report.run}, {report.agent}: {report.span}, {report.first} to {report.last}",
        f"**{report.sentence}**",
        "\n".join(f"- **{fact.name}**: {fact.value} {fact.note}".rstrip() for fact in report.facts),
        markdown_table(rows),
        f"Plots and all tables: `{where}`",
    ]
    return "\n\n".join(filter(None, page))


_CHOSEN = "The champion was chosen on these days: what it earns on them is the best of many looks."


@dataclass(frozen=True)
class WrittenReport:
    """A report, and where it is.

    Attributes:
        report: what it says.
        agent: who played, as `backtest` takes it.
        file: its page.
        artifact: key of its artifact in Prefect; None: no server has it.
    """

    report: Report
    agent: str
    file: Path
    artifact: str | None = None


def write_report(store: str, run: str, *, span: str | None, agent: str, file: Path) -> WrittenReport:
    """Play an agent of a run over a span of days and write the report of it.

    Args:
        store: where the run is kept.
        run: its name.
        span, agent: as `backtest` takes them.
        file: HTML file to write.

    Raises:
        InputError: as `backtest`; or the file cannot be written.
    """
    require_place(file)
    played = backtest(store, run, span=span, agent=agent)
    report = report_of(played, status_of(store, run))
    write_page(report_page(report), file)
    return WrittenReport(report, agent, file)


def write_page(page: str, file: Path) -> None:
    """Write a page into a file in one step.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        with replacing(file) as opened:
            opened.write(page.encode())
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror}.") from error


def report_of(played: Backtest, status: RunStatus) -> Report:
    """Return the report of a backtest.

    Args:
        played: the backtest.
        status: of its run.
    """
    config = played.config
    account, verdict = config.account, played.verdict
    panel, found = build_panel(config)
    report = Report(
        run=played.run,
        agent=agent_in_words(played, status),
        span=played.span,
        claim=verdict.claim,
        sentence=verdict.sentence[:1].upper() + verdict.sentence[1:],
        warnings=[*([_CHOSEN] if played.span == "validation" else []), *played.looks.warnings],
        facts=(),
        curve=played.curve,
        baselines=played.baselines,
        benchmark=played.baskets[0],
        matched=played.matched.total_returns,
        matched_description=played.matched.description,
        quantile=played.matched.quantile_of(played.figures.total_return),
        trades=played.trades,
        weights=played.weights,
        by_asset=played.by_asset,
        periods_per_year=played.periods_per_year,
        risk_free=account.risk_free,
        looks=looks_in_words(played.looks, verdict),
        data=replace(found, source=Path(found.source).name).lines(config.trading),
        preset=config.preset,
        settings=settings_of(config),
        commands=[training_command(config, played.run), report_command(played)],
        hashes=_hashes(status, panel.fingerprint),
    )
    timing = None if played.by_timing else played.timing.quantile_of(played.figures.total_return)
    return replace(report, facts=facts_of(report, verdict, played.excess, timing))


def report_command(played: Backtest) -> str:
    """Return the command line that plays the same days with the same agent."""
    return shlex.join(["eigen", "report", played.run, "--slice", played.span, "--agent", played.agent])


def agent_in_words(played: Backtest, status: RunStatus) -> str:
    """Return who has played: "champion, agent 3 of generation 7"."""
    if played.agent == "champion":
        last = status.history[-1]
        return f"champion, agent {last.champion_agent} of generation {last.champion_generation}"
    if played.agent.isdecimal():
        return f"agent {played.agent} of generation {played.generation}"
    return f"{played.agent} of generation {played.generation}, {count(played.agents, 'agent')}"


def looks_in_words(looks: Looks, verdict: Verdict) -> str:
    """Return how often days were looked at, and how often the verdict counts."""
    known = f"{count(looks.count, 'result')} on these days {'is' if looks.count == 1 else 'are'} in the store's ledger"
    runs = f"of {'run' if len(looks.runs) == 1 else 'runs'} {', '.join(looks.runs)}"
    sharpes = f"; the best Sharpe ratio of a day among them is {max(looks.sharpes):.3f}" if looks.sharpes else ""
    return f"{known}, {runs}{sharpes}. The verdict is corrected for {count(verdict.looks, 'look')}."


def facts_of(report: Report, verdict: Verdict, excess: Excess | None, timing: float | None = None) -> list[Fact]:
    """Return what was earned and beside what, and how likely luck is after all looks at these days.

    Args:
        report: with the accounts.
        verdict: on them.
        excess: what was gained beyond the market.
        timing: share of the shifts of the agent's decisions in time that earned less; None where that is the quantile,
            or not known.
    """
    assert report.benchmark is not None
    figures, benchmark = report.figures, report.baseline_figures[report.benchmark]
    name, interval = NAMES[report.benchmark].lower(), verdict.sharpe_interval
    sharpe = f"{name} {_shown(benchmark.sharpe, ratio)}"
    bounds = "" if interval is None else f"{ratio(interval[0])} to {ratio(interval[1])} (95 %); "
    quantile = report.quantile
    draws = f"of {len(report.matched):,} {report.matched_description}"
    per, made = "trade" if excess is None else excess.per, "trade" if report.weights is None else "order"
    luck = f"by luck {percent(verdict.matched_pvalue)}, {count(verdict.looks, 'look')}"
    return [
        Fact("Total Return", percent(figures.total_return), f"{name} {percent(benchmark.total_return)}"),
        Fact("Sharpe", _shown(figures.sharpe, ratio), bounds + sharpe),
        Fact("Max Drawdown", percent(figures.max_drawdown), f"longest {count(figures.longest_drawdown_days, 'day')}"),
        Fact(f"Excess a {per}", UNDEFINED if excess is None else excess.short, count(len(report.trades), made)),
        Fact("Earned more than", _shown(quantile, partial(percent, digits=0)), f"{draws}; {luck}"),
        *([] if timing is None else [_timing(timing, verdict)]),
        Fact("Deflated Sharpe", _shown(verdict.deflated_sharpe, percent), "probability that Sharpe is above 0"),
        Fact("SPA p-value", _shown(verdict.spa_pvalue, ratio), "against the best baseline (Hansen 2005)"),
        Fact("Smallest edge", _shown(verdict.smallest_edge, _edge), f"a {per}, that would have been found"),
    ]


def _timing(timing: float, verdict: Verdict) -> Fact:
    luck = f"by luck {percent(verdict.timing_pvalue)}, {count(verdict.looks, 'look')}"
    return Fact("Timing", percent(timing, digits=0), f"of shifts of its decisions in time earned less; {luck}")


def _edge(value: float) -> str:
    return f"{value:.2f} %"


def _shown(value: float | None, text: Callable[[float], str]) -> str:
    return UNDEFINED if value is None else text(value)


def _hashes(status: RunStatus, panel: str) -> list[Fact]:
    last = status.history[-1]
    facts = [
        Fact("Weights of the last generation", last.weights_sha256),
        Fact("Replay", last.replay_sha256),
        Fact("Data and features", panel),
    ]
    return facts + ([] if status.computed_by is None else [Fact("Computed by", str(status.computed_by))])


_WALK = "walk"


def is_report_of_walk(store: str, name: str, *, span: str | None, agent: str) -> bool:
    """Return whether the report of a walk is asked for, not that of a run.

    Args:
        store: where both are kept.
        name: of one of them.
        span: as `backtest` takes it, or `walk`.
        agent: as `backtest` takes it.

    Raises:
        InputError: there is neither a run nor a walk of this name, there are both and it is not said which is meant, or
            a walk is asked for with days or agents of a run.
        StoreUnavailableError: the store does not answer.
    """
    run, walk = Run(CheckpointConfig(store=store), name).exists, is_walk(store, name)
    where = open_store(store).url
    if not run and not walk:
        raise InputError(f"{no_such_run(open_store(store), name)} {_held(walks_in(store))}")
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


def _held(walks: Sequence[str]) -> str:
    shown = f"{', '.join(walks[:20])}{', ...' if len(walks) > 20 else ''}"
    return f"Its walks: {shown}." if walks else "It holds no walks either."


def write_walk_report(store: str, name: str, file: Path) -> WrittenReport:
    """Let the champions of a walk that is finished play its folds, and write the report of it.

    Args:
        store: where the walk is kept.
        name: of the walk.
        file: HTML file to write.

    Raises:
        InputError: there is no such walk, it is not finished, its prices are not those that it was begun with, or the
            file cannot be written.
        StoreUnavailableError: the store does not answer.
    """
    require_place(file)
    report = report_of_walk(play_walk(stored_walk(store, name)))
    write_page(report_page(report), file)
    return WrittenReport(report, "champion", file)


def report_of_walk(result: WalkResult) -> Report:
    """Return the report of a walk that was played."""
    walk, verdict = result.walk, result.verdict
    account = walk.config.account
    trades = pd.concat([one.played.trades for one in result.played], ignore_index=True)
    panel, found = build_panel(walk.config)
    report = Report(
        run=walk.name,
        agent=f"champions of {count(len(walk.folds), 'fold')}, {count(walk.seeds, 'seed')} each",
        span=_WALK,
        claim=verdict.claim,
        sentence=verdict.sentence[:1].upper() + verdict.sentence[1:],
        warnings=result.warnings,
        facts=(),
        curve=result.curve,
        baselines=result.baselines,
        benchmark=result.benchmark,
        matched=result.matched_returns,
        matched_description=result.played[0].played.matched.description,
        quantile=result.matched_quantile,
        trades=trades,
        weights=result.weights,
        by_asset=gain_by_asset(trades),
        periods_per_year=result.periods_per_year,
        risk_free=account.risk_free,
        folds=[
            Fold(f"fold {fold.number}", date.fromisoformat(fold.played.first), date.fromisoformat(fold.played.last))
            for fold in walk.folds
        ],
        looks=f"The verdict is corrected for {count(verdict.looks, 'look')}: those at the fold with the most.",
        data=replace(found, source=Path(found.source).name).lines(walk.config.trading),
        preset=walk.config.preset,
        settings=settings_of(walk.config),
        commands=[_command(walk), shlex.join(["eigen", "report", walk.name])],
        hashes=[Fact("Data and features", panel.fingerprint)],
    )
    return replace(report, facts=facts_of(report, verdict, result.excess))


def _command(walk: Walk) -> str:
    shape = ["--folds", str(len(walk.folds)), "--seeds", str(walk.seeds)]
    shape += [] if walk.train_days is None else ["--train-days", str(walk.train_days)]
    return shlex.join(["eigen", "walk", walk.name, *shape, *options_of(walk.config)])
