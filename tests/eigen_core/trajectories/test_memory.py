"""A buffer is allocated once and grows when asked to; what is copied, or kept in files, takes pieces of memory."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from live_tensors import LiveTensors
from torch import Tensor

from eigen_core.errors import InputError
from eigen_core.memory import peak_resident_bytes, reset_peak
from eigen_core.memory.process import own_resident_bytes
from eigen_core.randomness import keyed_generator
from eigen_core.replay import Column
from eigen_core.trajectories import Filled, Trajectory, TrajectoryBuffer
from eigen_core.trajectories.staging import HostToDevice

CPU = torch.device("cpu")
COLUMNS = {
    "observation": Column(torch.float32, (1_000,)),
    "reward": Column(torch.float32),
    "terminal": Column(torch.bool),
}


def trajectory_of(length: int, fill: float = 1.0) -> dict[str, Tensor]:
    return {
        "observation": torch.full((length, 1_000), fill),
        "reward": torch.full((length,), fill),
        "terminal": torch.arange(length) == length - 1,
    }


def test_a_buffer_grows_to_what_is_asked_for_and_drops_what_it_held() -> None:
    buffer = TrajectoryBuffer(8, 2, 2, COLUMNS, CPU)
    buffer.update([trajectory_of(8)] * 4)
    assert not buffer.grow(8, 1)
    assert buffer.lengths.tolist() == [8] * 4
    assert buffer.grow(9, 1)
    assert (buffer.steps, buffer.agents, buffer.trajectories, buffer.capacity) == (9, 2, 2, 36)
    assert buffer.lengths.tolist() == [0] * 4
    assert buffer.grow(3, 3)
    assert buffer.capacity == 54
    assert buffer.update([trajectory_of(9)] * 6).steps == 54


def test_old_memory_is_released_before_new_is_taken() -> None:
    buffer = TrajectoryBuffer(4_000, 1, 4, COLUMNS, CPU)
    buffer.update([trajectory_of(4_000)] * 4)
    before = own_resident_bytes()
    with pytest.raises(MemoryError):
        buffer.grow(1 << 50, 4)
    assert own_resident_bytes() < before - 0.9 * 4 * 4_000 * 4_000
    assert buffer.capacity == 0
    with pytest.raises(ValueError, match="1 trajectories were given, not 1 to 0"):
        buffer.update([trajectory_of(1)])
    assert buffer.grow(5, 1)
    assert buffer.update([trajectory_of(5)]) == Filled(5, 1.0)


@pytest.mark.cpu
def test_a_round_allocates_nothing_that_grows_with_the_trajectories() -> None:
    buffer = TrajectoryBuffer(150, 2, 2, COLUMNS, CPU)
    trajectories = [trajectory_of(length) for length in (150, 140, 100, 1)]
    row = {name: rows[:1].expand(4, *rows.shape[1:]) for name, rows in trajectories[0].items()}

    def fill() -> None:
        buffer.write(0, row)
        buffer.update(trajectories)
        buffer.estimate_advantages(0.99, 0.95)
        buffer.normalise_advantages()

    fill()
    with LiveTensors() as tensors:
        assert tensors.peak_of(fill) < 100
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        fill()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Counts, names and views; the observations are 2.4 MB.
    assert peak - before < 100_000
    assert after - before < 10_000


def pieces_of(trajectory: Trajectory, sizes: list[int]) -> Iterator[Trajectory]:
    start = 0
    for size in sizes:
        yield {name: rows[start : start + size] for name, rows in trajectory.items()}
        start += size
    yield {name: rows[start:] for name, rows in trajectory.items()}


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 5), max_size=3), st.booleans())
def test_a_trajectory_in_pieces_is_stored_as_a_whole_one(sizes: list[int], mapped: bool) -> None:
    whole = TrajectoryBuffer(20, 1, 2, COLUMNS, CPU, ["observation"])
    generator = keyed_generator(1, *sizes)
    trajectories = []
    for length in (20, 17):
        trajectory = trajectory_of(length)
        trajectory["observation"] = torch.tensor(generator.standard_normal((length + 1, 1_000), dtype=np.float32))
        trajectories.append(trajectory)
    expected = whole.update(trajectories)
    streamed = TrajectoryBuffer(20, 1, 2, COLUMNS, CPU, ["observation"], folder=Path(gettempdir()) if mapped else None)
    assert streamed.stream(pieces_of(trajectory, sizes) for trajectory in trajectories) == expected
    assert streamed.lengths.tolist() == whole.lengths.tolist()
    for name in COLUMNS:
        assert torch.equal(streamed.column(name), whole.column(name))
    slots = torch.tensor([3, 0, 33])
    for name, rows in streamed.pick(slots).items():
        assert torch.equal(rows, whole.pick(slots)[name])


@pytest.mark.parametrize(
    ("sizes", "cut", "message"),
    [
        ([5, 5], 0, "Trajectory 1 has more than 8 steps"),
        ([2, 2], 1, "Trajectory 1 has 5 rows of terminal, not 6 for its 6 steps"),
    ],
)
def test_pieces_that_do_not_fit_leave_their_agents_without_trajectories(
    sizes: list[int], cut: int, message: str
) -> None:
    buffer = TrajectoryBuffer(8, 2, 2, COLUMNS, CPU)
    buffer.update([trajectory_of(8)] * 4)
    wrong = trajectory_of(sum(sizes) + 2)
    wrong["terminal"] = wrong["terminal"][cut:]
    with pytest.raises(ValueError, match=message):
        buffer.stream([[trajectory_of(3)], pieces_of(wrong, sizes)], slice(1, 2))
    assert buffer.lengths.tolist() == [8, 8, 0, 0]


def test_no_trajectories_or_too_many_in_pieces_are_refused() -> None:
    buffer = TrajectoryBuffer(8, 1, 2, COLUMNS, CPU)
    for count in (0, 3):
        with pytest.raises(ValueError, match=f"{count} trajectories were given, not 1 to 2"):
            buffer.stream([trajectory_of(2)] for _ in range(count))


def test_trajectories_in_files_do_not_stay_in_memory(tmp_path: Path) -> None:
    steps, count, pieces = 250, 8, 10
    buffer = TrajectoryBuffer(steps * pieces, 1, count, COLUMNS, CPU, folder=tmp_path)
    assert buffer.nbytes > 80_000_000
    before = own_resident_bytes()
    assert reset_peak()
    buffer.stream((trajectory_of(steps, number) for _ in range(pieces)) for number in range(count))
    generators = [keyed_generator(1)]
    for slots in buffer.minibatches(200, generators).slots[0]:
        rows = buffer.pick(slots)
        assert torch.equal(rows["observation"][:, 0], (slots % count).float())
    assert peak_resident_bytes() - before < 40_000_000
    assert not list(tmp_path.iterdir())


def test_trajectories_in_files_are_on_the_cpu(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Trajectories in files live on the CPU, not on meta"):
        TrajectoryBuffer(8, 1, 2, COLUMNS, torch.device("meta"), folder=tmp_path)


def test_files_that_a_folder_cannot_hold_are_refused(tmp_path: Path) -> None:
    buffer = TrajectoryBuffer(8, 1, 2, COLUMNS, CPU, folder=tmp_path)
    with pytest.raises(InputError, match=r"cannot hold the .* bytes of the trajectories' observation"):
        buffer.grow(1 << 45, 2)
    assert buffer.capacity == 0
    with pytest.raises(InputError, match="cannot hold"):
        TrajectoryBuffer(8, 1, 2, COLUMNS, CPU, folder=tmp_path / "missing")


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 3), st.integers(12, 100), st.booleans())
def test_what_is_staged_arrives(rows: int, width: int, piece_bytes: int, converted: bool) -> None:
    staging = HostToDevice(CPU, piece_bytes // 4 * 4)
    generator = keyed_generator(1, rows, width)
    for _ in range(3):
        source = torch.tensor(generator.standard_normal((rows, width)), dtype=torch.float64)
        source = source if converted else source.float()
        target = torch.zeros(rows, 2, width)
        staging.copy(source, target[:, 1])
        assert torch.equal(target[:, 1], source.float())
        assert not target[:, 0].any()
