"""Makes the trials of the bench that are missing, and writes what all of them found."""

import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.__main__ import ALL_SECTIONS
from benchmarks.learning.kept import Trial, TrialFound
from benchmarks.learning.methods import METHODS
from benchmarks.learning.table import Case, draw, section_of
from benchmarks.results import RESULTS, keep
from eigen_core.errors import InputError
from eigen_core.progress import report_progress

CASES: tuple[tuple[Case, ...], ...] = (
    (("plain", 0.3), ("plain", 0.1), ("factor", 0.15), ("noise", 0.0)),
    (("isolated", 0.3), ("isolated", 0.1), ("unblocked", 0.1), ("memory", 0.3), ("leader", 0.3), ("regimes", 0.3)),
    (("plain", 1.0), ("plain", 0.15), ("plain", 0.05)),
)
"""Markets and edges; those of a line are made on all seeds before the next line. An edge of 1 is a leak."""
FINAL_CASES: tuple[tuple[Case, ...], ...] = (
    (("plain", 0.3), ("factor", 0.15), ("plain", 0.1), ("memory", 0.3), ("noise", 0.0)),
    (("isolated", 0.3), ("isolated", 0.1)),
)
SEEDS = range(1, 6)
FINAL_SEEDS = range(9_301, 9_306)
"""Seeds of markets that no setting was chosen on."""
_FOLDER = Path(__file__).parent


def planned(final: bool) -> Iterator[Trial]:
    """All trials of the bench, or of its final part, in the order in which they are made."""
    for cases in FINAL_CASES if final else CASES:
        for seed in FINAL_SEEDS if final else SEEDS:
            for market, edge in cases:
                for method in METHODS:
                    yield Trial(market, edge, method, seed)


def make_missing(folder: Path, final: bool, minutes: float) -> None:
    """Make trials that are missing; none is begun after so many minutes.

    Raises:
        InputError: a kept trial cannot be read, or one cannot be written.
    """
    began = time.monotonic()
    trials = list(planned(final))
    for done, trial in enumerate(trials):
        if trial.kept(folder) is None:
            if time.monotonic() - began > 60.0 * minutes:
                return
            trial.make(folder)
        report_progress("trials", done + 1, len(trials))


def write(folder: Path, final: bool, results: Path = RESULTS) -> None:
    """Write the table and the picture of the trials that were made.

    Raises:
        InputError: none was made, or one cannot be read.
    """
    found: dict[Case, dict[str, list[TrialFound]]] = {}
    for trial in planned(final):
        kept = trial.kept(folder)
        if kept is not None:
            found.setdefault((trial.market, trial.edge), {}).setdefault(trial.method, []).append(kept)
    if not found:
        raise InputError(f"There is no trial in {folder} yet: allow some minutes with --minutes.")
    name = "learningfinal" if final else "learning"
    title = "What is found of a known edge"
    if final:
        title += ", on markets that nothing was tuned on"
    picture = results.parent / "learning" / f"{name}.png"
    draw(found, picture, title)
    keep({name: section_of(found, len(list(planned(final))), title, picture.name)}, ALL_SECTIONS, results)
