"""Run all fuzzers, or those that are named, and keep what they found in `RESULTS.md`.

The exit code is 1 if any case was treated wrongly.
"""

import argparse
import importlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.fuzz.cases import Findings, Outcome, findings, fuzz
from benchmarks.results import Section, publish

FUZZERS: dict[str, int] = {"configuration": 300, "layouts": 600, "manifests": 200, "run_files": 100}
"""Modules of this package with a function `one_case`, and how many cases of each are tried."""


class _Fuzzer(Protocol):
    def one_case(self, generator: np.random.Generator, folder: Path) -> Outcome: ...


def find(name: str, cases: range, seed: int, console: Console) -> Findings:
    one_case = cast(_Fuzzer, importlib.import_module(f"benchmarks.fuzz.{name}")).one_case
    folder = Path(tempfile.mkdtemp(prefix="eigen-fuzz-"))

    def shown() -> Iterator[tuple[int, Outcome]]:
        outcomes = fuzz(one_case, name, folder, cases, seed)
        yield from track(outcomes, description=name, total=len(cases), console=console)

    try:
        return findings(shown(), name, seed)
    finally:
        shutil.rmtree(folder)


def section(found: dict[str, Findings], seed: int) -> Section:
    rows = [
        (name, treatment, f"{len(kinds)}", f"{sum(kinds):,}")
        for name, one in found.items()
        for treatment in sorted({treatment for _, treatment in one.treatments})
        if (kinds := [count for (_, of), count in one.treatments.items() if of == treatment])
    ]
    totals = [f"{name}: {one.cases:,} cases, {len(one.faults)} treated wrongly." for name, one in found.items()]
    return Section(
        title="Inputs drawn at random",
        method=f"`python -m benchmarks.fuzz --seed {seed}`: each case is drawn with its right treatment.",
        columns=("fuzzer", "treatment", "kinds of cases", "cases"),
        rows=rows,
        remarks=totals,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(FUZZERS)}; none: all")
    parser.add_argument("--cases", type=int, help="cases of each fuzzer")
    parser.add_argument("--first", type=int, default=0, help="index of the first case")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    names = arguments.names or list(FUZZERS)
    unknown = [name for name in names if name not in FUZZERS]
    if unknown:
        parser.error(f"there is no fuzzer {unknown[0]}: name one of {', '.join(FUZZERS)}")
    console = Console()
    found = {}
    for name in names:
        cases = range(arguments.first, arguments.first + (arguments.cases or FUZZERS[name]))
        found[name] = find(name, cases, arguments.seed, console)
        for fault in found[name].faults:
            console.print(f"fault: {fault}", highlight=False, markup=False)
    shown = section(found, arguments.seed)
    if names == list(FUZZERS) and arguments.cases is None and arguments.first == 0:
        publish("fuzz", shown)
    else:
        shown.show(console)
    return 1 if any(one.faults for one in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
