"""Memory that other processes map: what they see of it, and when it ends."""

import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eigen_core.machine import SharedTensor, host_bytes, shared_zeros, shares_memory

pytestmark = pytest.mark.skipif(not shares_memory("cpu"), reason="another system")

_MANY = 50_000_000


def other_process(tensor: SharedTensor, commands: str) -> subprocess.Popen[str]:
    """Start a process that opens a tensor as `there` and runs commands."""
    program = f"import pickle, sys, torch; there = pickle.loads({pickle.dumps(tensor)!r}).opened(); {commands}"
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True)


@pytest.mark.thorough
def test_another_process_reads_what_is_written_before_and_after_it_opened_the_tensor() -> None:
    tensor, where = shared_zeros((3, 2), torch.float16)
    assert tensor.tolist() == torch.zeros(3, 2).tolist()
    tensor[1] = 5.0
    commands = "print(there.tolist(), flush=True); input(); print(there.tolist(), there.dtype)"
    with other_process(where, commands) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{[[0.0, 0.0], [5.0, 5.0], [0.0, 0.0]]}\n"
        tensor[2] = 7.0
        out, _ = process.communicate("\n")
    assert out == f"{[[0.0, 0.0], [5.0, 5.0], [7.0, 7.0]]} torch.float16\n"


@pytest.mark.thorough
def test_another_process_cannot_write_to_it() -> None:
    tensor, where = shared_zeros((3,), torch.int64)
    with other_process(where, "there[0] = 1") as process:
        assert process.wait() == -signal.SIGSEGV
    assert tensor.tolist() == [0, 0, 0]


def test_the_memory_ends_with_the_last_that_has_it() -> None:
    opened_before = len(os.listdir("/proc/self/fd"))
    tensor, where = shared_zeros((4,), torch.float32)
    tensor.fill_(3.0)
    there = where.opened()
    assert there is not None
    del tensor
    assert there.tolist() == [3.0] * 4
    assert where.opened() is None
    del there
    assert len(os.listdir("/proc/self/fd")) == opened_before


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


def test_without_values_there_is_nothing_to_share() -> None:
    tensor, where = shared_zeros((5, 0), torch.float16)
    there = where.opened()
    assert there is not None
    assert tensor.shape == there.shape == (5, 0)
    assert tensor.dtype == there.dtype == torch.float16


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="another system")
@pytest.mark.thorough
def test_it_counts_once_for_this_process_and_its_children() -> None:
    tensor, where = shared_zeros((_MANY,), torch.uint8)
    before = host_bytes()
    tensor.fill_(1)
    assert host_bytes() - before == pytest.approx(_MANY, abs=0.1 * _MANY)
    commands = "print(flush=True); input(); print(int(there.sum()), flush=True); input()"
    with other_process(where, commands) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        before = host_bytes()
        print(file=child.stdin, flush=True)
        assert int(child.stdout.readline()) == _MANY
        assert host_bytes() - before < 0.1 * _MANY
        child.communicate("\n")
