"""What a training shows on its page in Prefect: data report, population, plots, summary.

An artifact that cannot be stored is logged and left out: it must not stop a training.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import httpx
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, create_table_artifact
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from eigen_core.checkpoint import UploadStatus
from eigen_core.market import Panel
from eigen_core.records import GenerationRecord, HoldoutResult, Telemetry
from eigen_core.reporting import (
    champion_card,
    holdout_sentence,
    markdown_card,
    markdown_table,
    plots_markdown,
    population_table,
    summary_rows,
)
from eigen_core.reporting.units import duration

_SUMMARY_GENERATIONS = 50
_CONSOLE = "https://console.cloud.google.com/storage/browser/"


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
    rows = population_table(history)
    description = f"Run {run}, generation {history[-1].generation}: the agents, the fittest first"
    key = artifact_key(run, "population")
    _guarded(key, lambda: create_table_artifact(table=rows, key=key, description=description))


def publish_progress(run: str, generation: int, generations: int, seconds_each: float) -> None:
    """Show how far a run is and how long the rest will take, if generations go on taking `seconds_each`."""
    left = duration(seconds_each * (generations - generation))
    text = f"Run {run}: generation {generation} of {generations}, {duration(seconds_each)} each, about {left} left"
    share = 100.0 * generation / generations
    key = artifact_key(run, "progress")
    _guarded(key, lambda: create_progress_artifact(progress=share, key=key, description=text))


def publish_plots(run: str, history: Sequence[GenerationRecord], paths: Sequence[Path], where: str) -> None:
    """Show champion and plots of a run; a new version of the same page each time.

    Args:
        run: its name.
        history: its records.
        paths: the plots.
        where: the run in its store, as markdown.
    """
    title = f"Run {run} after generation {history[-1].generation}"
    page = f"# {title}\n\n{markdown_card(champion_card(history))}\n\nCheckpoints: {where}\n\n{plots_markdown(paths)}"
    _publish_markdown(artifact_key(run, "plots"), page, title)


def publish_uploads(run: str, status: UploadStatus) -> None:
    """Show how far the uploads to a store elsewhere are; a new version of the same page each time."""
    rows: list[dict[str, str | int | float | None]] = [
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
    page = [f"# {title[:1].upper()}{title[1:]}", error, markdown_table(rows)]
    _publish_markdown(artifact_key(run, "uploads"), "\n\n".join(filter(None, page)), f"Uploads of run {run}")


def publish_memory(run: str, markdown: str, headline: str, pictures: Sequence[Path]) -> None:
    """Show what takes the memory of a run; a new version of the same page each time."""
    pages = [markdown, plots_markdown(pictures)] if pictures else [markdown]
    _publish_markdown(artifact_key(run, "memory"), "\n\n".join(pages), f"Memory of run {run}: {headline}")


def publish_plan(run: str, sentence: str, rows: Sequence[dict[str, str | float]]) -> None:
    """Show what a run was planned to take."""
    table: list[dict[str, str | int | float | None]] = [dict(row) for row in rows]
    page = f"# Memory plan of run {run}\n\n{sentence}\n\n{markdown_table(table)}\n"
    _publish_markdown(artifact_key(run, "plan"), page, f"Memory plan of run {run}")


def link_to_run(store: str, run: str) -> str:
    """Return where a run is kept as markdown: a link to Google's console for a bucket, else the path or URL."""
    place = f"{store.rstrip('/')}/{run}"
    if not place.startswith("gs://"):
        return f"`{place}`"
    return f"[{place}]({_CONSOLE}{quote(place.removeprefix('gs://'))})"


def publish_cleaning(store: str, rows: list[dict[str, str | int | float | None]]) -> None:
    """Show what was removed from the runs of a store."""
    _guarded("cleanup", lambda: create_table_artifact(table=rows, key="cleanup", description=f"Runs in {store}"))


def publish_summary(
    run: str,
    history: Sequence[GenerationRecord],
    telemetry: Sequence[Telemetry],
    holdout: HoldoutResult | None,
    where: str,
) -> None:
    """Show how a run ended: the champion, the holdout days, the last generations, where everything lies (markdown)."""
    last = history[-1]
    page = [
        f"# Run {run} has its {last.generation} generations",
        markdown_card(champion_card(history)),
        holdout_sentence(holdout) if holdout else "There are no holdout days.",
        f"Time in generations: {sum(entry.seconds for entry in telemetry):,.1f} s. Checkpoints and plots: {where}.",
        f"Weights `{last.weights_sha256}`, replay `{last.replay_sha256}`.",
        markdown_table(summary_rows(history[-_SUMMARY_GENERATIONS:], telemetry)),
    ]
    _publish_markdown(artifact_key(run, "summary"), "\n\n".join(page), f"Summary of run {run}")


def _publish_markdown(key: str, markdown: str, description: str) -> None:
    _guarded(key, lambda: create_markdown_artifact(markdown=markdown, key=key, description=description))


def _guarded(key: str, publish: Callable[[], object]) -> None:
    try:
        publish()
    except (httpx.HTTPError, PrefectException, OSError) as error:
        get_run_logger().warning("The artifact %s could not be stored: %s: %s", key, type(error).__name__, error)
