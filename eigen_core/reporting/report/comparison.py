"""Runs side by side on the same days: curves, figures, and the settings in which they differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eigen_core.common.text import number, percent
from eigen_core.judging.claim import Claim
from eigen_core.reporting.report.curves import equity_plot
from eigen_core.reporting.report.page import page
from eigen_core.reporting.report.svg import variable
from eigen_core.reporting.report.tables import figures_table, rows_table, yearly_table
from eigen_core.reporting.style import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, SKY, VERMILLION
from eigen_core.trading import EquityCurve
from eigen_core.trading.metrics import Figures

COLOURS = (VERMILLION, BLUE, GREEN, PURPLE, ORANGE, SKY, INK)
"""One for each run that can be compared."""


@dataclass(frozen=True)
class Comparison:
    """Runs on the same days.

    Attributes:
        span: the days, in words.
        curves: the account of each run's agent, by name of the run.
        figures: of these accounts.
        claims, sentences: the verdict of each run.
        warnings: what keeps figures from meaning what they seem to mean, as sentences, each once.
        benchmark: an account that all have in common, with its name and figures; None: there is none.
        own_benchmarks: where there is none, that of each run, by name of the run: runs on other prices, or with other
            costs, are measured against other accounts.
        differences: the settings that differ: dotted key, then the value of each run.
        periods_per_year, risk_free: of the figures.
    """

    span: str
    curves: Mapping[str, EquityCurve]
    figures: Mapping[str, Figures]
    claims: Mapping[str, Claim]
    sentences: Mapping[str, str]
    benchmark: tuple[str, EquityCurve, Figures] | None
    differences: Mapping[str, Mapping[str, str]]
    periods_per_year: float
    risk_free: float
    own_benchmarks: Mapping[str, tuple[str, EquityCurve, Figures]] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    @property
    def accounts(self) -> Mapping[str, tuple[EquityCurve, Figures]]:
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
    context = {
        "compared": compared,
        "title": f"Comparison: {', '.join(compared.curves)}",
        "days": f"{compared.span}, {first} to {last}",
        "colours": {name: variable(colour) for name, colour in colours.items()},
        "equity": equity_plot(curves, colours),
        "figures": figures_table(figures, "Figures of the runs"),
        "yearly": yearly_table(curves),
        "differences": rows_table("Settings that differ", difference_rows(compared.differences)),
        "stated": f"Daily returns, {number(compared.periods_per_year)} periods a year, risk-free rate "
        f"{percent(compared.risk_free, 2)} a year.",
    }
    return page("comparison.html", context)


def difference_rows(differences: Mapping[str, Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
    """Return the settings that differ as rows of a table, one column a run."""
    return [{"Setting": key, **values} for key, values in differences.items()]
