"""Tables, sentences and markdown pages about a run, for the command line and for Prefect."""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from eigen_core.common.records import GenerationRecord, HoldoutResult, Telemetry, champion_path, origins, record_of
from eigen_core.common.text import (
    BYTES_PER_MB,
    clock,
    count,
    duration,
    exact_clock,
    in_words,
    percent,
    reward,
    rough_duration,
)

if TYPE_CHECKING:
    import pandas as pd

    from eigen_core.generation import TrainingState

Row = dict[str, int | float | str | None]
"""One row of a table: values by column. Names of columns have units, numbers are rounded, None: unknown."""
NO_GENERATION = "No generation is complete."

_NESTED = {"fitness", "validations", "champion_excess", "learning", "trading", "evolution", "descent", "ancestors"}
_DIVERSITY = ("distinct_ancestors", "policy_distance")
_TIMES = ("evaluate_seconds", "train_seconds", "evolve_seconds", "checkpoint_seconds", "seconds")
_MEMORY = ("rss_bytes", "rss_peak_bytes", "device_peak_bytes", "exchanged_bytes")


def champion_in_words(record: GenerationRecord, number: Callable[[float], str] = reward) -> str:
    """Return text: "agent 3 of generation 7, score 1.50, validation 1.20, found 2 generations ago".

    `number` formats rewards.
    """
    age = record.generation - record.champion_generation
    found = f"{count(age, 'generation')} ago" if age else "in this generation"
    score, validation = number(record.champion_score), number(record.champion_validation)
    return f"{_champion(record)}, score {score}, validation {validation}, found {found}"


def _champion(record: GenerationRecord) -> str:
    return f"agent {record.champion_agent} of generation {record.champion_generation}"


def population_table(history: Sequence[GenerationRecord]) -> list[Row]:
    """Return the agents of the newest generation, fittest first, ties by index; empty without a generation.

    Columns: rank, agent, fitness (reward), validation (reward), origin; then each gene (`Lineage.genes`) of the agents.
    """
    if not history:
        return []
    record = history[-1]
    origin = origins(history, record.generation)
    bred = record_of(history, record.generation - 1)
    genes = {} if bred is None else {one.agent: one.genes or {} for one in bred.descent}
    ranked = sorted(range(len(record.fitness)), key=lambda agent: -record.fitness[agent])
    return [
        {
            "rank": rank,
            "agent": agent,
            "fitness (reward)": round(record.fitness[agent], 2),
            "validation (reward)": round(record.validations[agent], 2),
            "origin": origin.get(agent, "initial"),
            **{name: float(f"{value:.3g}") for name, value in genes.get(agent, {}).items()},
        }
        for rank, agent in enumerate(ranked, start=1)
    ]


def generation_rows(history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry]) -> list[Row]:
    """Return one row a generation: rewards, time (seconds), peak of host memory (MB: million bytes).

    If any generation has them, also: number of initial agents with descendants, the champion's excess over the market
    in validation (% with 95 % interval), peak of GPU memory (MB), and data exchanged with Dask workers (MB).
    """
    known = {entry.generation: entry for entry in telemetry}
    entries = [known.get(record.generation) for record in history]
    excess = excess_unit(history)
    known_ancestors = any(record.ancestors for record in history)
    on_device = any(entry is not None and entry.device_peak_bytes for entry in entries)
    exchanged = any(entry is not None and entry.exchanged_bytes for entry in entries)
    return [
        {
            "generation": record.generation,
            "best (reward)": round(record.best_fitness, 2),
            "mean (reward)": round(record.mean_fitness, 2),
            "champion (reward)": round(record.champion_score, 2),
            **({"ancestors": record.distinct_ancestors} if known_ancestors else {}),
            **({f"excess a {excess}": one.short if (one := record.champion_excess) else None} if excess else {}),
            "time (s)": None if entry is None else round(entry.seconds, 2),
            "peak (MB)": None if entry is None else _megabytes(entry.rss_peak_bytes),
            **({"GPU (MB)": None if entry is None else _megabytes(entry.device_peak_bytes)} if on_device else {}),
            **({"exchanged (MB)": None if entry is None else _megabytes(entry.exchanged_bytes)} if exchanged else {}),
        }
        for record, entry in zip(history, entries, strict=True)
    ]


def excess_unit(history: Sequence[GenerationRecord]) -> str | None:
    """Return whether the champions' excess over the market is per "trade" or per "year"; None if no record has one."""
    return next((record.champion_excess.per for record in history if record.champion_excess), None)


def _megabytes(amount: int) -> float | None:
    return round(amount / BYTES_PER_MB, 1) if amount else None


def champion_card(history: Sequence[GenerationRecord]) -> Row:
    """Return one row about a run's champion: score, validation, fitness, age, origin and first ancestor."""
    newest = history[-1]
    generation, agent = newest.champion_generation, newest.champion_agent
    found = record_of(history, generation)
    ancestors = champion_path(history)
    return {
        "champion": _champion(newest),
        "score (reward)": round(newest.champion_score, 2),
        "validation (reward)": round(newest.champion_validation, 2),
        **({"excess over the market": str(newest.champion_excess)} if newest.champion_excess else {}),
        "fitness (reward)": None if found is None else round(found.fitness[agent], 2),
        "age (generations)": newest.generation - generation,
        "origin": origins(history, generation).get(agent, "initial"),
        "line began with": f"agent {ancestors[0].agent} of generation {ancestors[0].generation}",
    }


