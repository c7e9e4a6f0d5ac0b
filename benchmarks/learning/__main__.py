"""Measure what the agents learn of markets whose edge is known."""

import argparse
import json

import torch

from benchmarks.learning.markets import MARKETS
from benchmarks.learning.trial import GENERATIONS, METHODS, run_trial, trial_config


def main() -> None:
    """Run one trial and print what it reached as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    commands = parser.add_subparsers(required=True)
    trial = commands.add_parser("trial", help="train once; print what was reached as one line of JSON")
    trial.add_argument("--market", choices=tuple(MARKETS), default="plain")
    trial.add_argument("--edge", type=float, default=0.3, help="information coefficient of the planted feature")
    trial.add_argument("--seed", type=int, default=1)
    trial.add_argument("--generations", type=int, default=GENERATIONS)
    trial.add_argument("--method", choices=tuple(METHODS), default="both")
    trial.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = trial_config(arguments.market, arguments.seed, arguments.generations, arguments.method, arguments.settings)
    print(json.dumps(run_trial(arguments.market, arguments.edge, config)))


if __name__ == "__main__":
    main()
