"""Which workers a run starts on its own machine, and on which of its GPUs."""

from types import SimpleNamespace

import pytest
import torch
from science_cases import small_config

import eigen_core.workers
from eigen_core.run import local_workers


@pytest.mark.parametrize(
    ("device", "gpus", "workers", "started"),
    [
        ("cpu", 3, 2, (2, ())),
        ("cpu", 3, 0, None),
        # The process that leads computes on the first.
        ("cuda", 3, 2, (2, ("1", "2", "0"))),
        ("cuda", 3, "auto", (3, ("1", "2", "0"))),
        ("cuda", 1, 2, (2, ("0",))),
        ("cuda", 1, "auto", None),
    ],
)
def test_workers_are_given_the_gpus_where_the_run_computes_on_one(
    device: str,
    gpus: int,
    workers: int | str,
    started: tuple[int, tuple[str, ...]] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[tuple[int, tuple[str, ...]]]()

    class Started:
        def __init__(self, count: int, gpus: tuple[str, ...]) -> None:
            made.append((count, gpus))

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr("eigen_core.run.resolve_device", lambda _: SimpleNamespace(type=device))
    monkeypatch.setattr(eigen_core.workers, "LocalWorkers", Started)
    with local_workers(small_config(workers=workers)):
        pass
    assert made == ([] if started is None else [started])
