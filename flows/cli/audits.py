"""The commands that look for luck and leaks: audit, importance and trust."""

import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eigen_core.common.errors import InputError
from eigen_core.common.text import count, percent
from flows.cli.common import (
    EXIT_OTHER,
    LARGEST,
    Assignments,
    Data,
    DataArgument,
    Generations,
    Json,
    Preset,
    RunName,
    Seed,
    Store,
    config_of,
    sentences,
    store_of,
)
from flows.cli.output import PlainTable, print_line, print_result

if TYPE_CHECKING:
    from eigen_core.judging.importance import RunImportance
    from eigen_core.judging.trust import Claims, Trial, Trust
    from eigen_core.market.audit import MarketAudit
    from flows.cli.display import Display

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


IMPORTANCE_EXAMPLES = """[bold]Examples[/]

  eigen importance mine
  eigen importance mine --agent elites --draws 50 --json
  eigen importance mine --generations all    what no champion of the kept generations uses

In the validation episodes, the values of each feature and of each column are moved to other days: what changes then
depends on them. No holdout day is read.
"""


@sentences
def importance(
    name: RunName,
    agent: Annotated[
        str, typer.Option(help="champion, elites, or an agent's number in the newest generation.", metavar="AGENT")
    ] = "champion",
    generations: Annotated[
        str | None,
        typer.Option(help="The champions of so many of the newest kept generations, or of all.", metavar="all|K"),
    ] = None,
    draws: Annotated[int, typer.Option(min=2, max=10_000, help="Draws of each feature or column.", metavar="N")] = 10,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show which features and columns of the market agents of a run use."""
    newest = _generations(generations, agent)
    from eigen_core.common.progress import progress_to
    from eigen_core.judging.importance import run_importance
    from flows.cli.display import display_on

    with display_on(Console(stderr=True)) as display:
        display.waiting_for("reading the data")
        with progress_to(display):
            asked = agent if generations is None else "champions"
            found = run_importance(store_of(store), name, agent=asked, generations=newest, draws=draws)
    print_result(as_json, lambda found: found, print_importance, found)


def _generations(text: str | None, agent: str) -> int | None:
    """Return how many of the newest generations are asked for; None: all."""
    if text is not None and agent != "champion":
        raise InputError(f"--generations is about champions: leave out --agent {agent}, or --generations.")
    if text is None or text == "all":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= LARGEST:
        raise InputError(f"--generations {text}: give all, or how many of the newest, 1 or more.")
    return int(text)


def print_importance(console: Console, found: "RunImportance") -> None:
    """Print features and columns, the most used first, and what is hardly used."""
    of = f"generation {found.generation}, {found.agent}"
    if found.agent == "champions":
        of = f"{count(found.agents, 'champion')} of {count(len(found.generations), 'kept generation')}"
    print_line(
        console,
        f"Run {found.run}, {of}: validation episodes from {found.first} to {found.last}, {found.draws} draws.",
    )
    for kind, importances in (("feature", found.features), ("column", found.columns)):
        headers = (kind, "other decisions", "5 to 95 %", "loss", "loss, 5 to 95 %")
        table = PlainTable(*headers, left=(kind,), least_important=("loss, 5 to 95 %", "5 to 95 %"))
        for each in importances:
            table.add_row(
                each.name,
                f"{each.changed:.1%}",
                "{:.1%} to {:.1%}".format(*each.changed_interval),
                "" if each.excess_lost is None else f"{each.excess_lost:+.2f} %",
                "" if each.excess_lost_interval is None else "{:+.2f} to {:+.2f}".format(*each.excess_lost_interval),
            )
        table.print(console)
    print_line(
        console,
        "Other decisions: days on which something else is bought, or nothing, once these values are those of other "
        "days; of a portfolio, the share of it that is in other assets. Loss: what a trade, or a portfolio in a year, "
        "then gains less beyond the market.",
    )
    if found.low_columns:
        print_line(console, f"Hardly used: {', '.join(found.low_columns)}.")
    for kind, low in (("features", found.persistent_low_features), ("columns", found.persistent_low_columns)):
        if low:
            print_line(console, f"Low for most of the {found.agents} agents, {kind}: {', '.join(low)}.")


TRUST_EXAMPLES = """[bold]Examples[/]

  eigen trust
  eigen trust prices.csv --trials 40 --edges 0.05,0.1,0.15
  eigen trust prices.csv --preset quickstart --set market.holdout_days=251 --out trust-mine

Each trial trains a small run in memory and judges its champion as `eigen backtest` does. Finished trials are kept in
the folder: run the same command again to continue, with more trials or edges if you like.
"""

COLUMNS = ("market", "trials", "skill claimed", "95 % interval")
_LARGEST = 10_000


@sentences
def trust(
    data: DataArgument = None,
    trials: Annotated[
        int, typer.Option(min=1, max=_LARGEST, help="Markets of noise, and trials of each edge.", metavar="N")
    ] = 10,
    edges: Annotated[
        str, typer.Option(help="Information coefficients that are planted; an empty text: none.", metavar="LIST")
    ] = "0.05,0.1,0.2,0.3",
    preset: Preset = None,
    generations: Generations = None,
    seed: Seed = None,
    assignments: Assignments = None,
    out: Annotated[Path, typer.Option(help="Folder of the finished trials.", metavar="FOLDER")] = Path("trust"),
    as_json: Json = False,
) -> None:
    """Measure the verdict on prices: false alarms on markets of noise, and the smallest edge that it finds."""
    wanted = edges_in(edges)
    from eigen_core.common.progress import progress_to
    from eigen_core.judging.trust import TRIAL_PRESET, TrustTrials, trust_document, with_trial_settings
    from flows.cli.display import display_on

    chosen = [] if generations is None else [f"generations={generations}"]
    settings = with_trial_settings([*chosen, *(assignments or ())])
    config = config_of(preset or TRIAL_PRESET, None, seed, settings, data, None, "cpu")
    console = Console(stderr=True)

    def made(trial: "Trial", done: int, of: int) -> None:
        if not console.is_terminal:
            print_line(console, f"trial {done}/{of}  {_market(trial.edge)}, seed {trial.seed}: {trial.claim}")

    with display_on(console, "trials") as display:
        display.waiting_for("reading the data")
        with progress_to(display):
            measured = TrustTrials(config, out).run(trials, wanted, partial(show_trial, display), made)
    print_result(as_json, trust_document, print_trust, measured)


def show_trial(display: "Display", number: int, of: int) -> None:
    """Show which trial is made now."""
    display.progressed(number - 1, of)
    display.waiting_for(f"trial {number} of {of}")


def edges_in(text: str) -> tuple[float, ...]:
    """Return the information coefficients that a text lists.

    Raises:
        InputError: one of them is not from 0 to 1.
    """
    try:
        edges = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        edges = (math.nan,)
    if not all(0.0 <= edge <= 1.0 for edge in edges):
        raise InputError(f"--edges {text}: give information coefficients from 0 to 1, such as 0.05,0.1,0.2.")
    return edges


def print_trust(console: Console, trust: "Trust") -> None:
    """Print the claims of each kind of trial, and what they come to."""
    table = PlainTable(*COLUMNS, left=COLUMNS[:1])
    for row in rows_of(trust):
        table.add_row(*row)
    table.print(console)
    for sentence in trust.sentences:
        print_line(console, sentence)


def rows_of(trust: "Trust") -> list[tuple[str, ...]]:
    """Return the claims of each kind of trial as text, under the headings of `COLUMNS`."""
    return [
        _row(None, trust.false_alarms),
        *(_row(edge, claims) for edge, claims in trust.power.items()),
    ]


def _market(edge: float | None) -> str:
    return "nothing to predict" if edge is None else f"planted edge {edge:g}"


def _row(edge: float | None, claims: "Claims") -> tuple[str, ...]:
    low, high = claims.interval or (0.0, 1.0)
    return _market(edge), str(claims.trials), str(claims.claimed), f"{percent(low, 0)} to {percent(high, 0)}"
