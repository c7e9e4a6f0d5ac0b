"""The memory of a run as pictures: over time with phases and limits, and by phase and generation."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from eigen_core.common.records import PhaseMemory, Telemetry
from eigen_core.common.text import BYTES_PER_MB, duration, number, size
from eigen_core.reporting.style import (
    BLUE,
    INK,
    MUTED,
    ORANGE,
    PHASE_COLOURS,
    SHADE,
    VERMILLION,
    EndLabel,
    Values,
    draw_curves,
    figure_file,
    footnote,
    label_ends,
    tint,
    value_axis,
)

if TYPE_CHECKING:
    from eigen_core.machine import MemoryReport
    from eigen_core.machine.usage import Point

# The name of a phase does not fit into a narrower part of the axis.
_NAMED_SHARE = 0.07
# A limit of more than this many times the memory would flatten the curve; the text names it.
_FAR = 4.0
# Letters that fit into the line under the title.
_STORY = 118


def plot_memory_curve(report: "MemoryReport", path: Path) -> Path:
    """Write the memory of a report over time: at the left the whole course, at the right its end with phases.

    Each point of the course is the peak of a stretch of time. The memory is that of the processes; the tensors on a GPU
    are a second line. A limit is drawn where it is near enough to be seen.
    """
    with figure_file(path, "Memory", _report_story(report)) as figure:
        if report.recent:
            course, recent = figure.add_axes((0.06, 0.13, 0.30, 0.68)), figure.add_axes((0.46, 0.13, 0.385, 0.68))
            _draw_course(course, report, report.course)
            value_axis(course, "Whole course", "MB", "peaks" if len(report.course) < len(report.recent) else "")
            labels = _draw_course(recent, report, report.recent)
            _draw_phases(recent, report)
            value_axis(recent, "Its end, with phases", "MB")
            label_ends(recent, labels)
            limit = report.limits[0] if report.limits else None
            bound = f"Limit: {number(limit.bytes / BYTES_PER_MB)} MB, {limit.origin}. " if limit else ""
            footnote(figure, f"{bound}Watched for {duration(report.recent[-1].seconds)}.")
    return path


def _report_story(report: "MemoryReport") -> str:
    if not report.recent:
        return "The memory has not been measured yet."
    text = f"{size(report.host_bytes)} are taken. {report.headline}"
    return text if len(text) <= _STORY else f"{text[:_STORY].rsplit(' ', 1)[0]} …"


def _draw_course(axes: Axes, report: "MemoryReport", points: "Sequence[Point]") -> list[EndLabel]:
    """Draw the memory over time, with the nearest limit if that is near, and return the labels of the lines."""
    unit, seconds_each = _time_unit(points[-1].seconds)
    time, host, device = (np.array(points, dtype=np.float64) / (seconds_each, BYTES_PER_MB, BYTES_PER_MB)).T
    if time[0] == time[-1]:
        # A single point would be no line.
        time, host, device = np.array([time[0], time[0] + 1.0]), host[[0, -1]], device[[0, -1]]
    labels = []
    for name, values, colour in (("processes", host, INK), ("device", device, BLUE)):
        if name == "processes" or values.any():
            axes.plot(time, values, color=colour, linewidth=1.4)
            labels.append(EndLabel(values[-1], f"{name} {number(values[-1])} MB", colour))
    top = float(max(host.max(), device.max()))
    for limit in report.limits[:1]:
        if limit.bytes / BYTES_PER_MB <= _FAR * top:
            top = max(top, limit.bytes / BYTES_PER_MB)
            for name, line, colour, dashes in (
                ("limit", limit.bytes, VERMILLION, "solid"),
                ("hard line", limit.hard, VERMILLION, "dashed"),
                ("soft line", limit.soft, ORANGE, "dotted"),
            ):
                axes.axhline(line / BYTES_PER_MB, color=colour, linewidth=1.1, linestyle=dashes)
                labels.append(EndLabel(line / BYTES_PER_MB, name, colour))
    axes.set_xlim(time[0], time[-1])
    axes.set_ylim(0.0, 1.08 * top or 1.0)
    axes.set_xlabel(f"{unit} since the guard began")
    return labels


def _time_unit(seconds: float) -> tuple[str, float]:
    """Return the unit of an axis of times that ends there, and how long it is (seconds)."""
    if seconds < 600:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < 36_000 else ("hours", 3_600.0)


def _draw_phases(axes: Axes, report: "MemoryReport") -> None:
    first, last = report.recent[0].seconds, report.recent[-1].seconds
    _, seconds_each = _time_unit(last)
    for phase in report.phases:
        began, ended = max(phase.began, first), min(phase.ended, last)
        if ended < began:
            continue
        colour = tint(PHASE_COLOURS[phase.phase], 0.8) if phase.phase in PHASE_COLOURS else SHADE
        axes.axvspan(began / seconds_each, ended / seconds_each, color=colour, linewidth=0, zorder=0)
        if ended - began > _NAMED_SHARE * (last - first):
            axes.text(
                (began + ended) / 2 / seconds_each,
                0.02,
                f"{phase.phase} {phase.generation}",
                color=MUTED,
                fontsize=8.0,
                ha="center",
                rotation=90,
                va="bottom",
                transform=axes.get_xaxis_transform(),
            )


def plot_phase_memory(telemetry: Sequence[Telemetry], path: Path) -> Path:
    """Write what each phase took of the memory (MB): peaks, and what it left behind or, with a GPU, its peaks there."""
    measured = [entry for entry in telemetry if entry.phases]
    with figure_file(path, "Memory by phase", _phases_story(measured)) as figure:
        if measured:
            left, right = figure.add_axes((0.06, 0.13, 0.28, 0.68)), figure.add_axes((0.555, 0.13, 0.28, 0.68))
            peaks = _phase_curves(measured, lambda phase: phase.peak_bytes)
            draw_memory(left, "Peak on the host", measured, peaks, PHASE_COLOURS)
            if any(entry.device_peak_bytes for entry in measured):
                held = _phase_curves(measured, lambda phase: phase.device_reserved_peak)
                draw_memory(right, "Peak on the GPU, held by torch", measured, held, PHASE_COLOURS)
            else:
                grown = _phase_curves(measured, lambda phase: phase.end_bytes - phase.start_bytes)
                draw_memory(right, "From a phase's start to its end", measured, grown, PHASE_COLOURS)
                right.axhline(0.0, color=MUTED, linewidth=0.8, zorder=1)
            footnote(figure, "Resident memory of the process and its children. Dots: generations on their own.")
    return path


def _phases_story(measured: Sequence[Telemetry]) -> str:
    if not measured:
        return "The memory of the phases was not recorded."
    phases = measured[-1].phases
    highest = max(phases, key=lambda phase: phase.peak_bytes)
    grown = max(phases, key=lambda phase: phase.end_bytes - phase.start_bytes)
    return (
        f"Generation {measured[-1].generation}: highest in {highest.phase}, {size(highest.peak_bytes)}; "
        f"grown most in {grown.phase}, by {size(grown.end_bytes - grown.start_bytes)}."
    )


def _phase_curves(telemetry: Sequence[Telemetry], measure: Callable[[PhaseMemory], int]) -> dict[str, Values]:
    """Return what each phase took in each generation (MB), NaN where it did not run or was not measured."""
    taken = [{phase.phase: measure(phase) / BYTES_PER_MB for phase in entry.phases} for entry in telemetry]
    return {phase: by_generation(telemetry, [entry.get(phase) for entry in taken]) for phase in PHASE_COLOURS}


def draw_memory(
    axes: Axes, title: str, telemetry: Sequence[Telemetry], curves: Mapping[str, Values], colours: Mapping[str, str]
) -> None:
    """Draw named curves of memory (MB) over the generations, beside zero; see `draw_curves`."""
    labels = draw_curves(axes, generations_of(telemetry), curves, colours, "MB")
    low, high = axes.get_ylim()
    low, high = min(low, 0.0), max(high, 1.0)
    axes.set_ylim(low, high + 0.05 * (high - low))
    value_axis(axes, title, "MB")
    label_ends(axes, labels)


def generations_of(telemetry: Sequence[Telemetry]) -> Values:
    """Return the generations from the first to the last that is known."""
    return np.arange(telemetry[0].generation, telemetry[-1].generation + 1, dtype=np.float64)


def by_generation(telemetry: Sequence[Telemetry], values: Sequence[float | None]) -> Values:
    """Return one value a generation of `generations_of`, NaN where it has no record or a value that is not known."""
    placed = np.full(len(generations_of(telemetry)), np.nan)
    placed[[entry.generation - telemetry[0].generation for entry in telemetry]] = np.array(values, dtype=np.float64)
    return placed
