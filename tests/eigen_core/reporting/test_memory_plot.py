"""The memory curve is a whole picture for every report, with lines where they can be seen."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from memory_cases import MB, bare_report
from PIL import Image

from eigen_core.machine import MemoryReport, PhaseUsage, Usage
from eigen_core.machine.limits import Pressure
from eigen_core.machine.memory_report import Part
from eigen_core.machine.usage import Curve, Point
from eigen_core.reporting.plots import plot_memory_curve


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _report(samples: int = 500, *, limit: int = 1_000 * MB, device: int = 0, seconds: float = 0.2) -> MemoryReport:
    curve = Curve(256)
    for index in range(samples):
        curve.add(Point(index * seconds, (300 + index % 90) * MB, device))
    phases = tuple(
        PhaseUsage(name, generation, began + later, began + later + 10.0, 300 * MB, 390 * MB, 310 * MB)
        for generation, began in enumerate(range(0, 100, 30), start=1)
        for name, later in (("evaluate", 0.0), ("train", 10.0), ("something else", 20.0))
    )
    return replace(
        bare_report(),
        usage=Usage(390 * MB, 0, ()),
        parts=(
            Part("a part with a rather long name in a module of its own, and more words than fit", 200 * MB, 0, ""),
        ),
        limits=(Pressure(limit, "control group /x, memory.max", 390 * MB, int(0.85 * limit), int(0.93 * limit)),),
        phases=phases,
        course=tuple(curve.course),
        recent=tuple(curve.recent),
    )


ZEROS = (Point(0.0, 0, 0), Point(1.0, 0, 0))
CASES = {
    "a run": _report(),
    "one sample": _report(1),
    "two samples at once": _report(2, seconds=0.0),
    "never looked": _report(0),
    "a limit far away": _report(limit=10**12),
    "above the limit": _report(limit=100 * MB),
    "hours, with a device": _report(2_000, seconds=60.0, device=700 * MB),
    "nothing taken": replace(_report(0), course=ZEROS, recent=ZEROS),
    "no limit, no phases": replace(_report(), limits=(), phases=()),
}


@pytest.mark.parametrize("case", CASES)
def test_every_report_gives_a_whole_picture(case: str, tmp_path: Path) -> None:
    path = plot_memory_curve(CASES[case], tmp_path / "memory" / "memory.png")
    with Image.open(path) as image:
        image.load()
        assert image.size == (1440, 720)
    assert [file.name for file in path.parent.iterdir()] == ["memory.png"]


def _texts(report: MemoryReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    save = Figure.savefig

    def remember(figure: Figure, *args: object, **settings: object) -> None:
        texts.extend(text.get_text() for text in figure.texts)
        texts.extend(text.get_text() for axes in figure.axes for text in axes.texts)
        save(figure, *args, **settings)  # type: ignore[arg-type] # handed through

    monkeypatch.setattr(Figure, "savefig", remember)
    plot_memory_curve(report, tmp_path / "memory.png")
    return texts


def test_a_limit_is_labelled_where_it_can_be_seen_and_named_where_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = _texts(_report(), tmp_path, monkeypatch)
    assert {"limit", "hard line", "soft line", "processes 349 MB"} <= set(near)
    assert "Limit: 1,000 MB, control group /x, memory.max. Watched for 1 min 40 s." in near
    far = _texts(_report(limit=10**12), tmp_path, monkeypatch)
    assert "limit" not in far
    assert any(text.startswith("Limit: 1M MB") for text in far)


def test_phases_are_named_and_the_story_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = _texts(_report(), tmp_path, monkeypatch)
    assert {"train 3", "evaluate 3", "something else 3"} <= set(texts)
    story = next(text for text in texts if text.startswith("390 MB are taken."))
    assert len(story) <= 120
    assert story.endswith("…")
