"""Measure what the agents learn of markets whose edge is known."""

import argparse
import json
import sys
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.learning.bench import PARTS, make_missing, write
from benchmarks.learning.markets import MARKETS
from benchmarks.learning.trial import METHODS, run_trial, trial_config
from eigen_core.common.errors import InputError
from eigen_core.common.progress import progress_to
from flows.cli.console import display_on


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    trial = commands.add_parser("trial", help="train once; print what was reached as one line of JSON")
    trial.add_argument("--market", choices=tuple(MARKETS), default="plain")
    trial.add_argument("--edge", type=float, default=0.3, help="information coefficient of the signal")
    trial.add_argument("--seed", type=int, default=1)
    trial.add_argument("--generations", type=int, help="those of the method if not given")
    trial.add_argument("--method", choices=tuple(METHODS), default="quickstart")
    trial.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    bench = commands.add_parser("bench", help="make the trials that are missing; write table and picture")
    bench.add_argument("--minutes", type=float, default=float("inf"), help="begin no trial after so many")
    bench.add_argument("--part", choices=tuple(PARTS), default="market", help="trades, their learners, or portfolios")
    bench.add_argument("--out", type=Path, default=Path("learning-bench"), help="folder of the trials")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        if arguments.command == "bench":
            part = PARTS[arguments.part]
            with display_on(Console(stderr=True)) as display, progress_to(display):
                make_missing(arguments.out, part, arguments.minutes)
            write(arguments.out, part)
        else:
            config = trial_config(
                arguments.market, arguments.seed, arguments.method, arguments.settings, arguments.generations
            )
            print(json.dumps(run_trial(arguments.market, arguments.edge, config, arguments.method)))
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
