"""Arrays of the host on the device that computes."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def on_device(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array as a tensor on a device; on the CPU it is the array's own memory.

    A GPU gets it from pinned memory, so that neither waits for the other.
    """
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
