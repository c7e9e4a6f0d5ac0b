"""The guard of memory: lines, phases, admission, failed allocations, its thread."""

import errno
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import torch
from memory_cases import LIMIT, MB, HandMeter, hand_guard
from memory_store import Clock

from eigen_core.common.progress import report_progress
from eigen_core.config.model import MemoryConfig
from eigen_core.machine.limits import ControlGroup, DeviceLimit, HostLimit
from eigen_core.machine.memory_guard import MemoryGuard, MemoryGuardError
from eigen_core.machine.memory_report import report_markdown
from eigen_core.machine.memory_usage import DeviceUsage, Usage

pytestmark = pytest.mark.cpu


@pytest.fixture
def meter() -> HandMeter:
    return HandMeter()


@pytest.fixture
def guard(meter: HandMeter) -> MemoryGuard:
    return hand_guard(meter)


def _steps(meter: HandMeter, sizes: list[int], guard: MemoryGuard, done: list[int]) -> None:
    """A phase whose memory goes through `sizes` (MB), seen by a watcher after each step."""
    for number, megabytes in enumerate(sizes):
        meter.own = megabytes * MB
        guard.sample()
        done.append(number)
        report_progress("train", number + 1, len(sizes))


def test_the_hard_line_ends_the_phase_between_two_steps(meter: HandMeter) -> None:
    done: list[int] = []
    guard = hand_guard(meter, measures=True)
    with guard, pytest.raises(MemoryGuardError) as caught, guard.phase("train", 7):
        _steps(meter, [200, 700, 929, 931, 100, 100], guard, done)
    assert done == [0, 1, 2, 3]
    error = caught.value
    assert (error.phase, error.generation) == ("train", 7)
    assert "memory: 931 MB of 1.00 GB (a limit for tests)" in str(error)
    assert "in train of generation 7. The largest part of the run is " in str(error)
    assert [(p.phase, p.generation, p.peak_bytes) for p in guard.phases] == [("train", 7, 931 * MB)]


def test_a_crossing_that_has_passed_still_ends_its_phase_but_not_the_next(meter: HandMeter, guard: MemoryGuard) -> None:
    def evolve() -> None:
        with guard.phase("evolve", 1):
            meter.own = 950 * MB
            guard.sample()
            meter.own = 300 * MB

    with guard:
        with pytest.raises(MemoryGuardError, match="in evolve of generation 1"):
            evolve()
        with guard.phase("checkpoint", 1):
            report_progress("save", 1, 1)


def test_a_phase_does_not_begin_above_the_hard_line() -> None:
    guard, entered = hand_guard(HandMeter(own=940 * MB)), []
    with guard, pytest.raises(MemoryGuardError, match="in evaluate of generation 3"), guard.phase("evaluate", 3):
        entered.append(True)
    assert not entered


def test_an_error_of_the_phase_itself_is_not_replaced(meter: HandMeter, guard: MemoryGuard) -> None:
    def fail() -> None:
        meter.own = 990 * MB
        guard.sample()
        raise ZeroDivisionError

    with guard, pytest.raises(ZeroDivisionError), guard.phase("train", 1):
        fail()
    assert guard.phases[-1].peak_bytes == 990 * MB


def test_a_check_looks_itself_where_the_last_look_is_long_ago() -> None:
    meter, clock = HandMeter(), Clock()
    guard = hand_guard(meter, clock)
    with guard, guard.phase("train", 1):
        readings = meter.readings
        report_progress("train", 1, 3)
        assert meter.readings == readings
        clock.sleep(MemoryConfig().sample_seconds)
        report_progress("train", 2, 3)
        assert meter.readings == readings + 1


