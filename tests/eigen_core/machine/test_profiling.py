"""The profile of a generation."""

import csv
import gzip
import json
from pathlib import Path
from typing import cast

import pytest
import torch
from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.profiler import profile

from eigen_core.machine.profiling import Profile, profiled, profiled_to


class TakenOnGpu:
    """Ten products, launched by an operator in another, and a replay of a CUDA graph, as torch reports them."""

    def __init__(self) -> None:
        self._events = EventList(use_device="cuda")  # type: ignore[no-untyped-call] # torch has no annotation here
        for start in range(0, 1_000, 100):
            self._add("aten::matmul", start, start + 50)
            product = self._add("aten::bmm", start + 10, start + 40)
            self._add("cudaLaunchKernel", start + 20, start + 35)
            kernel = self._add("sgemm", 5_000 + start, 5_000 + start + 90, on_gpu=True, linked_correlation_id=1)
            product.append_kernel(kernel.name, 0, 90)  # type: ignore[no-untyped-call] # as above
        self._add("cudaGraphLaunch", 1_000, 1_010)
        for start in (6_000, 6_100):
            self._add("sgemm", start, start + 30, on_gpu=True)
        self._events._build_tree()  # type: ignore[no-untyped-call] # as above

    def _add(
        self, name: str, start: int, end: int, *, on_gpu: bool = False, linked_correlation_id: int = 0
    ) -> FunctionEvent:
        event = FunctionEvent(  # type: ignore[no-untyped-call] # as above
            id=len(self._events),
            name=name,
            thread=1,
            start_us=start,
            end_us=end,
            stack=[],
            use_device="cuda",
            device_type=torch._C._autograd.DeviceType.CUDA if on_gpu else torch._C._autograd.DeviceType.CPU,
            linked_correlation_id=linked_correlation_id,
        )
        self._events.append(event)
        return event

    def events(self) -> EventList:
        return self._events

    def key_averages(self) -> EventList:
        return cast(EventList, self._events.key_averages())  # type: ignore[no-untyped-call] # as above

    def export_chrome_trace(self, path: str) -> None:
        Path(path).touch()


def rows(folder: Path) -> list[tuple[str, str, int]]:
    with (folder / "operators.csv").open(newline="", encoding="utf-8") as file:
        return [(row["phase"], row["operator"], int(row["calls"])) for row in csv.DictReader(file)]


@pytest.mark.cpu
def test_the_phases_of_one_generation_are_profiled(tmp_path: Path) -> None:
    values = torch.ones(4)
    profile = Profile(tmp_path / "profile", generation=2)
    with profiled_to(profile):
        for generation in (1, 2, 3):
            with profiled("evaluate", generation):
                for _ in range(generation):
                    values.cos()
            with profiled("train", generation):
                values.sin()
    found = rows(profile.folder)
    assert ("evaluate", "aten::cos", 2) in found
    assert ("train", "aten::sin", 1) in found
    assert ("train", "aten::cos") not in {row[:2] for row in found}
    assert sum(time.cpu_share for time in profile.operators if time.phase == "train") == pytest.approx(1.0)
    trace = json.loads(gzip.decompress((profile.folder / "train.trace.json.gz").read_bytes()))
    assert "aten::sin" in {event.get("name") for event in trace["traceEvents"]}


@pytest.mark.cpu
def test_a_phase_that_is_tried_again_counts_once(tmp_path: Path) -> None:
    profile = Profile(tmp_path, generation=1)
    with profiled_to(profile):
        with pytest.raises(RuntimeError), profiled("train", 1):
            raise RuntimeError
        assert profile.operators == []
        for _ in range(2):
            with profiled("train", 1):
                torch.ones(4).sin()
    assert [calls for _, name, calls in rows(tmp_path) if name == "aten::sin"] == [1]


def test_nothing_is_profiled_without_a_profile(tmp_path: Path) -> None:
    with profiled_to(None), profiled("train", 1):
        torch.ones(4).sin()
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_counts_once_and_what_takes_the_gpu_longest_is_first(tmp_path: Path) -> None:
    written = Profile(tmp_path, generation=1)
    written.write("train", cast(profile, TakenOnGpu()))
    found = [(time.operator, time.calls, time.gpu_seconds, time.cpu_seconds) for time in written.operators]
    microsecond = 1e-6
    expected = [
        ("aten::bmm", 10, 900 * microsecond, 150 * microsecond),
        ("sgemm", 2, 60 * microsecond, 0.0),
        ("aten::matmul", 10, 0.0, 200 * microsecond),
        ("cudaLaunchKernel", 10, 0.0, 150 * microsecond),
        ("cudaGraphLaunch", 1, 0.0, 10 * microsecond),
    ]
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    assert [row[2:] for row in found] == [pytest.approx(row[2:]) for row in expected]
    assert sum(time.cpu_share for time in written.operators) == pytest.approx(1.0)
