"""Axes that a few extreme values cannot flatten."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator
from numpy.typing import ArrayLike

from eigen_core.common.text import number
from eigen_core.reporting.style import MUTED, Values

# Values beyond this many times the part to be read would flatten it on a linear axis.
_FLATTENING = 2.5
# The linear part takes as much of the axis, on each side of zero, as so many decades beyond it.
_LINEAR_DECADES = 3.0
_MOST_DECADES = 4
# Where the linear part may end, times a power of ten: a quarter of each is a round number too.
_EDGES = (1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0)
_FACTOR_FOR_LOGARITHM = 8.0
_OUTLIER = 4.0


def scale_losses(axes: Axes, values: Values) -> str:
    """Choose a scale on which the newer half of the values can be read, and return the words that name it.

    Args:
        axes: with the values drawn.
        values: `[curves, generations]`, without NaN.
    """
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
    """Make y logarithmic beyond the values that matter, where others would flatten them; return the words that say so.

    In the reach of 95 % of the newer half of `core` around zero, y stays linear.

    Args:
        axes: with the values drawn.
        core: the values that matter, `[curves, generations]`.
        everything: all values that are drawn, any shape.
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
    """Return the first end of a linear part that is not below `value`, which is positive."""
    magnitude = 10.0 ** np.floor(np.log10(value))
    return float(magnitude * next((edge for edge in _EDGES if value <= edge * magnitude), 10.0))


def clip_top(axes: Axes, x: Values, y: Values, unit: str) -> None:
    """Start y at 0 and end it where outliers do not flatten the rest; mark the largest above it with their numbers."""
    limit = _OUTLIER * float(np.median(y))
    shown = y[y <= limit] if limit > 0 else y
    top = 1.12 * float(shown.max(initial=0.0)) or 1.0
    axes.set_ylim(0.0, top)
    above = np.flatnonzero(y > top)
    for index in above[np.argsort(-y[above])][:3]:
        axes.annotate(
            f"▲ {number(float(y[index]))} {unit}",
            xy=(float(x[index]), 1.0),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="top",
            fontsize=8,
            bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"},
            annotation_clip=False,
        )
