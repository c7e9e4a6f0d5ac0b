"""How the libraries compute, as their environment tells them: instructions of the processor, the same bits each time.

MKL, torch and cuBLAS read it when they first compute, OpenMP when torch is imported. Nothing here imports them.
"""

import os
from typing import Literal

Instructions = Literal["auto", "avx2"]

MKL_MODE = "MKL_CBWR"
STRICT = "AUTO,STRICT"
TORCH_CAPABILITY = "ATEN_CPU_CAPABILITY"
_STRICT_AVX2 = "AVX2,STRICT"
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_FIXED_WORKSPACE = ":4096:8"

# What the environment had, None: nothing, before something was set here.
_before: dict[str, str | None] = {}


def compute_strictly() -> None:
    """Let products have the same bits each time, unless the user has set how the libraries compute.

    Those of MKL have them whatever is multiplied beside them. cuBLAS needs workspaces of a fixed size, without which
    `torch.use_deterministic_algorithms` refuses its products.
    """
    for name, value in ((MKL_MODE, STRICT), (CUBLAS_WORKSPACE, _FIXED_WORKSPACE)):
        if name not in os.environ:
            _set(name, value)


def wait_passively() -> None:
    """Let threads of OpenMP sleep while they wait, unless the user has set how they wait.

    Threads that spin while they wait stall each other where other processes compute. It has no effect on a process
    that has imported torch already.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def compute_with(instructions: Instructions) -> None:
    """Let MKL and torch compute with these instructions, unless the user has set others."""
    if instructions == "avx2":
        if os.environ[MKL_MODE] == STRICT:
            _set(MKL_MODE, _STRICT_AVX2)
        if TORCH_CAPABILITY not in os.environ:
            _set(TORCH_CAPABILITY, "avx2")


def environment_without_instructions() -> dict[str, str]:
    """Return the environment of this process without what was set here: a process that has it chooses for itself.

    A process that has computed with some instructions would else pass them on to every run that it starts.
    """
    given = {name: value for name, value in os.environ.items() if name not in _before}
    return given | {name: value for name, value in _before.items() if value is not None}


def _set(name: str, value: str) -> None:
    _before.setdefault(name, os.environ.get(name))
    os.environ[name] = value
