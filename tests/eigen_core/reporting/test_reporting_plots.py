"""Figures: whole PNG files for every kind of history."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from matplotlib.colors import to_rgb
from PIL import Image
from synthetic_run import make_run

from eigen_core.common.records import Curve, GenerationRecord, Telemetry
from eigen_core.learning.ddpg import DdpgLearner
from eigen_core.reporting import style
from eigen_core.reporting.plots import plot_diversity, plot_fitness, plot_learning, plot_resources, write_plots

NAMES = ["fitness.png", "learning.png", "resources.png", "diversity.png"]
Run = tuple[Sequence[GenerationRecord], Sequence[Telemetry]]


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _all_zero() -> Run:
    history, telemetry = make_run(6, 4)
    same: dict[str, Any] = {"fitness": (0.0,) * 4, "validations": (0.0,) * 4}
    same |= dict.fromkeys(("best_fitness", "mean_fitness", "validation", "champion_score"), 0.0)
    nothing: dict[str, Any] = {"rss_bytes": 0, "rss_peak_bytes": 0, "phases": (), "checkpoint_seconds": None}
    nothing |= dict.fromkeys(("evaluate_seconds", "train_seconds", "evolve_seconds"), 0.0)
    return [one.model_copy(update=same) for one in history], [one.model_copy(update=nothing) for one in telemetry]


def _gaps() -> Run:
    """Learning in every second generation, two known ancestors in the newest only, telemetry with holes, never bred."""
    history, telemetry = make_run(9, 4, first_learning=1, capacity=100)
    gap = {"learning": None, "descent": ()}
    history = [one.model_copy(update=gap) if one.generation % 2 else one for one in history]
    history[-1] = history[-1].model_copy(update={"ancestors": (2, 2, 0, 0), "policy_distance": 0.5})
    return history, telemetry[2:7:2]


def _late() -> Run:
    """Learning in the last generation, an old champion, a slow generation, a GPU."""
    history, telemetry = make_run(40, 8, first_learning=40)
    phases = tuple(one.model_copy(update={"device_reserved_peak": 7_000_000}) for one in telemetry[4].phases)
    telemetry[4] = telemetry[4].model_copy(update={"train_seconds": 4_000.0, "phases": phases})
    return [one.model_copy(update={"champion_generation": 2, "champion_agent": 5}) for one in history], telemetry


CASES: dict[str, Callable[[], Run]] = {
    "25 generations of 16 agents": make_run,
    "300 generations of 64 agents": lambda: make_run(300, 64),
    "one generation": lambda: make_run(1),
    "two agents, nothing learned, no telemetry": lambda: (make_run(12, 2, first_learning=99)[0], []),
    "no generation": lambda: ([], []),
    "gaps": _gaps,
    "late learning": _late,
    "all zero": _all_zero,
    "huge losses": lambda: make_run(8, start=-3e6, loss=9e4),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case == "gaps" else pytest.mark.thorough) for case in CASES]
)
def test_every_history_gives_whole_pictures_of_plausible_size(case: str, tmp_path: Path) -> None:
    history, telemetry = CASES[case]()
    paths = write_plots(history, telemetry, tmp_path / "plots", DdpgLearner.curves)
    assert [path.name for path in paths] == NAMES
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(NAMES)
    for path in paths:
        assert 2_000 < path.stat().st_size < 150_000
        with Image.open(path) as picture:
            picture.load()
            assert picture.format == "PNG"
            assert picture.size == (1440, 720)


@settings(max_examples=8, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.floats(-1e12, 1e12, allow_subnormal=False), min_size=3, max_size=3), min_size=1, max_size=6
    )
)
def test_any_finite_fitness_can_be_drawn(rows: list[list[float]], tmp_path_factory: pytest.TempPathFactory) -> None:
    history, _ = make_run(len(rows), 3)
    for place, (low, middle, high) in enumerate(rows):
        scalars = {"best_fitness": high, "mean_fitness": middle, "validation": low, "champion_score": middle}
        history[place] = history[place].model_copy(update={"fitness": (low, middle, high), **scalars})
    path = plot_fitness(history, tmp_path_factory.mktemp("drawn") / "fitness.png")
    assert path.stat().st_size > 2_000


def _share(path: Path, colour: str) -> float:
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"), dtype=np.float64)
    return float((np.abs(pixels - 255 * np.array(to_rgb(colour))).max(axis=-1) < 12).mean())


def test_the_score_of_the_ridge_regression_is_a_line_if_agents_began_with_one(tmp_path: Path) -> None:
    history, _ = make_run(24, 4, first_learning=1)
    grey = _share(plot_fitness(history, tmp_path / "network.png"), style.MUTED)
    began = history[0].model_copy(update={"learning": {"gradient_steps": 1.0, "gate": 0.0}})
    assert _share(plot_fitness([began, *history[1:]], tmp_path / "ridge.png"), style.MUTED) > 1.05 * grey


def test_a_line_is_broken_where_nothing_was_learned(tmp_path: Path) -> None:
    history, _ = make_run(24, 4, first_learning=1)
    whole = _share(plot_learning(history, tmp_path / "whole.png", DdpgLearner.curves), style.BLUE)
    halves = [r.model_copy(update={"learning": None}) if 7 <= r.generation <= 18 else r for r in history]
    broken = _share(plot_learning(halves, tmp_path / "broken.png", DdpgLearner.curves), style.BLUE)
    assert 0.0 < broken < 0.8 * whole


def test_one_slow_generation_does_not_flatten_the_others(tmp_path: Path) -> None:
    telemetry = make_run(12, 4)[1]
    shown = _share(plot_resources(telemetry, tmp_path / "usual.png"), style.PHASE_COLOURS["train"])
    telemetry[4] = telemetry[4].model_copy(update={"train_seconds": 400.0 * telemetry[4].seconds})
    slow = _share(plot_resources(telemetry, tmp_path / "slow.png"), style.PHASE_COLOURS["train"])
    assert slow > 0.25 * shown


def test_a_statistic_that_no_generation_has_recorded_is_an_empty_plot(tmp_path: Path) -> None:
    """As in a run that was trained before the statistic existed."""
    history, _ = make_run(4, 4, first_learning=1)
    assert plot_learning(history, tmp_path / "one.png", (*DdpgLearner.curves, Curve("later", "A new one."))).exists()


def test_the_same_history_gives_the_same_bytes_in_threads_and_with_any_settings_of_the_user(tmp_path: Path) -> None:
    history, _ = make_run(4, 4)
    drawings = [plot_fitness, plot_diversity] * 3
    expected = [draw(history, tmp_path / "alone.png").read_bytes() for draw in drawings[:2]] * 3
    with matplotlib.rc_context({"figure.facecolor": "red", "font.size": 30.0, "text.usetex": True, "savefig.dpi": 10}):
        before = dict(matplotlib.rcParams)
        with ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(draw, history, tmp_path / f"{place}.png") for place, draw in enumerate(drawings)]
        assert [job.result().read_bytes() for job in jobs] == expected
        assert dict(matplotlib.rcParams) == before
