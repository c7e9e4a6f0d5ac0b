"""Run the missing trials of the bench, and write their table and picture."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from benchmarks.learning.markets import MARKETS
from benchmarks.learning.trial import LEARNERS, MARKET_METHODS, PORTFOLIO_METHODS, Trial, TrialFound
from benchmarks.results import RESULTS, Section, keep
from eigen_core.common.errors import InputError
from eigen_core.common.progress import report_progress
from eigen_core.judging.statistics import interquartile_mean
from eigen_core.reporting.style import BLUE, MUTED, VERMILLION, figure_file

COLUMNS = (
    "market",
    "signal's IC",
    "method",
    "seeds",
    "champion",
    "population",
    "best agent",
    "IC",
    "excess, %",
    "skill claimed",
    "CPU s",
)
_METHOD = (
    "Trainings on markets of 20 assets, synthetic ones of 4,752 days, of which 1,500 are held out, that no setting was "
    "chosen on. Their signal has the stated information coefficient (IC: its correlation with the return over the "
    "holding time). IC: that of the scores by which the champion ranks assets, in the holdout. Champion, mean of the "
    "population and best agent: percent of what an oracle earns in the holdout that ranks assets by the signal with a "
    "tuned threshold and sale target, at the same costs and fills; of portfolios, percent of what the growth of an "
    "oracle's weights, the softmax of the signal with a tuned sharpness and speed, exceeds that of equal weights on 4 "
    "further markets of 19 years. Interquartile means over the seeds, of which each has a market of its own, with 95 % "
    "bootstrap intervals. Excess in the holdout: of a champion's trade over the mean of all assets bought on the same "
    "day; of portfolios of a year's growth over equal weights. CPU seconds: of training, median; generations are such "
    "that methods of the market take about as many, which is not so of those of portfolios."
)
_PANELS_IN_A_ROW = 3
Case = tuple[str, float]


@dataclass(frozen=True)
class Estimate:
    """Interquartile mean over seeds and its 95 % interval; None with one seed."""

    mean: float
    interval: tuple[float, float] | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        mean, *interval = interquartile_mean(np.asarray(values, dtype=np.float64), 0)
        return cls(mean, (interval[0], interval[1]) if len(values) > 1 else None)

    def shown(self, digits: int = 0) -> str:
        if self.interval is None:
            return f"{self.mean:.{digits}f}"
        low, high = self.interval
        return f"{self.mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


Found = Mapping[Case, Mapping[str, Sequence[TrialFound]]]
"""Results by case (market and edge) and by method; at least one trial each."""


def section_of(found: Found, planned: int, title: str, picture: str) -> Section:
    made = sum(len(trials) for methods in found.values() for trials in methods.values())
    rows = [row for case, methods in found.items() for row in _rows(case, methods)]
    kinds = {market: MARKETS[market].shown for market, _ in found}
    return Section(
        title=title,
        method=_METHOD,
        columns=COLUMNS,
        rows=rows,
        remarks=(
            f"Made so far: {made} of {planned} trials." if made < planned else f"{made} trials.",
            " ".join(f"`{market}`: {shown}." for market, shown in kinds.items()),
            f"![What champions reach of the oracle](learning/{picture})",
        ),
    )


def _rows(case: Case, methods: Mapping[str, Sequence[TrialFound]]) -> list[list[str]]:
    market, edge = case
    rows = []
    for method, trials in methods.items():
        shares = [_share(trials, name) for name in ("champion", "mean", "best")]
        claims = [trial.claim == "skill" for trial in trials if trial.claim is not None]
        cpu = float(np.median([trial.cpu_s for trial in trials]))
        found = _shown([trial.ic for trial in trials], 3), _shown([trial.excess for trial in trials], 2)
        rows.append([method, f"{len(trials)}", *shares, *found])
        rows[-1] += [f"{sum(claims)} of {len(claims)}" if claims else "-", f"{cpu:.0f}"]
    if edge:
        trials = next(iter(methods.values()))
        found = _shown([trial.oracle_ic for trial in trials], 3), _shown([trial.oracle_excess for trial in trials], 2)
        rows.append(["oracle", f"{len(trials)}", *[""] * 3, *found, "", ""])
    random = [trial for trials in methods.values() for trial in trials if "random" in trial.share]
    if random and edge:
        rows.append(["random, as many trades", f"{len(random)}", _share(random, "random"), *[""] * 6])
    return [[market, f"{edge:g}", *row] for row in rows]


def _share(trials: Sequence[TrialFound], name: str) -> str:
    return _shown([trial.share.get(name) for trial in trials])


def _shown(values: Sequence[float | None], digits: int = 0) -> str:
    known = [value for value in values if value is not None]
    return Estimate.of(known).shown(digits) if known else "-"


def draw(found: Found, path: Path, title: str) -> None:
    """Draw a panel for each market with the champions of each method."""
    rows = -(-len(found) // _PANELS_IN_A_ROW)
    methods = max(len(methods) for methods in found.values())
    height = 1.3 + rows * (0.9 + 0.26 * methods)
    story = "Champions in percent of what an oracle earns: seeds, interquartile mean, 95 % interval. Dotted: oracle."
    with figure_file(path, title, story, (11.0, height)) as figure:
        grid = figure.add_gridspec(
            rows, _PANELS_IN_A_ROW, left=0.15, right=0.98, top=1.0 - 1.0 / height, bottom=0.5 / height,
            wspace=0.75, hspace=0.62,
        )  # fmt: skip
        for index, (case, by_method) in enumerate(found.items()):
            _draw_case(figure.add_subplot(grid[divmod(index, _PANELS_IN_A_ROW)]), case, by_method)


def _draw_case(axes: Axes, case: Case, methods: Mapping[str, Sequence[TrialFound]]) -> None:
    market, edge = case
    value: Callable[[TrialFound], float | None] = lambda trial: trial.share["champion"]  # noqa: E731
    axes.set_title(f"{market}, IC {edge:g}")
    if edge:
        axes.axvline(100.0, color=MUTED, linewidth=0.8, linestyle=":")
    else:
        value = lambda trial: trial.excess  # noqa: E731
        axes.set_title("excess, %", loc="right", color=MUTED, fontsize=8.5)
    axes.axvline(0.0, color=MUTED, linewidth=0.8)
    for height, trials in enumerate(methods.values()):
        known = [found for trial in trials if (found := value(trial)) is not None]
        axes.plot(known, [height] * len(known), "o", color=BLUE, alpha=0.4, markersize=3.5)
        if known:
            estimate = Estimate.of(known)
            if estimate.interval is not None:
                axes.plot(estimate.interval, [height, height], color=BLUE, linewidth=1.6)
            axes.plot(estimate.mean, height, "D", color=VERMILLION, markersize=5)
    axes.set_yticks(range(len(methods)), list(methods))
    axes.set_ylim(len(methods) - 0.5, -0.5)
    if edge:
        axes.set_xlim(min(axes.get_xlim()[0], -5.0), max(axes.get_xlim()[1], 105.0))
    axes.grid(axis="x")


CASES: tuple[Case, ...] = (
    *((market, 0.1) for market in ("unblocked", "bundled", "interaction", "absolute", "regimes_5", "lagged")),
    *(("plain", edge) for edge in (0.05, 0.1, 0.3)),
    *(("factor", 0.1), ("memory", 0.1), ("noise", 0.0)),
)
"""Markets and edges."""
MARKET_SEEDS = range(9_701, 9_711)
_PORTFOLIO_EDGES = (0.3, 0.1, 0.05)
PORTFOLIO_SEEDS = range(9_601, 9_606)
"""Seeds of markets that no setting was tuned on, as are `MARKET_SEEDS`."""


@dataclass(frozen=True)
class Part:
    """A part of the bench, with the name of its section and picture.

    Attributes:
        groups: markets and edges, and their methods; a group is run on all seeds before the next.
    """

    section: str
    title: str
    groups: tuple[tuple[tuple[Case, ...], tuple[str, ...]], ...]
    seeds: range

    def planned(self) -> Iterator[Trial]:
        for cases, methods in self.groups:
            for seed in self.seeds:
                for market, edge in cases:
                    for method in methods:
                        yield Trial(market, edge, method, seed)


PARTS = {
    "market": Part("learning", "What is found of a known edge", ((CASES, tuple(MARKET_METHODS)),), MARKET_SEEDS),
    "learners": Part(
        "learners",
        "What each learner finds of a known edge",
        (((CASES[0], CASES[2]), ("ridge", "quickstart", "ddpg", *LEARNERS)),),
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
                ("portfolio_direct", "portfolio_direct-linear", "portfolio_ridge"),
            ),
        ),
        PORTFOLIO_SEEDS,
    ),
}
"""By the name that the command line has."""


def make_missing(folder: Path, part: Part, minutes: float) -> None:
    """Run the missing trials; start none after this time."""
    began = time.monotonic()
    trials = list(part.planned())
    for done, trial in enumerate(trials):
        if trial.kept(folder) is None:
            if time.monotonic() - began > 60.0 * minutes:
                return
            trial.make(folder)
        report_progress("trials", done + 1, len(trials))


def write(folder: Path, part: Part, results: Path = RESULTS) -> None:
    """Write the table and the picture of the trials so far."""
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
    keep(part.section, section, results)
