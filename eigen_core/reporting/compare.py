"""Runs side by side on the same days: curves, metrics, and the settings in which they differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from eigen_core.common.errors import InputError
from eigen_core.common.files import require_place
from eigen_core.common.text import number, percent
from eigen_core.judging.run_backtests import Backtest, play
from eigen_core.judging.verdicts import Claim
from eigen_core.reporting.report import NAMES, Report, differing_settings, figures_table, rows_table, yearly_table
from eigen_core.reporting.report_page import page, report_of, write_page
from eigen_core.reporting.report_plots import equity_plot, variable
from eigen_core.reporting.style import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, SKY, VERMILLION
from eigen_core.trading import EquityCurve
from eigen_core.trading.metrics import Metrics
from eigen_core.training.runs import status_of

COLOURS = (VERMILLION, BLUE, GREEN, PURPLE, ORANGE, SKY, INK)
"""One for each run that can be compared."""


@dataclass(frozen=True)
class Comparison:
    """Runs on the same days.

    Attributes:
        span: the days, in words.
        curves, figures: account and metrics of each run's agent, by run.
        claims, sentences: the verdict of each run.
        benchmark: a common account, with its name and metrics; None: there is none.
        differences: settings that differ: dotted key, then the value of each run.
        periods_per_year, risk_free: of the metrics.
        own_benchmarks: without a common one, those of each run: runs on other prices or with other costs have others.
        warnings: limits of the metrics, as sentences, each once.
    """

    span: str
    curves: Mapping[str, EquityCurve]
    figures: Mapping[str, Metrics]
    claims: Mapping[str, Claim]
    sentences: Mapping[str, str]
    benchmark: tuple[str, EquityCurve, Metrics] | None
    differences: Mapping[str, Mapping[str, str]]
    periods_per_year: float
    risk_free: float
    own_benchmarks: Mapping[str, tuple[str, EquityCurve, Metrics]] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    @property
    def accounts(self) -> Mapping[str, tuple[EquityCurve, Metrics]]:
        """All accounts by name: those of the runs, then the benchmarks, of which equal ones are one."""
        runs = {run: (curve, self.figures[run]) for run, curve in self.curves.items()}
        common = [] if self.benchmark is None else [self.benchmark]
        return runs | {name: (curve, found) for name, curve, found in [*common, *self.own_benchmarks.values()]}


def comparison_page(compared: Comparison) -> str:
    """Return the page of a comparison, HTML."""
    curves = {name: curve for name, (curve, _) in compared.accounts.items()}
    figures = {name: found for name, (_, found) in compared.accounts.items()}
    colours = dict.fromkeys(curves, MUTED) | dict(zip(compared.curves, COLOURS, strict=False))
    first, last = (next(iter(curves.values())).dates[day] for day in (0, -1))
    differences = [{"Setting": key, **values} for key, values in compared.differences.items()]
    context = {
        "compared": compared,
        "title": f"Comparison: {', '.join(compared.curves)}",
        "days": f"{compared.span}, {first} to {last}",
        "colours": {name: variable(colour) for name, colour in colours.items()},
        "equity": equity_plot(curves, colours),
        "figures": figures_table(figures, "Metrics of the runs"),
        "yearly": yearly_table(curves),
        "differences": rows_table("Settings that differ", differences),
        "stated": f"Daily returns, {number(compared.periods_per_year)} periods a year, risk-free rate "
        f"{percent(compared.risk_free, 2)} a year.",
    }
    return page("comparison.html", context)


@dataclass(frozen=True)
class WrittenComparison:
    """A comparison, and the file with its page, if there is one."""

    compared: Comparison
    file: Path | None


def write_comparison(
    store: str, runs: Sequence[str], *, span: str | None, agent: str, file: Path | None
) -> WrittenComparison:
    """Play runs over the same days, and write a page with their curves if a file is given.

    Raises:
        InputError: as `backtest`; there is one run, too many or one twice; their days differ; no file can be written.
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
        figures={run: report.played.figures for run, report in reports.items()},
        claims={run: report.verdict.claim for run, report in reports.items()},
        sentences={run: report.sentence for run, report in reports.items()},
        warnings=list(dict.fromkeys(warning for report in reports.values() for warning in report.warnings)),
        benchmark=common,
        own_benchmarks={} if common is not None else own,
        differences=differing_settings({one.run: one.config for one in played}),
        periods_per_year=first.periods_per_year,
        risk_free=account.risk_free,
    )


def _benchmarks(reports: Mapping[str, Report]) -> dict[str, tuple[str, EquityCurve, Metrics]]:
    """Return the benchmark of each run with its name, which names the runs where benchmarks differ."""
    benchmarks = {
        run: (NAMES[name], report.played.baselines[name], report.played.figures_of_baselines[name])
        for run, report in reports.items()
        for name in [report.played.benchmark]
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
