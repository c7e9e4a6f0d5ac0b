"""The command `eigen islands`: ordinary runs that take each other's champions, all trained at once."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from eigen_core.errors import InputError
from eigen_core.store import check_run_name, run_root
from flows.cli.common import (
    Assignments,
    Data,
    Device,
    Generations,
    Json,
    Preset,
    RunsOn,
    Seed,
    Store,
    given_settings,
    given_store,
    sentences,
)
from flows.cli.output import PlainTable, output_console, print_line, print_result
from flows.cli.run_trainers import refuse_two_schedulers, whole_runs
from flows.cli.whole_runs import AGAIN, WholeRun, WholeRuns, train_all, whole_run
from flows.endings import Stopped

_LOOK_SECONDS = 5.0
# For a worker that is started again, or comes back, by whatever watches over it.
_SHORT_SECONDS = 300.0

ISLANDS_EXAMPLES = """[bold]Examples[/]

  eigen islands archipelago --islands 2 --generations 50 --set threads=1
  eigen islands archipelago --islands 8 --store gs://bucket/runs --runs-on tcp://host:8786
  eigen islands archipelago --islands 4 --set evolution.migration_generations=20

The runs are `NAME-island-1` and so on, with one seed each: `eigen show`, `compare` and `backtest` accept them. Run the
same command again to continue islands that were stopped.
"""


@dataclass(frozen=True)
class IslandResult:
    """What became of an island."""

    run: str
    seed: int
    champion_validation: float
    """Validation fitness of its champion (reward)."""
    immigrants: int
    """Agents that it took from other islands."""


@sentences
def islands(
    name: Annotated[str, typer.Argument(help="Name of the islands; their runs begin with it.", metavar="NAME")],
    number: Annotated[int, typer.Option("--islands", min=2, max=1_000, help="Populations.", metavar="N")] = 4,
    runs_on: RunsOn = None,
    preset: Preset = None,
    generations: Generations = None,
    seed: Seed = None,
    assignments: Assignments = None,
    data: Data = None,
    store: Store = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Train several populations at once that now and then take each other's champion."""
    named = given_store(store, assignments or ())
    given = given_settings(generations, seed, assignments, data, named, device)
    runs = island_runs(name, number, preset, given)
    refuse_two_schedulers(runs[0].config, runs_on)
    console = Console(stderr=True) if as_json else output_console()
    checkpoint = runs[0].config.checkpoint
    folder = run_root(checkpoint.store, checkpoint.local) / ".islands" / name
    with whole_runs(number, runs_on) as trained_by:
        if trained_by.most_at_a_time < number:
            raise InputError(
                f"The scheduler {runs_on} has {trained_by.most_at_a_time} worker threads, and {number} islands wait "
                "for each other: start more workers, or give fewer islands."
            )
        say = partial(print_line, console)
        train_all(runs, trained_by, number, folder, say, EnoughThreads(trained_by, say))
    print_result(as_json, _document, _print_islands, [_result_of(run) for run in runs])


class EnoughThreads:
    """Watches that all islands can be trained at once: one that waits for a thread is waited for by all others.

    Args:
        trained_by: trains them.
        say: receives a line when threads are missing.
    """

    def __init__(self, trained_by: WholeRuns, say: Callable[[str], None]) -> None:
        self._trained_by, self._say = trained_by, say
        self._looked: float | None = None
        self._short_since: float | None = None

    def __call__(self, islands: int) -> None:
        """Look, from time to time, whether there is a thread for each of the islands that are not finished.

        Raises:
            Stopped: threads have been missing for minutes.
        """
        now = time.monotonic()
        if self._looked is not None and now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        threads = self._trained_by.most_at_a_time
        if threads >= islands:
            self._short_since = None
            return
        found = f"Workers were lost: {threads} worker threads are left, and {islands} islands wait for each other."
        if self._short_since is None:
            self._short_since = now
            self._say(f"{found} Start more workers within {_SHORT_SECONDS / 60:g} minutes, or the islands are stopped.")
        elif now - self._short_since >= _SHORT_SECONDS:
            raise Stopped(f"{found} Start more workers. {AGAIN}")


def island_runs(name: str, number: int, preset: str | None, given: Sequence[str]) -> list[WholeRun]:
    """Return the runs of islands; their seeds follow each other.

    Raises:
        InputError: what was given cannot be used.
    """
    check_run_name(name)
    names = [f"{name}-island-{island}" for island in range(1, number + 1)]
    settings = [*given, f"evolution.islands={','.join(names)}"]
    first = whole_run(names[0], preset, settings).config.seed
    return [whole_run(run, preset, [*settings, f"seed={first + island}"]) for island, run in enumerate(names)]


def _result_of(run: WholeRun) -> IslandResult:
    from eigen_core.training.runs import status_of

    history = status_of(run.config.checkpoint.store, run.name).history
    came = sum(lineage.origin == "immigrant" for record in history for lineage in record.descent)
    return IslandResult(run.name, run.config.seed, history[-1].champion_validation, came)


def _document(results: Sequence[IslandResult]) -> list[dict[str, object]]:
    return [asdict(result) for result in results]


def _print_islands(console: Console, results: Sequence[IslandResult]) -> None:
    table = PlainTable("run", "seed", "champion validation", "immigrants", left=("run",))
    for one in results:
        table.add_row(one.run, str(one.seed), f"{one.champion_validation:,.1f}", str(one.immigrants))
    table.print(console)
