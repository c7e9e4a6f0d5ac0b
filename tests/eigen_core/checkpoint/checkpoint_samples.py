"""Small snapshots and runs for the tests of this folder."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from pydantic import JsonValue

from eigen_core.checkpoint import RunDirectory, Snapshot
from eigen_core.randomness import keyed_generator

CONFIG: dict[str, JsonValue] = {"seed": 7, "generations": 25, "learner": {"batch_size": 64}}


def new_run(store: Path, name: str = "run") -> RunDirectory:
    return RunDirectory.create(str(store), name, CONFIG)


def sample(generation: int, seconds: float = 0.0, size: int = 50) -> Snapshot:
    """Return the snapshot of a generation; always the same one, but for its telemetry."""
    values = keyed_generator(1, generation).standard_normal((4, size)).astype(np.float32)
    weights = torch.from_numpy(values)
    replay = {
        "action": weights.to(torch.float16),
        "day": torch.arange(size, dtype=torch.int32) + generation,
        "terminal": weights[0] > 0,
    }
    return Snapshot(
        generation=generation,
        tensors={"population": {"weights": weights, "step": torch.tensor(generation)}, "replay": replay},
        documents={
            "state": {"noise_scale": 0.1 / max(generation, 1), "champion": None},
            "history": [{"generation": number, "best_fitness": number / 3} for number in range(1, generation + 1)],
            "telemetry": [{"seconds": seconds}],
        },
        champion_generation=max(1, generation // 2),
    )


def assert_same(one: Snapshot, other: Snapshot) -> None:
    assert one.generation == other.generation
    assert one.champion_generation == other.champion_generation
    assert one.documents == other.documents
    assert one.tensors.keys() == other.tensors.keys()
    for stem, tensors in one.tensors.items():
        assert tensors.keys() == other.tensors[stem].keys()
        for name, tensor in tensors.items():
            twin = other.tensors[stem][name]
            assert tensor.dtype == twin.dtype
            assert torch.equal(tensor, twin)


def seconds_of(snapshot: Snapshot) -> float:
    """Return the time in the telemetry of a sample (seconds)."""
    match snapshot.documents["telemetry"]:
        case [{"seconds": float(seconds)}]:
            return seconds
    raise AssertionError(f"the telemetry is {snapshot.documents['telemetry']}")


def in_fork(work: Callable[[], None]) -> int:
    """Run `work` in a forked process and return that process's number; it exits with 0, or with 1 if `work` raised."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def exit_code(child: int) -> int:
    """Wait for a process and return its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def work_in_progress(run: RunDirectory) -> list[str]:
    return [name for name in os.listdir(run.path) if name.startswith(".")]
