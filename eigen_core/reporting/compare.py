"""Runs side by side on the same days: curves, metrics, and the settings in which they differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from eigen_core.common.errors import InputError
from eigen_core.common.files import require_place
from eigen_core.judging.run_backtests import Backtest, play
from eigen_core.reporting.report import (
    basis_of_metrics,
    differing_settings,
    metrics_table,
    page,
    rows_table,
    write_page,
    yearly_table,
)
from eigen_core.reporting.report_plots import NAMES, equity_plot, variable
from eigen_core.reporting.style import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, SKY, VERMILLION
from eigen_core.trading.equity import EquityCurve
from eigen_core.trading.metrics import Metrics

COLOURS = (VERMILLION, BLUE, GREEN, PURPLE, ORANGE, SKY, INK)
"""Colours of the runs on the HTML page; as many runs can be compared at most."""

Account = tuple[str, EquityCurve, Metrics]
"""Name, equity and metrics of an account."""


@dataclass(frozen=True)
class Comparison:
    """Backtests of agents of several runs on the same days; `file`: the HTML page, None if none was written."""

    played: Sequence[Backtest]
    file: Path | None = None

    @property
    def runs(self) -> Mapping[str, Backtest]:
        return {one.run: one for one in self.played}

    @cached_property
    def benchmarks(self) -> Mapping[str, Account]:
        """The benchmark of each run. If they differ, since prices or costs do, the name of each includes its runs."""
        benchmarks = {
            run: (NAMES[name], played.baselines[name], played.baseline_metrics[name])
            for run, played in self.runs.items()
            for name in [played.benchmark]
        }
        alike: dict[tuple[str, bytes], list[str]] = {}
        for run, (name, curve, _) in benchmarks.items():
            alike.setdefault((name, curve.equity.tobytes()), []).append(run)
        if len(alike) < 2:
            return benchmarks
        named = {run: f"{name} of {', '.join(runs)}" for (name, _), runs in alike.items() for run in runs}
        return {run: (named[run], curve, figures) for run, (_, curve, figures) in benchmarks.items()}

    @property
    def benchmark(self) -> Account | None:
        """The benchmark that all runs have in common; None if theirs differ."""
        first, *others = self.benchmarks.values()
        return first if all(name == first[0] for name, _, _ in others) else None

    @property
    def accounts(self) -> Mapping[str, tuple[EquityCurve, Metrics]]:
        """Equity and metrics by name: first the accounts of the runs, then the benchmarks, equal ones once."""
        runs = {run: (played.curve, played.metrics) for run, played in self.runs.items()}
        return runs | {name: (curve, found) for name, curve, found in self.benchmarks.values()}

    @property
    def differences(self) -> Mapping[str, Mapping[str, str]]:
        """Settings that differ between the runs: by dotted key, the value of each run as text."""
        return differing_settings({one.run: one.config for one in self.played})

    @property
    def warnings(self) -> Sequence[str]:
        return list(dict.fromkeys(warning for one in self.played for warning in one.warnings))


def comparison_page(compared: Comparison) -> str:
    first, curves = compared.played[0], {name: curve for name, (curve, _) in compared.accounts.items()}
    figures = {name: found for name, (_, found) in compared.accounts.items()}
    colours = dict.fromkeys(curves, MUTED) | dict(zip(compared.runs, COLOURS, strict=False))
    differences = [{"Setting": key, **values} for key, values in compared.differences.items()]
    context = {
        "compared": compared,
        "title": f"Comparison: {', '.join(compared.runs)}",
        "days": f"{first.span}, {_days(first.curve)}",
        "colours": {name: variable(colour) for name, colour in colours.items()},
        "equity": equity_plot(curves, colours),
        "figures": metrics_table(figures, "Metrics of the runs"),
        "yearly": yearly_table(curves),
        "differences": rows_table("Settings that differ", differences),
        "basis": basis_of_metrics(first),
    }
    return page("comparison.html", context)


def write_comparison(
    store: str,
    runs: Sequence[str],
    *,
    span: str | None,
    agent: str,
    file: Path | None,
    settings: Sequence[str] = (),
) -> Comparison:
    """Backtest runs over the same days (see `backtest`), and write an HTML page with their curves if `file` is given.

    Raises:
        InputError: as in `backtest`; fewer than 2, too many or equal runs; different days; `file` cannot be written.
    """
    if not 2 <= len(set(runs)) == len(runs) <= len(COLOURS):
        raise InputError(f"Give from two to {len(COLOURS)} different runs to compare, not {', '.join(runs)}.")
    if file is not None:
        require_place(file)
    # `judged` adds looks to the evaluation log: it is called once nothing can refuse the comparison any more.
    played = {run: play(store, run, span=span, agent=agent, settings=settings) for run in runs}
    _require_same_days({run: earned.curve for run, (earned, _) in played.items()})
    compared = Comparison([judged() for _, judged in played.values()], file)
    if file is not None:
        write_page(comparison_page(compared), file)
    return compared


def _require_same_days(curves: Mapping[str, EquityCurve]) -> None:
    (first, curve), *others = curves.items()
    for name, other in others:
        if not np.array_equal(curve.dates, other.dates):
            raise InputError(
                f"Runs '{first}' and '{name}' play different days: {_days(curve)}, and {_days(other)}. Give days that "
                "both have, such as --slice 2012-01-03:2012-12-31."
            )


def _days(curve: EquityCurve) -> str:
    return f"{curve.dates[0]} to {curve.dates[-1]}"
