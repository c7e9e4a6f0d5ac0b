"""Memory of arrays (zeros that take none, what processes share, the reserve of a report) and of processes."""

import ctypes
import mmap
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from known import known
from memory_cases import MB, host_bytes

from eigen_core.machine.allocation import SharedTensor, keep_reserve, lazy_zeros, shared_zeros, shares_memory
from eigen_core.machine.gpu import visible_gpus
from eigen_core.machine.limits import HostLimit, LimitKind
from eigen_core.machine.memory_usage import SystemMeter, device_bytes, own_resident_bytes, resident_part, statm

SIZE = 400_000_000
MARGIN = 20_000_000


def test_a_page_takes_memory_once_it_is_written_and_all_goes_back() -> None:
    before, addresses = own_resident_bytes(), statm()[0]
    zeros = lazy_zeros((SIZE // 8, 2), torch.float32)
    assert statm()[0] - addresses >= SIZE
    assert own_resident_bytes() - before < MARGIN
    zeros[: SIZE // 16] = 1.0
    assert resident_part(zeros.data_ptr(), SIZE) == pytest.approx(SIZE / 2, rel=0.05)
    # Reading is no writing.
    assert not zeros[SIZE // 16 :].any()
    assert own_resident_bytes() - before == pytest.approx(SIZE / 2, abs=MARGIN)
    del zeros
    assert own_resident_bytes() - before < MARGIN
    assert statm()[0] - addresses < SIZE


@pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.float16, torch.float32, torch.int64])
@pytest.mark.parametrize("shape", [(7,), (3, 5, 2), (0,), (4, 0), (4, 3, 0)])
def test_they_are_zeros_like_any_other(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    zeros = lazy_zeros(shape, dtype)
    assert torch.equal(zeros, torch.zeros(shape, dtype=dtype))
    assert (zeros.dtype, zeros.is_contiguous()) == (dtype, True)
    zeros.fill_(1)
    assert torch.equal(zeros, torch.ones(shape, dtype=dtype))
    if shares_memory("cpu"):
        shared, where = shared_zeros(shape, dtype)
        opened = known(where.opened())
        assert torch.equal(shared, torch.zeros(shape, dtype=dtype))
        assert torch.equal(shared, opened)


@pytest.mark.parametrize("count", [10**15, 10**30])
def test_more_addresses_than_there_are_is_a_memory_error(count: int) -> None:
    with pytest.raises(MemoryError, match="of addresses cannot be allocated"):
        lazy_zeros((count,), torch.float32)


def test_more_than_the_machine_has_can_be_addressed() -> None:
    zeros = lazy_zeros((10**12,), torch.float32)
    zeros[-1] = 1.0
    assert resident_part(zeros.data_ptr() + zeros.nbytes - SIZE, SIZE) < MARGIN


shared_only = pytest.mark.skipif(not shares_memory("cpu"), reason="another system")
_MANY = 400_000_000


def other_process(tensor: SharedTensor, commands: str) -> subprocess.Popen[str]:
    """Start a process that opens a tensor as `there` and runs commands."""
    program = f"import pickle, sys, torch; there = pickle.loads({pickle.dumps(tensor)!r}).opened(); {commands}"
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True)


@shared_only
@pytest.mark.thorough
def test_another_process_reads_what_is_written_before_and_after_it_opened_the_tensor_and_cannot_write() -> None:
    tensor, where = shared_zeros((3, 2), torch.float16)
    assert tensor.tolist() == torch.zeros(3, 2).tolist()
    tensor[1] = 5.0
    said = "print(there.tolist(), there.dtype, flush=True)"
    with other_process(where, f"{said}; input(); {said}; there[0] = 1") as process:
        assert known(process.stdout).readline() == f"{[[0.0, 0.0], [5.0, 5.0], [0.0, 0.0]]} torch.float16\n"
        tensor[2] = 7.0
        out, _ = process.communicate("\n")
    assert out == f"{[[0.0, 0.0], [5.0, 5.0], [7.0, 7.0]]} torch.float16\n"
    assert process.returncode == -signal.SIGSEGV
    assert tensor[0].tolist() == [0.0, 0.0]


@shared_only
def test_the_memory_ends_with_the_last_that_has_it() -> None:
    opened_before = len(os.listdir("/proc/self/fd"))
    tensor, where = shared_zeros((4,), torch.float32)
    tensor.fill_(3.0)
    there = known(where.opened())
    del tensor
    assert there.tolist() == [3.0] * 4
    assert where.opened() is None
    del there
    assert len(os.listdir("/proc/self/fd")) == opened_before


@shared_only
def test_what_is_something_else_is_not_opened() -> None:
    _, other = shared_zeros((4,), torch.float32)
    tensor, where = shared_zeros((4,), torch.float32)
    # As on another machine, where the path may lead to anything; opening this pipe would wait for its other end.
    read, write = os.pipe()
    os.close(write)
    paths = [other.path, "/proc/0/fd/3", f"/proc/self/fd/{read}", "/proc/1/fd/0"]
    assert [replace(where, path=path).opened() for path in paths] == [None] * len(paths)
    os.close(read)
    assert where.opened() is not None
    assert len(tensor) == 4


@shared_only
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="another system")
@pytest.mark.thorough
def test_it_counts_once_for_this_process_and_its_children() -> None:
    tensor, where = shared_zeros((_MANY,), torch.uint8)
    before = host_bytes()
    tensor.fill_(1)
    assert host_bytes() - before == pytest.approx(_MANY, abs=0.1 * _MANY)
    # A first sum, so that what torch loads for it is not counted as the tensor's.
    commands = "there[:1].sum(); print(flush=True); input(); print(int(there.sum()), flush=True); input()"
    with other_process(where, commands) as child:
        assert child.stdout is not None
        child.stdout.readline()
        before = host_bytes()
        print(file=known(child.stdin), flush=True)
        assert int(child.stdout.readline()) == _MANY
        assert host_bytes() - before < 0.1 * _MANY
        child.communicate("\n")


def limits(*kinds: LimitKind) -> list[HostLimit]:
    return [HostLimit(1_000 * MB, kind, kind) for kind in kinds]


def test_addresses_are_kept_back_without_memory_and_given_back() -> None:
    addresses, resident = statm()[0], own_resident_bytes()
    # Other limits do not count addresses.
    keep_reserve(limits("run", "group", "machine"))()
    free = keep_reserve(limits("machine", "address_space"))
    assert 100 * MB < statm()[0] - addresses < 200 * MB
    assert own_resident_bytes() - resident < 20 * MB
    free()
    assert statm()[0] - addresses < 20 * MB
    free()


def test_where_there_are_no_addresses_left_there_is_no_reserve(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: object, **options: object) -> None:  # noqa: ARG001
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("eigen_core.machine.allocation.mmap.mmap", full)
    free = keep_reserve(limits("address_space"))
    assert "no addresses can be reserved" in caplog.text
    free()


@pytest.mark.parametrize(
    ("named", "count", "gpus"),
    [
        (None, 3, ("0", "1", "2")),
        (None, 0, ()),
        ("", 0, ()),
        ("5,1", 2, ("5", "1")),
        ("GPU-8932f937,-1,0", 1, ("GPU-8932f937",)),
    ],
)
def test_gpus_are_named_as_the_environment_names_them(
    named: str | None, count: int, gpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert visible_gpus() == gpus


BLOCK, SPARE = 64 << 20, 16 << 20
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
        assert host_bytes() - before > BLOCK - SPARE
        child.communicate("\n")
    assert host_bytes() - before < BLOCK - SPARE


def test_the_peak_of_the_process_is_kept_until_it_is_reset() -> None:
    meter = SystemMeter(())
    block = _filled()
    held = own_resident_bytes()
    del block
    peak, _ = meter.peaks()
    assert peak > held - SPARE
    meter.reset_peaks()
    low, _ = meter.peaks()
    if low >= peak:
        pytest.skip("this system cannot reset the peak")
    assert low < peak - BLOCK + SPARE


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
