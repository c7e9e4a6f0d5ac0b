"""MKL computes in the mode that keeps bits over groupings, however a process begins; if it cannot, that is said."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from operator_modes import OperatorMode

from eigen_core.machine.reproducibility import is_batch_invariant

pytestmark = pytest.mark.cpu

GROUPS = Path(__file__).parents[1] / "generation" / "test_groups_and_threads.py"
CASE = "test_groups_and_threads_change_no_bit[tcn-False-True-2]"

SUPPORT = Path(__file__).parents[2] / "support"

TRAINING = """
import sys, torch
from training_cases import advance, content_of, small_state
state = advance(small_state(20, instructions=sys.argv[1], network={"encoder": "tcn"}), 1)
print(content_of(state)["population"], torch.backends.cpu.get_cpu_capability())
"""

BEGIN = """
import logging, torch
logging.basicConfig(format="%(message)s")
def product():
    return torch.bmm(torch.ones(2, 20, 20), torch.ones(2, 20, 20))
"""
REPORT = """
from eigen_core.common.process import use_instructions
from eigen_core.machine.reproducibility import arithmetic_of, is_batch_invariant, warn_if_not_reproducible
device = torch.device("cpu")
use_instructions(INSTRUCTIONS)
product()
warn_if_not_reproducible(device, INSTRUCTIONS)
print(arithmetic_of(device).instructions, arithmetic_of(device).blas, is_batch_invariant(device), sep="; ")
"""


_SOURCE = "int mkl_serv_intel_cpu(void) { return 1; }\nint mkl_serv_intel_cpu_true(void) { return 1; }\n"


@pytest.fixture(scope="module")
def intel_mkl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for `LD_PRELOAD`: MKL takes any processor for one of Intel's, by whose maker it chooses kernels."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("intel-mkl")
    source, library = folder / "intel.c", folder / "intel.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def environment(**extra: str) -> dict[str, str]:
    """That of a user who has set no mode of MKL."""
    kept = {name: value for name, value in os.environ.items() if name not in ("MKL_CBWR", "ATEN_CPU_CAPABILITY")}
    return {**kept, **extra}


def computed(*code: str, instructions: str = "auto", **extra: str) -> tuple[list[str], str]:
    """What a process that runs `code` computes with, and what it says."""
    script = BEGIN + "\n".join(code) + REPORT.replace("INSTRUCTIONS", repr(instructions))
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(**extra),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return ended.stdout.strip().split("; "), ended.stderr


needs_mkl = pytest.mark.skipif(
    not torch.backends.mkl.is_available(),  # type: ignore[no-untyped-call] # torch has no annotation here
    reason="torch computes without MKL",
)


@needs_mkl
@pytest.mark.parametrize(
    ("before", "instructions", "of_user", "blas", "keeps_bits", "said"),
    [
        # Torch was imported before; so is Prefect by the process of a flow.
        ("", "auto", {}, "MKL AUTO,STRICT", True, ()),
        ("import flows.server.training_flow", "auto", {}, "MKL AUTO,STRICT", True, ()),
        ("", "avx2", {"MKL_CBWR": "COMPATIBLE"}, "MKL COMPATIBLE", False, ("how many agents and threads share it",)),
        ("product()", "auto", {}, "MKL OFF", None, ("too late", "Set MKL_CBWR=AUTO,STRICT before Python starts")),
    ],
)
@pytest.mark.thorough
def test_mkl_is_strict_unless_the_user_or_an_earlier_product_decides_otherwise_which_is_said(
    before: str,
    instructions: str,
    of_user: dict[str, str],
    blas: str,
    keeps_bits: bool | None,
    said: tuple[str, ...],
) -> None:
    (_, found, kept), messages = computed(before, instructions=instructions, **of_user)
    assert found == blas
    assert keeps_bits is None or kept == str(keeps_bits)
    assert [words for words in said if words not in messages] == []
    assert bool(messages) == bool(said)


@needs_mkl
@pytest.mark.thorough
def test_on_intel_too_mkl_keeps_bits_by_default_and_not_in_other_modes(intel_mkl: Path) -> None:
    """The failing mode shows that the two products tell them apart."""
    preload = {"LD_PRELOAD": str(intel_mkl)}
    (_, blas, kept), said = computed(**preload)
    assert (blas, kept, said) == ("MKL AUTO,STRICT", "True", "")
    (_, blas, kept), said = computed(MKL_CBWR="AVX2", **preload)
    assert (blas, kept) == ("MKL AVX2", "False")
    assert "depend here on how many agents and threads share it" in said
    found, said = computed(instructions="avx2", **preload)
    assert (found, said) == (["AVX2", "MKL AVX2,STRICT", "True"], "")


@pytest.mark.thorough
def test_groups_and_threads_change_no_bit_on_intel(intel_mkl: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", f"{GROUPS}::{CASE}", "-p", "no:cacheprovider"],
        env=environment(LD_PRELOAD=str(intel_mkl)),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout


@needs_mkl
@pytest.mark.thorough
def test_with_avx2_processors_with_and_without_avx512_agree(intel_mkl: Path) -> None:
    """The one with AVX2 alone is made by the libraries' own settings."""
    lesser = {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    usual, chosen, elsewhere = (
        subprocess.run(
            [sys.executable, "-c", TRAINING, instructions],
            env=environment(LD_PRELOAD=str(intel_mkl), PYTHONPATH=str(SUPPORT), **settings),
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout.split()
        for instructions, settings in (("auto", {}), ("avx2", {}), ("avx2", lesser))
    )
    assert chosen == elsewhere
    # Without the setting they do not, where this processor has AVX-512.
    assert usual[0] != chosen[0] or usual[1] != "AVX512"


def test_these_tests_compute_as_a_training_does() -> None:
    assert is_batch_invariant(torch.device("cpu"))


class _SumsLikeAGpu(OperatorMode):  # type: ignore[no-untyped-call] # torch has no annotation here
    """A sum over a dimension adds its halves by themselves where it has few results, as blocks of a GPU may."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self._dim = dim

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if str(func) == "aten.sum.dim_IntList" and list(args[1]) == [self._dim] and len(args[0]) == 1:
            first, second = args[0].chunk(2, self._dim)
            return func(first, *args[1:], **(kwargs or {})) + func(second, *args[1:], **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dim", [1, -1])
def test_sums_that_depend_on_the_agents_beside_them_are_seen(dim: int) -> None:
    with _SumsLikeAGpu(dim):
        assert not is_batch_invariant(torch.device("cpu"))
