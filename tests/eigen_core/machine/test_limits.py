"""The limits that are found, of memory and of processor cores."""

import logging
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from eigen_core.common.errors import InputError
from eigen_core.config.model import MemoryConfig
from eigen_core.machine.limits import ControlGroup, HostLimit, control_groups, device_limit, host_limits
from eigen_core.machine.performance import computing_threads, usable_cores

GB = 1_000_000_000
FREE = resource.RLIM_INFINITY
_UNLIMITED_V1 = "9223372036854771712\n"
VERSION_1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
VERSION_2 = "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def system(root: Path, groups: str, mounts: str, files: Mapping[str, str]) -> Path:
    """A file system with /proc and control groups; `files` are relative to /sys/fs/cgroup."""
    own = root / "proc/self"
    own.mkdir(parents=True)
    own.joinpath("cgroup").write_text(groups)
    own.joinpath("mountinfo").write_text(f"27 1 254:0 / / rw - ext4 /dev/vda rw\n{mounts}")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def _found(root: Path, limit_gb: float | None = None, address_space: int = FREE) -> tuple[HostLimit, ...]:
    memory = SimpleNamespace(total=16_384_000_000)
    with (
        patch("resource.getrlimit", lambda kind: (address_space if kind == resource.RLIMIT_AS else 1, FREE)),
        patch("psutil.virtual_memory", lambda: memory),
    ):
        return host_limits(MemoryConfig(limit_gb=limit_gb), root)


@pytest.mark.parametrize("tightest", ["/user.slice/job", "/user.slice", "/"])
def test_version_2_the_tightest_group_on_the_way_up_counts(tmp_path: Path, tightest: str) -> None:
    groups = ["/user.slice/job", "/user.slice", "/"]
    limits = {f"{group.strip('/')}/memory.max".lstrip("/"): "max\n" for group in groups}
    limits[f"{tightest.strip('/')}/memory.max".lstrip("/")] = f"{3 * GB}\n"
    root = system(tmp_path, "0::/user.slice/job\n", VERSION_2, limits)
    smallest = _found(root)[0]
    assert smallest.bytes == 3 * GB
    assert smallest.origin == f"control group {tightest}, memory.max"
    assert smallest.kind == "group"


def test_version_1_walks_up_and_ignores_no_limit(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        "5:devices:/\n4:memory:/docker/1f\n1:cpu:/docker/1f\n0::/\n",
        VERSION_1,
        {
            "memory/memory.limit_in_bytes": _UNLIMITED_V1,
            "memory/docker/memory.limit_in_bytes": f"{2 * GB}",
            "memory/docker/1f/memory.limit_in_bytes": f"{4 * GB}",
        },
    )
    found = _found(root)
    assert [limit.bytes for limit in found] == [2 * GB, 4 * GB, 16_384_000_000]
    assert found[0].origin == "control group /docker, memory.limit_in_bytes"
    assert found[-1].origin == "physical memory"


@pytest.mark.parametrize(
    ("groups", "mounts"),
    [
        ("4:memory:/docker/1f\n", "35 31 0:32 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"),
        ("4:memory:/docker/1f\n", "35 31 0:32 /../.. /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"),
        ("4:memory:/../x\n", VERSION_1),
    ],
    ids=["mounted from its own group", "mount outside of the namespace", "group outside of the namespace"],
)
def test_a_container_sees_its_group_as_the_root_of_the_mount(tmp_path: Path, groups: str, mounts: str) -> None:
    # What lies beside the mount is no limit of this process.
    beside = {"memory.limit_in_bytes": f"{GB}", "x/memory.limit_in_bytes": f"{GB}"}
    root = system(tmp_path, groups, mounts, {"memory/memory.limit_in_bytes": f"{5 * GB}"} | beside)
    assert _found(root)[0].bytes == 5 * GB


def test_both_versions_at_once_and_an_escaped_mount_point(tmp_path: Path) -> None:
    mounts = VERSION_1 + "41 31 0:38 / /sys/fs/cgroup/with\\040space rw - cgroup2 cgroup2 rw\n"
    root = system(
        tmp_path,
        "4:memory:/a\n0::/b\n",
        mounts,
        {"memory/a/memory.limit_in_bytes": f"{5 * GB}", "with space/b/memory.max": f"{4 * GB}"},
    )
    assert [limit.bytes for limit in _found(root)][:2] == [4 * GB, 5 * GB]


