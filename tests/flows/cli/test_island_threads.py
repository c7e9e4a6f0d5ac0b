"""Islands whose worker is lost: those that wait for each other are stopped, those that have a thread each are not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest
from typer.testing import CliRunner

from flows.cli.app import app
from flows.cli.islands import EnoughThreads
from flows.cli.whole_runs import RunEnd, RunningRun, WholeRun, train_all, whole_run

FOUND = "worker threads are left, and 3 islands wait for each other."


class LookedAt:
    """A run that ends at the given look at it."""

    def __init__(self, looks: float) -> None:
        self._left = looks

    def poll(self) -> RunEnd | None:
        self._left -= 1
        return RunEnd(0, "") if self._left <= 0 else None

    def stop(self) -> None:
        raise AssertionError


class Workers:
    """Workers that have so many threads, look after look, and then as many as last; implements `WholeRuns`."""

    def __init__(self, threads: list[int], looks: list[float]) -> None:
        self._threads, self._looks = threads, looks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @property
    def most_at_a_time(self) -> int:
        return self._threads.pop(0) if len(self._threads) > 1 else self._threads[0]

    def start(self, run: WholeRun, log: Path) -> RunningRun:
        assert log.name == f"{run.name}.log"
        return LookedAt(self._looks.pop(0))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.cli.whole_runs.POLL_SECONDS", 0.01)
    monkeypatch.setattr("flows.cli.islands._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("flows.cli.islands._SHORT_SECONDS", 0.3)


def test_islands_that_wait_for_a_lost_worker_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flows.cli.training.is_finished", lambda *_: False)

    @contextmanager
    def lost(*_: object) -> Iterator[Workers]:
        with Workers([3, 3, 2], [1_000.0] * 3) as workers:
            yield workers

    monkeypatch.setattr("flows.cli.islands.whole_runs", lost)
    ended = CliRunner().invoke(app, ["islands", "far", "--islands", "3", "--runs-on", "tcp://host:1"])
    assert ended.exit_code == 1
    printed = " ".join(ended.output.split())
    assert printed.count(f"Workers were lost: 2 {FOUND} Start more workers within") == 1
    assert printed.endswith(f"Workers were lost: 2 {FOUND} Start more workers. The same command goes on.")


@pytest.mark.parametrize(
    ("threads", "looks", "said"),
    [
        pytest.param([4, 3], [80.0] * 3, 0, id="one too many was lost"),
        pytest.param([3, 2], [1.0, 80.0, 80.0], 0, id="one is finished"),
        pytest.param([3, 2, 2, *[3] * 60, 2, 3], [80.0] * 3, 2, id="it comes back each time"),
    ],
)
def test_islands_that_have_a_thread_each_go_on(
    threads: list[int], looks: list[float], said: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [whole_run(f"island-{number}", None, []) for number in range(3)]
    finished = iter([False] * 3 + [True] * 3)
    monkeypatch.setattr("flows.cli.training.is_finished", lambda *_: next(finished))
    lines: list[str] = []
    workers = Workers(threads, looks)
    train_all(runs, workers, 3, tmp_path, lines.append, EnoughThreads(workers, lines.append))
    assert sum(FOUND in line for line in lines) == said
    assert sum("is finished" in line for line in lines) == 3