def test_at_the_soft_line_memory_is_freed_once_for_each_crossing(
    meter: HandMeter, guard: MemoryGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = []

    def free() -> None:
        freed.append(meter.own)
        meter.own -= 30 * MB

    monkeypatch.setattr("eigen_core.machine.memory_guard.release_free_memory", free)
    with guard:
        for megabytes in (840, 860, 870, 845, 860, 900, 820, 855):
            meter.own = megabytes * MB
            guard.sample()
    # 845 is not far enough below the line to count as having left it; 820 is.
    assert freed == [860 * MB, 855 * MB]


def test_what_freeing_brings_back_below_the_hard_line_ends_nothing(
    meter: HandMeter, guard: MemoryGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eigen_core.machine.memory_guard.release_free_memory", lambda: setattr(meter, "own", 500 * MB))
    with guard, guard.phase("train", 1):
        meter.own = 990 * MB
        guard.sample()
        report_progress("train", 1, 1)
    assert guard.phases[-1].peak_bytes == 990 * MB


def test_children_and_others_count_as_the_limit_counts_them() -> None:
    guard = hand_guard(HandMeter(own=500 * MB, children=300 * MB, others=140 * MB))
    with guard, pytest.raises(MemoryGuardError, match=r"940 MB of 1\.00 GB"):
        guard.check()
    assert guard.sample().host == 800 * MB


GROUP, CUDA = ControlGroup(2, "/ours", Path("nowhere")), torch.device("cuda")


@pytest.mark.parametrize(
    ("limit", "own", "others", "headline"),
    [
        (
            HostLimit(LIMIT, "the machine", "machine"),
            *(100, 840),
            r"The run holds 100 MB, other processes hold 840 MB: 'e' \(PID 15\) 50 MB, 'd' .* 40 MB, 'c' .* 30 MB\. ",
        ),
        (
            HostLimit(LIMIT, "a group", "group", GROUP),
            100,
            840,
            r"840 MB: 'd' \(PID 14\) 40 MB, 'b' \(PID 12\) 20 MB\. ",
        ),
        (HostLimit(LIMIT, "the machine", "machine"), 500, 440, r"of 93 %\. The largest part of the run is "),
        (HostLimit(LIMIT, "memory.limit_gb", "run"), 100, 840, r"of 93 %\. The largest part of the run is "),
        (DeviceLimit(LIMIT, "a GPU", CUDA), 100, 840, r"The run holds 100 MB, other processes hold 840 MB\. "),
    ],
    ids=["others of the machine", "others of the group", "the run", "the run's own limit", "others on the GPU"],
)
def test_the_run_is_not_blamed_for_what_other_processes_hold(
    limit: HostLimit | DeviceLimit, own: int, others: int, headline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter, limits, gpu = HandMeter(own=own * MB, others=others * MB), (HostLimit(100 * LIMIT, "roomy", "run"),), None
    if isinstance(limit, HostLimit):
        limits = (limit,)
    else:
        gpu = limit
        meter.device = DeviceUsage(allocated=own * MB, reserved=own * MB, taken=(own + others) * MB)
    others_there = [
        Mock(pid=11 + at, **{"name.return_value": name, "memory_info.return_value.rss": (1 + at) * 10 * MB})
        for at, name in enumerate("abcde")
    ]
    ended = Mock(pid=99, **{"name.side_effect": psutil.NoSuchProcess(99)})
    monkeypatch.setattr(psutil, "process_iter", lambda: [psutil.Process(), ended, *others_there])
    monkeypatch.setattr(ControlGroup, "has", lambda _, process: process in (12, 14))
    guard = hand_guard(meter, measures=True, limits=limits, device_limit=gpu)
    with guard, pytest.raises(MemoryGuardError, match=headline) as caught:
        guard.check()
    assert ("'e' (PID 15)" in report_markdown(caught.value.report)) is ("machine" in limit.origin)


class _TwoLimits(HandMeter):
    def read(self) -> Usage:
        return Usage(self.own, 0, (10 * MB, 950 * MB))


def test_the_limit_that_is_nearest_counts_not_the_smallest() -> None:
    limits = (HostLimit(LIMIT // 2, "roomy", "run"), HostLimit(LIMIT, "address space", "address_space"))
    guard = hand_guard(_TwoLimits(), limits=limits)
    with guard, pytest.raises(MemoryGuardError, match="address space"):
        guard.check()


def test_the_device_has_a_hard_line_of_its_own() -> None:
    meter = HandMeter()
    guard = hand_guard(meter, device_limit=DeviceLimit(LIMIT, "a GPU", CUDA))
    with guard:
        with guard.phase("train", 1):
            meter.device = DeviceUsage(allocated=100 * MB, reserved=900 * MB, taken=990 * MB)
            guard.sample()
            report_progress("train", 1, 2)
        assert (guard.phases[-1].device_allocated_peak, guard.phases[-1].device_reserved_peak) == (100 * MB, 900 * MB)
        guard.set_plan((), {}, {"evolve": 920 * MB})
        with pytest.raises(MemoryGuardError, match=r"predicted peak 1\.01 GB of 1\.00 GB .a GPU.* would"):
            begin(guard, "evolve")
        meter.device = DeviceUsage(allocated=900 * MB, reserved=910 * MB, taken=960 * MB)
        with pytest.raises(MemoryGuardError, match=r"950 MB of 1\.00 GB .a GPU"), guard.phase("train", 2):
            pass


def test_start_peak_and_end_of_each_phase_are_kept() -> None:
    meter, clock = HandMeter(own=200 * MB), Clock()
    guard = hand_guard(meter, clock)
    with guard:
        for generation in (1, 2):
            for name in ("evaluate", "train"):
                with guard.phase(name, generation):
                    clock.sleep(2.0)
                    meter.own += 300 * MB
                    guard.sample()
                    # Between two looks the system saw more.
                    meter.kept_peak = meter.own + 5 * MB
                    meter.own -= 290 * MB
                meter.kept_peak = 0
    assert meter.resets == 4
    assert [(p.start_bytes // MB, p.peak_bytes // MB, p.end_bytes // MB) for p in guard.phases] == [
        (200, 505, 210),
        (210, 515, 220),
        (220, 525, 230),
        (230, 535, 240),
    ]
    assert [phase.phase for phase in guard.phases if phase.generation == 2] == ["evaluate", "train"]
    assert guard.phases[1].ended - guard.phases[1].began == 2.0


def begin(guard: MemoryGuard, phase: str) -> None:
    with guard.phase(phase, 4):
        pass


def test_a_phase_whose_predicted_peak_does_not_fit_is_not_begun() -> None:
    guard = hand_guard(HandMeter(own=400 * MB))
    guard.set_plan((), {"evaluate": 929 * MB, "train": 931 * MB})
    with guard:
        begin(guard, "evaluate")
        with pytest.raises(MemoryGuardError, match="train was not started: at its predicted peak 931 MB") as caught:
            begin(guard, "train")
    assert (caught.value.phase, caught.value.generation) == ("train", 4)
    assert "in train of generation 4" in str(caught.value)


def test_what_the_phase_took_before_is_expected_again(meter: HandMeter, guard: MemoryGuard) -> None:
    def train(generation: int, takes: int, keeps: int) -> None:
        with guard.phase("train", generation):
            meter.own += takes * MB
            guard.sample()
            meter.own += (keeps - takes) * MB

    with guard:
        # The first one keeps 300 MB for good, such as libraries: that does not come again.
        train(1, takes=400, keeps=300)
        train(2, takes=100, keeps=0)
        meter.own = 820 * MB
        begin(guard, "train")
        begin(guard, "evaluate")
        meter.own = 840 * MB
        with pytest.raises(MemoryGuardError, match="predicted peak 940 MB"):
            begin(guard, "train")


def test_a_leak_is_expected_to_go_on(meter: HandMeter, guard: MemoryGuard) -> None:
    meter.own = 500 * MB
    with guard:
        for generation in (1, 2, 3, 4):
            with guard.phase("train", generation):
                meter.own += 100 * MB
        with pytest.raises(MemoryGuardError, match=r"predicted peak 1\.00 GB"):
            begin(guard, "train")


def test_memory_is_freed_before_a_phase_is_refused(
    meter: HandMeter, guard: MemoryGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter.own = 700 * MB
    monkeypatch.setattr("eigen_core.machine.memory_guard.release_free_memory", lambda: setattr(meter, "own", 600 * MB))
    with guard:
        with guard.phase("train", 1):
            meter.own += 100 * MB
            guard.sample()
            meter.own -= 100 * MB
        begin(guard, "train")
        assert meter.own == 700 * MB
        meter.own = 849 * MB
        begin(guard, "train")
        assert meter.own == 600 * MB


@pytest.mark.parametrize(
    ("error", "of_memory"),
    [
        (MemoryError(), True),
        (MemoryError("Unable to allocate 9 TiB for an array"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 9 bytes"), True),
        (RuntimeError("std::bad_alloc"), True),
        (torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be reported later"), True),
        (RuntimeError("CUDA driver error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (RuntimeError("shapes differ"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), False),
        (OSError(errno.ENOSPC, "no space"), False),
        (KeyError("x"), False),
    ],
)
def test_only_an_allocation_that_failed_ends_the_phase_like_the_hard_line(
    guard: MemoryGuard, error: Exception, of_memory: bool
) -> None:
    with guard, pytest.raises(MemoryGuardError if of_memory else type(error)) as caught, guard.phase("train", 2):
        raise error
    assert (caught.value.__cause__ if of_memory else caught.value) is error
    assert not of_memory or "in train of generation 2" in str(caught.value)


def test_real_allocations_that_fail_are_recognised(guard: MemoryGuard) -> None:
    for allocate in (
        lambda: torch.empty(1 << 60, dtype=torch.uint8),
        lambda: np.ones(1 << 60, dtype=np.uint8),
        lambda: bytearray(1 << 62),
    ):
        with guard, pytest.raises(MemoryGuardError, match="an allocation failed"), guard.phase("train", 1):
            allocate()


class _BreathlessMeter(HandMeter):
    """Has no memory for its readings but the first and the last few."""

    def read(self) -> Usage:
        usage = super().read()
        if 2 < self.readings < 10:
            raise MemoryError
        return usage


def test_the_watcher_goes_on_after_a_look_for_which_there_was_no_memory() -> None:
    meter, end = _BreathlessMeter(), time.monotonic() + 60.0
    with hand_guard(meter, memory=MemoryConfig(sample_seconds=0.001), watch=True):
        while meter.readings < 12:
            assert time.monotonic() < end
            time.sleep(0.001)
