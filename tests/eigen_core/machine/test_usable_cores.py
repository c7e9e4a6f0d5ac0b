"""A container has fewer processor cores than its machine."""

import os
from pathlib import Path

import pytest
import torch
from control_group_cases import VERSION_2, system

from eigen_core.machine.threads import computing_threads, usable_cores

_CPU_1 = "36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


@pytest.mark.parametrize(
    ("inner", "outer", "cores"),
    [
        ("max 100000\n", "max 100000\n", 16),
        ("200000 100000\n", "max 100000\n", 2),
        ("max 100000\n", "350000 100000\n", 4),
        ("1000 100000\n", "350000 100000\n", 1),
        ("6400000 100000\n", "max 100000\n", 16),
        ("", "no limit\n", 16),
    ],
)
def test_version_2_the_tightest_limit_of_time_counts_rounded_up(
    tmp_path: Path, inner: str, outer: str, cores: int
) -> None:
    root = system(tmp_path, "0::/jobs/one\n", VERSION_2, {"jobs/one/cpu.max": inner, "jobs/cpu.max": outer})
    assert usable_cores(root) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1\n", 16), ("300000\n", 3)])
def test_version_1_has_groups_of_its_own_for_time(tmp_path: Path, quota: str, cores: int) -> None:
    files = {"cpu/docker/1f/cpu.cfs_quota_us": quota, "cpu/docker/1f/cpu.cfs_period_us": "100000\n"}
    root = system(tmp_path, "4:memory:/docker/2e\n3:cpu,cpuacct:/docker/1f\n", _CPU_1, files)
    assert usable_cores(root) == cores


def test_without_control_groups_those_count_that_the_process_may_use(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 16


@pytest.mark.parametrize(("torchs", "chosen", "cores", "threads"), [(6, 0, 2, 2), (2, 0, 6, 2), (6, 5, 2, 5)])
def test_torch_takes_no_more_threads_than_there_are_cores_unless_that_is_asked_for(
    torchs: int, chosen: int, cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eigen_core.machine.threads.usable_cores", lambda: cores)
    before = torch.get_num_threads()

    def compute() -> None:
        with computing_threads(chosen):
            assert torch.get_num_threads() == threads
            # What a trial chooses is for its own run.
            torch.set_num_threads(1)
            raise MemoryError

    try:
        torch.set_num_threads(torchs)
        with pytest.raises(MemoryError):
            compute()
        assert torch.get_num_threads() == torchs
    finally:
        torch.set_num_threads(before)
