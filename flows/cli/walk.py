"""The command `eigen walk`: a run for each fold (days to train on, days that follow), and the account of all folds."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eigen_core.checkpoint.store import check_run_name
from eigen_core.common.files import write_file
from eigen_core.common.text import percent
from flows.cli import run_jobs
from flows.cli.common import Json, RunOptions, RunsOn, examples, number, option, require_addresses, run_options
from flows.cli.console import (
    PlainTable,
    attributes,
    output_console,
    print_fact,
    print_line,
    print_result,
    progress_shown,
)
from flows.cli.judging import COMPARED, account_document, accounts_of, print_metrics
from flows.cli.plan import refused_with_its_plan, require_trainable
from flows.cli.run_jobs import IsStopped, RunJob, Train, run_job

if TYPE_CHECKING:
    from eigen_core.config import Config
    from eigen_core.judging.walk_forward import WalkResult


def walk_document(result: "WalkResult", folder: Path) -> dict[str, Any]:
    from eigen_core.judging.walk_forward import fold_row

    mean, low, high = result.interquartile
    return {
        "walk": result.walk.name,
        "folds": [fold_row(one) for one in result.played],
        "seeds": [
            {"seed": seed, **attributes(result.compute_metrics(curve), *COMPARED), "final": float(curve.equity[-1])}
            for seed, curve in result.curves.items()
        ],
        "interquartile_mean": {"total_return": mean, "interval": [low, high]},
        "warnings": list(result.warnings),
        **account_document(result),
        "tables": str(folder),
    }


def print_walk(console: Console, result: "WalkResult", folder: Path) -> None:
    print_line(console, (result.verdict.sentence, "bold"))
    per = "trade" if result.excess is None else result.excess.per
    table = PlainTable(
        *("fold", "seed", "trained to", "plays", "champion", "equal weight", "quantile", f"excess a {per}", "trades"),
        left=("plays",),
        least_important=("trained to", "trades", "seed"),
    )
    for one in result.played:
        played, own = one.played, one.played.metrics.total_return
        quantile = played.matched.quantile_of(own)
        table.add_row(
            str(one.fold.number),
            str(one.seed),
            one.fold.train.last,
            str(one.fold.played),
            percent(own, 2),
            percent(played.baseline_metrics["equal_weight"].total_return, 2),
            "–" if quantile is None else percent(quantile, 0),
            "–" if played.excess is None else played.excess.short,
            str(len(played.trades)),
        )
    table.print(console)
    print_metrics(console, "account", accounts_of("champions", result))
    if result.walk.seeds > 1:
        mean, low, high = (percent(value, 2) for value in result.interquartile)
        means = f"interquartile mean of {result.walk.seeds} total returns {mean}"
        print_fact(console, "seeds", f"{means}, 95 % interval {low} to {high}")
    print_fact(console, "tables", str(folder))


@examples(
    """
  eigen walk years --folds 6
  eigen walk years --folds 6 --seeds 3 --span 126 --train-bars 2520
  eigen walk years --folds 6 --jobs 3
  eigen walk crisis --folds 2 --set market.last_date=2009-12-31

Each fold trains on days before those that its champion trades. Its runs are named `NAME-fold-1-seed-1` and so on:
`eigen show`, `backtest` and `report` accept them. Run the same command again to continue a walk that was stopped.
"""
)
@run_options("preset", "generations", "seed", "assignments", "data", "store", "device")
def walk(
    name: Annotated[str, typer.Argument(help="Name of the walk; its runs begin with it.", metavar="NAME")],
    *,
    folds: Annotated[int, number("Number of folds.", most=1_000)] = 6,
    seeds: Annotated[int, number("Runs of each fold, with different seeds.", most=1_000)] = 1,
    span: Annotated[str | None, option("SPAN", "Bars that each fold trades, or a time: 60d.", "market.holdout")] = None,
    jobs: Annotated[int, number("Runs trained at a time, each in a process of its own.", most=1_000)] = 1,
    runs_on: RunsOn = None,
    train_bars: Annotated[int | None, number("Training bars of each fold.", shown="all before its validation")] = None,
    options: RunOptions,
    as_json: Json = False,
) -> None:
    """Walk-forward test: train, let the champion trade the days that follow, move on by these days, and repeat."""
    from eigen_core.config.loading import load_config

    given = options.with_store().settings()
    if span is not None:
        given.append(f"market.holdout={span}")
    console = Console(stderr=True) if as_json else output_console()
    config = load_config(options.preset, given)
    check_run_name(name)
    run_jobs.refuse_two_schedulers(config, runs_on)
    require_addresses()
    from eigen_core.judging.walk_forward import (
        folder_of,
        plan_walk,
        play_walk,
        require_same_walk,
        save_walk,
        with_purge,
        write_walk,
    )
    from eigen_core.market import build_panel
    from eigen_core.reporting.report import report_of_walk, report_page
    from eigen_core.runs.handle import Run

    with progress_shown(console) as display:
        config = with_purge(config, config.market.purge if "purge" in config.market.model_fields_set else None)
        planned = plan_walk(name, config, build_panel(config)[0].dates, folds, train_bars=train_bars, seeds=seeds)
        require_same_walk(planned)
        runs = [(Run.of(one, run), one) for run, one in planned.runs()]
        left = [(run, one) for run, one in runs if not run.is_finished(one)]
        if left and runs_on is None:
            with refused_with_its_plan(left[0][1], console):
                display.describe(*require_trainable(left[0][1], left[0][0]))
    folder = folder_of(planned)

    def train(run: RunJob, train: Train, is_stopped: IsStopped) -> None:
        log, market = folder / f"{run.name}.log", run.config.market
        print_line(console, f"{run.name} begins: its prices end on {market.last_date}")
        run_jobs.require_trained(run, train(run, log, is_stopped), log, "walk")
        print_line(console, f"{run.name} is finished")

    with run_jobs.job_executor(jobs, runs_on) as in_threads:
        save_walk(planned)
        folder.mkdir(parents=True, exist_ok=True)
        jobs_left = (run_job(run.name, options.preset, [*given, *_own_settings(one)]) for run, one in left)
        in_threads(partial(train, job) for job in jobs_left)
    result = play_walk(planned)
    folder = write_walk(result)
    write_file(folder / "report.html", report_page(report_of_walk(result)).encode())
    print_result(as_json, walk_document, print_walk, result, folder)


def _own_settings(config: "Config") -> list[str]:
    """Return the settings `key=value` that a run of a walk has beside the command's options: dates, purge and seed."""
    market = config.market
    first = [] if market.first_date is None else [f"market.first_date={market.first_date}"]
    last = [f"market.last_date={market.last_date}", f"market.purge={market.purge}"]
    return [*first, *last, f"seed={config.seed}"]
