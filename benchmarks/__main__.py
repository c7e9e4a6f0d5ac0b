"""Run all benchmarks, or those that are named, show their tables and keep them in `RESULTS.md`."""

import argparse
import importlib
import signal
import sys
import time
from typing import Protocol, cast

import torch
from rich.console import Console

from benchmarks.results import RESULTS, Section, keep, machine, require_idle

BENCHMARKS = (
    "checkpoints",
    "pauses",
    "baselines",
    "overhead",
    "goodput",
    "memoryplan",
    "claims",
    "intervals",
    "audit",
    "populations",
    "timing_claims",
    "workers",
    "size",
)
"""Modules of this package with a function `run() -> Section`, in the order in which they are run and kept."""
_FORMER = ("transitions", "trajectorybuffer", "scaling", "arithmetic")
ALL_SECTIONS = (
    *BENCHMARKS,
    "soak",
    "kill",
    "stop",
    "limits",
    "fuzz",
    "control",
    "gpu",
    "trust",
    "learning",
    "learningportfolio",
    *_FORMER,
)
"""All sections of the file of results. Modules of their own write those from `soak` on; no script is left for the last
four, whose questions are answered."""


class _Benchmark(Protocol):
    def run(self) -> Section: ...


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; none: all")
    names = parser.parse_args().names or BENCHMARKS
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]}: name one of {', '.join(BENCHMARKS)}")
    require_idle(names)
    # So that a benchmark that is stopped leaves no server and no worker behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    torch.set_num_threads(1)
    console = Console()
    console.print(machine(), highlight=False)
    for name in BENCHMARKS:
        if name not in names:
            continue
        started = time.perf_counter()
        section = cast(_Benchmark, importlib.import_module(f"benchmarks.{name}")).run()
        section.show(console)
        console.print(f"{name} took {time.perf_counter() - started:.0f} s\n", style="dim")
        keep({name: section}, ALL_SECTIONS)
    console.print(f"kept in {RESULTS}")


if __name__ == "__main__":
    main()
