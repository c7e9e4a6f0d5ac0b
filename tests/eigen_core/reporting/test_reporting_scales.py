"""Axes and labels that stay readable, and numbers as people read them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from eigen_core.common.text import count, duration, number, signed
from eigen_core.reporting.style import EndLabel, clip_top, compress_outliers, label_ends, scale_losses, spread


def _drawn(values: list[float]) -> Axes:
    axes = Figure().add_subplot()
    axes.plot(values)
    return axes


def _heights(axes: Axes, values: ArrayLike) -> NDArray[np.float64]:
    """Heights of values in the axes, 0 at the bottom and 1 at the top."""
    # Matplotlib chooses the limits when they are asked for.
    axes.get_ylim()
    places = [(0.0, value) for value in np.asarray(values, dtype=np.float64)]
    return np.asarray((axes.transData + axes.transAxes.inverted()).transform(places))[:, 1]


@pytest.mark.parametrize("core", [[1.0, 2.0, 3.0], [5.0, 5.0], [0.0]])
def test_calm_values_get_a_linear_axis(core: list[float]) -> None:
    axes = _drawn(core)
    assert compress_outliers(axes, [core], [*core, 1.2 * max(core)]) == scale_losses(axes, np.array([core])) == ""
    assert axes.get_yscale() == "linear"
    clip_top(axes, np.arange(3.0), np.zeros(3), "s")
    assert axes.get_ylim() == (0.0, 1.0)


def test_one_disaster_is_compressed_and_the_recent_values_stay_linear() -> None:
    core = [-10_000.0, -2_000.0, 300.0, 500.0, 700.0, 800.0]
    axes = _drawn(core)
    assert compress_outliers(axes, [core], core) == "logarithmic beyond ±800"
    zero, half, whole, disaster = _heights(axes, [0.0, 400.0, 800.0, -10_000.0])
    assert whole - half == pytest.approx(half - zero)
    assert whole - zero > 0.3
    assert disaster > 0.0


def test_the_limits_belong_to_the_scale_also_if_others_were_known_before() -> None:
    core = [-9_000_000.0, -9_000_000.0, 300.0, 500.0, 700.0, 800.0]
    axes = _drawn(core)
    assert axes.get_ylim()[1] > 400_000.0
    compress_outliers(axes, [core], core)
    assert 800.0 < axes.get_ylim()[1] < 3_000.0


@settings(deadline=None)
@given(
    core=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=12),
    other=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=12),
)
def test_every_axis_shows_all_values_in_order_with_ticks_apart(core: list[float], other: list[float]) -> None:
    axes = _drawn([*core, *other])
    words = compress_outliers(axes, [core], [*core, *other])
    heights = _heights(axes, sorted([*core, *other]))
    assert (np.diff(heights) >= -1e-9).all()
    assert heights[0] >= -1e-6
    assert heights[-1] <= 1.0 + 1e-6
    ticks = _heights(axes, list(axes.get_yticks()))
    ticks = ticks[(ticks >= 0.0) & (ticks <= 1.0)]
    assert len(ticks)
    if words:
        assert (np.diff(ticks) > 0.05).all()


@settings(deadline=None)
@given(st.lists(st.floats(1e-9, 1e12), min_size=2, max_size=12))
def test_a_logarithmic_axis_has_ticks_among_its_values(values: list[float]) -> None:
    if max(values) < 10.0 * min(values):
        values = [*values, 10.0 * max(values)]
    axes = _drawn(values)
    assert scale_losses(axes, np.array([values])) == "logarithmic"
    low, high = axes.get_ylim()
    assert 1 <= sum(low <= tick <= high for tick in axes.get_yticks()) <= 9


def test_one_slow_generation_does_not_flatten_the_others_and_keeps_its_number() -> None:
    axes = Figure().add_subplot()
    seconds = np.array([5.0, 6.0, 4_000.0, 5.5])
    clip_top(axes, np.arange(1.0, 5.0), seconds, "s")
    assert 6.0 < axes.get_ylim()[1] < 30.0
    assert [text.get_text() for text in axes.texts] == ["▲ 4,000 s"]


@given(heights=st.lists(st.floats(-0.5, 1.5), min_size=1, max_size=6), gap=st.floats(0.01, 0.15))
def test_labels_are_apart_in_order_and_inside(heights: list[float], gap: float) -> None:
    moved = spread(sorted(heights), gap)
    assert all(b - a > gap - 1e-9 for a, b in itertools.pairwise(moved))
    assert moved[0] >= gap / 2 - 1e-9
    assert moved[-1] <= 1 - gap / 2 + 1e-9
    assert spread([0.2, 0.5, 0.8], 0.1) == [0.2, 0.5, 0.8]


def test_end_labels_do_not_overlap_in_the_picture() -> None:
    figure = Figure(figsize=(10, 5))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.1, 0.1, 0.6, 0.7))
    axes.set_ylim(0.0, 10.0)
    label_ends(axes, [EndLabel(y, f"line {y}", "black") for y in (5.0, 5.01, 5.02, 0.0, 10.0)])
    boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
    assert all(lower.y1 <= upper.y0 + 0.5 for lower, upper in itertools.pairwise(boxes))


def test_numbers_and_words() -> None:
    values = (0.0, 0.0512, -4.567, 812.4, -10_000.0, 2_500_000.0, -1.2e9, 3e15, 2e-7)
    texts = ["0", "0.0512", "−4.57", "812", "−10,000", "2.5M", "−1,200M", "3.0e+15", "2.0e−07"]
    assert [number(value) for value in values] == texts
    assert (signed(2.0), signed(-2.0), signed(0.0)) == ("+2", "−2", "0")
    assert (count(1, "step"), count(1_200, "step")) == ("1 step", "1,200 steps")
    assert (duration(8.24), duration(59.99), duration(200.0)) == ("8.24 s", "60 s", "3 min 20 s")
    assert duration(5 * 3_600 + 12 * 60 + 31) == "5 h 12 min"