def test_without_control_groups_physical_memory_is_the_limit(tmp_path: Path) -> None:
    root = system(tmp_path, "", "", {})
    assert [limit.origin for limit in _found(root)] == ["physical memory"]
    tmp_path.joinpath("proc/self/cgroup").unlink()
    assert [limit.origin for limit in _found(root)] == ["physical memory"]


def test_the_own_limit_and_the_address_space_are_sorted_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = system(tmp_path, "", "", {})
    found = _found(root, limit_gb=2.5, address_space=2 * GB)
    assert [(limit.bytes, limit.kind) for limit in found[:2]] == [(2 * GB, "address_space"), (2_500_000_000, "run")]
    assert str(found[1]) == "2.50 GB (memory.limit_gb)"
    assert _found(root, limit_gb=99)[0].origin == "physical memory"
    assert "memory.limit_gb 99 is ignored, since it is above 16.38 GB (physical memory)." in caplog.messages


@pytest.mark.parametrize("text", ["rubbish", "", "0x10", "1e9", "12 GB", None])
def test_a_group_whose_limit_cannot_be_read_is_refused_unless_there_is_an_own_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    root = system(tmp_path, "0::/\n", VERSION_2, {} if text is None else {"memory.max": text})
    if text is None:
        # A folder in its place fails for everybody; root may read whatever its mode says.
        root.joinpath("sys/fs/cgroup/memory.max").mkdir(parents=True)
    with pytest.raises(InputError, match=r"control group / cannot be read from .*memory\.max.*: set memory\.limit_gb"):
        _found(root)
    with caplog.at_level(logging.WARNING):
        assert _found(root, limit_gb=1)[0].origin == "memory.limit_gb"
    assert "cannot be read" in caplog.messages[0]


@pytest.mark.parametrize("value", [0, -5])
def test_limits_under_which_nothing_runs_are_refused(tmp_path: Path, value: int) -> None:
    root = system(tmp_path, "0::/\n", VERSION_2, {"memory.max": f"{value}"})
    with pytest.raises(InputError, match=rf"control group /, memory.max is {value} bytes: nothing can run"):
        _found(root)
    with pytest.raises(InputError, match=r"RLIMIT_AS.* is 0 bytes"):
        _found(system(tmp_path / "other", "", "", {}), address_space=0)


def test_what_a_group_holds_leaves_out_what_the_kernel_can_drop(tmp_path: Path) -> None:
    statistics = "total_active_file 300\ntotal_inactive_file 200\nactive_file 7\nslab_reclaimable 40\ninactive_file 1\n"
    files = {
        "memory/memory.usage_in_bytes": "2000\n",
        "memory/memory.stat": statistics,
        "two/memory.current": "1000\n",
        "two/memory.stat": statistics,
    }
    mounts = VERSION_1 + "41 31 0:38 / /sys/fs/cgroup/two rw - cgroup2 cgroup2 rw\n"
    root = system(tmp_path, "4:memory:/\n0::/\n", mounts, files)
    first, second = control_groups(root)
    assert (first.version, first.used()) == (1, 1_500)
    assert (second.version, second.used()) == (2, 952)
    second.folder.joinpath("memory.stat").unlink()
    assert second.used() is None


def test_a_driver_gives_name_and_size_of_a_gpu_or_its_failure_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_device: torch.device) -> tuple[int, int]:
        raise RuntimeError("CUDA driver initialization failed\nand more")

    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    with pytest.raises(InputError, match=r"how much memory cuda has: CUDA driver initialization failed\. "):
        device_limit(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (1, 80 * GB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA X")
    assert str(device_limit(torch.device("cuda"))) == "80.00 GB (NVIDIA X, as its driver says)"


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
    monkeypatch.setattr("eigen_core.machine.performance.usable_cores", lambda: cores)
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


def test_a_control_group_has_the_processes_in_it_and_below_it() -> None:
    groups = list(control_groups())
    assert all(group.has(os.getpid()) for group in groups)
    assert not any(ControlGroup(group.version, "/nowhere/else", group.folder).has(os.getpid()) for group in groups)
