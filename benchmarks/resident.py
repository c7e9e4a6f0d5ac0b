"""How much memory a piece of work takes beside what its process holds already."""

import gc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

import psutil
import torch

from eigen_core.machine import peak_resident_bytes, release_free_memory, reset_peak

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def extra_resident_mb(work: Callable[[], object]) -> float:
    """Do some work and return by how much resident memory was higher at its peak than before (MB).

    Raises:
        RuntimeError: the system cannot tell the peak of a part of a process.
    """
    gc.collect()
    release_free_memory()
    before = psutil.Process().memory_info().rss
    if not reset_peak():
        raise RuntimeError("the peak of the resident memory can be measured on Linux alone")
    result = work()
    extra = (peak_resident_bytes() - before) / 1e6
    del result
    return extra


def in_own_process(
    function: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs
) -> Result:
    """Call a module's function in a new process with one torch thread and return its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_one_thread) as process:
        return process.submit(function, *arguments, **named).result()


def _one_thread() -> None:
    torch.set_num_threads(1)
