"""The memory of a run by phase and generation, as a picture."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from eigen_core.records import PhaseMemory, Telemetry
from eigen_core.reporting.style import (
    MUTED,
    PHASE_COLOURS,
    EndLabel,
    Values,
    figure_file,
    footnote,
    generation_axis,
    label_ends,
    line_with_gaps,
    note,
    value_axis,
)
from eigen_core.units import BYTES_PER_MB, number

_Measure = Callable[[PhaseMemory], int]


def plot_phase_memory(telemetry: Sequence[Telemetry], path: Path) -> Path:
    """Write what each phase took of the memory (MB): peaks, and what it left behind or, with a GPU, its peaks there."""
    measured = [entry for entry in telemetry if entry.phases]
    story = _story(measured[-1]) if measured else "The memory of the phases was not recorded."
    with figure_file(path, "Memory by phase", story) as figure:
        if not measured:
            note(figure.add_axes((0.08, 0.1, 0.9, 0.75)), "No memory to show.")
            return path
        left, right = figure.add_axes((0.06, 0.13, 0.28, 0.68)), figure.add_axes((0.555, 0.13, 0.28, 0.68))
        _draw(left, measured, lambda phase: phase.peak_bytes, "Peak on the host")
        if any(entry.device_peak_bytes for entry in measured):
            _draw(right, measured, lambda phase: phase.device_reserved_peak, "Peak on the GPU, held by torch")
        else:
            _draw(right, measured, lambda phase: phase.end_bytes - phase.start_bytes, "From a phase's start to its end")
            right.axhline(0.0, color=MUTED, linewidth=0.8, zorder=1)
        footnote(figure, "Resident memory of the process and its children. Dots: generations on their own.")
    return path


def _story(entry: Telemetry) -> str:
    highest = max(entry.phases, key=lambda phase: phase.peak_bytes)
    grown = max(entry.phases, key=lambda phase: phase.end_bytes - phase.start_bytes)
    return (
        f"Generation {entry.generation}: highest in {highest.phase}, {number(highest.peak_bytes / BYTES_PER_MB)} MB; "
        f"grown most in {grown.phase}, by {number((grown.end_bytes - grown.start_bytes) / BYTES_PER_MB)} MB."
    )


def _draw(axes: Axes, telemetry: Sequence[Telemetry], measure: _Measure, title: str) -> None:
    first, last = telemetry[0].generation, telemetry[-1].generation
    generations = np.arange(first, last + 1, dtype=np.float64)
    labels = []
    for phase, colour in PHASE_COLOURS.items():
        course = _course(telemetry, phase, measure)
        known = course[np.isfinite(course)]
        if len(known) > 0:
            line_with_gaps(axes, generations, course, colour)
            labels.append(EndLabel(float(known[-1]), f"{phase} {number(known[-1])} MB", colour))
    generation_axis(axes, first, last)
    value_axis(axes, title, "MB")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.0), max(high, 1.0))
    label_ends(axes, labels)


def _course(telemetry: Sequence[Telemetry], phase: str, measure: _Measure) -> Values:
    """Return what a phase took in each generation (MB), NaN where it did not run or was not measured."""
    first = telemetry[0].generation
    course = np.full(telemetry[-1].generation - first + 1, np.nan)
    for entry in telemetry:
        for part in entry.phases:
            if part.phase == phase:
                course[entry.generation - first] = measure(part) / BYTES_PER_MB
    return course
