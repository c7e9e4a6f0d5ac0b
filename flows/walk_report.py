"""The report of a walk: its joined account, and its folds."""

import shlex
from dataclasses import replace
from datetime import date
from pathlib import Path

import pandas as pd

from eigen_core.account.attribution import gain_by_asset
from eigen_core.market import build_panel
from eigen_core.reporting.report import Fact, Fold, Report
from eigen_core.units import count
from flows.reports import facts_of
from flows.run_settings import options_of, settings_of
from flows.walk_results import WalkResult
from flows.walks import Walk


def report_of_walk(result: WalkResult) -> Report:
    """Return the report of a walk that was played."""
    walk, verdict = result.walk, result.verdict
    account = walk.config.account
    trades = pd.concat([one.played.trades for one in result.played], ignore_index=True)
    panel, found = build_panel(walk.config)
    report = Report(
        run=walk.name,
        agent=f"champions of {count(len(walk.folds), 'fold')}, {count(walk.seeds, 'seed')} each",
        span="walk",
        claim=verdict.claim,
        sentence=verdict.sentence[:1].upper() + verdict.sentence[1:],
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
        periods_per_year=account.periods_per_year,
        risk_free=account.risk_free,
        folds=[
            Fold(f"fold {fold.number}", date.fromisoformat(fold.played.first), date.fromisoformat(fold.played.last))
            for fold in walk.folds
        ],
        looks=f"The verdict is corrected for {count(verdict.looks, 'look')}: those at the fold with the most.",
        data=replace(found, source=Path(found.source).name).lines(),
        preset=walk.config.preset,
        settings=settings_of(walk.config),
        commands=[_command(walk)],
        hashes=[Fact("Data and features", panel.fingerprint)],
    )
    return replace(report, facts=facts_of(report, verdict, result.excess))


def _command(walk: Walk) -> str:
    shape = ["--folds", str(len(walk.folds)), "--seeds", str(walk.seeds)]
    shape += [] if walk.train_days is None else ["--train-days", str(walk.train_days)]
    return shlex.join(["eigen", "walk", walk.name, *shape, *options_of(walk.config)])
