"""Memory of the processes: children, peaks, a child that is being started, the allocator."""

import ctypes
import mmap
import subprocess
import sys

import pytest
import torch
from memory_cases import host_bytes

from eigen_core.machine.memory_usage import SystemMeter, device_bytes, own_resident_bytes

BLOCK = 64 << 20
MARGIN = 16 << 20
_CHILD = f"block = bytearray(b'\\1') * {BLOCK}; print('ready', flush=True); input()"


def _filled() -> mmap.mmap:
    block = mmap.mmap(-1, BLOCK)
    for _ in range(BLOCK >> 20):
        block.write(b"\1" * (1 << 20))
    return block


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


def test_the_peak_of_the_process_is_kept_until_it_is_reset() -> None:
    meter = SystemMeter(())
    block = _filled()
    held = own_resident_bytes()
    del block
    peak, _ = meter.peaks()
    assert peak > held - MARGIN
    meter.reset_peaks()
    low, _ = meter.peaks()
    if low >= peak:
        pytest.skip("this system cannot reset the peak")
    assert low < peak - BLOCK + MARGIN


def test_asking_for_a_gpu_does_not_start_one() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call] # torch has no annotation here
        pytest.skip("the GPU is in use already")
    assert device_bytes(torch.device("cuda")) is None
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # torch has no annotation here


_VFORK = f"""
import subprocess, threading
from eigen_core.machine.memory_usage import SystemMeter
block = bytearray(b"\\1") * {4 * BLOCK}
alone = SystemMeter(()).read().host
stop = threading.Event()
seen = []
def look():
    while not stop.is_set():
        seen.append(SystemMeter(()).read().host)
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


_PIECES = """
import sys
import psutil
from eigen_core.machine import memory_usage as memory

if "tuned" in sys.argv:
    memory.tune_allocator()
# Freeing a block of 32 MB lets the library cut everything smaller out of the heap.
large = bytearray(32_000_000)
del large
before = psutil.Process().memory_info().rss
blocks, kept = [], []
for _ in range(20):
    blocks.append(bytearray(b"x") * 12_000_000)
    # What lies between two blocks keeps its place in the heap, whatever becomes of them.
    kept.append(bytearray(b"x") * 100_000)
del blocks
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="another C library")
@pytest.mark.thorough
def test_freed_blocks_leave_no_holes_in_the_heap() -> None:
    def left(*arguments: str) -> int:
        done = subprocess.run([sys.executable, "-c", _PIECES, *arguments], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert left("tuned") < 20e6 < 200e6 < left()
