"""The plots of a training run: one function and one PNG file each."""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from textwrap import fill
from zipfile import ZipFile

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eigen_core.common.records import Curve, GenerationRecord, RecordLog, Telemetry
from eigen_core.common.text import BYTES_PER_MB, count, duration, number, size
from eigen_core.reporting.health import learning_sentences, ridge_score
from eigen_core.reporting.style import (
    BLUE,
    CHAMPION,
    FITNESS,
    GREEN,
    INK,
    MANY_GENERATIONS,
    MUTED,
    ORANGE,
    PHASE_COLOURS,
    PURPLE,
    SHADE,
    SKY,
    VALIDATION,
    EndLabel,
    Values,
    compress_outliers,
    draw_curves,
    figure_file,
    footnote,
    generation_axis,
    label_ends,
    line_width,
    scale_losses,
    value_axis,
)
from eigen_core.reporting.tables import FITNESS_PLOT, NO_GENERATION, champion_in_words, diversity_sentence

# The scheduler of the system then prefers a training on all cores.
_NICENESS = 10
# Generations take no more room in the plot of time than this many times their median.
_OUTLIER = 2.5
_TIMED_PHASES = ("evaluate", "train", "evolve", "checkpoint")
# Letters that fit into a line of the subtitle.
_SUBTITLE = 140
# Letters that fit into a line above a row of learning curves, in the descriptions of all its curves together.
_DESCRIPTIONS = 136


def write_plots(
    history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry], folder: Path, curves: Sequence[Curve]
) -> list[Path]:
    """Write every plot of a run into `folder` and return the files, in reading order.

    Each file is replaced in one step. Plots without data say why they are empty. `telemetry` (times and memory) may
    lack generations; `curves`: the learner's. A history that parses its records lazily (`RecordLog`) saves memory.
    """
    return [
        plot_fitness(history, folder / FITNESS_PLOT),
        plot_learning(history, folder / "learning.png", curves),
        plot_resources(telemetry, folder / "resources.png"),
        plot_diversity(history, folder / "diversity.png"),
    ]


def plot_fitness(history: Sequence[GenerationRecord], path: Path) -> Path:
    """Plot best and mean fitness of each generation, its best validation fitness, and the champion's score (reward)."""
    subtitle = NO_GENERATION
    if history:
        last = history[-1]
        subtitle = (
            f"Generation {last.generation}: best fitness {number(last.best_fitness)}, "
            f"mean {number(last.mean_fitness)}. Champion: {champion_in_words(last, number)}."
        )
        subtitle = "\n".join([subtitle, *(fill(sentence, _SUBTITLE) for sentence in learning_sentences(history))])
    with figure_file(path, "Fitness and validation", subtitle) as figure:
        if history:
            _draw_fitness(figure.add_axes((0.08, 0.125, 0.69, 0.685 - 0.032 * subtitle.count("\n"))), history)
            footnote(figure, "Bands: fitness of the middle half of the agents, and of all. Diamonds: a new champion.")
    return path


def _draw_fitness(axes: Axes, history: Sequence[GenerationRecord]) -> None:
    generations = np.array([record.generation for record in history], dtype=np.float64)
    quantiles = np.array([np.quantile(record.fitness, (0.0, 0.25, 0.75, 1.0)) for record in history]).T
    best, mean, validation, champion = np.array(
        [(r.best_fitness, r.mean_fitness, r.validation, r.champion_score) for r in history], dtype=np.float64
    ).T
    lines = np.vstack([quantiles, best, mean, validation, champion])
    x, width = generations, line_width(len(history))
    if len(history) == 1:
        # Lines and bands need two points.
        x, lines = np.array([x[0] - 0.25, x[0] + 0.25]), np.repeat(lines, 2, axis=1)
    axes.fill_between(x, lines[0], lines[3], color=FITNESS, alpha=0.10, linewidth=0)
    axes.fill_between(x, lines[1], lines[2], color=FITNESS, alpha=0.22, linewidth=0)
    axes.plot(x, lines[5], color=SKY, linewidth=width)
    axes.plot(x, lines[4], color=FITNESS, linewidth=width)
    axes.plot(x, lines[6], color=VALIDATION, linewidth=0.7 * width, linestyle=(0, (4, 1.5)), zorder=3)
    axes.plot(x, lines[7], color=CHAMPION, linewidth=1.2 * width, drawstyle="steps-post")
    marker = 5.0 if len(history) <= MANY_GENERATIONS else 3.5
    found = [index for index, record in enumerate(history) if record.champion_generation == record.generation]
    axes.plot(
        generations[found], champion[found], "D", color=CHAMPION, markersize=marker, markeredgecolor="white", zorder=4
    )
    generation_axis(axes, history[0].generation, history[-1].generation)
    value_axis(axes, "Reward of an episode", compress_outliers(axes, [best, validation, champion], lines))
    if axes.get_ylim()[0] < 0 < axes.get_ylim()[1]:
        axes.axhline(0.0, color=MUTED, linewidth=0.8, zorder=1)
    ends = (
        ("best fitness", best, FITNESS),
        ("mean fitness", mean, SKY),
        ("best validation", validation, VALIDATION),
        ("champion score", champion, CHAMPION),
    )
    labels = [EndLabel(line[-1], f"{name} {number(line[-1])}", colour) for name, line, colour in ends]
    if (score := ridge_score(history)) is not None:
        axes.axhline(score, color=MUTED, linewidth=0.7 * width, linestyle=(0, (1, 1.5)), zorder=2)
        labels.append(EndLabel(score, f"ridge regression {number(score)}", MUTED))
    label_ends(axes, labels)


