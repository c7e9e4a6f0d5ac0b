"""One look for all figures, and how they become files."""

import io
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.typing import RcKeyType
from numpy.typing import NDArray
from PIL import Image

from eigen_core.units import number

Values = NDArray[np.float64]

# Okabe and Ito, Color Universal Design (2008): told apart with every common form of colour blindness.
BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
ORANGE = "#E69F00"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
INK = "#222222"
MUTED = "#6B6B6B"
SHADE = "#F2F2F2"
GRID = "#E8E8E8"
WHITE = "#FFFFFF"

# One meaning a colour, in every figure.
CHAMPION = VERMILLION
FITNESS = BLUE
VALIDATION = GREEN

PHASE_COLOURS = {"evaluate": BLUE, "train": GREEN, "evolve": PURPLE, "checkpoint": ORANGE, "plot": SKY}

SIZE_INCHES = (10.0, 5.0)
DOTS_PER_INCH = 144
# From here on, lines and marks are drawn finer.
MANY_GENERATIONS = 60

# What a file may contain: lines are drawn on white, so that their soft edges are mixtures of a colour and white.
_TINTS = 10
_FILE_COLOURS = (BLUE, SKY, GREEN, ORANGE, VERMILLION, PURPLE, INK, MUTED)

# Everything but the backend, which says nothing about looks: a user's own settings change no figure.
_STYLE: dict[RcKeyType, Any] = {
    **{key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"},
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}

# Matplotlib's settings are one object for the whole process: two threads inside `rc_context` would restore each
# other's values.
_SETTINGS_LOCK = threading.Lock()


class EndLabel(NamedTuple):
    """A text beside the last point of a line."""

    y: float
    text: str
    colour: str


@contextmanager
def figure_file(path: Path, title: str, story: str) -> Iterator[Figure]:
    """Give an empty figure with a title and one line that says what it shows; write it to `path` at the end.

    Nothing of the figure, and no setting of matplotlib, outlives the block; an error in it leaves no file.

    Args:
        path: PNG file; its folder is created.
        title: what is plotted.
        story: what it says in this run, one line under the title.
    """
    with _SETTINGS_LOCK, matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH)
        FigureCanvasAgg(figure)
        try:
            figure.text(0.015, 0.975, title, fontsize=13, fontweight="bold", va="top")
            figure.text(0.015, 0.915, story, fontsize=9.5, color=MUTED, va="top")
            yield figure
            content = _png(figure)
        finally:
            figure.clear()
    write_atomically(path, content)


def _png(figure: Figure) -> bytes:
    """Draw a figure and encode it with the few colours it has: a quarter of the size of a PNG with all of them."""
    pixels = io.BytesIO()
    figure.savefig(pixels, format="rgba", dpi=DOTS_PER_INCH)
    width, height = (round(inches * DOTS_PER_INCH) for inches in SIZE_INCHES)
    image = Image.frombytes("RGBA", (width, height), pixels.getvalue()).convert("RGB")
    content = io.BytesIO()
    few = image.quantize(palette=_palette(), dither=Image.Dither.NONE)
    few.save(content, "png", compress_level=7, dpi=(DOTS_PER_INCH, DOTS_PER_INCH))
    return content.getvalue()


@cache
def _palette() -> Image.Image:
    shares = np.linspace(0.0, 1.0, _TINTS, endpoint=False)
    colours = [tint(colour, float(share)) for colour in _FILE_COLOURS for share in shares]
    channels = np.array([to_rgb(colour) for colour in (*colours, GRID, SHADE, WHITE)])
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.rint(255 * channels).astype(np.uint8).tobytes())
    return palette


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path`, whole or not at all: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def tint(colour: str, white: float) -> str:
    """Mix a colour with a share of white. Unlike transparency, it looks the same wherever lines cross."""
    red, green, blue = (1.0 - (1.0 - channel) * (1.0 - white) for channel in to_rgb(colour))
    return to_hex((red, green, blue))


def widen(generations: Values, lines: Values) -> tuple[Values, Values]:
    """Make a single generation wide enough to be seen as lines and bands; more than one stay as they are.

    Args:
        generations: `[generations]`.
        lines: `[series, generations]`.
    """
    if len(generations) > 1:
        return generations, lines
    return np.array([generations[0] - 0.25, generations[0] + 0.25]), np.repeat(lines, 2, axis=1)


def generation_axis(axes: Axes, first: int, last: int, *, label: bool = True) -> None:
    """Make x the generations `first` to `last`: whole ticks, half a generation of room at both ends."""
    axes.set_xlim(first - 0.5, last + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    if label:
        axes.set_xlabel("generation")


def line_width(generations: int) -> float:
    """Return the width of a line through that many points (points)."""
    return 1.8 if generations <= MANY_GENERATIONS else 1.2


def line_with_gaps(axes: Axes, x: Values, y: Values, colour: str) -> None:
    """Draw a line that is broken where y is NaN; a value between two gaps becomes a dot."""
    axes.plot(x, y, color=colour, linewidth=line_width(len(x)))
    known = np.pad(np.isfinite(y), 1)
    alone = known[1:-1] & ~known[:-2] & ~known[2:]
    axes.plot(x[alone], y[alone], "o", color=colour, markersize=4)


def value_axis(axes: Axes, quantity: str, *remarks: str) -> None:
    """Write above the axes what y is and, at the right, its unit and what is unusual about its scale; draw its grid.

    Call it when the scale of y is final.
    """
    axes.set_title(quantity)
    axes.set_title(", ".join(remark for remark in remarks if remark), loc="right", color=MUTED, fontsize=8.5)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.grid(axis="y")


def label_ends(axes: Axes, labels: Sequence[EndLabel], *, size: float = 9.0) -> None:
    """Write each label right of the axes at its height, moved up or down as far as needed not to overlap.

    Call it when the limits and the scale of y are final.
    """
    height = axes.get_window_extent().height / axes.figure.dpi * 72.0
    gap = 1.25 * size / height
    to_axes = axes.transData + axes.transAxes.inverted()
    ordered = sorted(labels, key=lambda label: label.y)
    heights = [float(to_axes.transform((0.0, label.y))[1]) for label in ordered]
    for label, y in zip(ordered, spread(heights, gap), strict=True):
        axes.text(1.012, y, label.text, color=label.colour, fontsize=size, va="center", transform=axes.transAxes)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move ascending heights in 0 to 1 as little as a single pass can, until neighbours are `gap` apart."""
    moved: list[float] = []
    for height in heights:
        lowest = moved[-1] + gap if moved else gap / 2
        moved.append(max(height, lowest))
    highest = 1.0 - gap / 2
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], highest)
        highest = moved[index] - gap
    return moved


def note(axes: Axes, text: str) -> None:
    """Say in the middle of empty axes why they are empty."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, color=MUTED, fontsize=11, ha="center", va="center", transform=axes.transAxes)


def footnote(figure: Figure, text: str) -> None:
    """Write an explanation below the axes, at the right."""
    figure.text(0.985, 0.018, text, color=MUTED, fontsize=8.0, ha="right")
