"""The memory of a training over time beside its plan, as a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from benchmarks.process_memory import Sample, highest
from eigen_core.reporting.style import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PHASE_COLOURS,
    VERMILLION,
    EndLabel,
    figure_file,
    footnote,
    label_ends,
    tint,
    value_axis,
)
from eigen_core.units import BYTES_PER_MB, size

_MINUTE = 60.0
_COLOURS = {**PHASE_COLOURS, "start": MUTED, "holdout": VERMILLION}
_NAMED = {"start": MUTED, "evaluate": BLUE, "train": GREEN, "checkpoint": ORANGE, "holdout": VERMILLION}
# Height of the strip of phases, as a share of the axes.
_STRIP = 0.035


@dataclass(frozen=True)
class Span:
    """A phase of a training.

    Attributes:
        phase: its name.
        generation: which it belongs to; 0 for the start.
        began, ended: seconds since 1970.
    """

    phase: str
    generation: int
    began: float
    ended: float


def draw_memory(
    path: Path, story: str, samples: Sequence[Sample], spans: Sequence[Span], planned: Mapping[str, int]
) -> None:
    """Write a picture of what a process and its children took, phase by phase, beside what was planned.

    Args:
        path: PNG file.
        story: what it shows, in one line.
        samples: what was seen.
        spans: the phases in their order.
        planned: the peak of each phase (bytes).
    """
    began = samples[0].moment
    minutes = np.array([(sample.moment - began) / _MINUTE for sample in samples])
    children = np.array([sample.children / BYTES_PER_MB for sample in samples])
    whole = children + np.array([sample.own / BYTES_PER_MB for sample in samples])
    peak, most = highest(samples), max(planned[span.phase] for span in spans if span.phase in planned)
    # Then the processes end.
    ended = (spans[-1].ended - began) / _MINUTE
    with figure_file(path, "Memory: planned and seen", story) as figure:
        axes = figure.add_axes((0.06, 0.12, 0.775, 0.71))
        axes.plot(minutes, whole, color=INK, linewidth=1.3)
        axes.plot(minutes, children, color=MUTED, linewidth=1.0)
        axes.axhline(most / BYTES_PER_MB, color=VERMILLION, linewidth=1.0, linestyle=(0, (1, 1.5)))
        axes.set_xlim(0.0, float(minutes[-1]))
        axes.set_ylim(0.0, 1.12 * max(most, peak) / BYTES_PER_MB)
        _draw_phases(axes, spans, planned, began)
        axes.set_xlabel("minutes since the training was started")
        value_axis(axes, "Resident memory of the training and Prefect's server", "MB")
        label_ends(
            axes,
            [
                EndLabel(most / BYTES_PER_MB, f"planned peak {size(most)}", VERMILLION),
                EndLabel(float(whole[minutes <= ended][-1]), "all processes", INK),
                EndLabel(float(children.max()), "Prefect's server", MUTED),
            ],
        )
        for index, (phase, colour) in enumerate(_NAMED.items()):
            figure.text(0.06 + 0.09 * index, 0.02, phase, color=colour, fontsize=8.5)
        footnote(figure, f"Dashes: the plan of each phase. Highest seen: {size(peak)}.")


def _draw_phases(axes: Axes, spans: Sequence[Span], planned: Mapping[str, int], began: float) -> None:
    for span in spans:
        first, last = max(span.began - began, 0.0) / _MINUTE, (span.ended - began) / _MINUTE
        colour = _COLOURS.get(span.phase, MUTED)
        axes.axvspan(first, last, ymax=_STRIP, color=tint(colour, 0.2), linewidth=0)
        if span.phase in planned:
            axes.plot(
                [first, last],
                [planned[span.phase] / BYTES_PER_MB] * 2,
                color=colour,
                linewidth=1.6,
                linestyle=(0, (2, 1)),
            )
        if span.phase == "evaluate":
            axes.axvline(first, color=tint(MUTED, 0.6), linewidth=0.6)
            at = axes.get_xaxis_transform()
            axes.text(first, 0.985, f" {span.generation}", color=MUTED, fontsize=8.0, va="top", transform=at)
