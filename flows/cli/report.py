"""The command report, and what it shows."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eigen_core.common.units import money, percent, ratio
from flows.cli.common import Agent, Json, Slice, Store, sentences, store_of
from flows.cli.output import PlainTable, print_fact, print_line, print_result

if TYPE_CHECKING:
    from eigen_core.account import EquityCurve
    from eigen_core.account.figures import Figures
    from eigen_core.reporting.reports import WrittenReport

REPORT_EXAMPLES = """[bold]Examples[/]

  eigen report first
  eigen report first --slice 2012-01-03:2013-12-31 --agent 3 --out agent-3.html
  eigen report years                       the joined account of a walk and its folds
"""

_UNDEFINED = "–"


@sentences
def report(
    name: Annotated[str, typer.Argument(help="Name of the run, or of the walk.", metavar="NAME")],
    span: Slice = None,
    agent: Agent = "champion",
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write.", show_default="NAME-report.html", metavar="FILE")
    ] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Write what a run or a walk would have earned, and whether to believe it, into one HTML file that can be sent."""
    from eigen_core.common.progress import progress_to
    from eigen_core.reporting.reports import is_report_of_walk, write_report, write_walk_report
    from flows.cli.display import display_on
    from flows.server.reporter import publish

    where = store_of(store)
    of_walk = is_report_of_walk(where, name, span=span, agent=agent)
    file = Path(f"{name}-report.html") if out is None else out
    with display_on(Console(stderr=True)) as display, progress_to(display):
        display.waiting_for("reading the data")
        if of_walk:
            written = write_walk_report(where, name, file)
        else:
            written = write_report(where, name, span=span, agent=agent, file=file)
    print_result(as_json, report_document, print_report, replace(written, artifact=publish(written)))


def print_report(console: Console, written: "WrittenReport") -> None:
    """Print the verdict, the figures of agent and baselines, and where the report is."""
    report = written.report
    print_line(console, (report.sentence, "bold"))
    print_line(console, f"{report.run}, {report.agent}: {report.span}, {report.first} to {report.last}")
    curves = {"agent": report.curve, **report.baselines}
    print_figures(console, "account", curves, {"agent": report.figures, **report.baseline_figures})
    print_fact(console, "report", str(written.file))
    if written.artifact:
        print_fact(console, "in Prefect", f"{written.artifact}")


def report_document(written: "WrittenReport") -> dict[str, Any]:
    """Return what `eigen report --json` prints. Its keys are a contract."""
    report = written.report
    return {
        "run": report.run,
        "agent": written.agent,
        "slice": report.span,
        "first": report.first,
        "last": report.last,
        "days": len(report.curve.dates),
        "folds": [{"fold": fold.name, "first": str(fold.first), "last": str(fold.last)} for fold in report.folds],
        "file": str(written.file),
        "artifact": written.artifact,
        "periods_per_year": report.periods_per_year,
        "risk_free": report.risk_free,
        "figures": asdict(report.figures),
        "baselines": {name: asdict(figures) for name, figures in report.baseline_figures.items()},
        "verdict": {"claim": report.claim, "sentence": report.sentence},
        "warnings": list(report.warnings),
    }


def print_figures(
    console: Console, heading: str, curves: Mapping[str, "EquityCurve"], figures: Mapping[str, "Figures"]
) -> None:
    """Print figures of accounts, one row each.

    Args:
        console: where to.
        heading: what the accounts are.
        curves: by name.
        figures: of the same accounts.
    """
    table = PlainTable(
        heading,
        "final",
        "total return",
        "CAGR",
        "Sharpe",
        "max drawdown",
        "turnover",
        "beta",
        left=(heading,),
        least_important=("turnover", "CAGR", "beta"),
    )
    for name, found in figures.items():
        table.add_row(
            name.replace("_", " "),
            money(float(curves[name].equity[-1])),
            percent(found.total_return, 2),
            percent(found.cagr, 2),
            _UNDEFINED if found.sharpe is None else ratio(found.sharpe),
            percent(found.max_drawdown, 2),
            ratio(found.turnover),
            _UNDEFINED if found.beta is None else ratio(found.beta),
        )
    table.print(console)
