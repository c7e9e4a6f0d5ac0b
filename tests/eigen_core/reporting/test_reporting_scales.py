"""Axes and labels that stay readable, and numbers as people read them."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from eigen_core.reporting.scales import LinearPart, clip_top, compress_beyond, linear_part, make_logarithmic
from eigen_core.reporting.style import EndLabel, label_ends, spread
from eigen_core.units import count, duration, number, signed

PARTS = st.builds(LinearPart, st.floats(-1e5, 0.0), st.floats(1e-2, 1e5))


@given(part=PARTS, values=st.lists(st.floats(-1e8, 1e8), min_size=2, max_size=20))
def test_the_scale_keeps_the_order_and_can_be_undone(part: LinearPart, values: list[float]) -> None:
    ordered = np.sort(np.asarray(values))
    heights = part.compress(ordered)
    assert (np.diff(heights) >= 0).all()
    np.testing.assert_allclose(part.expand(heights), ordered, rtol=1e-5, atol=1e-5 * part.length)


@given(part=PARTS, share=st.floats(0.0, 1.0))
def test_the_scale_is_the_identity_in_its_linear_part(part: LinearPart, share: float) -> None:
    value = min(part.high, part.low + share * part.length)
    assert part.compress(value) == value


def test_heights_far_outside_stay_finite() -> None:
    assert np.isfinite(LinearPart(-1.0, 1.0).expand([-1e9, 1e9])).all()


def test_calm_values_get_a_linear_axis() -> None:
    assert linear_part([[1.0, 2.0, 3.0]], [0.5, 3.5]) is None
    assert linear_part([[5.0, 5.0]], [5.0, 5.0]) is None
    assert linear_part([[0.0]], [0.0]) is None


def test_one_disaster_is_compressed_and_the_recent_values_stay_linear() -> None:
    core = [[-10_000.0, -2_000.0, 300.0, 500.0, 700.0, 800.0]]
    part = linear_part(core, core)
    assert part is not None
    assert part.low <= 0.0 < 800.0 <= part.high
    assert part.low > -2_000.0


@given(
    core=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=12),
    other=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=12),
)
def test_every_axis_shows_all_values_with_ticks_apart(core: list[float], other: list[float]) -> None:
    everything = np.array([*core, *other])
    part = linear_part([core], everything)
    if part is None:
        return
    axes = Figure().add_subplot()
    compress_beyond(axes, part, everything)
    low, high = axes.get_ylim()
    slack = 1e-6 * np.abs(everything).max()
    assert low <= everything.min() + slack
    assert high >= everything.max() - slack
    shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert shown
    heights = part.compress(shown)
    outside = [(tick < part.low or tick > part.high) for tick in shown]
    room = part.compress([low, high])
    for index in range(1, len(shown)):
        if outside[index] or outside[index - 1]:
            assert heights[index] - heights[index - 1] > 0.05 * (room[1] - room[0])


@given(st.lists(st.floats(1e-9, 1e12), min_size=2, max_size=12))
def test_a_logarithmic_axis_has_ticks_among_its_values(values: list[float]) -> None:
    if max(values) < 10.0 * min(values):
        values = [*values, 10.0 * max(values)]
    axes = Figure().add_subplot()
    axes.plot(values)
    make_logarithmic(axes, np.array(values))
    low, high = axes.get_ylim()
    assert 1 <= sum(low <= tick <= high for tick in axes.get_yticks()) <= 9


def test_one_slow_generation_does_not_flatten_the_others_and_keeps_its_number() -> None:
    axes = Figure().add_subplot()
    seconds = np.array([5.0, 6.0, 4_000.0, 5.5])
    clip_top(axes, np.arange(1.0, 5.0), seconds, "s")
    assert 6.0 < axes.get_ylim()[1] < 30.0
    assert [text.get_text() for text in axes.texts] == ["▲ 4,000 s"]


def test_no_time_at_all_still_has_an_axis() -> None:
    axes = Figure().add_subplot()
    clip_top(axes, np.arange(3.0), np.zeros(3), "s")
    assert axes.get_ylim() == (0.0, 1.0)


@given(heights=st.lists(st.floats(-0.5, 1.5), min_size=1, max_size=6), gap=st.floats(0.01, 0.15))
def test_labels_are_apart_in_order_and_inside(heights: list[float], gap: float) -> None:
    moved = spread(sorted(heights), gap)
    assert all(b - a > gap - 1e-9 for a, b in itertools.pairwise(moved))
    assert moved[0] >= gap / 2 - 1e-9
    assert moved[-1] <= 1 - gap / 2 + 1e-9


def test_labels_that_fit_stay_where_they_are() -> None:
    assert spread([0.2, 0.5, 0.8], 0.1) == [0.2, 0.5, 0.8]


def test_end_labels_do_not_overlap_in_the_picture() -> None:
    figure = Figure(figsize=(10, 5))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.1, 0.1, 0.6, 0.7))
    axes.set_ylim(0.0, 10.0)
    label_ends(axes, [EndLabel(y, f"line {y}", "black") for y in (5.0, 5.01, 5.02, 0.0, 10.0)])
    boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
    assert all(lower.y1 <= upper.y0 + 0.5 for lower, upper in itertools.pairwise(boxes))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.0512, "0.0512"),
        (-4.567, "−4.57"),
        (812.4, "812"),
        (-10_000.0, "−10,000"),
        (2_500_000.0, "2.5M"),
        (-1.2e9, "−1,200M"),
        (3e15, "3.0e+15"),
        (2e-7, "2.0e−07"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_words() -> None:
    assert (signed(2.0), signed(-2.0), signed(0.0)) == ("+2", "−2", "0")
    assert (count(1, "step"), count(1_200, "step")) == ("1 step", "1,200 steps")
    assert (duration(8.24), duration(59.99), duration(200.0)) == ("8.24 s", "60 s", "3 min 20 s")
    assert duration(5 * 3_600 + 12 * 60 + 31) == "5 h 12 min"
