"""Runs side by side on the same days: curves, metrics, and the settings in which they differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from eigen_core.common.errors import InputError
from eigen_core.common.files import require_place, write_file
from eigen_core.judging.run_backtests import Backtest, play
from eigen_core.reporting.report import (
    basis_of_metrics,
    differing_settings,
    metrics_table,
    page,
    rows_table,
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

    runs: Mapping[str, Backtest]
    file: Path | None = None

    @cached_property
    def benchmarks(self) -> Mapping[str, Account]:
        """The benchmark of each run. If they differ, since prices or costs do, the name of each includes its runs."""
        benchmarks = {
            run: (NAMES[name], played.baselines[name], played.baseline_metrics[name])
            for run, played in self.runs.items()
            for name in [played.benchmark]
        }
        keys = {run: (name, curve.equity.tobytes()) for run, (name, curve, _) in benchmarks.items()}
        if len(set(keys.values())) < 2:
            return benchmarks
        named = {run: f"{key[0]} of {', '.join(one for one in keys if keys[one] == key)}" for run, key in keys.items()}
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
        return differing_settings({run: played.config for run, played in self.runs.items()})

    @property
    def warnings(self) -> Sequence[str]:
        return list(dict.fromkeys(warning for played in self.runs.values() for warning in played.warnings))


def comparison_page(compared: Comparison) -> str:
    first = next(iter(compared.runs.values()))
    curves = {name: curve for name, (curve, _) in compared.accounts.items()}
    figures = {name: found for name, (_, found) in compared.accounts.items()}
    colours = dict.fromkeys(curves, MUTED) | dict(zip(compared.runs, COLOURS, strict=False))
    differences = [{"Setting": key, **values} for key, values in compared.differences.items()]
    context = {
        "compared": compared,
        "title": f"Comparison: {', '.join(compared.runs)}",
        "days": f"{first.span}, {first.curve.days}",
        "colours": {name: variable(colour) for name, colour in colours.items()},
        "equity": equity_plot(curves, colours),
        "figures": metrics_table(figures, "Metrics of the runs"),
        "yearly": yearly_table(curves),
        "differences": rows_table("Settings that differ", differences),
        "basis": basis_of_metrics(first),
    }
    return page("comparison.html", context)


def write_comparison(
    store: str, runs: Sequence[str], *, span: str | None, agent: str, file: Path | None, settings: Sequence[str] = ()
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
    (first, curve), *others = ((run, earned.curve) for run, (earned, _) in played.items())
    for name, other in others:
        if not np.array_equal(curve.dates, other.dates):
            raise InputError(
                f"Runs '{first}' and '{name}' play different days: {curve.days}, and {other.days}. Give days that "
                "both have, such as --slice 2012-01-03:2012-12-31."
            )
    compared = Comparison({run: judged() for run, (_, judged) in played.items()}, file)
    if file is not None:
        write_file(file, comparison_page(compared).encode())
    return compared
