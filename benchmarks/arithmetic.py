"""What the modes of MKL cost, and what they do to bits: three generations in a process for each."""

import json
import os
import subprocess
import sys
import time
from statistics import median
from typing import Any

import torch

from benchmarks.results import Section
from eigen_core.checkpoint.tensors import tensors_sha256
from eigen_core.config.loading import load_config
from eigen_core.generation import evaluate, evolve, start_training, train
from eigen_core.machine.arithmetic import arithmetic_of, is_batch_invariant
from eigen_core.market import build_panel

_GENERATIONS = 3
_ROUNDS = 3
_CASES: tuple[tuple[str, str, str], ...] = (
    ("MKL_CBWR=OFF", "OFF", "auto"),
    ("as it comes", "AUTO,STRICT", "auto"),
    ("instructions=avx2", "AUTO,STRICT", "avx2"),
    ("MKL_CBWR=COMPATIBLE", "COMPATIBLE", "auto"),
)


def run() -> Section:
    """Train with each mode in turn."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name, _, _ in _CASES}
    for _ in range(_ROUNDS):
        for name, mode, instructions in _CASES:
            found[name].append(_measured(mode, instructions))
    usual = median(one["seconds"] for one in found["as it comes"])
    rows = []
    for name, measured in found.items():
        seconds, last = median(one["seconds"] for one in measured), measured[-1]
        kept = "yes" if last["kept"] else "no"
        rows.append([name, last["computed_by"], f"{seconds:.1f}", f"{seconds / usual:.2f}", kept, last["weights"][:8]])
    return Section(
        title="Modes of MKL",
        method=f"{_GENERATIONS} generations of preset quickstart on the bundled prices with one thread, each in a "
        f"process of its own, middle of {_ROUNDS} by turns; whether two products keep their bits over groups and "
        "threads, and the first digits of the weights' SHA-256 after the last generation.",
        columns=("setting", "computed by", "CPU s", "times the usual", "keeps bits", "weights"),
        rows=rows,
    )


def _measured(mode: str, instructions: str) -> dict[str, Any]:
    environment = {**os.environ, "MKL_CBWR": mode, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", __name__, instructions]
    document: dict[str, Any] = json.loads(subprocess.check_output(command, env=environment))
    return document


def main() -> None:
    """Train with the instructions that are named and print what it took, as JSON."""
    torch.set_num_threads(1)
    config = load_config("quickstart", (f"instructions={sys.argv[1]}",))
    state = start_training(config, build_panel(config)[0])
    began = time.process_time()
    for _ in range(_GENERATIONS):
        evaluate(state)
        train(state)
        evolve(state)
    taken = {
        "seconds": time.process_time() - began,
        "computed_by": str(arithmetic_of(state.device)),
        "kept": is_batch_invariant(state.device),
        "weights": tensors_sha256({"weights": state.population.weights}),
    }
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
