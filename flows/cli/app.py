"""The command line `eigen`.

Torch and Prefect take seconds to import: a command imports them when it needs them.
"""

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from eigen_core import __version__
from flows.cli.act import ACT_EXAMPLES, act
from flows.cli.audit import AUDIT_EXAMPLES, audit
from flows.cli.backtest import BACKTEST_EXAMPLES, backtest
from flows.cli.common import (
    EXIT_MEMORY,
    EXIT_OTHER,
    Assignments,
    Data,
    Device,
    Generations,
    Json,
    Preset,
    Run,
    RunName,
    Seed,
    Store,
    config_of,
    given_settings,
    given_store,
    sentences,
    store_of,
)
from flows.cli.compare import COMPARE_EXAMPLES, compare
from flows.cli.importance import IMPORTANCE_EXAMPLES, importance
from flows.cli.operations import operations
from flows.cli.output import output_console, print_json, print_line, print_result
from flows.cli.plan import (
    PLAN_EXAMPLES,
    findings_document,
    is_healthy,
    planned_document,
    planned_run,
    print_findings,
    print_planned,
    shape_of,
)
from flows.cli.presets import presets
from flows.cli.report import REPORT_EXAMPLES, report
from flows.cli.runs import (
    cleaned_document,
    print_cleaned,
    print_run,
    print_runs,
    print_verification,
    run_document,
    runs_document,
    verification_document,
)
from flows.cli.training import continue_run, start_or_continue
from flows.cli.trust import TRUST_EXAMPLES, trust
from flows.cli.walk import WALK_EXAMPLES, walk
from flows.names import default_run_name
from flows.prefect_environment import set_umask

_EXAMPLES = """[bold]Examples[/]

  eigen doctor                             what is missing here for a training?
  eigen plan --preset eigen2               does it fit into memory, and how long does it take?
  eigen audit --data prices.csv            what is wrong with the prices? does a feature know the future?
  eigen train                              the bundled prices, 25 generations
  eigen train --run first --generations 3
  eigen resume first --generations 10
  eigen show first
  eigen backtest first                     what would the champion have earned?
  eigen report first                       what would it have earned? one HTML file
  eigen compare first second
  eigen trust --trials 20                  how far can verdicts on these prices be trusted?
  eigen memory first                       what took the memory?
  eigen verify first --deep                is every file as it was written?
  eigen export first --champion champion.safetensors
  eigen walk years --folds 6               train and play fold after fold through the years
  eigen presets quickstart                 every setting, explained

[bold]For days, unattended[/]

  eigen up                                 server, pages and worker, in the background
  eigen launch --preset eigen2 --run long  train on the worker; resumed by itself until it is finished
  eigen status                             what runs, how far it is
  eigen logs long -f                       what its flow runs have logged
  eigen down                               stop all of it; the next `eigen up` goes on

[bold]Exit codes[/]

  0  done
  1  stopped, or failed; verify: damage was found; doctor: a check failed;
     audit: a feature uses later days; status: a component is not running
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

_SWEEP_EXAMPLES = """[bold]Examples[/]

  eigen sweep rates --vary learner.gamma=0.9:0.999 --vary learner.batch_size=32,64 --trials 30
  eigen sweep seeds --seeds 5 --preset quickstart
  eigen sweep steps --vary learner.actor_learning_rate=1e-5:1e-3:log --seeds 3 --jobs 2 --set threads=1

