"""What the processes take: shared pages once, each limit with what counts against it, children not too often."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from memory_cases import HandClock

from eigen_core.machine import DeviceUsage, HostLimit, device_bytes, host_bytes
from eigen_core.machine.limits import ControlGroup
from eigen_core.machine.usage import SystemMeter, address_space_bytes, own_resident_bytes, resident_part

BLOCK = 64 << 20
MARGIN = 16 << 20
_CHILD = f"block = bytearray(b'\\1') * {BLOCK}; print('ready', flush=True); input()"
_FORK = f"""
import os
import psutil
from eigen_core.machine import host_bytes
block = bytearray(b"\\1") * {4 * BLOCK}
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.write(ready[1], b"1")
    os.read(go[0], 1)
    os._exit(0)
os.read(ready[0], 1)
print(host_bytes(), *(psutil.Process(number).memory_info().rss for number in (os.getpid(), child)))
os.write(go[1], b"1")
os.waitpid(child, 0)
"""


def _filled() -> mmap.mmap:
    block = mmap.mmap(-1, BLOCK)
    for _ in range(BLOCK >> 20):
        block.write(b"\1" * (1 << 20))
    return block


def test_without_children_it_is_the_resident_memory() -> None:
    before = host_bytes()
    block = _filled()
    assert BLOCK - MARGIN < host_bytes() - before < BLOCK + MARGIN
    assert abs(own_resident_bytes() - psutil.Process().memory_info().rss) < MARGIN
    assert address_space_bytes() > own_resident_bytes()
    del block


def test_children_that_share_nothing_count_whole() -> None:
    before = host_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert host_bytes() - before > BLOCK - MARGIN
        child.communicate("\n")
    assert host_bytes() - before < BLOCK - MARGIN


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="another system")
@pytest.mark.thorough
def test_pages_that_a_forked_child_shares_count_once() -> None:
    done = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, check=True)
    shared_once, own, of_child = map(int, done.stdout.split())
    assert own + of_child - shared_once > 4 * BLOCK - MARGIN
    assert shared_once > 4 * BLOCK


def test_each_limit_has_what_counts_against_it(tmp_path: Path) -> None:
    tmp_path.joinpath("proc").mkdir()
    tmp_path.joinpath("proc/meminfo").write_text("MemTotal: 90000000 kB\nMemAvailable: 1000000 kB\n")
    folder = tmp_path / "group"
    folder.mkdir()
    folder.joinpath("memory.current").write_text("70000000000")
    folder.joinpath("memory.stat").write_text("inactive_file 1000000000\n")
    empty = ControlGroup(2, "/gone", tmp_path / "gone")
    limits = (
        HostLimit(10**12, "own", "run"),
        HostLimit(10**12, "address space", "address_space"),
        HostLimit(10**12, "group", "group", ControlGroup(2, "/g", folder)),
        HostLimit(10**12, "machine", "machine"),
        HostLimit(10**12, "lost group", "group", empty),
    )
    usage = SystemMeter(limits, root=tmp_path).read()
    run, addresses, group, machine, lost = usage.counted
    assert run == usage.host == lost
    assert addresses > usage.own
    assert group == 69 * 10**9
    assert machine == 89_000_000 * 1024
    assert usage.device is None


def test_children_are_looked_at_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    class Process:
        def children(self, recursive: bool) -> list[object]:
            looks.append(recursive)
            clock.now += 0.1
            return []

    clock = HandClock()
    monkeypatch.setattr("eigen_core.machine.usage.psutil.Process", Process)
    meter = SystemMeter((), clock=clock)
    for _ in range(10):
        meter.read()
    assert looks == [True]
    # A look took 0.1 seconds: the next one comes after 1,000 times as many.
    clock.now += 99.9
    meter.read()
    assert len(looks) == 1
    clock.now += 0.2
    meter.read()
    assert len(looks) == 2


def test_the_peak_of_the_process_is_kept_until_it_is_reset() -> None:
    meter = SystemMeter(())
    block = _filled()
    held = own_resident_bytes()
    del block
    peak, _ = meter.peaks()
    assert peak is not None
    assert peak > held - MARGIN
    meter.reset_peaks()
    low, _ = meter.peaks()
    if low is None or low >= peak:
        pytest.skip("this system cannot reset the peak")
    assert low < peak - BLOCK + MARGIN


def test_on_the_device_what_torch_holds_and_does_not_use_can_be_had() -> None:
    assert DeviceUsage(allocated=2, reserved=5, taken=9).counted == 6
    assert device_bytes(torch.device("cpu")) is None


def test_asking_for_a_gpu_does_not_start_one() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call] # torch has no annotation here
        pytest.skip("the GPU is in use already")
    assert device_bytes(torch.device("cuda")) is None
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # torch has no annotation here


def test_memory_that_was_never_touched_is_not_resident() -> None:
    block = mmap.mmap(-1, BLOCK)
    tensor = torch.frombuffer(block, dtype=torch.uint8)
    assert resident_part(tensor.data_ptr(), BLOCK) == 0
    block[: BLOCK // 2] = b"\1" * (BLOCK // 2)
    part = resident_part(tensor.data_ptr(), BLOCK)
    assert BLOCK // 2 <= part < BLOCK // 2 + (4 << 20)
    assert resident_part(0, 0) == 0
    assert os.sysconf("SC_PAGE_SIZE") == mmap.PAGESIZE


_VFORK = f"""
import subprocess, threading
from eigen_core.machine import host_bytes
block = bytearray(b"\\1") * {4 * BLOCK}
alone = host_bytes()
stop = threading.Event()
seen = []
def look():
    while not stop.is_set():
        seen.append(host_bytes())
thread = threading.Thread(target=look)
thread.start()
for _ in range(100):
    # Without other settings Python starts a process by vfork.
    subprocess.run(["true"], check=True)
stop.set()
thread.join()
print(max(seen) - alone)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="another system")
@pytest.mark.thorough
def test_a_child_that_is_just_being_started_does_not_count_as_a_second_process() -> None:
    done = subprocess.run([sys.executable, "-c", _VFORK], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2 * BLOCK
