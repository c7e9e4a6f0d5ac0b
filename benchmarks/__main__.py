"""Run all benchmarks, or those that are named, print their tables and write them into `RESULTS.md`."""

import argparse
import importlib
import signal
import sys
import time
from typing import Protocol, cast

import torch

from benchmarks.results import RESULTS, Section, machine, publish, require_idle

BENCHMARKS = (
    "checkpoints",
    "pauses",
    "baselines",
    "axes",
    "overhead",
    "memoryplan",
    "claims",
    "intervals",
    "audit",
    "populations",
    "timing_claims",
    "workers",
)
"""Modules of this package with a function `run() -> Section`, in the order in which they are run."""


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
    print(machine())
    for name in BENCHMARKS:
        if name in names:
            started = time.perf_counter()
            publish(name, cast(_Benchmark, importlib.import_module(f"benchmarks.{name}")).run())
            print(f"{name} took {time.perf_counter() - started:.0f} s\n")
    print(f"kept in {RESULTS}")


if __name__ == "__main__":
    main()
