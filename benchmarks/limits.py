"""Train under memory limits drawn at random below the need, and look at how each run ends.

`python -m benchmarks.limits [--runs 20] [--seed 1]`: processes of `eigen train` go on with a run of two generations.
Some need more than the limit by their plan, in the others a phase takes what no plan knows. The exit code is 1 if any
of them ends otherwise than by the plan or the guard, or leaves anything behind that is not whole.
"""

import argparse
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks.__main__ import ALL_SECTIONS
from benchmarks.limited_training import PHASES, Appetite
from benchmarks.limiter import BEGUN, HARD, KINDS, Case, Kind, Limiter, Need, Outcome
from benchmarks.results import Section, keep
from eigen_core.common.randomness import keyed_generator
from eigen_core.common.text import size

# Of five runs, so many are to be ended by the guard.
_GUARDED_OF_FIVE = 3
_EXTRA = {"memory.limit_gb": 700_000_000, "RLIMIT_AS": 2_200_000_000}
_PIECES = (32, 256, 2_000)


def drawn(index: int, seed: int, need: Need) -> Case:
    """Draw the run of an index: three of five with an appetite, in each phase in turn."""
    generator = keyed_generator(seed, 0, "limits", index, "case")
    kind = KINDS[int(generator.integers(len(KINDS)))]
    row, place = divmod(index, 5)
    if place >= _GUARDED_OF_FIVE:
        return below_the_need(kind, need, generator)
    return with_appetite(PHASES[(row * _GUARDED_OF_FIVE + place) % len(PHASES)], kind, need, generator)


def below_the_need(kind: Kind, need: Need, generator: np.random.Generator) -> Case:
    """Draw a limit under which the training itself does not fit."""
    enough = int(need.measured[kind] / HARD)
    lowest = max(int(1.1 * need.loading[kind]), enough // 5)
    return Case(kind, int(generator.integers(lowest, enough)), enough, None)


def with_appetite(phase: str, kind: Kind, need: Need, generator: np.random.Generator) -> Case:
    """Draw a limit under which the training fits, but not with what one of its phases takes beyond the plan."""
    extra = _EXTRA[kind]
    appetite = Appetite(
        phase=phase,
        way="steps" if generator.random() < 0.5 else "one step",
        content="tensor" if generator.random() < 0.5 else "array",
        after=bool(generator.random() < 0.5),
        bytes=extra,
        pieces=int(generator.choice(_PIECES)),
    )
    if appetite.way == "steps":
        appetite = replace(appetite, pieces=_PIECES[0])
    enough = int((need.least[kind] + extra) / HARD)
    lowest, highest = int(1.03 * need.admitted[kind]), int((0.9 * need.least[kind] + extra) / HARD)
    return Case(kind, int(generator.integers(lowest, highest)), enough, appetite)


def run(limiter: Limiter, runs: int, seed: int, console: Console) -> tuple[Need, list[Outcome]]:
    """Train under so many limits; show each end as it comes."""
    with Progress(console=console) as progress:
        bar = progress.add_task("runs under limits", total=runs)
        limiter.begin()
        need = limiter.measure()
        expected = limiter.facts("undisturbed")
        outcomes = []
        for index in range(runs):
            outcome = limiter.run(drawn(index, seed, need), f"run-{index}", need)
            limiter.compare(outcome, f"run-{index}", expected)
            console.print(*row_of(index, outcome), sep=" | ", highlight=False, markup=False)
            for fault in outcome.faults:
                console.print(f"   fault: {fault}", highlight=False, markup=False)
            outcomes.append(outcome)
            progress.update(bar, completed=index + 1)
        return need, outcomes


COLUMNS = ("run", "limit", "of", "need", "what takes it", "ended by", "largest part", "all is well")


def row_of(index: int, outcome: Outcome) -> list[str]:
    """The outcome as cells of a table."""
    case, appetite = outcome.case, outcome.case.appetite
    taking = "the training"
    if appetite is not None:
        when = "after" if appetite.after else "before"
        taking = f"{appetite.phase}: {appetite.content}s in {appetite.way}, {when} its work"
    largest = outcome.largest[0] + (f" {size(outcome.largest[1])}" if outcome.largest[1] else "")
    by = f"{outcome.by} in {outcome.phase}" if outcome.phase else outcome.by
    well = "yes" if not outcome.faults else "no"
    return [str(index + 1), size(case.limit), case.kind, size(case.need), taking, by, largest, well]


def _section(need: Need, outcomes: Sequence[Outcome]) -> Section:
    by = [outcome.by for outcome in outcomes]
    well = sum(not outcome.faults for outcome in outcomes)
    highest = max(range(len(outcomes)), key=lambda index: outcomes[index].peak)
    return Section(
        title="Under limits below the need",
        method=f"A run of {BEGUN} generations goes on as `eigen train` in a process of its own, under a limit drawn at "
        "random: below what the training takes by itself, or above that but below what it takes with a phase that "
        f"keeps {' or '.join(size(extra) for extra in _EXTRA.values())} that no plan knows. All is well: exit code 3, "
        "no MemoryError and no traceback, and a report that names the largest part and "
        "what was kept to 10 %; or the plan was printed, or the limit refused, and nothing written. `eigen verify "
        "--deep` finds the run whole, and it goes on without the limit to the bits of a run that had none.",
        columns=COLUMNS,
        rows=[row_of(index, outcome) for index, outcome in enumerate(outcomes)],
        remarks=[
            f"{well} of {len(outcomes)} are well; {by.count('guard')} were ended by the guard, "
            f"{by.count('plan')} by the plan; {by.count('refusal')} had a limit below what torch and Prefect alone "
            "take, which the command refuses before it plans.",
            f"Without a limit the training takes {_sizes(need.measured.values())} at most; the plan admits it from "
            f"limits of {_sizes(need.admitted.values())} on ({' and '.join(KINDS)}). RLIMIT_AS is drawn from 1.1 x "
            f"{size(need.loading['RLIMIT_AS'])} on, what it takes to load the libraries and make the plan.",
            f"The highest resident peak was {outcomes[highest].peak:.0%} of its limit, in run {highest + 1}: "
            "memory.limit_gb refuses no allocation, so a phase that takes much without reporting progress is ended "
            "above it.",
            "No control group was made: limits of groups are not drawn.",
            *(f"Run {index + 1}: {fault}" for index, outcome in enumerate(outcomes) for fault in outcome.faults),
        ],
    )


def _sizes(amounts: Iterable[int]) -> str:
    return " and ".join(size(amount) for amount in amounts)


def main() -> int:
    """Limit, show, keep; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="runs under limits (20)")
    parser.add_argument("--seed", type=int, default=1, help="seed of limits and appetites (1)")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="eigen-limits-") as name:
        os.environ.update(EIGEN_CACHE=f"{name}/cache", OMP_NUM_THREADS="1")
        need, outcomes = run(Limiter(Path(name)), options.runs, options.seed, console)
    section = _section(need, outcomes)
    section.show(console)
    keep({"limits": section}, ALL_SECTIONS)
    return 1 if any(outcome.faults for outcome in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
