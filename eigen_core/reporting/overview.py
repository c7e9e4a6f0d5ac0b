"""The page of a run: its progress, its results, and where it is kept."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import fmean

from eigen_core.common.records import GenerationRecord, Telemetry
from eigen_core.common.text import clock, count, duration, exact_clock, reward, rough_duration
from eigen_core.reporting.tables import (
    Row,
    champion_in_words,
    generation_rows,
    in_words,
    markdown_card,
    markdown_table,
    population_table,
)

FITNESS_PLOT = "fitness.png"
"""The plot that stands right below the facts."""
SHOWN_GENERATIONS = 6
"""So many of the newest generations are shown, and compared with as many before."""

# Letters of a cell that Prefect's page shows whole.
_CELL = 95


@dataclass(frozen=True)
class Progress:
    """How far a training is.

    Attributes:
        done: the newest complete generation.
        generations: how many there will be.
        now: when this was found (UTC).
        began: when this process began to train (UTC).
        seconds_each: what a generation takes, the newest ones together (seconds); None: not known yet.
        took: what all generations took (seconds).
        ended: why the training ended before it was done, a sentence; None while it goes on.
        holdout_is_left: the holdout episodes are to be played after the last generation.
    """

    done: int
    generations: int
    now: datetime
    began: datetime
    seconds_each: float | None = None
    took: float = 0.0
    ended: str | None = None
    holdout_is_left: bool = False

    @property
    def is_trained(self) -> bool:
        """Whether all generations are complete."""
        return self.done >= self.generations

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.is_trained and not self.holdout_is_left

    @property
    def share(self) -> float:
        """How much of the run is done, 0 to 1."""
        return self.done / self.generations

    def left(self) -> str:
        """How long it will go on, or how it ended: "about 37 min left, until 04:12 UTC"."""
        if self.ended is not None:
            return f"ended {clock(self.now, self.now)}"
        if self.is_finished:
            return f"finished {clock(self.now, self.now)}, took {duration(self.took)}"
        if self.is_trained:
            return "the holdout episodes remain to be played"
        if self.seconds_each is None:
            return f"began {clock(self.began, self.now)}"
        seconds = self.seconds_each * (self.generations - self.done)
        return f"about {rough_duration(seconds)} left, until {clock(self.now + timedelta(seconds=seconds), self.now)}"

    def goes_on(self) -> str:
        """Effect of a resume, a sentence; empty if nothing is left to do."""
        if self.is_finished:
            return ""
        next_step = "plays the holdout episodes" if self.is_trained else f"goes on with generation {self.done + 1}"
        return f"A resume {next_step}."

    def line(self) -> str:
        """One line with the numbers first: "14 of 25, about 37 min left, until 04:12 UTC"."""
        return f"{self.done} of {self.generations}, {self.left()}"


@dataclass(frozen=True)
class Overview:
    """Content of the page of a run.

    Attributes:
        run: its name.
        progress: how far it is.
        where: the run in its store, as markdown.
        checkpoint: when its newest checkpoint was written (UTC); None: there is none.
        history: records of the newest generations, at least twice `SHOWN_GENERATIONS` if there are so many.
        telemetry: what they took.
        champion: the champion's card; empty before the first generation.
        notes: what else there is to say: title and sentence, markdown.
        curve: the plot of the fitness, as markdown.
        plots: the others, as markdown.
    """

    run: str
    progress: Progress
    where: str
    checkpoint: datetime | None = None
    history: Sequence[GenerationRecord] = ()
    telemetry: Sequence[Telemetry] = ()
    champion: Row = field(default_factory=dict)
    notes: Sequence[tuple[str, str]] = ()
    curve: str = ""
    plots: str = ""

    def line(self) -> str:
        """The page in one line, for a card."""
        best = f"; best {reward(self.history[-1].best_fitness)}" if self.history else ""
        return f"{self.progress.line()}{best}"

    def page(self) -> str:
        """The page, as markdown."""
        return "\n\n".join(filter(None, [*self._head(), self.curve, *self._body(), self.plots]))

    def _head(self) -> list[str]:
        progress = self.progress
        share = f"{progress.done} of {progress.generations} ({progress.share:.0%})".replace("%", " %")
        if progress.ended is not None:
            title, state = f"# Ended after generation {share}", f"**{progress.ended}** {progress.goes_on()}".rstrip()
        else:
            title = f"# Finished: generation {share}" if progress.is_finished else f"# Generation {share}"
            each = progress.seconds_each if not progress.is_finished else None
            state = ("" if each is None else f"{duration(each)} each, ") + progress.left()
            state = f"**{state[:1].upper()}{state[1:]}.**"
        facts = self._facts()
        head = (f"Run {self.run}", f"as of {exact_clock(progress.now)}")
        table: list[Row] = [dict(zip(head, (f"**{name}**", text), strict=True)) for name, text in facts if _fits(text)]
        wide = [f"**{name}**: {text}" for name, text in facts if not _fits(text)]
        return [title, state, markdown_table(table), *wide]

    def _facts(self) -> list[tuple[str, str]]:
        written = f"generation {self.progress.done}" if self.progress.done else "none yet"
        moment = "" if self.checkpoint is None else f", {exact_clock(self.checkpoint)}"
        facts = [("Last checkpoint", f"{written}{moment}"), ("Kept in", self.where)]
        if self.history:
            facts = [*_training_facts(self.history), *facts]
        return [*facts, *self.notes]

    def _body(self) -> list[str]:
        if not self.history:
            return []
        newest = self.history[-SHOWN_GENERATIONS:]
        return [
            "## Champion",
            markdown_card(self.champion),
            "## The last generations",
            "Best and mean: fitness of the agents. Champion: its validation.",
            markdown_table(generation_rows(newest, self.telemetry)[::-1]),
            f"## Agents of generation {self.history[-1].generation}",
            markdown_table(population_table(self.history[-2:])),
        ]


def _fits(text: str) -> bool:
    """Whether a text, without the addresses of its links, is narrow enough for a cell, which does not wrap."""
    return len(re.sub(r"\]\([^)]*\)", "", text)) <= _CELL


def _training_facts(history: Sequence[GenerationRecord]) -> list[tuple[str, str]]:
    last = history[-1]
    return [
        ("Fitness", f"best {reward(last.best_fitness)}, mean {reward(last.mean_fitness)}{_trend(history)}"),
        ("Champion", champion_in_words(last)),
        ("Learning", _learning(last.learning)),
        ("Replay", f"{last.transitions:,} of {last.replay_capacity:,} transitions"),
        ("Training episodes", in_words(last.trading)),
    ]


def _trend(history: Sequence[GenerationRecord]) -> str:
    """Say how the mean fitness of the newest generations compares with that of as many before."""
    if len(history) < 2:
        return ""
    newest = min(SHOWN_GENERATIONS, len(history) // 2)
    means = [record.mean_fitness for record in history[-2 * newest :]]
    later, earlier = fmean(means[newest:]), fmean(means[:newest])
    if newest == 1:
        return f" (before: {reward(earlier)})"
    return f"; mean over the last {newest} generations {reward(later)} (the {newest} before: {reward(earlier)})"


def _learning(learning: Mapping[str, float] | None) -> str:
    if learning is None:
        return "nothing was learned in this generation"
    curves = {name: value for name, value in learning.items() if name != "gradient_steps"}
    return f"{count(int(learning['gradient_steps']), 'gradient step')} an agent, {in_words(curves)}"
