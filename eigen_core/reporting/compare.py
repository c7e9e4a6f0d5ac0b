"""Runs side by side on the same days."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eigen_core.common.errors import InputError
from eigen_core.judging.backtests import Backtest, play
from eigen_core.reporting.report import NAMES, Report
from eigen_core.reporting.report.comparison import COLOURS, Comparison, comparison_page
from eigen_core.reporting.reports import report_of, write_page
from eigen_core.reporting.run_settings import differing_settings
from eigen_core.store.files import require_place
from eigen_core.trading import EquityCurve
from eigen_core.trading.metrics import Figures
from eigen_core.training.runs import status_of


@dataclass(frozen=True)
class WrittenComparison:
    """A comparison, and the file with its page; None: none was asked for."""

    compared: Comparison
    file: Path | None


def write_comparison(
    store: str, runs: Sequence[str], *, span: str | None, agent: str, file: Path | None
) -> WrittenComparison:
    """Play runs over the same days, and write a page with their curves if a file is given.

    Args:
        store: where the runs are kept.
        runs: their names.
        span, agent: as `backtest` takes them.
        file: HTML file to write.

    Raises:
        InputError: as `backtest`; the runs are one, too many or the same, or their spans are other days; or the file
            cannot be written.
    """
    if not 2 <= len(set(runs)) == len(runs) <= len(COLOURS):
        raise InputError(f"Give from two to {len(COLOURS)} different runs to compare.")
    if file is not None:
        require_place(file)
    # A comparison that is refused counts no look.
    played = {run: play(store, run, span=span, agent=agent) for run in runs}
    _require_same_days({run: earned.curve for run, (earned, _) in played.items()})
    compared = compare(store, [judged() for _, judged in played.values()])
    if file is not None:
        write_page(comparison_page(compared), file)
    return WrittenComparison(compared, file)


def compare(store: str, played: Sequence[Backtest]) -> Comparison:
    """Return backtests of runs on the same days side by side."""
    first = played[0]
    reports = {one.run: report_of(one, status_of(store, one.run)) for one in played}
    account = first.config.account
    own = _benchmarks(reports)
    common = next(iter(own.values())) if len({name for name, _, _ in own.values()}) == 1 else None
    return Comparison(
        span=first.span,
        curves={one.run: one.curve for one in played},
        figures={run: report.figures for run, report in reports.items()},
        claims={run: report.claim for run, report in reports.items()},
        sentences={run: report.sentence for run, report in reports.items()},
        warnings=list(dict.fromkeys(warning for report in reports.values() for warning in report.warnings)),
        benchmark=common,
        own_benchmarks={} if common is not None else own,
        differences=differing_settings({one.run: one.config for one in played}),
        periods_per_year=first.periods_per_year,
        risk_free=account.risk_free,
    )


def _benchmarks(reports: Mapping[str, Report]) -> dict[str, tuple[str, EquityCurve, Figures]]:
    """Return the benchmark of each run with its name, in which runs are named whose benchmark not all have."""
    benchmarks = {
        run: (NAMES[name], report.baselines[name], report.baseline_figures[name])
        for run, report in reports.items()
        if (name := report.benchmark) is not None
    }
    alike: dict[tuple[str, bytes], list[str]] = {}
    for run, (name, curve, _) in benchmarks.items():
        alike.setdefault((name, curve.equity.tobytes()), []).append(run)
    if len(alike) < 2:
        return benchmarks
    named = {run: f"{name} of {', '.join(runs)}" for (name, _), runs in alike.items() for run in runs}
    return {run: (named[run], curve, figures) for run, (_, curve, figures) in benchmarks.items()}


def _require_same_days(curves: Mapping[str, EquityCurve]) -> None:
    (first, curve), *others = curves.items()
    for name, other in others:
        if not np.array_equal(curve.dates, other.dates):
            raise InputError(
                f"Runs '{first}' and '{name}' play other days: {_days(curve)}, and {_days(other)}. Give days that both "
                "have, such as --slice 2012-01-03:2012-12-31."
            )


def _days(curve: EquityCurve) -> str:
    return f"{curve.dates[0]} to {curve.dates[-1]}"
