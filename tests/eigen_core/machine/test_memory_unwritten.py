"""Zeros that were not written take addresses and no memory."""

import time

import pytest
import torch

from eigen_core.config.model import MemoryConfig
from eigen_core.machine import HostLimit, HostLimits, MemoryGuard, MemoryGuardError, host_bytes, unwritten_zeros
from eigen_core.machine.usage import address_space_bytes, own_resident_bytes, resident_part

SIZE = 400_000_000
MARGIN = 20_000_000


def test_a_page_takes_memory_once_it_is_written_and_all_goes_back() -> None:
    before, addresses = own_resident_bytes(), address_space_bytes()
    zeros = unwritten_zeros((SIZE // 8, 2), torch.float32)
    assert address_space_bytes() - addresses >= SIZE
    assert own_resident_bytes() - before < MARGIN
    zeros[: SIZE // 16] = 1.0
    assert resident_part(zeros.data_ptr(), SIZE) == pytest.approx(SIZE / 2, rel=0.05)
    # Reading is no writing.
    assert not zeros[SIZE // 16 :].any()
    assert own_resident_bytes() - before == pytest.approx(SIZE / 2, abs=MARGIN)
    del zeros
    assert own_resident_bytes() - before < MARGIN
    assert address_space_bytes() - addresses < SIZE


@pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.float16, torch.float32, torch.int64])
@pytest.mark.parametrize("shape", [(7,), (3, 5, 2), (0,), (4, 0), (4, 3, 0)])
def test_they_are_zeros_like_any_other(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    zeros = unwritten_zeros(shape, dtype)
    assert torch.equal(zeros, torch.zeros(shape, dtype=dtype))
    assert (zeros.dtype, zeros.is_contiguous()) == (dtype, True)
    zeros.fill_(1)
    assert torch.equal(zeros, torch.ones(shape, dtype=dtype))


@pytest.mark.parametrize("count", [10**15, 10**30])
def test_more_addresses_than_there_are_is_a_memory_error(count: int) -> None:
    with pytest.raises(MemoryError, match="of addresses cannot be had"):
        unwritten_zeros((count,), torch.float32)


def test_more_than_the_machine_has_can_be_addressed() -> None:
    zeros = unwritten_zeros((10**12,), torch.float32)
    zeros[-1] = 1.0
    assert resident_part(zeros.data_ptr() + zeros.nbytes - SIZE, SIZE) < MARGIN


def test_the_guard_sees_what_is_written_and_not_what_is_promised() -> None:
    limit = HostLimit(int((host_bytes() + SIZE) / 0.93), "a limit", "run")
    with MemoryGuard(HostLimits((limit,)), MemoryConfig(sample_seconds=0.001), watch=False) as guard:
        zeros = unwritten_zeros((100 * SIZE,), torch.uint8)
        guard.check()
        with pytest.raises(MemoryGuardError, match="a limit"):
            _write(zeros[: 2 * SIZE], guard)
        # Not exactly SIZE: the rest of the process may meanwhile grow, or be swapped out.
        assert resident_part(zeros.data_ptr(), 2 * SIZE) == pytest.approx(SIZE, rel=0.5)


def _write(zeros: torch.Tensor, guard: MemoryGuard) -> None:
    for piece in torch.tensor_split(zeros, 80):
        piece.fill_(1)
        time.sleep(0.002)
        guard.check()
