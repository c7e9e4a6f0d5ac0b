"""Which instructions of the processor the libraries compute with, as their environment tells them.

MKL and torch read it when they first compute, not when they are imported. Nothing here imports them.
"""

import os
from typing import Literal

Instructions = Literal["auto", "avx2"]

MKL_MODE = "MKL_CBWR"
STRICT = "AUTO,STRICT"
TORCH_CAPABILITY = "ATEN_CPU_CAPABILITY"
_STRICT_AVX2 = "AVX2,STRICT"


def compute_strictly() -> None:
    """Let a product of MKL have the same bits whatever is multiplied beside it, unless the user has set its mode."""
    os.environ.setdefault(MKL_MODE, STRICT)


def compute_with(instructions: Instructions) -> None:
    """Let MKL and torch compute with these instructions, unless the user has set others."""
    if instructions == "avx2":
        if os.environ[MKL_MODE] == STRICT:
            os.environ[MKL_MODE] = _STRICT_AVX2
        os.environ.setdefault(TORCH_CAPABILITY, "avx2")
