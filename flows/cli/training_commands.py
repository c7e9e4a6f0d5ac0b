"""The commands that train runs, and those that say before a training what it needs.

Torch and Prefect take seconds to import: a command imports them when it needs them.
"""

import os
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from flows.cli.common import (
    EXIT_MEMORY,
    EXIT_OTHER,
    LARGEST,
    Assignments,
    Data,
    Device,
    Generations,
    Json,
    Preset,
    Run,
    RunName,
    RunsOn,
    Seed,
    Store,
    config_of,
    given_settings,
    given_store,
    sentences,
    store_of,
)
from flows.cli.output import output_console, print_json, print_line, print_result
from flows.cli.plan import (
    findings_document,
    is_healthy,
    planned_document,
    planned_run,
    print_findings,
    print_planned,
    shape_of,
)
from flows.cli.training import continue_run, start_or_continue
from flows.names import default_run_name

TRAIN_EXAMPLES = """[bold]Examples[/]

  eigen train
  eigen train --preset quickstart --run first --generations 3 --seed 7
  eigen train --run mine --data prices.csv --set learner.batch_size=128 --set trading.cost_bps=10

Run the same command again to continue a run that was stopped. A run that does not fit into memory is not begun: its
plan is printed, exit code 3.
"""

SWEEP_EXAMPLES = """[bold]Examples[/]

  eigen sweep rates --vary learner.gamma=0.9:0.999 --vary learner.batch_size=32,64 --trials 30
  eigen sweep seeds --seeds 5 --preset quickstart
  eigen sweep steps --vary learner.actor_learning_rate=1e-5:1e-3:log --seeds 3 --jobs 2 --set threads=1

A trial is an ordinary run for each seed, named `NAME-007-s1`: `eigen show`, `resume` and `export` accept it. Its value
is the mean of its champions' validation fitness.
"""


@sentences
def doctor(
    preset: Preset = None,
    assignments: Assignments = None,
    data: Data = None,
    store: Store = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Check what a training needs here, and say what to do: exit code 0 if nothing failed, 1 otherwise."""
    from flows.doctor import Doctor
    from flows.operations.home import Home
    from flows.operations.server import server_for_training
    from flows.prefect_environment import prepare_environment

    config = config_of(preset, None, None, assignments, data, store, device)
    prepare_environment()
    # What is checked is the server that a training would use: that of `eigen up`, if one runs here.
    os.environ.update(server_for_training(Home.of(os.environ), os.environ))
    if as_json:
        findings = list(Doctor(config).findings())
        print_json(findings_document(findings))
    else:
        findings = print_findings(output_console(), Doctor(config).findings())
    if not is_healthy(findings):
        raise typer.Exit(EXIT_OTHER)


@sentences
def plan(
    preset: Preset = None,
    generations: Generations = None,
    seed: Seed = None,
    assignments: Assignments = None,
    data: Data = None,
    store: Store = None,
    device: Device = None,
    days: Annotated[
        int | None, typer.Option(min=1, max=LARGEST, help="Plan without data: days of the panel.", metavar="N")
    ] = None,
    columns: Annotated[
        int | None, typer.Option(min=1, max=LARGEST, help="Plan without data: columns of the panel.", metavar="N")
    ] = None,
    assets: Annotated[
        int | None,
        typer.Option(min=1, max=LARGEST, help="Tradable columns among them.", show_default="all", metavar="N"),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Time a larger piece of a generation; may take minutes.", metavar=""),
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show how the size of each part is computed.", metavar="")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what a run would take, without training: memory, disk, uploads, time; exit code 3 if it does not fit."""
    config = config_of(preset, generations, seed, assignments, data, store, device)
    shape = shape_of(days, columns, assets, config.market.data)
    planned = planned_run(config, Console(stderr=True), shape, whole_group=calibrate)
    print_result(as_json, planned_document, partial(print_planned, explained=explain), planned)
    if not planned.run_plan.fits:
        raise typer.Exit(EXIT_MEMORY)


@sentences
def train(
    preset: Preset = None,
    run: Run = None,
    generations: Generations = None,
    seed: Seed = None,
    assignments: Assignments = None,
    data: Data = None,
    store: Store = None,
    device: Device = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Refuse to continue an existing run.", metavar="")] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Profile the second generation from here; files in NAME-profile/.", metavar=""),
    ] = False,
) -> None:
    """Train a run, or continue it if there is one of that name with the same settings."""
    config = config_of(preset, generations, seed, assignments, data, store, device)
    start_or_continue(config, default_run_name(config.preset) if run is None else run, fresh=fresh, profile=profile)


@sentences
def resume(
    name: RunName,
    generations: Annotated[str | None, typer.Option(help="Train up to this generation.", metavar="N")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Where its prices are on this machine.", show_default="where they were", metavar="PATH"),
    ] = None,
    assignments: Assignments = None,
    store: Store = None,
    device: Device = None,
) -> None:
    """Continue a run from its newest good checkpoint; the result is that of a run without a break.

    Settings can be given that do not change it, such as workers.
    """
    continue_run(name, store_of(store), given_settings(generations, None, assignments, data, None, device))


@sentences
def sweep(
    name: Annotated[str, typer.Argument(help="Name of the sweep; its runs begin with it.", metavar="NAME")],
    vary: Annotated[
        list[str] | None,
        typer.Option(help="A setting to vary: LOW:HIGH, LOW:HIGH:log or ONE,OTHER.", metavar="KEY=VALUES"),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, max=LARGEST, help="Most trials.", metavar="N")] = 20,
    seeds: Annotated[int, typer.Option(min=1, max=1_000, help="Seeds of each trial.", metavar="N")] = 1,
    jobs: Annotated[int, typer.Option(min=1, max=1_000, help="Trials trained at a time.", metavar="N")] = 1,
    runs_on: RunsOn = None,
    prune: Annotated[bool, typer.Option(help="End trials early that fall behind.")] = True,
    preset: Preset = None,
    generations: Generations = None,
    seed: Seed = None,
    assignments: Assignments = None,
    data: Data = None,
    store: Store = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Train runs over settings and seeds; run the same command again to continue a sweep that was stopped."""
    from flows.cli.sweep import Sweep, run_sweep
    from flows.cli.sweep_results import print_results, results_document

    named = given_store(store, assignments or ())
    settings = given_settings(generations, seed, assignments, data, named, device)
    given = Sweep(name, preset, settings, vary or (), trials, seeds, jobs, runs_on, prune)
    console = output_console()
    results = run_sweep(given, (lambda _: None) if as_json else partial(print_line, console))
    if as_json:
        print_json(results_document(given, results))
    else:
        print_results(console, results)
