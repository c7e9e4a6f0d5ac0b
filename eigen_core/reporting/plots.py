"""The figures of a run: one function a figure, one PNG file each."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from eigen_core.records import GenerationRecord, LearningStatistics, Telemetry
from eigen_core.reporting.lineage import plot_lineage
from eigen_core.reporting.overview import FITNESS_PLOT
from eigen_core.reporting.phase_memory_plot import plot_phase_memory
from eigen_core.reporting.scales import clip_top, compress_beyond, linear_part, make_logarithmic
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
    figure_file,
    footnote,
    generation_axis,
    label_ends,
    line_width,
    line_with_gaps,
    note,
    value_axis,
    widen,
)
from eigen_core.units import BYTES_PER_MB, count, duration, number, signed

# Fewer generations give a slope that says nothing.
_SLOPE_GENERATIONS = 10
_FACTOR_FOR_LOGARITHM = 8.0
_LEARNING_NOTE = (
    "Means over agents and gradient steps. Actor loss: minus the value of the actor's actions. Grey: no learning."
)
_NO_GENERATION = "No generation is complete."
_TIMED_PHASES = ("evaluate", "train", "evolve", "checkpoint")


def write_plots(history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry], folder: Path) -> list[Path]:
    """Write every figure of a run into `folder` and return the files, in the order in which they are read.

    Each file is replaced in one step. Figures without data are written too and say why they are empty.

    Args:
        history: records of the generations, in order. No figure holds more of them at a time than it draws, so a log
            that parses them as they are looked at keeps the memory of a long run small.
        telemetry: what they took; may be empty or lack generations.
        folder: created if need be.
    """
    return [
        plot_fitness(history, folder / FITNESS_PLOT),
        plot_learning(history, folder / "learning.png"),
        plot_replay(history, folder / "replay.png"),
        plot_resources(telemetry, folder / "resources.png"),
        plot_phase_memory(telemetry, folder / "memory.png"),
        plot_lineage(history, folder / "lineage.png"),
    ]


def plot_fitness(history: Sequence[GenerationRecord], path: Path) -> Path:
    """Write the fitness of the population and the validation of its best and of the champion (reward)."""
    story = _fitness_story(history[-1]) if history else _NO_GENERATION
    with figure_file(path, "Fitness and validation", story) as figure:
        axes = figure.add_axes((0.08, 0.125, 0.69, 0.685))
        if history:
            _draw_fitness(axes, history)
            footnote(figure, "Bands: fitness of the middle half of the agents, and of all. Diamonds: a new champion.")
        else:
            note(axes, _NO_GENERATION)
    return path


def _fitness_story(record: GenerationRecord) -> str:
    age = record.generation - record.champion_generation
    found = f", found {count(age, 'generation')} ago" if age else ""
    return (
        f"Generation {record.generation}: "
        f"best fitness {number(record.best_fitness)}, mean {number(record.mean_fitness)}. "
        f"Champion: agent {record.champion_agent} of generation {record.champion_generation}"
        f"{found}, "
        f"validation {number(record.champion_validation)}."
    )


def _draw_fitness(axes: Axes, history: Sequence[GenerationRecord]) -> None:
    generations = np.array([record.generation for record in history], dtype=np.float64)
    quantiles = np.array([np.quantile(record.fitness, (0.0, 0.25, 0.75, 1.0)) for record in history]).T
    best, mean, validation, champion = np.array(
        [(r.best_fitness, r.mean_fitness, r.validation, r.champion_validation) for r in history], dtype=np.float64
    ).T
    width = line_width(len(history))
    x, lines = widen(generations, np.vstack([quantiles, best, mean, validation, champion]))
    axes.fill_between(x, lines[0], lines[3], color=FITNESS, alpha=0.10, linewidth=0)
    axes.fill_between(x, lines[1], lines[2], color=FITNESS, alpha=0.22, linewidth=0)
    axes.plot(x, lines[5], color=SKY, linewidth=width)
    axes.plot(x, lines[4], color=FITNESS, linewidth=width)
    axes.plot(x, lines[6], color=VALIDATION, linewidth=0.7 * width, linestyle=(0, (4, 1.5)), zorder=3)
    axes.plot(x, lines[7], color=CHAMPION, linewidth=1.2 * width, drawstyle="steps-post")
    size = 5.0 if len(history) <= MANY_GENERATIONS else 3.5
    found = [index for index, record in enumerate(history) if record.champion_generation == record.generation]
    axes.plot(
        generations[found], champion[found], "D", color=CHAMPION, markersize=size, markeredgecolor="white", zorder=4
    )
    generation_axis(axes, history[0].generation, history[-1].generation)
    part = linear_part([best, validation, champion], lines)
    scale = "" if part is None else compress_beyond(axes, part, lines)
    value_axis(axes, "Reward of an episode", scale)
    if axes.get_ylim()[0] < 0 < axes.get_ylim()[1]:
        axes.axhline(0.0, color=MUTED, linewidth=0.8, zorder=1)
    label_ends(
        axes,
        [
            EndLabel(float(best[-1]), f"best fitness {number(best[-1])}", FITNESS),
            EndLabel(float(mean[-1]), f"mean fitness {number(mean[-1])}", SKY),
            EndLabel(float(validation[-1]), f"best validation {number(validation[-1])}", VALIDATION),
            EndLabel(float(champion[-1]), f"champion validation {number(champion[-1])}", CHAMPION),
        ],
    )


def plot_learning(history: Sequence[GenerationRecord], path: Path) -> Path:
    """Write losses, value and gradient norms over the generations; generations without learning are gaps."""
    learned = {record.generation: record.learning for record in history if record.learning is not None}
    with figure_file(path, "Learning", _learning_story(history, learned)) as figure:
        if learned:
            _draw_learning(figure, history)
            footnote(figure, _LEARNING_NOTE)
        else:
            note(figure.add_axes((0.08, 0.1, 0.9, 0.75)), "No generation has learned: there are no losses to show.")
    return path


def _learning_story(history: Sequence[GenerationRecord], learned: Mapping[int, LearningStatistics]) -> str:
    if not learned:
        return f"{count(len(history), 'generation')}, none with learning."
    first, last = min(learned), max(learned)
    return (
        f"{len(learned):,} of {count(len(history), 'generation')} learned, the first was generation {first}. "
        f"Each agent took {count(learned[last].gradient_steps, 'gradient step')} in generation {last}."
    )


def _draw_learning(figure: Figure, history: Sequence[GenerationRecord]) -> None:
    generations = np.array([record.generation for record in history], dtype=np.float64)
    statistics = [record.learning for record in history]
    panels = figure.subplots(2, 2, sharex=True)
    figure.subplots_adjust(left=0.075, right=0.905, bottom=0.14, top=0.81, hspace=0.32, wspace=0.45)
    contents = (
        ("Critic loss", "scaled reward²", [("critic", "critic_loss", BLUE)]),
        ("Actor loss", "scaled reward", [("actor", "actor_loss", ORANGE)]),
        ("Value of the stored actions", "scaled reward", [("value", "value", GREEN)]),
        (
            "Gradient norms before clipping",
            "norm",
            [("critic", "critic_gradient_norm", BLUE), ("actor", "actor_gradient_norm", ORANGE)],
        ),
    )
    for axes, (title, unit, series) in zip(panels.flat, contents, strict=True):
        lines = {name: (_statistic(statistics, field), colour) for name, field, colour in series}
        for values, colour in lines.values():
            line_with_gaps(axes, generations, values, colour)
        _shade_gaps(axes, history)
        generation_axis(axes, history[0].generation, history[-1].generation, label=axes in panels[1])
        scale = _scale_statistics(axes, np.stack([values for values, _ in lines.values()]))
        value_axis(axes, title, unit, scale)
        label_ends(axes, [_last_label(name, *line) for name, line in lines.items()], size=8.5)


def _statistic(statistics: Sequence[LearningStatistics | None], field: str) -> Values:
    return np.array([np.nan if entry is None else getattr(entry, field) for entry in statistics], dtype=np.float64)


def _scale_statistics(axes: Axes, values: Values) -> str:
    """Choose a scale on which the newer half of the values can be read; return the words that name it."""
    known = values[:, np.isfinite(values).all(axis=0)]
    if known.min() > 0.0:
        if known.max() <= _FACTOR_FOR_LOGARITHM * known.min():
            return ""
        return make_logarithmic(axes, known)
    part = linear_part(known, known)
    return "" if part is None else compress_beyond(axes, part, known)


def _shade_gaps(axes: Axes, history: Sequence[GenerationRecord]) -> None:
    for record in history:
        if record.learning is None:
            axes.axvspan(record.generation - 0.5, record.generation + 0.5, color=SHADE, linewidth=0, zorder=0)


def _last_label(name: str, values: Values, colour: str) -> EndLabel:
    last = float(values[np.isfinite(values)][-1])
    return EndLabel(last, f"{name} {number(last)}", colour)


def plot_replay(history: Sequence[GenerationRecord], path: Path) -> Path:
    """Write the fill of the replay against its capacity (transitions, and percent of the capacity)."""
    story = _replay_story(history) if history else _NO_GENERATION
    with figure_file(path, "Replay buffer", story) as figure:
        axes = figure.add_axes((0.07, 0.115, 0.86, 0.695))
        if history:
            _draw_replay(axes, history)
        else:
            note(axes, _NO_GENERATION)
    return path


def _replay_story(history: Sequence[GenerationRecord]) -> str:
    record = history[-1]
    share = record.transitions / max(record.replay_capacity, 1)
    story = (
        f"Generation {record.generation}: {record.transitions:,} of {record.replay_capacity:,} transitions "
        f"({100 * share:.0f} %)."
    )
    full = next((r.generation for r in history if r.transitions >= r.replay_capacity), None)
    return story if full is None else f"{story} Full since generation {full}: the oldest are overwritten."


def _draw_replay(axes: Axes, history: Sequence[GenerationRecord]) -> None:
    edges = np.array([history[0].generation - 0.5, *(record.generation + 0.5 for record in history)])
    fill = np.array([record.transitions for record in history], dtype=np.float64)
    capacity = np.array([max(record.replay_capacity, 1) for record in history], dtype=np.float64)
    axes.stairs(fill, edges, fill=True, color=SKY, alpha=0.55, linewidth=0)
    axes.stairs(fill, edges, baseline=None, color=BLUE, linewidth=1.6)
    axes.stairs(capacity, edges, baseline=None, color=MUTED, linewidth=1.4, linestyle="--")
    generation_axis(axes, history[0].generation, history[-1].generation)
    value_axis(axes, "Transitions", "share of the capacity")
    axes.set_ylim(0.0, 1.12 * float(max(capacity.max(), fill.max())))
    axes.annotate(
        f"capacity {number(capacity[-1])}",
        xy=(0.0, capacity[0]),
        xycoords=("axes fraction", "data"),
        xytext=(5, 4),
        textcoords="offset points",
        color=MUTED,
    )
    last = capacity[-1]
    percent = axes.secondary_yaxis("right", functions=(lambda y: y / last, lambda share: share * last))
    percent.set_yticks([0.0, 0.25, 0.5, 0.75, 1.0])
    percent.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    first = next((record.generation for record in history if record.learning is not None), None)
    if first is not None:
        start = first - 0.5
        late = start - edges[0] > 0.7 * (edges[-1] - edges[0])
        axes.vlines(start, 0.0, fill[np.searchsorted(edges, start)], color=INK, linewidth=1.2)
        axes.annotate(
            f"learning starts in generation {first}",
            xy=(start, 0.0),
            xytext=(-5 if late else 5, 8),
            textcoords="offset points",
            ha="right" if late else "left",
        )


def plot_resources(telemetry: Sequence[Telemetry], path: Path) -> Path:
    """Write the time of each generation by phase (seconds) and the resident memory (MB)."""
    story = _resources_story(telemetry) if telemetry else "Times and memory were not recorded."
    with figure_file(path, "Time and memory", story) as figure:
        if not telemetry:
            note(figure.add_axes((0.08, 0.1, 0.9, 0.75)), "No times or memory to show.")
            return path
        _draw_time(figure.add_axes((0.05, 0.13, 0.31, 0.68)), telemetry)
        _draw_memory(figure.add_axes((0.56, 0.13, 0.285, 0.68)), telemetry)
        footnote(figure, _memory_slope(telemetry))
    return path


def _resources_story(telemetry: Sequence[Telemetry]) -> str:
    last = telemetry[-1]
    total = sum(entry.seconds for entry in telemetry)
    return (
        f"Generation {last.generation}: {number(last.seconds)} s, {number(last.rss_bytes / BYTES_PER_MB)} MB resident, "
        f"peak {number(last.rss_peak_bytes / BYTES_PER_MB)} MB. "
        f"{f'{len(telemetry):,} generations took {duration(total)}.' if len(telemetry) > 1 else ''}"
    )


def _by_generation(telemetry: Sequence[Telemetry], values: Sequence[float]) -> Values:
    """Place one value a record at its generation, NaN where a generation has no record."""
    first = telemetry[0].generation
    placed = np.full(telemetry[-1].generation - first + 1, np.nan)
    placed[[entry.generation - first for entry in telemetry]] = values
    return placed


def _draw_time(axes: Axes, telemetry: Sequence[Telemetry]) -> None:
    first, last = telemetry[0].generation, telemetry[-1].generation
    edges = np.arange(first - 0.5, last + 1.0)
    floor = np.zeros(len(edges) - 1)
    middles = []
    for phase in _TIMED_PHASES:
        colour = PHASE_COLOURS[phase]
        known = [getattr(entry, f"{phase}_seconds") for entry in telemetry]
        seconds = [value or 0.0 for value in known]
        top = floor + np.nan_to_num(_by_generation(telemetry, seconds))
        axes.stairs(top, edges, baseline=floor, fill=True, color=colour, linewidth=0)
        label = f"{phase} {number(seconds[-1])} s" if known[-1] is not None else f"{phase} unknown"
        middles.append(EndLabel(float(floor[-1] + top[-1]) / 2, label, colour))
        floor = top
    generation_axis(axes, first, last)
    value_axis(axes, "Time of a generation", "seconds")
    clip_top(axes, np.arange(first, last + 1, dtype=np.float64), floor, "s")
    label_ends(axes, middles)


def _draw_memory(axes: Axes, telemetry: Sequence[Telemetry]) -> None:
    first, last = telemetry[0].generation, telemetry[-1].generation
    generations = np.arange(first, last + 1, dtype=np.float64)
    resident = _by_generation(telemetry, [entry.rss_bytes / BYTES_PER_MB for entry in telemetry])
    peak = _by_generation(telemetry, [entry.rss_peak_bytes / BYTES_PER_MB for entry in telemetry])
    x, lines = widen(generations, np.vstack([resident, peak]))
    axes.fill_between(x, lines[0], lines[1], color=SKY, alpha=0.25, linewidth=0)
    line_with_gaps(axes, x, lines[0], BLUE)
    line_with_gaps(axes, x, lines[1], PURPLE)
    generation_axis(axes, first, last)
    value_axis(axes, "Resident memory", "MB")
    axes.set_ylim(0.0, 1.12 * float(np.nanmax([resident, peak])) or 1.0)
    label_ends(
        axes,
        [
            EndLabel(float(resident[-1]), f"at the end {number(resident[-1])} MB", BLUE),
            EndLabel(float(peak[-1]), f"peak {number(peak[-1])} MB", PURPLE),
        ],
    )


def _memory_slope(telemetry: Sequence[Telemetry]) -> str:
    """Say how fast the memory grew in the newer half, with the standard error of a least-squares line."""
    newer = telemetry[len(telemetry) // 2 :]
    if len(newer) < _SLOPE_GENERATIONS:
        return ""
    generations = np.array([entry.generation for entry in newer], dtype=np.float64)
    resident = np.array([entry.rss_bytes for entry in newer], dtype=np.float64) / BYTES_PER_MB
    x, y = generations - generations.mean(), resident - resident.mean()
    slope = x @ y / (x @ x)
    residual = y - slope * x
    error = np.sqrt(residual @ residual / (len(newer) - 2) / (x @ x))
    return (
        f"Resident memory since generation {newer[0].generation}: {signed(100 * slope)} ± {number(100 * error)} MB "
        "per 100 generations (slope and its standard error)."
    )
