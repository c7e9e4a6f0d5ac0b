"""The GPUs of this machine, and arrays of the host on the device that computes."""

import os
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    # Names after one that is not valid count for nothing.
    return tuple(named.split(",")[:count] if named else map(str, range(count)))


def on_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array as a tensor on a device; on the CPU it is the array's own memory.

    A GPU gets it from pinned memory, so that neither waits for the other.
    """
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
