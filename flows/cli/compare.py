"""The command compare, and what it shows."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from flows.cli.common import Agent, Json, Slice, Store, sentences, store_of
from flows.cli.output import PlainTable, print_fact, print_line, print_result
from flows.cli.report import print_figures

if TYPE_CHECKING:
    from eigen_core.account import EquityCurve
    from eigen_core.account.figures import Figures
    from eigen_core.reporting.compare import WrittenComparison

COMPARE_EXAMPLES = """[bold]Examples[/]

  eigen compare first second
  eigen compare first second --slice validation --out comparison.html
"""

_SHOWN_DIFFERENCES = 20


@sentences
def compare(
    names: Annotated[list[str], typer.Argument(help="Names of the runs.", metavar="NAME NAME...")],
    span: Slice = None,
    agent: Agent = "champion",
    out: Annotated[Path | None, typer.Option(help="HTML file with the curves to write.", metavar="FILE")] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show runs side by side on the same days, and the settings in which they differ."""
    from eigen_core.common.progress import progress_to
    from eigen_core.reporting.compare import write_comparison
    from flows.cli.display import display_on

    with display_on(Console(stderr=True)) as display, progress_to(display):
        display.waiting_for("reading the data")
        written = write_comparison(store_of(store), names, span=span, agent=agent, file=out)
    print_result(as_json, comparison_document, print_comparison, written)


def print_comparison(console: Console, written: "WrittenComparison") -> None:
    """Print verdicts and figures of runs, and the settings in which they differ."""
    compared = written.compared
    for run, sentence in compared.sentences.items():
        print_line(console, (f"{run}: ", "bold"), sentence)
    curves = {name: curve for name, (curve, _) in compared.accounts.items()}
    figures = {name: found for name, (_, found) in compared.accounts.items()}
    first, last = (next(iter(curves.values())).dates[day] for day in (0, -1))
    print_line(console, f"{compared.span}, {first} to {last}")
    print_figures(console, "run", curves, figures)
    if not compared.differences:
        print_line(console, "The runs have the same settings.")
    else:
        table = PlainTable("setting", *compared.curves, left=("setting", *compared.curves))
        for key, values in list(compared.differences.items())[:_SHOWN_DIFFERENCES]:
            table.add_row(key, *values.values())
        table.print(console)
        if len(compared.differences) > _SHOWN_DIFFERENCES:
            more = len(compared.differences) - _SHOWN_DIFFERENCES
            print_line(console, f"{more} more differ; --json and --out have them all.")
    if written.file is not None:
        print_fact(console, "page", str(written.file))


def comparison_document(written: "WrittenComparison") -> dict[str, Any]:
    """Return what `eigen compare --json` prints. Its keys are a contract."""
    compared = written.compared
    first, last = (str(next(iter(compared.curves.values())).dates[day]) for day in (0, -1))
    return {
        "slice": compared.span,
        "first": first,
        "last": last,
        "file": None if written.file is None else str(written.file),
        "periods_per_year": compared.periods_per_year,
        "risk_free": compared.risk_free,
        "runs": {
            run: {
                "capital": curve.capital,
                "final": float(curve.equity[-1]),
                "figures": asdict(compared.figures[run]),
                "verdict": {"claim": compared.claims[run], "sentence": compared.sentences[run]},
                "benchmark": _benchmark(compared.own_benchmarks.get(run, compared.benchmark)),
            }
            for run, curve in compared.curves.items()
        },
        "benchmark": _benchmark(compared.benchmark),
        "warnings": list(compared.warnings),
        "differences": compared.differences,
    }


def _benchmark(known: "tuple[str, EquityCurve, Figures] | None") -> dict[str, Any] | None:
    return None if known is None else {"name": known[0], "figures": asdict(known[2])}
