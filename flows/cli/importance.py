"""The command `eigen importance`: which features and columns of the market agents of a run use."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from eigen_core.common.errors import InputError
from eigen_core.common.units import count
from flows.cli.common import LARGEST, Json, RunName, Store, sentences, store_of
from flows.cli.output import PlainTable, print_line, print_result

if TYPE_CHECKING:
    from eigen_core.judging.importance import RunImportance

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
