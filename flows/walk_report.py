"""The report of a walk: its joined account, and its folds."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import pandas as pd

from eigen_core.account.attribution import gain_by_asset
from eigen_core.checkpoint import no_such_run
from eigen_core.config.running import CheckpointConfig
from eigen_core.errors import InputError
from eigen_core.market import build_panel
from eigen_core.reporting.report import Fact, Fold, Report, report_page
from eigen_core.store import open_store
from eigen_core.store.files import require_place
from eigen_core.training.runs import Run
from eigen_core.units import count
from flows.reports import WrittenReport, facts_of, write_page
from flows.run_settings import options_of, settings_of
from flows.walk_results import WalkResult, play_walk
from flows.walks import Walk, is_walk, stored_walk, walks_in

_WALK = "walk"


def is_report_of_walk(store: str, name: str, *, span: str | None, agent: str) -> bool:
    """Return whether the report of a walk is asked for, not that of a run.

    Args:
        store: where both are kept.
        name: of one of them.
        span: as `backtest` takes it, or `walk`.
        agent: as `backtest` takes it.

    Raises:
        InputError: there is neither a run nor a walk of this name, there are both and it is not said which is meant, or
            a walk is asked for with days or agents of a run.
        StoreUnavailableError: the store does not answer.
    """
    run, walk = Run(CheckpointConfig(store=store), name).exists, is_walk(store, name)
    where = open_store(store).url
    if not run and not walk:
        raise InputError(f"{no_such_run(open_store(store), name)} {_held(walks_in(store))}")
    if run and walk and span is None:
        raise InputError(
            f"'{name}' is a run and a walk in {where}: give --slice walk for the walk, --slice holdout for the run."
        )
    if span == _WALK and not walk:
        raise InputError(f"There is no walk '{name}' in {where}, only a run: leave out --slice walk.")
    if not walk or (run and span != _WALK):
        return False
    if span not in (None, _WALK) or agent != "champion":
        raise InputError(
            f"'{name}' is a walk, whose champions play the days of its folds: leave out --slice and --agent, or name "
            f"one of its runs, such as {name}-fold-1-seed-1."
        )
    return True


def _held(walks: Sequence[str]) -> str:
    shown = f"{', '.join(walks[:20])}{', ...' if len(walks) > 20 else ''}"
    return f"Its walks: {shown}." if walks else "It holds no walks either."


def write_walk_report(store: str, name: str, file: Path) -> WrittenReport:
    """Let the champions of a walk that is finished play its folds, and write the report of it.

    Args:
        store: where the walk is kept.
        name: of the walk.
        file: HTML file to write.

    Raises:
        InputError: there is no such walk, it is not finished, its prices are not those that it was begun with, or the
            file cannot be written.
        StoreUnavailableError: the store does not answer.
    """
    require_place(file)
    report = report_of_walk(play_walk(stored_walk(store, name)))
    write_page(report_page(report), file)
    return WrittenReport(report, "champion", file)


def report_of_walk(result: WalkResult) -> Report:
    """Return the report of a walk that was played."""
    walk, verdict = result.walk, result.verdict
    account = walk.config.account
    trades = pd.concat([one.played.trades for one in result.played], ignore_index=True)
    panel, found = build_panel(walk.config)
    report = Report(
        run=walk.name,
        agent=f"champions of {count(len(walk.folds), 'fold')}, {count(walk.seeds, 'seed')} each",
        span=_WALK,
        claim=verdict.claim,
        sentence=verdict.sentence[:1].upper() + verdict.sentence[1:],
        warnings=result.warnings,
        facts=(),
        curve=result.curve,
        baselines=result.baselines,
        benchmark=result.benchmark,
        matched=result.matched_returns,
        matched_description=result.played[0].played.matched.description,
        quantile=result.matched_quantile,
        trades=trades,
        weights=result.weights,
        by_asset=gain_by_asset(trades),
        periods_per_year=result.periods_per_year,
        risk_free=account.risk_free,
        folds=[
            Fold(f"fold {fold.number}", date.fromisoformat(fold.played.first), date.fromisoformat(fold.played.last))
            for fold in walk.folds
        ],
        looks=f"The verdict is corrected for {count(verdict.looks, 'look')}: those at the fold with the most.",
        data=replace(found, source=Path(found.source).name).lines(walk.config.trading),
        preset=walk.config.preset,
        settings=settings_of(walk.config),
        commands=[_command(walk), shlex.join(["eigen", "report", walk.name])],
        hashes=[Fact("Data and features", panel.fingerprint)],
    )
    return replace(report, facts=facts_of(report, verdict, result.excess))


def _command(walk: Walk) -> str:
    shape = ["--folds", str(len(walk.folds)), "--seeds", str(walk.seeds)]
    shape += [] if walk.train_days is None else ["--train-days", str(walk.train_days)]
    return shlex.join(["eigen", "walk", walk.name, *shape, *options_of(walk.config)])
