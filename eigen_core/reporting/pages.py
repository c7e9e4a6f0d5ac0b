"""Pages of a run, as markdown: progress, data, memory plan, uploads, and how it ended."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import fmean
from typing import TYPE_CHECKING
from urllib.parse import quote

from eigen_core.common.records import GenerationRecord, HoldoutResult, Telemetry
from eigen_core.common.text import clock, count, duration, exact_clock, reward, rough_duration
from eigen_core.reporting.tables import (
    Row,
    champion_card,
    champion_in_words,
    generation_rows,
    holdout_sentence,
    in_words,
    markdown_card,
    markdown_table,
    population_table,
)

if TYPE_CHECKING:
    from eigen_core.checkpoint.uploads import UploadStatus

_SUMMARY_GENERATIONS = 50
_CONSOLE = "https://console.cloud.google.com/storage/browser/"
_SMALL_MB = 1.0


def link_to_run(store: str, run: str) -> str:
    """Return where a run is kept as markdown: a link to Google's console for a bucket, else the path or URL."""
    url = f"{store.rstrip('/')}/{run}"
    return f"[{url}]({_CONSOLE}{quote(url.removeprefix('gs://'))})" if url.startswith("gs://") else f"`{url}`"


def data_page(run: str, size: str, lines: Sequence[str], parts: Sequence[Mapping[str, str | int]]) -> str:
    """Say what a run trains on.

    Args:
        run: its name.
        size: how much it is, in words.
        lines: what was read and what was found in it, as sentences.
        parts: what of it is for training, validation and holdout; rows of a table.
    """
    listed = "\n".join(f"- {line}" for line in (*lines, f"Size: {size}."))
    table: list[Row] = [{**part} for part in parts]
    page = [f"# Data of run {run}", listed, *([markdown_table(table)] if table else [])]
    return "\n\n".join(page) + "\n"


def plan_page(run: str, sentence: str, rows: Sequence[Mapping[str, str | float]]) -> str:
    """Say what a run was planned to take of the memory.

    Args:
        run: its name.
        sentence: the verdict.
        rows: the parts: `part`, `host (MB)`, `device (MB)`, `phases`, `how`.
    """
    sizes = ["host (MB)", *(["device (MB)"] if any(row["device (MB)"] for row in rows) else [])]
    large = [row for row in rows if any(float(row[size]) >= _SMALL_MB for size in sizes)]
    small = [row for row in rows if row not in large]
    large.sort(key=lambda row: -max(float(row[size]) for size in sizes))
    table: list[Row] = [{key: row[key] for key in ("part", *sizes, "phases")} for row in large]
    if small:
        rest = {size: round(sum(float(row[size]) for row in small), 1) for size in sizes}
        table.append({"part": f"{count(len(small), 'smaller part')}", **rest, "phases": "–"})
    how = "\n".join(f"- **{row['part']}**: {row['how']}" for row in large)
    return f"# Memory plan of run {run}\n\n{sentence}\n\n{markdown_table(table)}\n\n## How it was computed\n\n{how}\n"


def uploads_page(status: "UploadStatus") -> str:
    """Say how far the uploads to a store elsewhere are."""
    rows: list[Row] = [
        {
            "generation": upload.generation,
            "state": upload.state,
            "size (MB)": round(upload.bytes / 1e6, 1),
            "attempts": upload.attempts,
            "last error": upload.error or "",
        }
        for upload in status.generations
    ]
    title = str(status)
    error = f"Last error: {status.last_error}" if status.last_error else ""
    page = [f"# {title[:1].upper()}{title[1:]}", error, f"As of {exact_clock(status.updated)}.", markdown_table(rows)]
    return "\n\n".join(filter(None, page))


def uploads_sentence(status: "UploadStatus") -> str:
    """Say in one sentence whether everything is in a store elsewhere, and if not, what is not and why."""
    if status.pending or status.pending_files:
        return status.waiting
    rate = f", {status.mb_per_second:.1f} MB/s" if status.mb_per_second else ""
    return f"Everything is in {status.store} ({count(status.done, 'generation')} uploaded{rate})."


def summary_page(
    run: str,
    history: Sequence[GenerationRecord],
    telemetry: Sequence[Telemetry],
    holdout: HoldoutResult | None,
    where: str,
    finished: datetime,
) -> str:
    """Say how a run ended: the champion, the holdout episodes, the last generations, where everything is.

    Args:
        run: its name.
        history: its records.
        telemetry: what its generations took.
        holdout: the holdout episodes; None if there are none.
        where: the run in its store, as markdown.
        finished: when it had all its generations.
    """
    last = history[-1]
    took = duration(sum(entry.seconds for entry in telemetry))
    page = [
        f"# Run {run} has its {last.generation} generations",
        f"Finished at {exact_clock(finished)}; its generations took {took}.",
        markdown_card(champion_card(history)),
        holdout_sentence(holdout) if holdout else "There are no holdout episodes.",
        f"Checkpoints and plots: {where}",
        "Best and mean fitness of the agents, and the champion's validation, in the last generations:",
        markdown_table(generation_rows(history[-_SUMMARY_GENERATIONS:], telemetry)),
        f"Hash of the last population's weights: `{last.weights_sha256}`",
        f"Hash of the replay: `{last.replay_sha256}`",
    ]
    return "\n\n".join(page)


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
