"""How much memory is left before the guard would end a phase."""

import torch

from eigen_core.config.sections import MemoryConfig
from eigen_core.memory.limits import device_limit, host_limits
from eigen_core.memory.usage import SystemMeter


def headroom_bytes(memory: MemoryConfig, device: torch.device) -> int:
    """Return how much more can be allocated on a device before the hard line of the tightest limit (bytes), at least 0.

    On the CPU every limit of the host counts (`host_limits`), on a GPU the memory that its driver reports.

    Raises:
        InputError: a limit cannot be used, or the driver does not answer.
    """
    on_device = device_limit(device)
    if on_device is not None:
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return max(int(free + unused - (1.0 - memory.hard) * on_device.bytes), 0)
    limits = host_limits(memory).limits
    counted = SystemMeter(limits).read().counted
    return max(min(int(memory.hard * limit.bytes) - taken for limit, taken in zip(limits, counted, strict=True)), 0)
