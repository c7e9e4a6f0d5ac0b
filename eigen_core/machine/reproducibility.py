"""Reproducibility: with which hardware and libraries this process computes, and whether results have the same bits."""

import ctypes
import logging
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from eigen_core.common.process import MKL_MODE, STRICT, TORCH_CAPABILITY, Instructions, use_instructions
from eigen_core.common.records import Arithmetic
from eigen_core.machine.performance import computing_threads

logger = logging.getLogger(__name__)

# The constants of mkl.h for `mkl_cbwr_get`, from 1 on: it returns a branch, and a flag beside it. 5 is unused.
_MKL_NAMES = "OFF AUTO COMPATIBLE SSE2 5 SSSE3 SSE4_1 SSE4_2 AVX AVX2 AVX512_MIC AVX512 AVX512_MIC_E1 AVX512_E1"
_MKL_BRANCHES = dict(enumerate(_MKL_NAMES.split(), 1))
_MKL_STRICT = 0x10000
_MKL_ALL = -1
# Names of the function that returns MKL's mode: where MKL is linked into torch, and in MKL's own library.
_MKL_GETTERS = ("mkl_serv_cbwr_get", "MKL_CBWR_Get")

_INTEL = "GenuineIntel"

# Agents, rows, inner size, columns: the outputs of a layer, and the gradient of its weights. Sums are over rows and
# inner size. MKL keeps the bits of both products in its strict modes only.
_PRODUCTS = ((4, 256, 64, 32), (4, 18, 1_024, 16))
_FEW_ROWS = 16


def arithmetic_of(device: torch.device) -> Arithmetic:
    """Return the processor, instruction set and libraries with which this process computes on a device."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        processor, instructions, blas = torch.cuda.get_device_name(device), f"{major}.{minor}", "cuBLAS"
    else:
        processor, instructions = _cpu_vendor(), torch.backends.cpu.get_cpu_capability()
        blas = f"MKL {mkl_mode() or 'in an unknown mode'}" if _has_mkl() else "another library than MKL"
    return Arithmetic(processor=processor, instructions=instructions, blas=blas, torch=str(torch.__version__))


def compute_reproducibly(instructions: Instructions, device: torch.device) -> None:
    """Let MKL and torch compute with these instructions (the setting `instructions`), and make a GPU deterministic.

    This affects the whole process and must come before its first computation. On a GPU, operators without a
    deterministic form raise RuntimeError, and products are neither rounded to TensorFloat-32 nor summed in bfloat16.
    """
    use_instructions(instructions)
    if device.type != "cuda":
        return
    torch.use_deterministic_algorithms(True)
    # Filling would write to all allocated memory; Eigen reads none that it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # torch sets it aside
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def mkl_mode() -> str | None:
    """Return MKL's mode of conditional numerical reproducibility, spelled as in the environment variable `MKL_CBWR`.

    MKL cannot change its mode after this call. None: torch computes without MKL, or MKL's mode cannot be read.
    """
    libraries = sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))
    if not libraries or not _has_mkl():
        return None
    library = ctypes.CDLL(str(libraries[0]))
    getter = next((getattr(library, name) for name in _MKL_GETTERS if hasattr(library, name)), None)
    if getter is None:
        return None
    found = int(getter(_MKL_ALL))
    branch = _MKL_BRANCHES.get(found & ~_MKL_STRICT, str(found & ~_MKL_STRICT))
    return f"{branch},STRICT" if found & _MKL_STRICT else branch


def warn_if_not_reproducible(device: torch.device, instructions: Instructions) -> None:
    """Log a warning if, on this device, bits of results depend on more than the configuration: groups and threads."""
    problem = _problem(device, instructions)
    if problem is not None:
        logger.warning(problem)


def is_reproducible(device: torch.device, instructions: Instructions) -> bool:
    """Whether, on this device, bits of results depend on the configuration alone, not on agent groups or threads."""
    return _problem(device, instructions) is None


def warn_if_hardware_differs(computed_by: Arithmetic | None, generation: int, device: torch.device) -> None:
    """Log a warning if a generation was `computed_by` (None: unknown) other hardware or libraries than those here."""
    here = arithmetic_of(device)
    if computed_by is not None and computed_by != here:
        logger.warning(
            "Generation %d was computed by %s, and %s continues it: bits may differ from those of a run that was not "
            "moved. Runs started with instructions=avx2 agree on one maker's CPUs with AVX2 and AVX-512.",
            generation,
            computed_by,
            here,
        )


def is_batch_invariant(device: torch.device) -> bool:
    """Test (in milliseconds) if products and sums have the same bits for any number of agents, rows and threads."""
    with computing_threads(torch.get_num_threads()):
        return all(_keeps_bits(*sizes, device) for sizes in _PRODUCTS)


def _keeps_bits(agents: int, rows: int, summed: int, columns: int, device: torch.device) -> bool:
    left = torch.linspace(-1.0, 2.0, agents * rows * summed, device=device).sin().view(agents, rows, summed)
    right = torch.linspace(-2.0, 1.0, agents * summed * columns, device=device).sin().view(agents, summed, columns)
    computed = (
        lambda some: torch.bmm(left[some], right[some]),
        # The gradient of a bias, and a layer with a single output.
        lambda some: left[some].sum(1),
        lambda some: left[some].sum(-1, keepdim=True),
    )
    if not all(_is_same_for_each(compute, agents) for compute in computed):
        return False
    return torch.equal(torch.bmm(left[:, :_FEW_ROWS], right), torch.bmm(left, right)[:, :_FEW_ROWS])


def _is_same_for_each(compute: Callable[[slice], Tensor], agents: int) -> bool:
    """Whether the result for all agents together, on one or two threads, equals the results of single agents."""
    whole = compute(slice(None))
    for threads in (1, 2):
        torch.set_num_threads(threads)
        single = [compute(slice(agent, agent + 1)) for agent in range(agents)]
        if not torch.equal(torch.cat(single), whole) or not torch.equal(compute(slice(None)), whole):
            return False
    return True


@cache
def _problem(device: torch.device, instructions: Instructions) -> str | None:
    found = arithmetic_of(device)
    if device.type == "cpu":
        mode, asked = mkl_mode(), os.environ[MKL_MODE]
        # MKL has one strict mode for processors that are not Intel's, and uses it for all of them.
        strict = {asked} if found.processor == _INTEL else {asked, STRICT}
        if mode is not None and asked.endswith(",STRICT") and mode not in strict:
            return (
                f"MKL computes in mode {mode}, not in {asked}, which was set too late: bits may depend on "
                f"population.group_size, threads and processor. Set {MKL_MODE}={asked} before Python starts, or begin "
                "the training before anything else computes."
            )
        if instructions == "avx2" and found.instructions != "AVX2":
            return (
                f"instructions is avx2, but torch computes with {found.instructions}: bits may depend on the "
                f"processor. Set {TORCH_CAPABILITY}=avx2 before Python starts."
            )
        if mode is not None and mode.endswith(",STRICT"):
            return None
    if is_batch_invariant(device):
        return None
    return (
        f"The bits of a product of {found.blas} or of a sum depend here on how many agents and threads share it: "
        "continuing with another population.group_size or number of threads, or on another machine, may change them."
    )


def _has_mkl() -> bool:
    return bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call] # torch has no annotation here


def _cpu_vendor() -> str:
    """Return the vendor of the CPU as in /proc/cpuinfo; if that does not say, its architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("vendor_id"):
                return line.partition(":")[2].strip()
    return platform.machine()
