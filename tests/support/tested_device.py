"""Where the trainings of the tests compute: `EIGEN_TEST_DEVICE`, else the processor."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

VARIABLE = "EIGEN_TEST_DEVICE"
_GIVEN = os.environ.get(VARIABLE, "cpu")
DEVICE = "cuda" if _GIVEN == "stand-in" else _GIVEN


def require_device() -> None:
    if _GIVEN not in ("cpu", "cuda", "stand-in"):
        raise pytest.UsageError(f"{VARIABLE} is {_GIVEN!r}: give cpu, cuda or stand-in.")
    if _GIVEN == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise pytest.UsageError(f"{VARIABLE} is cuda, but torch finds no GPU: unset it, or check the driver.")


@contextmanager
def tested_device(item: pytest.Item) -> Iterator[None]:
    """Skip a test of the processor where trainings compute on a GPU; let others have the stand-in, if it is wanted."""
    if DEVICE == "cuda" and item.get_closest_marker("cpu") is not None:
        pytest.skip(f"about the processor, and {VARIABLE} is {_GIVEN}")
    with with_device():
        yield


def with_device() -> AbstractContextManager[None]:
    if _GIVEN != "stand-in":
        return nullcontext()
    from stand_in_gpu import stand_in_gpu

    return stand_in_gpu()
