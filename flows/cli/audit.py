"""The command `eigen audit`: the data report, and each feature tried for look-ahead."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eigen_core.common.units import count
from flows.cli.common import EXIT_OTHER, Assignments, Data, Json, Preset, config_of, sentences
from flows.cli.output import print_line, print_result

if TYPE_CHECKING:
    from eigen_core.market.audit import MarketAudit

AUDIT_EXAMPLES = """[bold]Examples[/]

  eigen audit --data prices.csv
  eigen audit --data prices.csv --set market.own_features=columns,gap --days 20

Exit code 0: no look-ahead was found; 1: a feature uses later days, or is suspected; 2: what was given cannot be used.
"""


@sentences
def audit(
    preset: Preset = None,
    assignments: Assignments = None,
    data: Data = None,
    days: Annotated[
        int, typer.Option(min=1, max=1_000, help="Number of days after which later rows are changed.", metavar="N")
    ] = 8,
    as_json: Json = False,
) -> None:
    """Try every feature for look-ahead, and show what the data report says of the prices."""
    from eigen_core.common.progress import progress_to
    from eigen_core.market.audit import audit_market
    from flows.cli.display import display_on

    config = config_of(preset, None, None, assignments, data, None, None)
    with display_on(Console(stderr=True)) as display:
        display.waiting_for("reading the data")
        with progress_to(display):
            audited = audit_market(config, days)
    print_result(as_json, audit_document, print_audit, audited)
    if not audited.is_clean:
        raise typer.Exit(EXIT_OTHER)


def audit_document(audited: "MarketAudit") -> dict[str, Any]:
    """Return what `eigen audit --json` prints."""
    return {
        "is_clean": audited.is_clean,
        "features": audited.features,
        "symbols": audited.symbols,
        "days": audited.days,
        "found": [{**asdict(finding), "sentence": str(finding)} for finding in audited.found],
        "suspected": [{**asdict(leak), "sentence": str(leak)} for leak in audited.suspected],
        "unseen": audited.unseen,
        "report": {**asdict(audited.report), "lines": audited.report.lines()},
    }


def print_audit(console: Console, audited: "MarketAudit") -> None:
    """Print the data report, what was tried, and what was found."""
    for line in audited.report.lines():
        print_line(console, line)
    print_line(
        console,
        f"Tried {count(len(audited.features), 'feature')} of {count(audited.symbols, 'symbol')} on "
        f"{count(len(audited.days), 'day')} ({audited.days[0]} to {audited.days[-1]}): what comes after each was cut "
        "off, then shuffled.",
    )
    for finding in (*audited.found, *audited.suspected):
        print_line(console, str(finding))
    if audited.is_clean:
        print_line(console, "No value up to these days changed: no look-ahead was found.")
    print_line(console, audited.unseen)
