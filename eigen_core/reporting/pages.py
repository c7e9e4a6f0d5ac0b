"""Pages of a run, as markdown: its own page, its data, its memory plan."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import fmean
from urllib.parse import quote

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
"""File name of the plot below the facts."""
SHOWN_GENERATIONS = 6
"""Number of newest generations that are shown, and compared with as many before them."""

# Prefect's page cuts longer cells.
_CELL = 95
_CONSOLE = "https://console.cloud.google.com/storage/browser/"
_SMALL_MB = 1.0


def link_to_run(store: str, run: str) -> str:
    """Return the run's place as markdown: for a bucket a link to Google's console, otherwise the path or URL."""
    url = f"{store.rstrip('/')}/{run}"
    return f"[{url}]({_CONSOLE}{quote(url.removeprefix('gs://'))})" if url.startswith("gs://") else f"`{url}`"


def data_page(run: str, size: str, lines: Sequence[str], parts: Sequence[Mapping[str, str | int]]) -> str:
    """Return the page of a run's data: facts as sentences, and training, validation and holdout as a table."""
    listed = "\n".join(f"- {line}" for line in (*lines, f"Size: {size}."))
    table: list[Row] = [{**part} for part in parts]
    page = [f"# Data of run {run}", listed, *([markdown_table(table)] if table else [])]
    return "\n\n".join(page) + "\n"


def plan_page(run: str, sentence: str, rows: Sequence[Mapping[str, str | float]]) -> str:
    """Return the page of the memory plan; rows are parts: `part`, `host (MB)`, `device (MB)`, `phases`."""
    sizes = ["host (MB)", *(["device (MB)"] if any(row["device (MB)"] for row in rows) else [])]
    large = [row for row in rows if any(float(row[size]) >= _SMALL_MB for size in sizes)]
    small = [row for row in rows if row not in large]
    large.sort(key=lambda row: -max(float(row[size]) for size in sizes))
    table: list[Row] = [{key: row[key] for key in ("part", *sizes, "phases")} for row in large]
    if small:
        rest = {size: round(sum(float(row[size]) for row in small), 1) for size in sizes}
        table.append({"part": f"{count(len(small), 'smaller part')}", **rest, "phases": "–"})
    return f"# Memory plan of run {run}\n\n{sentence}\n\n{markdown_table(table)}\n"


@dataclass(frozen=True)
class Progress:
    """Progress of a training.

    Attributes:
        done: number of complete generations.
        now, began: the current time, and the start of training in this process (UTC).
        seconds_each: mean time of the newest generations (seconds); None: unknown.
        took: time of all generations (seconds).
        ended: why the training stopped early, a sentence; None if it did not.
        holdout_is_left: the holdout episodes are not played yet.
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
        return self.done >= self.generations

    @property
    def is_finished(self) -> bool:
        return self.is_trained and not self.holdout_is_left

    @property
    def share(self) -> float:
        return self.done / self.generations

    def left(self) -> str:
        """Return the time left, or how the training ended: "about 37 min left, until 04:12 UTC"."""
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
        """Return a sentence on what a resume will do; empty if nothing is left."""
        if self.is_finished:
            return ""
        next_step = "plays the holdout episodes" if self.is_trained else f"goes on with generation {self.done + 1}"
        return f"A resume {next_step}."

    def line(self) -> str:
        """Return one line with the numbers first: "14 of 25, about 37 min left, until 04:12 UTC"."""
        return f"{self.done} of {self.generations}, {self.left()}"


@dataclass(frozen=True)
class Overview:
    """Content of the page of a run.

    Attributes:
        where: place of the run, as markdown.
        checkpoint: time of the newest checkpoint (UTC); None without one.
        history: records of up to twice `SHOWN_GENERATIONS` newest generations.
        champion: see `champion_card`; empty before the first generation.
        notes: further titles and sentences, as markdown.
        curve, plots: the fitness plot, and the others, as markdown.
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
        """Return the page in one line, for a card."""
        best = f"; best {reward(self.history[-1].best_fitness)}" if self.history else ""
        return f"{self.progress.line()}{best}"

    def page(self) -> str:
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
    """Return whether a text fits into a cell, which does not wrap; the URL of a link is not shown."""
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
