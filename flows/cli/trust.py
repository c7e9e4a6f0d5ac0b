"""The command `eigen trust`: how often the verdict claims skill on noise, and which edges it finds."""

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from eigen_core.common.errors import InputError
from eigen_core.common.units import percent
from flows.cli.common import Assignments, DataArgument, Generations, Json, Preset, Seed, config_of, sentences
from flows.cli.output import PlainTable, print_line, print_result

if TYPE_CHECKING:
    from eigen_core.judging.trust import Claims, Trial, Trust
    from flows.cli.display import Display

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
