"""The choice of a sweep: whether its best trial is better than luck, and whether choosing it was worth anything."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eigen_core.common.text import count, percent
from eigen_core.judging.selection import (
    Overfitting,
    deflated_sharpe_of,
    mean_correlation,
    model_confidence_set,
    probability_of_overfitting,
)
from eigen_core.judging.significance import SIGNIFICANCE
from eigen_core.judging.statistics import minimum_track_record
from eigen_core.judging.sweeps import TrialResult
from eigen_core.judging.verdicts import Claim


@dataclass(frozen=True)
class Choice:
    """Whether choosing the best of the finished trials of a cross-validation was worth anything.

    All figures are of returns beyond equal weight (`Paths.beyond`), as means of a trial's paths.

    Attributes:
        best: the trial with the greatest value by the sweep's objective.
        trials, correlation: number of finished trials, and mean correlation of two of them.
        overfitting: None with one trial or too few bars.
        deflated: probability that its Sharpe ratio is above the best that luck gives; None: undefined.
        equals: trials that cannot be told apart from the one with the greatest mean return.
        bars, needed: number of tested bars, and of those after which the best trial's Sharpe ratio would differ from 0
            (95 %); None: never, or undefined.
    """

    best: TrialResult
    trials: int
    correlation: float
    overfitting: Overfitting | None
    deflated: float | None
    equals: tuple[int, ...]
    bars: int
    needed: int | None

    @classmethod
    def among(cls, results: Sequence[TrialResult], seed: int) -> "Choice | None":
        """Return it for the results of a sweep; None if no trial of a cross-validation is finished."""
        played = [(one, one.paths) for one in results if one.paths is not None]
        if not played:
            return None
        returns = np.stack([paths.beyond.mean(axis=0) for _, paths in played], axis=1)
        return cls(
            best=played[0][0],
            trials=len(played),
            correlation=mean_correlation(returns),
            overfitting=probability_of_overfitting(returns),
            deflated=deflated_sharpe_of(0, returns),
            equals=tuple(sorted(played[column][0].number for column in model_confidence_set(returns, seed))),
            bars=len(returns),
            needed=minimum_track_record(returns[:, 0]),
        )

    @property
    def claim(self) -> Claim:
        """Skill, if luck is unlikely to be as good as the best trial.

        `overfitting` has no part in it: where all trials find the same edge, none is the best one again on other bars.
        """
        if self.deflated is None:
            return "undecided"
        return "skill" if self.deflated >= 1.0 - SIGNIFICANCE else "none"

    @property
    def sentences(self) -> tuple[str, ...]:
        trials = count(self.trials, "trial")
        if self.deflated is None:
            anything = f"Is there anything at all? {self.bars:,} tested bars are too few to tell."
        else:
            anything = (
                f"Is there anything at all? With a probability of {percent(self.deflated)} the Sharpe ratio of trial "
                f"{self.best.number} beyond equal weight is above the best that luck gives to {trials}"
                f"{f' with a correlation of {self.correlation:.2f}' if self.trials > 1 else ''}; "
                f"{percent(1.0 - SIGNIFICANCE, 0)} would show skill."
            )
        if self.overfitting is None:
            choosing = f"Was choosing worth anything? {trials} on {self.bars:,} bars cannot tell."
        else:
            choosing = (
                "Was choosing worth anything? The trial that is best on one half of the tested bars is in the worse "
                f"half of the trials on the others in {percent(self.overfitting.probability, 0)} of all ways to halve "
                "them; 50 % is chance."
            )
        others = f"{len(self.equals)} of {trials}" if self.trials > 1 else "1 trial"
        equal = f"Not to be told apart from the best mean return: {others} ({', '.join(map(str, self.equals))})."
        length = "no record would be long enough" if self.needed is None else f"{self.needed:,} bars would be enough"
        return anything, choosing, equal, f"To tell its Sharpe ratio from 0, {length}; there are {self.bars:,}."
