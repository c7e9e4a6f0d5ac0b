"""What a training shows on its page in Prefect: data report, population, plots, summary.

An artifact that cannot be stored is logged and left out: it must not stop a training.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from eigen_core.config import Config
from eigen_core.market.panel import Panel
from eigen_core.records import GenerationRecord, Telemetry
from eigen_core.reporting.ancestry import origins

_MB = 1e6


def artifact_key(run: str, kind: str) -> str:
    """Return the key of a run's artifact: lower case, digits and dashes. Different runs have different keys."""
    slug = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    if slug != run:
        slug = f"{slug}-{hashlib.sha256(run.encode()).hexdigest()[:6]}".lstrip("-")
    return f"{slug}-{kind}"


def publish_data_report(run: str, panel: Panel, lines: Sequence[str]) -> None:
    """Show what data the run trains on and what was found in it."""
    text = "\n".join(f"- {line}" for line in lines)
    _publish_markdown(
        artifact_key(run, "data"),
        f"# Data of run {run}\n\n{panel.days:,} days from {panel.dates[0]} to {panel.dates[-1]}, "
        f"{panel.columns} columns, {panel.assets} of them tradable, {len(panel.feature_names)} features.\n\n{text}\n",
        f"Data of run {run}",
    )


def publish_population(run: str, history: Sequence[GenerationRecord]) -> None:
    """Show the agents of the newest generation by rank."""
    record = history[-1]
    rows = population_rows(history)
    _guarded(
        "population table",
        lambda: create_table_artifact(
            table=rows,
            key=artifact_key(run, "population"),
            description=f"Run {run}, generation {record.generation}: the agents by fitness (reward of an episode)",
        ),
    )


def population_rows(history: Sequence[GenerationRecord]) -> list[dict[str, Any]]:
    """Return one row an agent of the newest generation, the fittest first."""
    record = history[-1]
    origin_of = origins(history, record.generation)
    order = sorted(range(len(record.fitness)), key=lambda agent: -record.fitness[agent])
    return [
        {
            "rank": rank,
            "agent": agent,
            "fitness": round(record.fitness[agent], 3),
            "validation": round(record.validations[agent], 3),
            "origin": origin_of.get(agent, "initial"),
        }
        for rank, agent in enumerate(order, start=1)
    ]


def publish_plots(run: str, generation: int, paths: Sequence[Path]) -> None:
    """Show the plots of a run; a new version of the same page each time."""

    def page() -> str:
        parts = [f"# Run {run} after generation {generation}"]
        for path in paths:
            picture = base64.b64encode(path.read_bytes()).decode("ascii")
            parts.append(f"![{path.stem}](data:image/png;base64,{picture})")
        return "\n\n".join(parts)

    _guarded(
        "page of plots",
        lambda: create_markdown_artifact(
            markdown=page(), key=artifact_key(run, "plots"), description=f"Run {run} after generation {generation}"
        ),
    )


def publish_summary(
    run: str, config: Config, history: Sequence[GenerationRecord], telemetry: Sequence[Telemetry], folder: Path
) -> None:
    """Show how a run ended."""
    last = history[-1]
    seconds = sum(entry.seconds for entry in telemetry)
    lines = [
        f"# Run {run}: {last.generation} of {config.generations} generations",
        "",
        "| | |",
        "| --- | --- |",
        f"| champion | validation {last.champion_validation:,.2f}, agent {last.champion_agent} of generation "
        f"{last.champion_generation} |",
        f"| best fitness of the last generation | {last.best_fitness:,.2f} |",
        f"| mean fitness of the last generation | {last.mean_fitness:,.2f} |",
        f"| transitions in the replay | {last.transitions:,} of {last.replay_capacity:,} |",
        f"| time in generations | {seconds:,.1f} s |",
        f"| peak resident memory | {max(entry.rss_peak_bytes for entry in telemetry) / _MB:,.0f} MB |",
        f"| weights | `{last.weights_sha256}` |",
        f"| replay | `{last.replay_sha256}` |",
        f"| kept in | `{folder}` |",
    ]
    _publish_markdown(artifact_key(run, "summary"), "\n".join(lines), f"Summary of run {run}")


def _publish_markdown(key: str, markdown: str, description: str) -> None:
    _guarded(key, lambda: create_markdown_artifact(markdown=markdown, key=key, description=description))


def _guarded(what: str, publish: Callable[[], object]) -> None:
    try:
        publish()
    except (httpx.HTTPError, PrefectException, OSError) as error:
        get_run_logger().warning("The %s could not be shown in Prefect: %s: %s", what, type(error).__name__, error)
