"""MKL on a processor that is not Intel's as it is on one of Intel's: it chooses its kernels by the maker."""

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = "int mkl_serv_intel_cpu(void) { return 1; }\nint mkl_serv_intel_cpu_true(void) { return 1; }\n"


@pytest.fixture(scope="session")
def intel_mkl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for `LD_PRELOAD` that answers MKL's question for the maker."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("intel-mkl")
    source, library = folder / "intel.c", folder / "intel.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library