def plot_learning(history: Sequence[GenerationRecord], path: Path, curves: Sequence[Curve]) -> Path:
    """Plot statistics of the learner, `curves`, over the generations; generations without learning are gaps."""
    with figure_file(path, "Learning", _learning_subtitle(history)) as figure:
        if any(record.learning is not None for record in history):
            _draw_learning(figure, history, curves)
            footnote(figure, "Means over agents and gradient steps. Grey: no learning.")
    return path


def _learning_subtitle(history: Sequence[GenerationRecord]) -> str:
    learned = [record for record in history if record.learning is not None]
    if not learned or learned[-1].learning is None:
        return f"{count(len(history), 'generation')}, none with learning: there are no losses to show."
    steps = count(int(learned[-1].learning["gradient_steps"]), "gradient step")
    return (
        f"{len(learned):,} of {count(len(history), 'generation')} learned, the first was generation "
        f"{learned[0].generation}. Each agent took {steps} in generation {learned[-1].generation}."
    )


def _draw_learning(figure: Figure, history: Sequence[GenerationRecord], curves: Sequence[Curve]) -> None:
    generations = np.array([record.generation for record in history], dtype=np.float64)
    learned = [record.learning or {} for record in history]
    grid = figure.subplots(2, -(-len(curves) // 2), squeeze=False)
    described = {}
    panels = zip(grid.flat, curves, cycle((BLUE, ORANGE, GREEN, PURPLE, SKY)), strict=False)
    for index, (axes, curve, colour) in enumerate(panels):
        values = np.array([entry.get(curve.name, np.nan) for entry in learned], dtype=np.float64)
        labels = draw_curves(axes, generations, {"": values}, {"": colour})
        for record in history:
            if record.learning is None:
                axes.axvspan(record.generation - 0.5, record.generation + 0.5, color=SHADE, linewidth=0, zorder=0)
        scale = scale_losses(axes, values[np.isfinite(values)][None])
        description = f"{curve.description} Axis {scale}." if scale else curve.description
        described[curve] = axes, fill(description, _DESCRIPTIONS // grid.shape[1])
        label_ends(axes, labels, size=8.5)
        if index + grid.shape[1] < len(curves):
            axes.set_xlabel("")
    for axes in grid.flat[len(curves) :]:
        axes.remove()
    # Height of the longest description, in lines of the title's larger letters.
    lines = 1 + max(2, *(text.count("\n") + 1 for _, text in described.values())) * 2 // 3
    for curve, (axes, text) in described.items():
        value_axis(axes, curve.label.capitalize() + "\n" * lines)
        axes.text(0.0, 1.04, text, color=MUTED, fontsize=7.5, va="bottom", transform=axes.transAxes)
    top, hspace = (0.755, 0.75) if lines <= 2 else (0.72, 1.05)
    figure.subplots_adjust(left=0.05, right=0.935, bottom=0.13, top=top, hspace=hspace, wspace=0.125 * grid.shape[1])


def plot_resources(telemetry: Sequence[Telemetry], path: Path) -> Path:
    subtitle = "Times and memory were not recorded."
    if telemetry:
        last, each = telemetry[-1], [entry.seconds for entry in telemetry]
        whole = f" {len(each):,} generations took {duration(sum(each))}, the longest {duration(max(each))}."
        subtitle = (
            f"Generation {last.generation}: {duration(last.seconds)}, {size(last.rss_bytes)} resident, "
            f"peak {size(last.rss_peak_bytes)}."
            f"{whole if len(each) > 1 else ''}"
        )
    with figure_file(path, "Time and memory", subtitle) as figure:
        if telemetry:
            _draw_time(figure.add_axes((0.05, 0.13, 0.31, 0.68)), telemetry)
            _draw_memory(figure.add_axes((0.56, 0.13, 0.285, 0.68)), telemetry)
    return path


def _draw_time(axes: Axes, telemetry: Sequence[Telemetry]) -> None:
    generations = _generations(telemetry)
    floor = np.zeros(len(generations))
    edges = np.append(generations - 0.5, generations[-1] + 0.5)
    middles = []
    for phase in _TIMED_PHASES:
        seconds = _by_generation(telemetry, [getattr(entry, f"{phase}_seconds") for entry in telemetry])
        top = floor + np.nan_to_num(seconds)
        axes.stairs(top, edges, baseline=floor, fill=True, color=PHASE_COLOURS[phase], linewidth=0)
        label = f"{phase} {number(seconds[-1])} s" if np.isfinite(seconds[-1]) else f"{phase} unknown"
        middles.append(EndLabel(float(floor[-1] + top[-1]) / 2, label, PHASE_COLOURS[phase]))
        floor = top
    generation_axis(axes, int(generations[0]), int(generations[-1]))
    # A slow generation is cut off, so that it does not flatten the others; the subtitle says how long it took.
    each = [entry.seconds for entry in telemetry]
    axes.set_ylim(0.0, 1.12 * min(max(each), _OUTLIER * float(np.median(each))) or 1.0)
    value_axis(axes, "Time of a generation", "seconds")
    label_ends(axes, middles)


def _draw_memory(axes: Axes, telemetry: Sequence[Telemetry]) -> None:
    peaks = [{phase.phase: phase.peak_bytes for phase in entry.phases} for entry in telemetry]
    measured = {phase: [entry.get(phase) for entry in peaks] for phase in PHASE_COLOURS}
    measured["at the end"] = [entry.rss_bytes for entry in telemetry]
    measured["GPU"] = [entry.device_peak_bytes or None for entry in telemetry]
    curves = {name: _by_generation(telemetry, values) / BYTES_PER_MB for name, values in measured.items()}
    colours = {**PHASE_COLOURS, "at the end": INK, "GPU": MUTED}
    labels = draw_curves(axes, _generations(telemetry), curves, colours, "MB")
    axes.set_ylim(0.0, max(1.05 * axes.get_ylim()[1], 1.0))
    value_axis(axes, "Memory: peak of each phase", "MB")
    label_ends(axes, labels)


def plot_diversity(history: Sequence[GenerationRecord], path: Path) -> Path:
    """Plot the number of initial agents with descendants, and the mean distance between two agents' actions (%)."""
    unknown = "Not recorded: an earlier version of Eigen trained these generations."
    subtitle = (diversity_sentence(history[-1]) or unknown) if history else NO_GENERATION
    with figure_file(path, "Diversity", subtitle) as figure:
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


def _generations(telemetry: Sequence[Telemetry]) -> Values:
    return np.arange(telemetry[0].generation, telemetry[-1].generation + 1, dtype=np.float64)


def _by_generation(telemetry: Sequence[Telemetry], values: Sequence[float | None]) -> Values:
    """Return `values`, one for each entry of `telemetry`, at the places of its generations; NaN for missing ones."""
    placed = np.full(len(_generations(telemetry)), np.nan)
    placed[[entry.generation - telemetry[0].generation for entry in telemetry]] = np.array(values, dtype=np.float64)
    return placed


def main() -> None:
    """Draw the plots of a run for `eigen_core.runs.drawing`.

    Standard input has lines of JSON: the number of generation records and the learner's curves, the records, and the
    telemetry. Standard output, a ZIP archive of the plots, is a file rather than a pipe: it does not block if the
    process that trains is killed.
    """
    os.nice(_NICENESS)
    lines = (line.rstrip(b"\n") for line in sys.stdin.buffer)
    head = json.loads(next(lines))
    history = RecordLog.of_lines(GenerationRecord, islice(lines, head["records"]))
    telemetry = RecordLog.of_lines(Telemetry, lines)
    curves = [Curve(**curve) for curve in head["curves"]]
    with tempfile.TemporaryDirectory(prefix="eigen-") as folder, ZipFile(sys.stdout.buffer, "w") as drawn:
        for path in write_plots(history, telemetry, Path(folder), curves):
            drawn.write(path, path.name)
