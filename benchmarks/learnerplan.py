"""Memory and time as planned beside what runs take: of each learner, of environments, with trackers."""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from benchmarks.memoryplan import GOAL, RUN_PHASES, Case, compare, settings_of
from benchmarks.results import Section
from eigen_core.config.loading import load_config
from eigen_core.generation import TrainingState, evaluate, evolve, start_training, train
from eigen_core.planning import calibrate
from eigen_core.task import open_data

_FIVE = "generations=5"
CASES = (
    *(
        Case(name, f"quickstart, {name}", "quickstart", (f"learner.algorithm={name}", _FIVE))
        for name in ("ddpg", "td3", "sac")
    ),
    Case("ppo", "ppo", "ppo", (_FIVE,)),
    Case("pendulum", "pendulum", "pendulum"),
    Case("swimmer", "swimmer", "swimmer", ("generations=4",)),
    Case("halfcheetah", "halfcheetah", "halfcheetah", ("generations=4",)),
    *(
        Case(name, f"quickstart, {name}", "quickstart", (f'reporting.trackers=["{name}"]', _FIVE))
        for name in ("tensorboard", "mlflow")
    ),
)
_TURNS = 5


def run(names: tuple[str, ...] = ()) -> Section:
    """Plan and train the cases of these names; without any, all."""
    rows, errors, late = [], [], []
    for case in CASES:
        if names and case.key not in names:
            continue
        with tempfile.TemporaryDirectory(prefix="eigen-learner-plan-", ignore_cleanup_errors=True) as folder:
            found = compare(case, Path(folder))
        planned, taken = planned_and_taken(case)
        errors.append(found.error)
        late.append(planned / taken - 1.0)
        rows.append([*found.row(), f"{planned:.2f} / {taken:.2f}", f"{100 * late[-1]:+.1f} %"])
    return Section(
        title="The plan over learners, environments and trackers",
        method="As above: MB planned / MB seen of `eigen train`. Time: evaluate, train and evolve of a generation that "
        f"learns, as `eigen plan` infers them / as they take, {_TURNS} of each by turns in one process: medians of "
        "processor seconds, which other processes lengthen little. "
        + "; ".join(f"*{case.name}*: {settings_of(case)}" for case in CASES)
        + ". One torch thread.",
        columns=("", *RUN_PHASES, "peak", "error", "run on disk", "a generation (s)", "error of time"),
        rows=rows,
        remarks=(
            f"The goal is an error of at most {GOAL:.0%}; the largest is {max(map(abs, errors)):.1%} of memory and "
            f"{max(map(abs, late)):.1%} of time.",
        ),
    )


def planned_and_taken(case: Case) -> tuple[float, float]:
    """Return the processor seconds of a generation that learns, as they are inferred and as they are."""
    config = load_config(case.preset, case.settings)
    data = open_data(config)
    state = start_training(config, data.content)
    planned: list[float] = []
    taken: list[float] = []
    while len(taken) < _TURNS:
        seconds = sum(_processor_seconds(phase, state) for phase in (evaluate, train, evolve))
        if state.history[-1].learning is not None:
            taken.append(seconds)
            planned.append(calibrate(config, data.facts).seconds)
    return median(planned), median(taken)


def _processor_seconds(phase: Callable[[TrainingState], object], state: TrainingState) -> float:
    started = time.process_time()
    phase(state)
    return time.process_time() - started


def main() -> None:
    """Show the benchmark without keeping it."""
    from rich.console import Console

    parser = argparse.ArgumentParser(prog="python -m benchmarks.learnerplan", description=__doc__)
    parser.add_argument("names", nargs="*", help="cases; none: all")
    torch.set_num_threads(1)
    run(tuple(parser.parse_args().names)).show(Console(width=240))


if __name__ == "__main__":
    main()
