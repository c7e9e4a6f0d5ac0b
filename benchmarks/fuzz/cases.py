"""What a fuzzer finds: how many cases came out how, and which were treated wrongly."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from eigen_core.common.randomness import keyed_generator


@dataclass(frozen=True)
class Outcome:
    """How one case came out.

    Attributes:
        kind: what the case was, in a few words; a row of the table.
        treatment: what became of it ("read rightly", "refused").
        fault: what is wrong with that treatment; None: it is right.
    """

    kind: str
    treatment: str
    fault: str | None = None


@dataclass
class Findings:
    """What all cases of one fuzzer showed.

    Attributes:
        treatments: cases by (kind, treatment).
        faults: one sentence for each case that was treated wrongly, with what repeats it.
    """

    treatments: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return self.treatments.total()


def fuzz(
    one_case: Callable[[np.random.Generator, Path], Outcome], name: str, folder: Path, cases: range, seed: int
) -> Iterator[tuple[int, Outcome]]:
    """Try the cases of some indices, each in a folder of its own, with a generator keyed by seed, fuzzer and index.

    `one_case` draws a case, tries it in an empty folder and judges it. Yields each case's index and outcome.
    """
    for index in cases:
        own = folder / f"{name}-{index:05}"
        own.mkdir(parents=True)
        yield index, one_case(keyed_generator(seed, 0, "fuzz", index, name), own)


def findings(outcomes: Iterator[tuple[int, Outcome]], name: str, seed: int) -> Findings:
    found = Findings()
    for index, outcome in outcomes:
        found.treatments[outcome.kind, outcome.treatment] += 1
        if outcome.fault is not None:
            repeat = f"python -m benchmarks.fuzz {name} --seed {seed} --first {index} --cases 1"
            found.faults.append(f"{outcome.kind}: {outcome.fault} ({repeat})")
    return found
