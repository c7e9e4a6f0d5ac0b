"""The GPUs that a process sees, and arrays of the host on the device that computes."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from eigen_core.machine.gpu import on_device, visible_gpus


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


def test_on_the_cpu_it_is_the_same_memory() -> None:
    values = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    tensor = on_device(values, torch.device("cpu"))
    values[1, 2] = 9.0
    assert tensor.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 9.0]]


def test_a_gpu_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is asked for as one from pinned memory that need not have ended; there may be no GPU here."""
    pinned, copies = torch.zeros(3), []
    monkeypatch.setattr(Tensor, "pin_memory", lambda _: pinned)

    def copied(tensor: Tensor, device: torch.device, *, non_blocking: bool = False) -> Any:
        copies.append((tensor is pinned, device.type, non_blocking))
        return tensor

    monkeypatch.setattr(Tensor, "to", copied)
    on_device(np.zeros(3), torch.device("cuda"))
    assert copies == [(True, "cuda", True)]
