"""A curve stays small, whatever is added, and forgets no peak."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigen_core.machine.usage import Curve, Point


@given(
    st.integers(2, 9),
    st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 1_000)), max_size=200),
)
def test_it_is_bounded_and_keeps_peaks_order_and_beginning(capacity: int, values: list[tuple[int, int]]) -> None:
    points = [Point(float(second), host, device) for second, (host, device) in enumerate(values)]
    curve = Curve(capacity)
    for point in points:
        curve.add(point)
    assert len(curve.course) <= capacity
    assert curve.recent == tuple(points[-capacity:])
    assert [point.seconds for point in curve.course] == sorted({point.seconds for point in curve.course})
    if not points:
        assert not curve.course
        return
    assert curve.course[0].seconds == 0.0
    assert max(point.device for point in curve.course) == max(point.device for point in points)
    # Each stretch has the peak of exactly the points that fall into it.
    ends = [*(point.seconds for point in curve.course[1:]), float("inf")]
    for stretch, end in zip(curve.course, ends, strict=True):
        inside = [point for point in points if stretch.seconds <= point.seconds < end]
        assert stretch.host == max(point.host for point in inside)


def test_a_curve_of_one_point_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        Curve(1)
