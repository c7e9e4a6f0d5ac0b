"""Axes that a few extreme values cannot flatten."""

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from numpy.typing import ArrayLike

from eigen_core.reporting.style import MUTED, Values
from eigen_core.units import number

# Values that span more than this many times the part to be read would flatten it on a linear axis.
_FLATTENING = 2.5
# Beyond the linear part, a factor of e takes this share of its length.
_COMPRESSION = 0.1
# Ticks nearer than this share of the axis would touch.
_TICK_GAP = 0.055
# The linear part is never shorter than this share of all values.
_SHORTEST = 1e-6
_DECADES_WITH_FINE_TICKS = 2.0
_OUTLIER = 4.0


class LinearPart(NamedTuple):
    """The values between which an axis is linear; beyond them it is logarithmic."""

    low: float
    high: float

    @property
    def length(self) -> float:
        """Distance from end to end, positive."""
        return self.high - self.low

    def compress(self, values: ArrayLike) -> Values:
        """Map values to heights on the axis; the slope is 1 inside and falls steadily outside."""
        y = np.asarray(values, dtype=np.float64)
        scale = _COMPRESSION * self.length
        beyond = np.maximum(self.low - y, 0.0) + np.maximum(y - self.high, 0.0)
        return np.clip(y, self.low, self.high) + np.sign(y - self.low) * scale * np.log1p(beyond / scale)

    def expand(self, heights: ArrayLike) -> Values:
        """Invert `compress`."""
        height = np.asarray(heights, dtype=np.float64)
        scale = _COMPRESSION * self.length
        beyond = np.maximum(self.low - height, 0.0) + np.maximum(height - self.high, 0.0)
        # Matplotlib also asks for heights far outside of the axis.
        growth = scale * np.expm1(np.minimum(beyond / scale, 600.0))
        return np.clip(height, self.low, self.high) + np.sign(height - self.low) * growth


def linear_part(core: ArrayLike, everything: ArrayLike) -> LinearPart | None:
    """Choose the part of an axis that must be linear, or None if all of it can be.

    Nine in ten values of the newer half of `core` lie in it, and zero; older ones extend it to at most three times
    that length.

    Args:
        core: the values that matter, `[series, generations]`.
        everything: all values that are drawn, any shape.
    """
    values, drawn = np.asarray(core, dtype=np.float64), np.asarray(everything, dtype=np.float64)
    span = float(np.ptp(drawn))
    low, high = np.quantile(values[:, values.shape[1] // 2 :], (0.05, 0.95))
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    length = high - low
    low, high = min(low, max(float(values.min()), low - length)), max(high, min(float(values.max()), high + length))
    step = _round_up(max(high - low, _SHORTEST * span, np.finfo(np.float64).tiny)) / 10.0
    part = LinearPart(step * np.floor(low / step), step * max(np.ceil(high / step), np.floor(low / step) + 1.0))
    return part if span > _FLATTENING * part.length else None


def _round_up(value: float) -> float:
    """Return the next of ..., 1, 2, 5, 10, 20, ... that is not below `value`, which is positive."""
    magnitude = 10.0 ** np.floor(np.log10(value))
    return float(magnitude * next((step for step in (1.0, 2.0, 5.0) if value <= step * magnitude), 10.0))


def compress_beyond(axes: Axes, part: LinearPart, values: ArrayLike) -> str:
    """Make y linear in `part` and logarithmic beyond, with room for `values`; return the words that say so."""
    axes.set_yscale("function", functions=(part.compress, part.expand))
    heights = part.compress(values)
    margin = 0.04 * float(np.ptp(heights))
    bottom, top = float(heights.min()) - margin, float(heights.max()) + margin
    axes.set_ylim(*part.expand([bottom, top]))
    axes.yaxis.set_major_locator(FixedLocator(_ticks(part, bottom, top).tolist()))
    axes.yaxis.set_minor_locator(NullLocator())
    words = []
    for edge, side, reached in (
        (part.low, "below", float(np.min(values)) < part.low),
        (part.high, "above", float(np.max(values)) > part.high),
    ):
        if reached:
            axes.axhline(edge, color=MUTED, linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
            words.append(f"{side} {number(edge)}")
    return f"logarithmic {' and '.join(words)}"


def _ticks(part: LinearPart, bottom: float, top: float) -> Values:
    """Even ticks in the linear part and powers of ten beyond it, where they have room; `bottom`, `top`: heights."""
    even = np.asarray(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(part.low, part.high))
    even = even[(even >= part.low) & (even <= part.high)]
    powers = 10.0 ** np.arange(np.floor(np.log10(part.length)), np.log10(_largest(part, bottom, top)) + 1)
    kept = list(even)
    for tick in np.concatenate([powers, -powers]):
        height = float(part.compress(tick))
        outside = tick < part.low or tick > part.high
        room = np.min(np.abs(part.compress(kept) - height)) > _TICK_GAP * (top - bottom)
        if outside and room and bottom <= height <= top:
            kept.append(float(tick))
    return np.sort(np.asarray(kept, dtype=np.float64))


def _largest(part: LinearPart, bottom: float, top: float) -> float:
    return float(np.abs(part.expand([bottom, top])).max())


def make_logarithmic(axes: Axes, values: Values) -> str:
    """Make y logarithmic, with ticks for `values`, which are positive; return the word that says so."""
    axes.set_yscale("log")
    lowest, highest = float(np.log10(values.min())), float(np.log10(values.max()))
    decades = np.arange(np.floor(lowest), np.ceil(highest) + 1)
    if highest - lowest > _DECADES_WITH_FINE_TICKS:
        ticks = 10.0 ** decades[:: int(np.ceil(len(decades) / 7))]
    else:
        ticks = np.outer(10.0**decades, (1.0, 2.0, 5.0)).ravel()
    axes.yaxis.set_major_locator(FixedLocator(ticks.tolist()))
    axes.yaxis.set_minor_locator(NullLocator())
    return "logarithmic"


def clip_top(axes: Axes, x: Values, y: Values, unit: str) -> None:
    """Start y at 0 and end it where outliers do not flatten the rest; mark each value above it with its number."""
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
