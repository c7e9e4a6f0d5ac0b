"""The page of a report: one HTML file that needs no network and no script."""

from functools import cache
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from eigen_core.common.text import count, money, number, percent, ratio
from eigen_core.reporting.report.content import NAMES, Report
from eigen_core.reporting.report.curves import (
    AGENT,
    colours_of,
    drawdown_plot,
    equity_plot,
    exposure_plot,
    matched_plot,
    rolling_plots,
    weights_plot,
    window_of,
)
from eigen_core.reporting.report.svg import variable, variables
from eigen_core.reporting.report.tables import (
    assets_table,
    calendar_table,
    figures_table,
    rows_table,
    trade_tables,
    yearly_table,
)
from eigen_core.reporting.style import CHAMPION

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
        loader=PackageLoader("eigen_core.reporting", "report"),
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
        ("figures", "Figures"): True,
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
