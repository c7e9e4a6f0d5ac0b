"""The command `eigen walk`: a run for each fold (days to train on, days that follow), and the account of all folds."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eigen_core.common.errors import FOLLOWS, InputError, Next, Stopped
from eigen_core.common.progress import progress_to
from eigen_core.common.text import percent
from flows.cli import run_jobs, training
from flows.cli.common import Json, RunOptions, RunsOn, examples, number, option, run_options
from flows.cli.console import PlainTable, attributes, output_console, print_fact, print_line, print_result
from flows.cli.judging import COMPARED, account_document, accounts_of, print_metrics
from flows.cli.plan import refused_with_its_plan, require_trainable
from flows.cli.run_jobs import IsStopped, RunJob, Train

if TYPE_CHECKING:
    from eigen_core.config import Config
    from eigen_core.judging.walk_forward import Walk
    from eigen_core.reporting.walk_report import WalkResult


def walk_document(result: "WalkResult", folder: Path) -> dict[str, Any]:
    from eigen_core.reporting.walk_report import fold_row

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
  eigen walk years --folds 6 --seeds 3 --span-days 126 --train-days 2520
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
    span_days: Annotated[int | None, number("Days that each fold trades.", shown="market.holdout_days")] = None,
    jobs: Annotated[int | None, number("Runs trained at a time, each in another process.", most=1_000)] = None,
    runs_on: RunsOn = None,
    train_days: Annotated[
        str, option("N|growing", "Training days of each fold; growing: all days before its validation.")
    ] = "growing",
    options: RunOptions,
    as_json: Json = False,
) -> None:
    """Walk-forward test: train, let the champion trade the days that follow, move on by these days, and repeat."""
    from eigen_core.config.loading import load_config

    given = options.with_store().settings()
    if span_days is not None:
        given.append(f"market.holdout_days={span_days}")
    console = Console(stderr=True) if as_json else output_console()
    config = load_config(options.preset, given)
    run_jobs.refuse_two_schedulers(config, runs_on)
    planned = partial(_planned, name, config, folds, _train_days(train_days), seeds)
    if jobs is None and runs_on is None:
        trained = _train_one_by_one(planned, name, config, console)
    else:
        trained = _train_side_by_side(planned, options.preset, given, jobs or 1, runs_on, partial(print_line, console))
    from eigen_core.reporting.report import report_of_walk, report_page, write_page
    from eigen_core.reporting.walk_report import play_walk, write_walk

    result = play_walk(trained)
    folder = write_walk(result)
    write_page(report_page(report_of_walk(result)), folder / "report.html")
    print_result(as_json, walk_document, print_walk, result, folder)


def _train_days(text: str) -> int | None:
    if text == "growing":
        return None
    if not text.isdecimal():
        raise InputError(f"--train-days {text}: give a number of days, or growing.")
    return int(text)


def _planned(name: str, config: "Config", folds: int, train_days: int | None, seeds: int) -> "Walk":
    from eigen_core.judging.walk_forward import plan_walk, with_purge
    from eigen_core.market import build_panel

    config = with_purge(config, config.market.purge_days if "purge_days" in config.market.model_fields_set else None)
    return plan_walk(name, config, build_panel(config)[0].dates, folds, train_days=train_days, seeds=seeds)


def _train_one_by_one(planned: "Callable[[], Walk]", name: str, config: "Config", console: Console) -> "Walk":
    with training.prepared_to_train(name, config.checkpoint, console) as display:
        display.announce("reading the data")
        with progress_to(display):
            walk = planned()
        from eigen_core.judging.walk_forward import require_same_walk, save_walk
        from eigen_core.runs.handle import Run

        require_same_walk(walk)
        runs = ((Run.of(settings, run), settings) for run, settings in walk.runs())
        left = [(run, settings) for run, settings in runs if not run.is_finished(settings)]
        if not left:
            save_walk(walk)
            return walk
        run, settings = left[0]
        with_server = training.answering_server()
        with refused_with_its_plan(settings, console):
            with progress_to(display):
                display.describe(*require_trainable(settings, run))
            save_walk(walk)
            display.headings = {
                walk.run_of(fold, seed): f"{walk.run_of(fold, seed)}: trained to {fold.train.last}, plays {fold.played}"
                for fold in walk.folds
                for seed in walk.all_seeds
            }
            try:
                train = training.train_as_flows if with_server else training.train_here
                train(left, display)
            except Stopped as stop:
                if FOLLOWS[stop.end]["walk"] is not Next.RETRY:
                    raise
                raise type(stop)(f"{stop} Run the same command again to continue the walk.") from stop
    return walk


def _train_side_by_side(
    planned: "Callable[[], Walk]",
    preset: str | None,
    given: Sequence[str],
    jobs: int,
    runs_on: str | None,
    say: Callable[[str], None],
) -> "Walk":
    walk = planned()
    from eigen_core.judging.walk_forward import folder_of, save_walk
    from eigen_core.runs.handle import Run

    folder = folder_of(walk)

    runs = [run_jobs.run_job(run, preset, [*given, *_own_settings(config)]) for run, config in walk.runs()]

    def train_run(run: RunJob, train: Train, is_stopped: IsStopped) -> None:
        say(f"{run.name} begins")
        log = folder / f"{run.name}.log"
        run_jobs.require_trained(run, train(run, log, is_stopped), log, "walk")
        say(f"{run.name} is finished")

    with run_jobs.job_executor(jobs, runs_on) as in_threads:
        save_walk(walk)
        folder.mkdir(parents=True, exist_ok=True)
        in_threads(partial(train_run, run) for run in runs if not Run.of(run.config, run.name).is_finished(run.config))
    return walk


def _own_settings(config: "Config") -> list[str]:
    """Return the settings `key=value` that a run of a walk has beside the command's options: dates, purge and seed."""
    market = config.market
    first = [] if market.first_date is None else [f"market.first_date={market.first_date}"]
    last = [f"market.last_date={market.last_date}", f"market.purge_days={market.purge_days}"]
    return [*first, *last, f"seed={config.seed}"]