def markdown_table(rows: Sequence[Row]) -> str:
    """Return rows, which all have the same columns, as a markdown table; without rows an empty text."""
    if not rows:
        return ""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([_cell(column, row[column]) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(name: str, value: float | str | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, float) and name.endswith("(reward)"):
        return reward(value)
    if isinstance(value, float) and name.endswith("(s)"):
        return f"{value:,.2f}"
    return value if isinstance(value, str) else f"{value:,}"


def picture_markdown(path: Path) -> str:
    """Return markdown that contains a PNG file (as base64)."""
    return f"![{path.stem}](data:image/png;base64,{base64.b64encode(path.read_bytes()).decode('ascii')})"


def champion_sentence(history: Sequence[GenerationRecord]) -> str:
    newest = history[-1]
    looks = count(sum(len(record.validations) for record in history), "validation")
    by_score = newest.champion_score != newest.champion_validation
    score = f" by a score of {reward(newest.champion_score)} from fitness and validation" if by_score else ""
    sentence = f"The champion is {_champion(newest)}, the best of {looks}{score}"
    excess = newest.champion_excess
    if excess is None:
        return f"{sentence}."
    return f"{sentence}: in the validation episodes that chose it, it gained {excess} beyond the market."


def diversity_sentence(record: GenerationRecord) -> str | None:
    """Return a sentence on ancestors and actions of a generation's agents; None if ancestors were not recorded."""
    if record.distinct_ancestors is None:
        return None
    agents = len(record.fitness)
    sentence = f"The population descends from {record.distinct_ancestors} of the first {agents} agents"
    if record.policy_distance is None:
        return f"{sentence}."
    return f"{sentence}; the actions of two agents differ by {100 * record.policy_distance:.1f} % of their range."


def holdout_sentence(result: HoldoutResult) -> str:
    rewards = result.random_rewards
    excess = f"; beyond the market it gains {result.champion_excess}" if result.champion_excess else ""
    return (
        f"In {count(len(result.slices), 'holdout episode')} the champion earns {reward(result.champion_reward)} "
        f"({in_words(dict(result.champion_statistics))}){excess}; "
        f"{len(rewards)} untrained agents earn {reward(result.random_reward)} on average, from "
        f"{reward(min(rewards))} to {reward(max(rewards))}, and it beats "
        f"{percent(result.share_of_random_beaten, 0)} of them."
    )


def history_frame(
    history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry] = (), known: Sequence[str] = ()
) -> "pd.DataFrame":
    """Return the scalars of a run as a frame indexed by generation; unknown values are NaN.

    Columns are the scalar fields of `GenerationRecord`; `distinct_ancestors`; values of the champion's excess,
    learning, trading and evolution with the prefix `champion_excess_`, `learning_`, `trading_` or `evolution_`; the
    scalars of `Telemetry` with `seconds`; and the columns in `known`, even if no generation has values for them.
    """
    import pandas as pd

    measured = {entry.generation: entry for entry in telemetry}
    rows = [_flat(record, measured.get(record.generation)) for record in history]
    scalars = [name for name in GenerationRecord.model_fields if name not in (*_NESTED, *_DIVERSITY)]
    named = (name for row in rows for name in row if name not in (*scalars, *_TIMES, *_MEMORY))
    nested = dict.fromkeys((*_DIVERSITY, *known, *named))
    frame = pd.DataFrame(rows, columns=[*scalars, *nested, *_TIMES, *_MEMORY])
    return frame.astype(dict.fromkeys((*nested, *_TIMES, *_MEMORY), "float64")).set_index("generation")


def _flat(record: GenerationRecord, telemetry: Telemetry | None) -> dict[str, float | str | None]:
    excess = record.champion_excess.numbers if record.champion_excess else {}
    return {
        **record.model_dump(exclude=_NESTED),
        **{f"champion_excess_{name}": value for name, value in excess.items()},
        **{f"learning_{name}": value for name, value in (record.learning or {}).items()},
        **{f"trading_{name}": value for name, value in record.trading.items()},
        "distinct_ancestors": record.distinct_ancestors,
        **{f"evolution_{name}": value for name, value in record.evolution.items()},
        **({} if telemetry is None else {name: getattr(telemetry, name) for name in (*_TIMES, *_MEMORY)}),
    }


def training_frame(state: "TrainingState") -> "pd.DataFrame":
    """Return results, times and memory of a run as a frame with one row a generation; see `history_frame`."""
    learned = [f"learning_{name}" for name in ("gradient_steps", *(curve.name for curve in state.learner.curves))]
    return history_frame(state.history, state.telemetry, learned)


FITNESS_PLOT = "fitness.png"
"""File name of the fitness plot, which a run's page shows first."""
SHOWN_GENERATIONS = 6
"""Number of generations that a run's page shows."""

# Prefect's page cuts longer cells.
_CELL = 95
_CONSOLE = "https://console.cloud.google.com/storage/browser/"
_SMALL_MB = 1.0


def link_to_run(store: str, run: str) -> str:
    """Return where a run is stored, as markdown: in a bucket, a link to Google's console; else the path or URL."""
    url = f"{store.rstrip('/')}/{run}"
    return f"[{url}]({_CONSOLE}{quote(url.removeprefix('gs://'))})" if url.startswith("gs://") else f"`{url}`"


def data_page(run: str, size: str, lines: Sequence[str], parts: Sequence[Mapping[str, str | int]]) -> str:
    """Return the page of a run's data: `lines` (sentences) and `size` as a list; `parts` (rows by split) as a table."""
    listed = "\n".join(f"- {line}" for line in (*lines, f"Size: {size}."))
    table: list[Row] = [{**part} for part in parts]
    page = [f"# Data of run {run}", listed, *([markdown_table(table)] if table else [])]
    return "\n\n".join(page) + "\n"


def plan_page(run: str, sentence: str, rows: Sequence[Mapping[str, str | float]]) -> str:
    """Return the page of a run's memory plan; `rows`, one per part: `part`, `host (MB)`, `device (MB)`, `phases`."""
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
        done, generations: number of complete generations, and of all that the run will have.
        now, began: the current time, and the start of training in this process (UTC).
        seconds_each: mean time of a generation, over the newest ones (seconds); None: unknown.
        took: time of all generations together (seconds); it is needed only once the last one is complete.
        ended: why the training stopped early, a sentence; None if it did not.
        holdout_is_left: whether the holdout episodes remain to be played.
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

    def time_left(self) -> str:
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

    def next_step(self) -> str:
        """Return a sentence on what a resume of the run will do; empty if the run is finished."""
        if self.is_finished:
            return ""
        step = "plays the holdout episodes" if self.is_trained else f"goes on with generation {self.done + 1}"
        return f"A resume {step}."

    def line(self) -> str:
        """Return one line with the numbers first: "14 of 25, about 37 min left, until 04:12 UTC"."""
        return f"{self.done} of {self.generations}, {self.time_left()}"


@dataclass(frozen=True)
class Overview:
    """Content of a run's page in Prefect.

    Attributes:
        where: place where the run is stored, as markdown.
        checkpoint: time of the newest checkpoint (UTC); None without one.
        history, telemetry: the newest records, up to `SHOWN_GENERATIONS`, with times and memory.
        champion: see `champion_card`; empty before the first generation.
        notes: further lines of the page's head, each a title and a sentence, as markdown.
        curve, plots: the fitness plot, and the other plots, as markdown.
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
        """Return the progress and best fitness in one line, the description of the page in Prefect's lists."""
        best = f"; best {reward(self.history[-1].best_fitness)}" if self.history else ""
        return f"{self.progress.line()}{best}"

    def page(self) -> str:
        return "\n\n".join(filter(None, [*self._head(), self.curve, *self._body(), self.plots]))

    def _head(self) -> list[str]:
        progress = self.progress
        share = f"{progress.done} of {progress.generations} ({percent(progress.done / progress.generations, 0)})"
        if progress.ended is not None:
            title = f"# Ended after generation {share}"
            state = f"**{progress.ended}** {progress.next_step()}".rstrip()
        else:
            title = f"# Finished: generation {share}" if progress.is_finished else f"# Generation {share}"
            each = progress.seconds_each if not progress.is_finished else None
            state = ("" if each is None else f"{duration(each)} each, ") + progress.time_left()
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
        if not self.history:
            return [*facts, *self.notes]
        last = self.history[-1]
        return [
            ("Fitness", f"best {reward(last.best_fitness)}, mean {reward(last.mean_fitness)}"),
            ("Champion", champion_in_words(last)),
            ("Learning", _learning(last.learning)),
            ("Replay", f"{last.transitions:,} of {last.replay_capacity:,} transitions"),
            ("Training episodes", in_words(last.trading)),
            *facts,
            *self.notes,
        ]

    def _body(self) -> list[str]:
        if not self.history:
            return []
        return [
            "## Champion",
            "\n".join(f"- **{name}**: {_cell(name, value)}" for name, value in self.champion.items()),
            "## The last generations",
            "Best and mean: fitness of the agents. Champion: the score that chose it.",
            markdown_table(generation_rows(self.history, self.telemetry)[::-1]),
            f"## Agents of generation {self.history[-1].generation}",
            markdown_table(population_table(self.history[-2:])),
        ]


def _fits(text: str) -> bool:
    """Return whether a text fits into a cell of Prefect's page, without the URL of a markdown link."""
    return len(re.sub(r"\]\([^)]*\)", "", text)) <= _CELL


def _learning(learning: Mapping[str, float] | None) -> str:
    if learning is None:
        return "nothing was learned in this generation"
    curves = {name: value for name, value in learning.items() if name != "gradient_steps"}
    return f"{count(int(learning['gradient_steps']), 'gradient step')} an agent, {in_words(curves)}"
