"""The command line `eigen`.

Torch and Prefect take seconds to import, so nothing here imports them before a command needs them.
"""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from eigen_core import __version__
from eigen_core.config.loading import load_config
from flows.cli.common import EXIT_MEMORY, EXIT_OTHER, config_of, given_settings, print_json, sentences, store_of
from flows.cli.operations import operations
from flows.cli.options import Assignments, Data, Device, Generations, Json, OwnData, Preset, RunName, Seed, Store
from flows.cli.plan import planned_document, planned_run, print_planned, shape_of
from flows.cli.store import cleaned_document, print_cleaned, print_verification, verification_document
from flows.cli.tables import (
    output_console,
    presets_document,
    print_presets,
    print_run,
    print_runs,
    print_settings,
    run_document,
    runs_document,
    settings_document,
)
from flows.cli.training import continue_run, start_or_continue
from flows.names import default_run_name
from flows.prefect_environment import set_umask

_EXAMPLES = """[bold]Examples[/]

  eigen doctor                             what is missing here for a training?
  eigen plan --preset eigen2               does it fit into memory, and how long does it take?
  eigen train                              the bundled prices, 25 generations
  eigen train --run first --generations 3
  eigen resume first --generations 10
  eigen show first
  eigen memory first                       what took the memory?
  eigen verify first --deep                is every file as it was written?
  eigen export first --champion champion.safetensors
  eigen presets quickstart                 every setting, explained

[bold]For days, with nobody watching[/]

  eigen up                                 server, pages and worker, in the background
  eigen launch --preset eigen2 --run long  train on the worker; resumed by itself until it is finished
  eigen status                             what runs, how far it is
  eigen logs long -f                       what its flow runs have logged
  eigen down                               stop all of it; the next `eigen up` goes on

[bold]Exit codes[/]

  0  done
  1  stopped, or failed; verify: damage was found; doctor: something failed; status: not all runs
  2  what was given cannot be used; a sentence says why
  3  memory: the run does not fit, or its guard has stopped it
"""

_TRAIN_EXAMPLES = """[bold]Examples[/]

  eigen train
  eigen train --preset quickstart --run first --generations 3 --seed 7
  eigen train --run mine --data prices.csv --set learner.batch_size=128 --set trading.cost_bps=10

Run the same command again to continue a run that was stopped. A run that does not fit into memory is not begun: its
plan is printed, exit code 3.
"""

_LARGEST = 1_000_000
_PLAN_EXAMPLES = """[bold]Examples[/]

  eigen plan
  eigen plan --preset eigen2 --data prices --set network.column_chunk=32
  eigen plan --preset eigen2 --columns 669 --assets 108 --days 3700     without data
  eigen plan --calibrate                                                 a larger piece is timed
"""


app = typer.Typer(
    name="eigen",
    help="Train a population of trading agents by evolutionary reinforcement learning.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"eigen {__version__}")
        raise typer.Exit


@app.callback()
@sentences
def eigen(
    version: Annotated[  # noqa: ARG001 - its callback prints it
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True, metavar="")
    ] = False,
) -> None:
    """Train a population of trading agents by evolutionary reinforcement learning."""
    set_umask(os.environ)


