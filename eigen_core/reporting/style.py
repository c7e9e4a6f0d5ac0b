"""The style, axes and scales of all plots, and the PNG files of a run's plots."""

import io
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.typing import RcKeyType
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from eigen_core.common.files import replacing
from eigen_core.common.text import number

Values = NDArray[np.float64]

# Okabe and Ito, Color Universal Design (2008), for every common form of colour blindness, and brown.
BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
ORANGE = "#E69F00"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
BROWN = "#7F4F24"
INK = "#222222"
MUTED = "#6B6B6B"
SHADE = "#EBEBEB"
GRID = "#E8E8E8"

# These colours mean the same in every figure.
CHAMPION = VERMILLION
FITNESS = BLUE
VALIDATION = GREEN

PHASE_COLOURS = {"evaluate": BLUE, "train": GREEN, "evolve": PURPLE, "checkpoint": ORANGE, "plot": SKY}

SIZE_INCHES = (10.0, 5.0)
DOTS_PER_INCH = 144
# From here on, lines and marks are drawn finer.
MANY_GENERATIONS = 60

_COLOURS_OF_A_FILE = 64

# All of matplotlib's settings except the backend, so that a user's own settings change no figure.
_STYLE: dict[RcKeyType, Any] = {
    **{key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"},
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    # Spares matplotlib a second layout of all ticks to keep the title clear of them: no tick is above.
    "axes.titley": 1.0,
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
    y: float
    text: str
    colour: str


@contextmanager
def empty_figure(size_inches: tuple[float, float], settings: Mapping[RcKeyType, Any] | None = None) -> Iterator[Figure]:
    """Yield an empty figure in the common style, changed by `settings` (rcParams); then restore the former rcParams."""
    with _SETTINGS_LOCK, matplotlib.rc_context({**_STYLE, **(settings or {})}):
        figure = Figure(figsize=size_inches, dpi=DOTS_PER_INCH)
        FigureCanvasAgg(figure)
        try:
            yield figure
        finally:
            figure.clear()


@contextmanager
def figure_file(
    path: Path, title: str, subtitle: str, size_inches: tuple[float, float] = SIZE_INCHES
) -> Iterator[Figure]:
    """Yield an empty figure with title and subtitle, and write it as a PNG file after the block, unless that raises."""
    with empty_figure(size_inches) as figure:
        # The distance from the upper edge does not depend on the figure's height.
        inch = 1.0 / size_inches[1]
        figure.text(0.015, 1.0 - 0.125 * inch, title, fontsize=13, fontweight="bold", va="top")
        figure.text(0.015, 1.0 - 0.425 * inch, subtitle, fontsize=9.5, color=MUTED, va="top")
        yield figure
        content = _png(figure)
    with replacing(path) as file:
        file.write(content)


def _png(figure: Figure) -> bytes:
    """Draw a figure and encode it with few colours, which makes the PNG four times smaller."""
    drawn, content = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="rgba")
    image = Image.frombytes("RGBA", figure.canvas.get_width_height(), drawn.getvalue())
    image.convert("RGB").quantize(_COLOURS_OF_A_FILE, Image.Quantize.FASTOCTREE).save(content, "png")
    return content.getvalue()


def label_colour(colour: str) -> str:
    """Return the colour of a label: darker than its line, since thin letters need more contrast."""
    red, green, blue = (0.75 * channel for channel in to_rgb(colour))
    return to_hex((red, green, blue))


def generation_axis(axes: Axes, first: int, last: int) -> None:
    """Let x reach from generation `first` to `last`, with half a generation more at both ends; ticks are integers."""
    axes.set_xlim(first - 0.5, last + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    axes.set_xlabel("generation")


def line_width(generations: int) -> float:
    """Return the width of a line over this many generations (points)."""
    return 1.8 if generations <= MANY_GENERATIONS else 1.2


def draw_curves(
    axes: Axes, generations: Values, curves: Mapping[str, Values], colours: Mapping[str, str], unit: str = ""
) -> list[EndLabel]:
    """Draw named curves over the generations and return labels with their last values that are not NaN.

    NaN interrupts a curve; a value between two NaN is a dot; a curve of NaN only is left out. All have the same length.
    """
    labels = []
    for name, values in curves.items():
        known = np.pad(np.isfinite(values), 1)
        if known.any():
            alone = known[1:-1] & ~known[:-2] & ~known[2:]
            axes.plot(generations, values, color=colours[name], linewidth=line_width(len(generations)))
            axes.plot(generations[alone], values[alone], "o", color=colours[name], markersize=4)
            last = float(values[known[1:-1]][-1])
            labels.append(EndLabel(last, f"{name} {number(last)} {unit}".strip(), colours[name]))
    generation_axis(axes, int(generations[0]), int(generations[-1]))
    return labels


def value_axis(axes: Axes, quantity: str, *remarks: str) -> None:
    """Write quantity and remarks (unit, scale) above the axes, and draw a grid. The limits of y must be set before."""
    axes.set_title(quantity)
    axes.set_title(", ".join(remark for remark in remarks if remark), loc="right", color=MUTED, fontsize=8.5)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.grid(axis="y")


def label_ends(axes: Axes, labels: Sequence[EndLabel], *, size: float = 9.0) -> None:
    """Write labels right of the axes at their heights, moved until none overlap. The limits of y must be set before."""
    # Matplotlib chooses the limits when it is asked for them.
    axes.get_ylim()
    height = axes.get_window_extent().height / axes.figure.dpi * 72.0
    gap = 1.25 * size / height
    to_axes = axes.transData + axes.transAxes.inverted()
    ordered = sorted(labels, key=lambda label: label.y)
    heights = [float(to_axes.transform((0.0, label.y))[1]) for label in ordered]
    for label, y in zip(ordered, spread_heights(heights, gap), strict=True):
        colour = label_colour(label.colour)
        axes.text(1.012, y, label.text, color=colour, fontsize=size, va="center", transform=axes.transAxes)


def spread_heights(heights: Sequence[float], gap: float) -> list[float]:
    """Return ascending `heights`, fractions of the axes' height, moved a little until neighbours are `gap` apart."""
    moved: list[float] = []
    for height in heights:
        lowest = moved[-1] + gap if moved else gap / 2
        moved.append(max(height, lowest))
    highest = 1.0 - gap / 2
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], highest)
        highest = moved[index] - gap
    return moved


