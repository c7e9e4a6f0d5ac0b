"""Preset eigen2 on a GPU: time of each phase, memory, kernels, and shares of the GPU's peak rates."""

import argparse
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.gpu_case import COLUMNS, DAYS, PHASES, Case, Ceilings, Measured, ceilings_of, measured
from benchmarks.results import RESULTS, Section, keep

_ENCODERS = ("filter_bank", "tcn")
_CASES: Mapping[str, Callable[[str], Case]] = {
    "default": Case,
    "graphs": partial(Case, graphs=True),
    "nondeterministic": partial(Case, deterministic=False),
    "bfloat16": partial(Case, precision="bfloat16"),
}
_HEADINGS = (
    "encoder, precision, algorithms, whether captured as CUDA graphs",
    *(f"{phase}: s" for phase in PHASES),
    "peak: MB",
    "kernels (operators) an update",
    "a rollout step",
    "bandwidth: %",
    "FLOP: %",
)

Result = TypeVar("Result")


class FailedError(RuntimeError):
    """A measurement failed; the message is the first line of the reason."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only shows that it runs")
    parser.add_argument("--small", action="store_true", help="a tiny size, whose figures mean nothing")
    parser.add_argument("--encoders", nargs="+", choices=_ENCODERS, default=_ENCODERS, help="which are measured")
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=tuple(_CASES),
        default=tuple(_CASES),
        help="which of each are measured; graphs takes its operators, bandwidth and FLOP from default",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="gets the section after each case; RESULTS.md gets it at the end, if all cases were chosen",
    )
    given = parser.parse_args(arguments)
    if given.output and not given.output.parent.is_dir():
        parser.error(f"--output: there is no folder {given.output.parent}")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU: check the driver, or try --device cpu --small")
    cases = [
        make(encoder)
        for encoder in _ENCODERS
        if encoder in given.encoders
        for name, make in _CASES.items()
        if name in given.cases
    ]
    # Row by row, so that results are printed even if the process is killed later.
    print(" | ".join(_HEADINGS), flush=True)
    for section in run(torch.device(given.device), cases, small=given.small):
        print(" | ".join(section.rows[-1]), flush=True)
        if given.output:
            keep("gpu", section, given.output)
    print(*section.remarks, sep="\n")
    if given.device == "cuda" and not given.small and len(cases) == len(_ENCODERS) * len(_CASES):
        keep("gpu", section)
        print(f"kept in {RESULTS}")


def run(device: torch.device, cases: Sequence[Case], *, small: bool) -> Iterator[Section]:
    """Measure cases on a device, in a small size or the preset's; after each, yield the results so far.

    Each has its own process: once the torch profiler has been used, each launch of a kernel takes longer
    (https://github.com/pytorch/pytorch/issues/144455). The row of a case that fails says why.

    Raises:
        FailedError: the device's peak rates could not be measured.
    """
    ceilings = _in_own_process(ceilings_of, device, small)
    found: dict[Case, Measured] = {}
    rows = []
    for case in cases:
        try:
            found[case] = _in_own_process(measured, device, case, small)
            rows.append(_row(case, found, ceilings))
        except FailedError as error:
            rows.append([str(case), f"failed: {error}", *[""] * (len(_HEADINGS) - 2)])
        yield _section(rows, found, ceilings)


def _in_own_process(work: Callable[..., Result], *arguments: object) -> Result:
    """Call a module's function in a new process; raise `FailedError` if it fails or its process is killed."""
    context = get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    # A daemon is ended with this process: it would hold the GPU's memory while something else is measured.
    process = context.Process(target=_send, args=(sending, work, arguments), daemon=True)
    process.start()
    sending.close()
    try:
        found: Result | FailedError = receiving.recv()
    except EOFError:
        process.join()
        raise FailedError(f"its process ended with exit code {process.exitcode}") from None
    process.join()
    if isinstance(found, FailedError):
        raise found
    return found


def _send(sending: Connection, work: Callable[..., object], arguments: Sequence[object]) -> None:
    try:
        sending.send(work(*arguments))
    except Exception as error:  # noqa: BLE001 - whatever a case fails of, the others are measured
        traceback.print_exc()
        sending.send(FailedError("".join(traceback.format_exception_only(error)).splitlines()[0]))


def _section(rows: Sequence[Sequence[str]], found: Mapping[Case, Measured], ceilings: Ceilings) -> Section:
    equal = [
        captured.weights == found[case._replace(graphs=False)].weights
        for case, captured in found.items()
        if case.graphs and case._replace(graphs=False) in found
    ]
    reached = ", ".join(
        f"{flops / 1e12:,.2f} TFLOP/s in {kind}" for kind, flops in ceilings.operations_per_second.items()
    )
    remarks = [f"{ceilings.device} copies {ceilings.bytes_per_second / 1e9:,.1f} GB/s and multiplies {reached}."]
    if equal:
        remarks.append(f"Captured as CUDA graphs generations have {'the same' if all(equal) else 'OTHER'} bits.")
    return Section(
        title="A generation on a GPU",
        method=f"Preset eigen2 on a synthetic panel of {DAYS:,} days, {COLUMNS} columns and 9 features, 108 columns "
        "of it tradable, each row in a process of its own: the second generation, each phase waited for; peak memory "
        "over it. Kernels are counted by the torch profiler in the third and operators in the fourth, a rollout step "
        "being a day of all episodes of a group. Bandwidth: bytes of all tensors that the operators of the train phase "
        "read and write, a second, as a share of what a large copy reaches; FLOP: of its matrix products "
        "(`torch.utils.flop_counter`), as a share of what a large product of the same precision reaches.",
        columns=_HEADINGS,
        rows=tuple(rows),
        remarks=remarks,
    )


def _row(case: Case, cases: Mapping[Case, Measured], ceilings: Ceilings) -> list[str]:
    found, plain = cases[case], case._replace(graphs=False)
    # A graph has the operators that it was captured from, and calls none.
    touched = cases[plain].touched if plain in cases else {}
    operators = {name: f" ({touched[name][0] / count:,.0f})" if touched else "" for name, count in found.steps.items()}
    kernels = {name: f"{found.kernels[name] / count:,.0f}{operators[name]}" for name, count in found.steps.items()}
    shares = ["", ""]
    if touched:
        _, moved, flop = (amount / found.seconds["train"] for amount in touched["train"])
        most = ceilings.bytes_per_second, ceilings.operations_per_second[case.precision]
        shares = [f"{100 * moved / most[0]:.1f}", f"{100 * flop / most[1]:.1f}"]
    return [
        str(case),
        *(f"{found.seconds[name]:.3f}" for name in PHASES),
        f"{found.peak / 1e6:,.0f}" if found.peak else "",
        kernels["train"],
        kernels["evaluate"],
        *shares,
    ]


if __name__ == "__main__":
    # So that the process of a case is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main()
