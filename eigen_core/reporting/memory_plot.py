"""The memory of a run as a picture: the whole course and its end, with phases and limits."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from eigen_core.memory import MemoryReport, PhaseUsage
from eigen_core.memory.curve import Point
from eigen_core.memory.limits import Pressure
from eigen_core.reporting.style import (
    INK,
    MUTED,
    ORANGE,
    PHASE_COLOURS,
    SHADE,
    VERMILLION,
    EndLabel,
    Values,
    figure_file,
    footnote,
    label_ends,
    note,
    tint,
    value_axis,
)
from eigen_core.units import BYTES_PER_MB, duration, number

# A narrower stretch of the axis has no room for the name of its phase.
_NAMED_SHARE = 0.07
# Limits that are further away than this many times the memory would flatten the curve; the text names them.
_FAR = 4.0
# Letters that fit into the line under the title.
_STORY = 118


def plot_memory_curve(report: MemoryReport, path: Path) -> Path:
    """Write the memory of a report over time: at the left the whole course, at the right its end with phases.

    Each point of the course is the peak of a stretch of time. The memory is that of the processes; the tensors on a GPU
    are a second line. A limit is drawn where it is near enough to be seen.
    """
    with figure_file(path, "Memory", _story(report)) as figure:
        if not report.recent:
            note(figure.add_axes((0.08, 0.1, 0.9, 0.75)), "The memory was not looked at yet.")
            return path
        course, recent = figure.add_axes((0.06, 0.13, 0.30, 0.68)), figure.add_axes((0.46, 0.13, 0.385, 0.68))
        _draw(course, report, report.course)
        value_axis(course, "Whole course", "MB", "peaks" if len(report.course) < len(report.recent) else "")
        _draw_phases(recent, report)
        _draw(recent, report, report.recent)
        value_axis(recent, "Its end, with phases", "MB")
        label_ends(recent, _labels(recent, report))
        footnote(figure, _note_on_limits(report))
    return path


def _story(report: MemoryReport) -> str:
    text = f"{number(report.host_bytes / BYTES_PER_MB)} MB are taken. {report.headline}"
    return text if len(text) <= _STORY else f"{text[:_STORY].rsplit(' ', 1)[0]} …"


def _draw(axes: Axes, report: MemoryReport, points: Sequence[Point]) -> None:
    seconds, host, device = _series(points)
    unit, factor = _time_unit(float(seconds[-1]))
    if len(seconds) == 1:
        # A single point would be no line.
        seconds, host, device = np.array([seconds[0], seconds[0] + 1.0]), np.repeat(host, 2), np.repeat(device, 2)
    axes.plot(seconds * factor, host, color=INK, linewidth=1.4)
    if device.any():
        axes.plot(seconds * factor, device, color=VERMILLION, linewidth=1.4)
    axes.set_xlim(float(seconds[0]) * factor, max(float(seconds[-1]), float(seconds[0]) + 1e-3) * factor)
    top = float(max(host.max(), device.max()))
    for line in _near(report, top):
        top = max(top, line.bytes / BYTES_PER_MB)
        axes.axhline(line.bytes / BYTES_PER_MB, color=VERMILLION, linewidth=1.2)
        axes.axhline(line.hard / BYTES_PER_MB, color=VERMILLION, linewidth=1.0, linestyle=(0, (4, 2)))
        axes.axhline(line.soft / BYTES_PER_MB, color=ORANGE, linewidth=1.0, linestyle=(0, (1, 1.5)))
    axes.set_ylim(0.0, 1.08 * top or 1.0)
    axes.set_xlabel(f"{unit} since the guard began")


def _series(points: Sequence[Point]) -> tuple[Values, Values, Values]:
    values: NDArray[np.float64] = np.array(points, dtype=np.float64).reshape(-1, 3)
    return values[:, 0], values[:, 1] / BYTES_PER_MB, values[:, 2] / BYTES_PER_MB


def _time_unit(seconds: float) -> tuple[str, float]:
    if seconds < 600:
        return "seconds", 1.0
    return ("minutes", 1 / 60) if seconds < 36_000 else ("hours", 1 / 3_600)


def _near(report: MemoryReport, top: float) -> list[Pressure]:
    """The limit that is nearest, if it is near enough to be drawn beside a curve that reaches `top` MB."""
    return [line for line in report.limits[:1] if line.bytes / BYTES_PER_MB <= _FAR * top]


def _draw_phases(axes: Axes, report: MemoryReport) -> None:
    first, last = report.recent[0].seconds, report.recent[-1].seconds
    _, factor = _time_unit(last)
    shown = [phase for phase in report.phases if phase.ended >= first and phase.began <= last]
    for phase in shown:
        began, ended = max(phase.began, first), min(max(phase.ended, phase.began), last)
        colour = tint(PHASE_COLOURS.get(phase.phase, MUTED), 0.8) if phase.phase in PHASE_COLOURS else SHADE
        axes.axvspan(began * factor, ended * factor, color=colour, linewidth=0, zorder=0)
        if ended - began >= _NAMED_SHARE * (last - first):
            axes.text(
                (began + ended) / 2 * factor,
                0.02,
                _name(phase),
                color=MUTED,
                fontsize=8.0,
                ha="center",
                rotation=90,
                va="bottom",
                transform=axes.get_xaxis_transform(),
            )


def _name(phase: PhaseUsage) -> str:
    return f"{phase.phase} {phase.generation}"


def _labels(axes: Axes, report: MemoryReport) -> list[EndLabel]:
    last = report.recent[-1]
    labels = [EndLabel(last.host / BYTES_PER_MB, f"processes {number(last.host / BYTES_PER_MB)} MB", INK)]
    if any(point.device for point in report.recent):
        labels.append(
            EndLabel(last.device / BYTES_PER_MB, f"device {number(last.device / BYTES_PER_MB)} MB", VERMILLION)
        )
    top = axes.get_ylim()[1]
    for line in report.limits[:1]:
        if line.bytes / BYTES_PER_MB <= top:
            labels.append(EndLabel(line.bytes / BYTES_PER_MB, "limit", VERMILLION))
            labels.append(EndLabel(line.hard / BYTES_PER_MB, "hard line", VERMILLION))
            labels.append(EndLabel(line.soft / BYTES_PER_MB, "soft line", ORANGE))
    return labels


def _note_on_limits(report: MemoryReport) -> str:
    seconds = report.recent[-1].seconds
    limit = report.limits[0] if report.limits else None
    bound = f"Limit: {number(limit.bytes / BYTES_PER_MB)} MB, {limit.origin}. " if limit else ""
    return f"{bound}Watched for {duration(seconds)}."
