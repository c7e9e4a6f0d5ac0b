"""Tables of a run, for the command line and for pages."""

import base64
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from eigen_core.common.records import (
    GenerationRecord,
    HoldoutResult,
    Telemetry,
    champion_path,
    origins,
    record_of,
)
from eigen_core.common.text import BYTES_PER_MB, count, number, reward

if TYPE_CHECKING:
    import pandas as pd

    from eigen_core.generation import TrainingState

Row = dict[str, int | float | str | None]
"""One row of a table: column names have units, numbers are rounded, None is unknown."""
NO_GENERATION = "No generation is complete."

_NESTED = {"fitness", "validations", "champion_excess", "learning", "trading", "evolution", "descent", "ancestors"}
_DIVERSITY = ("distinct_ancestors", "policy_distance")
_TIMES = ("evaluate_seconds", "train_seconds", "evolve_seconds", "checkpoint_seconds", "seconds")
_MEMORY = ("rss_bytes", "rss_peak_bytes", "device_peak_bytes", "exchanged_bytes")


def champion_in_words(record: GenerationRecord, number: Callable[[float], str] = reward) -> str:
    """Return champion, validation and age as text: "agent 3 of generation 7, validation 1.20, found in ..."."""
    age = record.generation - record.champion_generation
    found = f"{count(age, 'generation')} ago" if age else "in this generation"
    validation = number(record.champion_validation)
    return f"{_champion(record)}, validation {validation}, found {found}"


def _champion(record: GenerationRecord) -> str:
    return f"agent {record.champion_agent} of generation {record.champion_generation}"


def _chosen_by_score(record: GenerationRecord) -> bool:
    return record.champion_score != record.champion_validation


def population_table(history: Sequence[GenerationRecord]) -> list[Row]:
    """Return the agents of the newest generation, fittest first, ties by index; empty without a generation.

    Columns: rank, agent, fitness (reward), validation (reward), origin; then the agent's genes (`Lineage`), if any.
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
    """Return one row a generation: rewards, time (seconds), peaks of host and GPU memory (MB: million bytes).

    Where known, also: number of initial agents with descendants, the champion's excess over the market in validation
    (% with 95 % interval), and data exchanged with workers (MB).
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
            "champion (reward)": round(record.champion_validation, 2),
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
    """Return the unit of the champions' excess, trade or year; None without an excess."""
    return next((record.champion_excess.per for record in history if record.champion_excess), None)


def _megabytes(amount: int) -> float | None:
    return round(amount / BYTES_PER_MB, 1) if amount else None


def champion_card(history: Sequence[GenerationRecord]) -> Row:
    """Return one row about a run's champion: fitness, age, origin and first ancestor."""
    newest = history[-1]
    generation, agent = newest.champion_generation, newest.champion_agent
    found = record_of(history, generation)
    ancestors = champion_path(history)
    return {
        "champion": _champion(newest),
        "validation (reward)": round(newest.champion_validation, 2),
        **({"score (reward)": round(newest.champion_score, 2)} if _chosen_by_score(newest) else {}),
        **({"excess over the market": str(newest.champion_excess)} if newest.champion_excess else {}),
        "fitness (reward)": None if found is None else round(found.fitness[agent], 2),
        "age (generations)": newest.generation - generation,
        "origin": origins(history, generation).get(agent, "initial"),
        "line began with": f"agent {ancestors[0].agent} of generation {ancestors[0].generation}",
    }


def markdown_table(rows: Sequence[Row]) -> str:
    """Return rows with equal columns as a markdown table; an empty text without rows."""
    if not rows:
        return ""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([_cell(column, row[column]) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_card(card: Mapping[str, int | float | str | None]) -> str:
    return "\n".join(f"- **{name}**: {_cell(name, value)}" for name, value in card.items())


def _cell(name: str, value: float | str | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, float) and name.endswith("(reward)"):
        return reward(value)
    if isinstance(value, float) and name.endswith("(s)"):
        return f"{value:,.2f}"
    return value if isinstance(value, str) else f"{value:,}"


def plots_markdown(paths: Sequence[Path]) -> str:
    """Return markdown with the content of pictures (base64), each under its name as a heading."""
    return "\n".join(f"### {_title(path).capitalize()}\n\n{picture_markdown(path)}\n" for path in paths)


def picture_markdown(path: Path) -> str:
    image = base64.b64encode(path.read_bytes()).decode("ascii")
    return f"![{_title(path)}](data:image/png;base64,{image})"


def _title(plot: Path) -> str:
    return plot.stem.replace("_", " ")


def champion_sentence(history: Sequence[GenerationRecord]) -> str:
    newest = history[-1]
    looks = count(sum(len(record.validations) for record in history), "validation")
    score = (
        f" by a score of {reward(newest.champion_score)} from fitness and validation"
        if _chosen_by_score(newest)
        else ""
    )
    sentence = f"The champion is {_champion(newest)}, the best of {looks}{score}"
    excess = newest.champion_excess
    if excess is None:
        return f"{sentence}."
    return f"{sentence}: beyond the market it gained {excess} there, on the days that it was chosen by."


def diversity_sentence(record: GenerationRecord) -> str | None:
    """Return a sentence on the diversity of a generation's agents; None if it was not recorded."""
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
        f"{len(rewards)} agents with random weights earn {reward(result.random_reward)} on average, from "
        f"{reward(min(rewards))} to {reward(max(rewards))}, and it beats {result.share_of_random_beaten:.0%} of them."
    )


def in_words(statistics: Mapping[str, float]) -> str:
    """Return the first three of named statistics as part of a sentence: "trades 60.3, win rate 0.48, idle days 12"."""
    shown = islice(statistics.items(), 3)
    return ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in shown)


def history_frame(
    history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry] = (), known: Sequence[str] = ()
) -> "pd.DataFrame":
    """Return the scalars of a run as a frame indexed by generation; unknown values are NaN.

    Columns are the scalar fields of `GenerationRecord`; `distinct_ancestors`; values of the champion's excess,
    learning, trading and evolution with the prefix `champion_excess_`, `learning_`, `trading_` or `evolution_`; the
    scalars of `Telemetry` with `seconds`; and `known`, which exist even if no generation has them.
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
    """Return the history of a run, one row a generation."""
    learned = [f"learning_{name}" for name in ("gradient_steps", *(curve.name for curve in state.learner.curves))]
    return history_frame(state.history, state.telemetry, learned)
