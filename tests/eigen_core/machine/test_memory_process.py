"""The peak is that of the last stretch, and freed memory goes back."""

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eigen_core import machine as memory
from eigen_core.machine import usage as process

pytestmark = pytest.mark.cpu

BLOCK = 64 << 20
MARGIN = 8 << 20
_PIECE = 1 << 20


def _fill(size: int) -> mmap.mmap:
    """Fresh pages: what the allocator hands out may be memory that other tests left resident."""
    block = mmap.mmap(-1, size)
    for _ in range(size // _PIECE):
        block.write(b"\1" * _PIECE)
    return block


def test_the_peak_is_kept_until_it_is_reset() -> None:
    before = memory.peak_resident_bytes()
    block = _fill(2 * BLOCK)
    high = memory.peak_resident_bytes()
    assert high > before - MARGIN
    del block
    # The kernel counts pages per processor and settles the sum now and then: man 5 proc, "VmRSS ... inaccurate".
    assert memory.peak_resident_bytes() > high - MARGIN
    if not memory.reset_peak():
        pytest.skip("this system cannot reset the peak")
    assert memory.peak_resident_bytes() < high - BLOCK


def test_the_peak_is_known_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_STATUS", tmp_path / "missing")
    monkeypatch.setattr(process, "_CLEAR_REFS", tmp_path / "missing" / "too")
    block = _fill(BLOCK)
    assert memory.peak_resident_bytes() > BLOCK
    assert not memory.reset_peak()
    del block


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_freed_blocks_go_back_to_the_system() -> None:
    """Small blocks with one in use at the end are what glibc keeps."""
    blocks = [ctypes.create_string_buffer(b"\1" * 60_000, 60_000) for _ in range(1_000)]
    last = blocks[-1]
    held = memory.host_bytes()
    del blocks
    memory.release_free_memory()
    assert held - memory.host_bytes() > 40_000_000
    assert len(last) == 60_000


def test_without_malloc_trim_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_c_function", lambda *_: None)
    assert memory.release_free_memory() is False


_ARENAS = """
import re, sys, threading
from eigen_core import machine as memory

if "limited" in sys.argv:
    assert memory.tune_allocator(2)
barrier = threading.Barrier(8)


def allocate() -> None:
    blocks = [bytearray(2_000) for _ in range(100)]
    barrier.wait()


threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
import ctypes

libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="another C library")
@pytest.mark.thorough
def test_threads_share_the_arenas_that_they_are_allowed() -> None:
    # The flow's own setting, which other tests of this process leave in its environment.
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}

    def arenas(*arguments: str) -> int:
        command = [sys.executable, "-c", _ARENAS, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.count("<heap nr=")

    assert arenas("limited") <= 2 < arenas()


_PIECES = """
import sys
import psutil
from eigen_core import machine as memory

if "tuned" in sys.argv:
    assert memory.tune_allocator()
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
