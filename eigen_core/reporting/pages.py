"""Pages of a run, as markdown: data, memory plan, uploads, and how it ended."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from eigen_core.common.records import GenerationRecord, HoldoutResult, Telemetry
from eigen_core.common.text import count, duration, exact_clock
from eigen_core.reporting.tables import (
    Row,
    champion_card,
    generation_rows,
    holdout_sentence,
    markdown_card,
    markdown_table,
)

if TYPE_CHECKING:
    from eigen_core.checkpoint import UploadStatus

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