def footnote(figure: Figure, text: str) -> None:
    figure.text(0.985, 0.018, text, color=MUTED, fontsize=8.0, ha="right")


# Values beyond this multiple of the readable part would flatten it on a linear axis.
_FLATTENING = 2.5
# On each side of zero, the linear part of the axis is as long as this number of decades.
_LINEAR_DECADES = 3.0
_MOST_DECADES = 4
# Possible ends of the linear part, times a power of ten: a quarter of each is a round number too.
_EDGES = (1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0)
_FACTOR_FOR_LOGARITHM = 8.0


def scale_losses(axes: Axes, values: Values) -> str:
    """Choose a scale of y on which the newer half of the generations is readable; return its name, empty if linear.

    `values`: all that is drawn in `axes`, float64 `[curves, generations]`, without NaN, one value or more.
    """
    if not values.size:
        return ""
    if values.min() <= 0.0:
        return compress_outliers(axes, values, values)
    if values.max() <= _FACTOR_FOR_LOGARITHM * values.min():
        return ""
    axes.set_yscale("log")
    axes.autoscale_view()
    many = values.max() > 100.0 * values.min()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if many else (1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    return "logarithmic"


def compress_outliers(axes: Axes, core: ArrayLike, everything: ArrayLike) -> str:
    """Make y logarithmic for outliers that would flatten the rest; return a description of the scale, empty if linear.

    Up to the magnitude below which 95 % of `core`, `[curves, generations]`, lie in the newer half of the generations, y
    stays linear. `everything` are all values that are drawn, of any shape.
    """
    values, furthest = np.asarray(core, dtype=np.float64), float(np.abs(everything).max())
    reach = float(np.quantile(np.abs(values[:, values.shape[1] // 2 :]), 0.95))
    edge = _round_up(max(reach, furthest / 10**_MOST_DECADES, float(np.finfo(np.float64).tiny)))
    if furthest <= _FLATTENING * edge:
        return ""
    axes.set_yscale("symlog", linthresh=edge, linscale=_LINEAR_DECADES)
    axes.autoscale_view()
    decades = 10.0 ** np.arange(1, _MOST_DECADES + 1)
    ticks = np.concatenate([-decades[::-1], np.linspace(-1.0, 1.0, 9), decades])
    axes.yaxis.set_major_locator(FixedLocator((edge * ticks).tolist()))
    axes.yaxis.set_minor_locator(NullLocator())
    for side in (-edge, edge):
        if np.max(np.sign(side) * np.asarray(everything)) > edge:
            axes.axhline(side, color=MUTED, linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
    return f"logarithmic beyond ±{number(edge)}"


def _round_up(value: float) -> float:
    """Return the smallest of `_EDGES`, times a power of ten, that is not below `value`, which is positive."""
    magnitude = 10.0 ** np.floor(np.log10(value))
    return float(magnitude * next((edge for edge in _EDGES if value <= edge * magnitude), 10.0))