@app.command()
@sentences
def doctor(
    preset: Preset = None,
    assignments: Assignments = None,
    data: Data = None,
    store: Store = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Look for what a training needs here, and say what to do: exit code 0 if nothing failed, 1 otherwise."""
    from flows.cli.doctor import findings_document, is_healthy, print_findings
    from flows.doctor import Doctor
    from flows.prefect_environment import prepare_environment

    config = config_of(preset, None, None, assignments, data, store, device)
    prepare_environment()
    if as_json:
        findings = list(Doctor(config).findings())
        print_json(findings_document(findings))
    else:
        findings = print_findings(output_console(), Doctor(config).findings())
    if not is_healthy(findings):
        raise typer.Exit(EXIT_OTHER)


@app.command(epilog=_PLAN_EXAMPLES)
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
        int | None, typer.Option(min=1, max=_LARGEST, help="Plan without data, for so many days.", metavar="N")
    ] = None,
    columns: Annotated[
        int | None, typer.Option(min=1, max=_LARGEST, help="Plan without data, for so many columns.", metavar="N")
    ] = None,
    assets: Annotated[
        int | None,
        typer.Option(min=1, max=_LARGEST, help="So many of them are tradable.", show_default="all", metavar="N"),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Time a larger piece of a generation, for up to minutes.", metavar=""),
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say of each part how its size is computed.", metavar="")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what a run would take, without training: memory, disk, uploads, time; exit code 3 if it does not fit."""
    config = config_of(preset, generations, seed, assignments, data, store, device)
    shape = shape_of(days, columns, assets, config.market.data)
    planned = planned_run(config, Console(stderr=True), shape, whole_group=calibrate)
    if as_json:
        print_json(planned_document(planned))
    else:
        print_planned(output_console(), planned, explained=explain)
    if not planned.run_plan.fits:
        raise typer.Exit(EXIT_MEMORY)


@app.command(epilog=_TRAIN_EXAMPLES)
@sentences
def train(
    preset: Preset = None,
    run: Annotated[
        str | None,
        typer.Option(help="Name of the run; an existing one goes on.", show_default="preset and time", metavar="NAME"),
    ] = None,
    generations: Generations = None,
    seed: Seed = None,
    assignments: Assignments = None,
    data: Data = None,
    store: Store = None,
    device: Device = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Refuse to continue an existing run.", metavar="")] = False,
) -> None:
    """Train a run, or continue it if there is one of that name with the same settings."""
    config = config_of(preset, generations, seed, assignments, data, store, device)
    start_or_continue(config, default_run_name(config) if run is None else run, fresh=fresh)


@app.command()
@sentences
def resume(
    name: RunName,
    generations: Annotated[str | None, typer.Option(help="Train up to this generation.", metavar="N")] = None,
    data: OwnData = None,
    store: Store = None,
    device: Device = None,
) -> None:
    """Continue a run from its newest good checkpoint; the result is that of a run without a break."""
    continue_run(name, store_of(store), given_settings(generations, None, None, data, None, device))


@app.command()
@sentences
def runs(store: Store = None, as_json: Json = False) -> None:
    """List the runs of a store."""
    from flows.runs import statuses_of

    statuses, unreadable = statuses_of(store_of(store))
    if as_json:
        print_json(runs_document(statuses, unreadable))
    elif statuses or unreadable:
        print_runs(output_console(), statuses, unreadable)
    else:
        output_console().print(f"There are no runs in {store_of(store)}. Start one: eigen train", highlight=False)


@app.command()
@sentences
def show(name: RunName, store: Store = None, as_json: Json = False) -> None:
    """Show a run: how far it is, and what each generation gave."""
    from flows.runs import status_of

    status = status_of(store_of(store), name)
    if as_json:
        print_json(run_document(status))
    else:
        print_run(output_console(), status)


@app.command()
@sentences
def memory(name: RunName, store: Store = None, as_json: Json = False) -> None:
    """Show what took the memory of a run: its newest memory report, or what each phase of it took."""
    from flows.cli.memory import memory_document, memory_of, print_memory

    found = memory_of(store_of(store), name)
    if as_json:
        print_json(memory_document(found))
    else:
        print_memory(output_console(), found)


@app.command()
@sentences
def verify(
    name: RunName,
    deep: Annotated[bool, typer.Option("--deep", help="Compare SHA-256 too, not just sizes.", metavar="")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Look for damage in a run: exit code 0 if it is whole, 1 if it is not, with each file named."""
    from flows.housekeeping import verify_run

    found = verify_run(store_of(store), name, deep=deep)
    if as_json:
        print_json(verification_document(found))
    else:
        print_verification(output_console(), found)
    if found.damages:
        raise typer.Exit(EXIT_OTHER)


@app.command()
@sentences
def clean(
    name: Annotated[str | None, typer.Argument(help="Name of the run.", show_default="all", metavar="[NAME]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; say what would be.", metavar="")] = False,
    older_than: Annotated[
        str, typer.Option(help="Files of no generation stay so long: 90s, 30m, 12h, 7d.", metavar="TIME")
    ] = "1d",
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Remove generations that need not stay, and files that belong to none. Runs in use are left alone."""
    from flows.housekeeping import clean_runs, parse_duration

    grace = parse_duration(older_than)
    cleaned = clean_runs(store_of(store), None if name is None else [name], grace, dry_run=dry_run)
    if as_json:
        print_json(cleaned_document(cleaned))
    else:
        print_cleaned(output_console(), cleaned, dry_run=dry_run)


@app.command()
@sentences
def export(
    name: RunName,
    champion: Annotated[Path, typer.Option(help="File to write, a safetensors file.", metavar="FILE")],
    store: Store = None,
) -> None:
    """Write the champion's weights, with the configuration in the header, into a file."""
    from flows.housekeeping import export_champion

    output_console().print(export_champion(store_of(store), name, champion), highlight=False, soft_wrap=True)


@app.command()
@sentences
def presets(
    name: Annotated[str | None, typer.Argument(help="Explain every setting of this preset.", metavar="[NAME]")] = None,
    as_json: Json = False,
) -> None:
    """List the presets, or explain every setting of one."""
    if name is None:
        if as_json:
            print_json(presets_document())
        else:
            print_presets(output_console())
        return
    config = load_config(name)
    if as_json:
        print_json(settings_document(config))
    else:
        print_settings(output_console(), config)


app.add_typer(operations)


def main() -> None:
    """Run the command line; the entry point of the script `eigen`."""
    app()
