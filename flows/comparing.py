"""Runs side by side on the same days. No Prefect in here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eigen_core.errors import InputError
from eigen_core.reporting.report import NAMES
from eigen_core.reporting.report.comparison import COLOURS, Comparison, comparison_page
from flows.backtests import Backtest, backtest
from flows.reports import report_of, write_page
from flows.run_settings import differing_settings
from flows.runs import status_of


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
    compared = compare(store, [backtest(store, run, span=span, agent=agent) for run in runs])
    if file is not None:
        write_page(comparison_page(compared), file)
    return WrittenComparison(compared, file)


def compare(store: str, played: Sequence[Backtest]) -> Comparison:
    """Return backtests of runs side by side.

    Raises:
        InputError: they are of other days.
    """
    first = played[0]
    for other in played[1:]:
        if not np.array_equal(first.curve.dates, other.curve.dates):
            raise InputError(
                f"Runs '{first.run}' and '{other.run}' play other days: {_days(first)}, and {_days(other)}. Give days "
                "that both have, such as --slice 2012-01-03:2012-12-31."
            )
    reports = {one.run: report_of(one, status_of(store, one.run)) for one in played}
    account = first.config.account
    benchmark = first.baskets[0]
    return Comparison(
        span=first.span,
        curves={one.run: one.curve for one in played},
        figures={run: report.figures for run, report in reports.items()},
        claims={run: report.claim for run, report in reports.items()},
        sentences={run: report.sentence for run, report in reports.items()},
        benchmark=(NAMES[benchmark], first.baselines[benchmark], reports[first.run].baseline_figures[benchmark]),
        differences=differing_settings({one.run: one.config for one in played}),
        periods_per_year=account.periods_per_year,
        risk_free=account.risk_free,
    )


def _days(played: Backtest) -> str:
    return f"{played.curve.dates[0]} to {played.curve.dates[-1]}"
