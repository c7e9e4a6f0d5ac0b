"""Plots, tables and pages of a run.

Figures are in `eigen_core.reporting.plots`, which loads matplotlib; nothing here does.
"""

from eigen_core.reporting.pages import (
    Overview,
    Progress,
    data_page,
    link_to_run,
    plan_page,
    summary_page,
    uploads_page,
    uploads_sentence,
)
from eigen_core.reporting.tables import (
    champion_card,
    champion_sentence,
    diversity_sentence,
    generation_rows,
    history_frame,
    holdout_sentence,
    in_words,
    markdown_card,
    markdown_table,
    picture_markdown,
    plots_markdown,
    population_table,
    readable,
    training_frame,
)

__all__ = [
    "Overview",
    "Progress",
    "champion_card",
    "champion_sentence",
    "data_page",
    "diversity_sentence",
    "generation_rows",
    "history_frame",
    "holdout_sentence",
    "in_words",
    "link_to_run",
    "markdown_card",
    "markdown_table",
    "picture_markdown",
    "plan_page",
    "plots_markdown",
    "population_table",
    "readable",
    "summary_page",
    "training_frame",
    "uploads_page",
    "uploads_sentence",
]
