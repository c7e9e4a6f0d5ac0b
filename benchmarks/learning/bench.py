"""Makes the trials of the bench that are missing, and writes what all of them found."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.__main__ import ALL_SECTIONS
from benchmarks.learning.kept import Trial, TrialFound
from benchmarks.learning.methods import MARKET_METHODS, PORTFOLIO_METHODS
from benchmarks.learning.table import Case, draw, section_of
from benchmarks.results import RESULTS, keep
from eigen_core.common.errors import InputError
from eigen_core.common.progress import report_progress

CASES: tuple[tuple[Case, ...], ...] = (
    (("plain", 0.3), ("factor", 0.15), ("plain", 0.1), ("memory", 0.3), ("noise", 0.0)),
    (("isolated", 0.3), ("isolated_factor", 0.15), ("isolated", 0.1)),
    (("unblocked", 0.1), ("leader", 0.3), ("regimes", 0.3), ("plain", 1.0), ("plain", 0.15), ("plain", 0.05)),
)
"""Markets and edges; those of a line are made on all seeds before the next line. An edge of 1 is a leak."""
MARKET_SEEDS = range(9_301, 9_306)
_PORTFOLIO_EDGES = (0.3, 0.1, 0.05)
PORTFOLIO_SEEDS = range(9_601, 9_606)
"""Seeds of markets that no setting was chosen on, as are those of `MARKET_SEEDS`."""


@dataclass(frozen=True)
class Part:
    """A part of the bench.

    Attributes:
        section: its name in the file of results, and that of its picture.
        title: of the section.
        groups: markets and edges, and the methods by which each is learned; those of a group are made on all seeds
            before the next group.
        seeds: of each.
    """

    section: str
    title: str
    groups: tuple[tuple[tuple[Case, ...], tuple[str, ...]], ...]
    seeds: range

    def planned(self) -> Iterator[Trial]:
        """All trials, in the order in which they are made."""
        for cases, methods in self.groups:
            for seed in self.seeds:
                for market, edge in cases:
                    for method in methods:
                        yield Trial(market, edge, method, seed)


PARTS = {
    "market": Part(
        "learning",
        "What is found of a known edge",
        tuple((cases, tuple(MARKET_METHODS)) for cases in CASES),
        MARKET_SEEDS,
    ),
    "portfolio": Part(
        "learningportfolio",
        "What portfolios find of a known edge",
        (
            (tuple(("isolated_factor_5", edge) for edge in _PORTFOLIO_EDGES), tuple(PORTFOLIO_METHODS)),
            (
                (
                    ("noise", 0.0),
                    *((name, edge) for name in ("isolated_factor", "factor") for edge in _PORTFOLIO_EDGES),
                ),
                ("portfolio_direct",),
            ),
        ),
        PORTFOLIO_SEEDS,
    ),
}
"""By the name that the command line has."""


def make_missing(folder: Path, part: Part, minutes: float) -> None:
    """Make trials that are missing; none is begun after so many minutes.

    Raises:
        InputError: a kept trial cannot be read, or one cannot be written.
    """
    began = time.monotonic()
    trials = list(part.planned())
    for done, trial in enumerate(trials):
        if trial.kept(folder) is None:
            if time.monotonic() - began > 60.0 * minutes:
                return
            trial.make(folder)
        report_progress("trials", done + 1, len(trials))


def write(folder: Path, part: Part, results: Path = RESULTS) -> None:
    """Write the table and the picture of the trials that were made.

    Raises:
        InputError: none was made, or one cannot be read.
    """
    found: dict[Case, dict[str, list[TrialFound]]] = {}
    for trial in part.planned():
        kept = trial.kept(folder)
        if kept is not None:
            found.setdefault((trial.market, trial.edge), {}).setdefault(trial.method, []).append(kept)
    if not found:
        raise InputError(f"There is no trial in {folder} yet: allow some minutes with --minutes.")
    picture = results.parent / "learning" / f"{part.section}.png"
    draw(found, picture, part.title)
    section = section_of(found, len(list(part.planned())), part.title, picture.name)
    keep({part.section: section}, ALL_SECTIONS, results)
