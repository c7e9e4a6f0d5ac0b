"""Plots and tables of a run.

Figures are in `eigen_core.reporting.plots`, which loads matplotlib; nothing here does.
"""

from eigen_core.reporting.frame import history_frame
from eigen_core.reporting.tables import (
    champion_card,
    holdout_sentence,
    markdown_card,
    markdown_table,
    plots_markdown,
    population_table,
    summary_rows,
)

__all__ = [
    "champion_card",
    "history_frame",
    "holdout_sentence",
    "markdown_card",
    "markdown_table",
    "plots_markdown",
    "population_table",
    "summary_rows",
]
