"""The figure of how different the agents of a population are."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eigen_core.common.records import GenerationRecord
from eigen_core.reporting.style import BLUE, PURPLE, draw_curves, figure_file, footnote, label_ends, value_axis
from eigen_core.reporting.tables import NO_GENERATION, diversity_sentence


def plot_diversity(history: Sequence[GenerationRecord], path: Path) -> Path:
    """Write from how many of the first agents the population descends, and the distance between policies (%)."""
    with figure_file(path, "Diversity", _diversity_story(history)) as figure:
        if history:
            generations = np.array([record.generation for record in history], dtype=np.float64)
            ancestors, distances = np.array(
                [(record.distinct_ancestors, record.policy_distance) for record in history], dtype=np.float64
            ).T
            for left, quantity, unit, values, colour in (
                (0.05, "Ancestors", "of the first agents", ancestors, BLUE),
                (0.55, "Distance between policies", "% of an action's range", 100.0 * distances, PURPLE),
            ):
                axes = figure.add_axes((left, 0.13, 0.36, 0.68))
                labels = draw_curves(axes, generations, {"": values}, {"": colour})
                axes.set_ylim(0.0, max(1.0, 1.1 * float(np.nanmax(values, initial=0.0))))
                value_axis(axes, quantity, unit)
                label_ends(axes, labels)
            footnote(figure, "Distance: mean over pairs of agents, on the same stored observations, after learning.")
    return path


def _diversity_story(history: Sequence[GenerationRecord]) -> str:
    if not history:
        return NO_GENERATION
    return diversity_sentence(history[-1]) or "Not recorded: these generations are of an earlier version."
