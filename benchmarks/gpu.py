"""Preset eigen2 on a GPU: time of each phase, memory, kernels, and shares of what the GPU can do at most."""

import argparse
import sys
from collections.abc import Mapping, Sequence

import torch
from rich.console import Console

from benchmarks.__main__ import ALL_SECTIONS
from benchmarks.gpu_case import COLUMNS, DAYS, PHASES, Case, Ceilings, Measured, ceilings_of, measured
from benchmarks.results import RESULTS, Section, keep

_CASES = tuple(
    case
    for encoder in ("filter_bank", "tcn")
    for case in (
        Case(encoder),
        Case(encoder, graphs=True),
        Case(encoder, deterministic=False),
        Case(encoder, precision="bfloat16"),
    )
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, show, and keep what a GPU took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only shows that it runs")
    parser.add_argument("--small", action="store_true", help="a tiny size, whose figures mean nothing")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        print(
            "torch finds no GPU, which this measures: check the driver, or see that it runs with --device cpu --small.",
            file=sys.stderr,
        )
        raise SystemExit(2)
    section = run(torch.device(given.device), small=given.small)
    section.show(Console())
    if given.device == "cuda" and not given.small:
        keep({"gpu": section}, ALL_SECTIONS)
        print(f"kept in {RESULTS}")


def run(device: torch.device, *, small: bool) -> Section:
    """Run generations of each case on a device, in a small size or the preset's."""
    ceilings = ceilings_of(device, small=small)
    cases = {case: measured(device, case, small=small) for case in _CASES}
    rows = [_row(case, cases, ceilings) for case in _CASES]
    equal = all(found.weights == cases[case._replace(graphs=False)].weights for case, found in cases.items())
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the processor"
    reached = ", ".join(
        f"{flops / 1e12:,.2f} TFLOP/s in {kind}" for kind, flops in ceilings.operations_per_second.items()
    )
    return Section(
        title="A generation on a GPU",
        method=f"Preset eigen2 on a synthetic panel of {DAYS:,} days, {COLUMNS} columns and 9 features, 108 columns "
        "of it tradable: the second generation, each phase waited for; peak memory over it. Kernels are counted by the "
        "torch profiler in the third and operators in the fourth, a rollout step being a day of all episodes of a "
        "group. Bandwidth: bytes of all tensors that the operators of the train phase read and write, a second, as a "
        "share of what a large copy reaches; FLOP: of its matrix products (`torch.utils.flop_counter`), as a share of "
        "what a large product of the same precision reaches.",
        columns=(
            "encoder, precision, algorithms, whether captured as CUDA graphs",
            *(f"{phase}: s" for phase in PHASES),
            "peak: MB",
            "kernels (operators) an update",
            "a rollout step",
            "bandwidth: %",
            "FLOP: %",
        ),
        rows=rows,
        remarks=(
            f"{name} copies {ceilings.bytes_per_second / 1e9:,.1f} GB/s and multiplies {reached}.",
            f"Captured as CUDA graphs generations have {'the same' if equal else 'OTHER'} bits.",
        ),
    )


def _row(case: Case, cases: Mapping[Case, Measured], ceilings: Ceilings) -> list[str]:
    found = cases[case]
    # A graph has the operators that it was captured from, and calls none.
    touched = cases[case._replace(graphs=False)].touched
    per_step = {
        name: f"{found.kernels[name] / count:,.0f} ({touched[name][0] / count:,.0f})"
        for name, count in found.steps.items()
    }
    _, moved, flop = touched["train"]
    seconds = found.seconds
    return [
        str(case),
        *(f"{seconds[name]:.3f}" for name in PHASES),
        f"{found.peak / 1e6:,.0f}" if found.peak else "",
        per_step["train"],
        per_step["evaluate"],
        f"{100 * moved / seconds['train'] / ceilings.bytes_per_second:.1f}",
        f"{100 * flop / seconds['train'] / ceilings.operations_per_second[case.precision]:.1f}",
    ]


if __name__ == "__main__":
    main()