A trial is an ordinary run for each seed, named `NAME-007-s1`: `eigen show`, `resume` and `export` know it. Its value is
the mean of its champions' validation fitness.
"""

_LARGEST = 1_000_000


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
    """Check what a training needs here, and say what to do: exit code 0 if nothing failed, 1 otherwise."""
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


@app.command(epilog=PLAN_EXAMPLES)
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
    print_result(as_json, planned_document, partial(print_planned, explained=explain), planned)
    if not planned.run_plan.fits:
        raise typer.Exit(EXIT_MEMORY)


app.command(epilog=AUDIT_EXAMPLES)(audit)
app.command(epilog=BACKTEST_EXAMPLES)(backtest)
app.command(epilog=TRUST_EXAMPLES)(trust)
app.command(epilog=ACT_EXAMPLES)(act)


@app.command(epilog=_TRAIN_EXAMPLES)
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
) -> None:
    """Train a run, or continue it if there is one of that name with the same settings."""
    config = config_of(preset, generations, seed, assignments, data, store, device)
    start_or_continue(config, default_run_name(config) if run is None else run, fresh=fresh)


@app.command()
@sentences
def resume(
    name: RunName,
    generations: Annotated[str | None, typer.Option(help="Train up to this generation.", metavar="N")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Where its prices are on this machine.", show_default="where they were", metavar="PATH"),
    ] = None,
    store: Store = None,
    device: Device = None,
) -> None:
    """Continue a run from its newest good checkpoint; the result is that of a run without a break."""
    continue_run(name, store_of(store), given_settings(generations, None, None, data, None, device))


@app.command(epilog=_SWEEP_EXAMPLES)
@sentences
def sweep(
    name: Annotated[str, typer.Argument(help="Name of the sweep; its runs begin with it.", metavar="NAME")],
    vary: Annotated[
        list[str] | None,
        typer.Option(help="A setting to vary: LOW:HIGH, LOW:HIGH:log or ONE,OTHER.", metavar="KEY=VALUES"),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, max=_LARGEST, help="Most trials.", metavar="N")] = 20,
    seeds: Annotated[int, typer.Option(min=1, max=1_000, help="Seeds of each trial.", metavar="N")] = 1,
    jobs: Annotated[int, typer.Option(min=1, max=1_000, help="Trials trained at a time.", metavar="N")] = 1,
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
    given = Sweep(name, preset, settings, vary or (), trials, seeds, jobs, prune)
    console = output_console()
    results = run_sweep(given, (lambda _: None) if as_json else partial(print_line, console))
    if as_json:
        print_json(results_document(given, results))
    else:
        print_results(console, results)


app.command(epilog=WALK_EXAMPLES)(walk)


@app.command()
@sentences
def runs(store: Store = None, as_json: Json = False) -> None:
    """List the runs of a store."""
    from flows.runs import statuses_of

    statuses, unreadable = statuses_of(store_of(store))
    if statuses or unreadable or as_json:
        print_result(as_json, runs_document, print_runs, statuses, unreadable)
    else:
        print_line(output_console(), f"There are no runs in {store_of(store)}. Start one: eigen train")


@app.command()
@sentences
def show(name: RunName, store: Store = None, as_json: Json = False) -> None:
    """Show a run: how far it is, and what each generation gave; as JSON also the verdict on its holdout."""
    from flows.runs import status_of

    status = status_of(store_of(store), name)
    if not as_json:
        print_run(output_console(), status)
        return
    verdict = None
    if status.holdout is not None:
        from flows.backtests import holdout_verdict

        verdict = holdout_verdict(status)
    shown = verdict and {"claim": verdict.claim, "sentence": verdict.sentence}
    print_json({**run_document(status), "verdict": shown})


app.command(epilog=REPORT_EXAMPLES)(report)
app.command(epilog=COMPARE_EXAMPLES)(compare)
app.command(epilog=IMPORTANCE_EXAMPLES)(importance)


@app.command()
@sentences
def memory(name: RunName, store: Store = None, as_json: Json = False) -> None:
    """Show what took the memory of a run: its newest memory report, or what each phase of it took."""
    from flows.cli.memory import memory_document, memory_of, print_memory

    print_result(as_json, memory_document, print_memory, memory_of(store_of(store), name))


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
    print_result(as_json, verification_document, print_verification, found)
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
    print_result(as_json, cleaned_document, partial(print_cleaned, dry_run=dry_run), cleaned)


@app.command()
@sentences
def export(
    name: RunName,
    champion: Annotated[Path, typer.Option(help="File to write, a safetensors file.", metavar="FILE")],
    store: Store = None,
) -> None:
    """Write the champion's weights, with the configuration in the header, into a file."""
    from flows.housekeeping import export_champion

    print_line(output_console(), export_champion(store_of(store), name, champion))


app.command()(presets)
app.add_typer(operations)


def main() -> None:
    """Run the command line; the entry point of the script `eigen`."""
    app()
