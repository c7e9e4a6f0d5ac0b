"""How the libraries compute, as their environment tells them: instructions of the processor, the same bits each time.

MKL, torch and cuBLAS read it when they first compute, not when they are imported. Nothing here imports them.
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


def compute_strictly() -> None:
    """Let products have the same bits each time, unless the user has set how the libraries compute.

    Those of MKL have them whatever is multiplied beside them. cuBLAS needs workspaces of a fixed size, without which
    `torch.use_deterministic_algorithms` refuses its products.
    """
    os.environ.setdefault(MKL_MODE, STRICT)
    os.environ.setdefault(CUBLAS_WORKSPACE, _FIXED_WORKSPACE)


def compute_with(instructions: Instructions) -> None:
    """Let MKL and torch compute with these instructions, unless the user has set others."""
    if instructions == "avx2":
        if os.environ[MKL_MODE] == STRICT:
            os.environ[MKL_MODE] = _STRICT_AVX2
        os.environ.setdefault(TORCH_CAPABILITY, "avx2")
