"""How an allocation that failed looks, from whichever library it comes."""

import errno

import torch

_SIGNS = ("can't allocate memory", "Cannot allocate memory", "std::bad_alloc", "not enough memory")


def is_exhaustion(error: BaseException) -> bool:
    """Whether an error says that memory could not be had, on the host or on the device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # torch's allocator on the CPU has no error class of its own.
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
