"""Artifacts of a training in Prefect's pages, each created once in a flow run and then renewed in place."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast
from uuid import UUID

import httpx
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger

from eigen_core.reporting import plots_markdown
from eigen_core.reporting.tables import Row

KINDS = ("data", "memory", "plan", "population", "progress", "report", "summary", "uploads")
"""The pages that a run has beside its own."""

REFUSALS = (httpx.HTTPError, PrefectException, OSError)
"""Errors of a server that accepts no artifact. None of them may stop a training."""

_NOT_FOUND = 404


def artifact_key(run: str, kind: str = "") -> str:
    """Return the key of a run's artifact: lower case, digits and dashes. Different runs have different keys.

    Args:
        run: its name.
        kind: one of `KINDS`; empty: the run's own page.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    # A run that is called "mine-data" has a page of its own beside the data of the run "mine".
    if slug != run or slug.rpartition("-")[2] in KINDS:
        slug = f"{slug}-{hashlib.sha256(run.encode()).hexdigest()[:6]}".lstrip("-")
    return f"{slug}-{kind}" if kind else slug


class Pages:
    """The artifacts of one flow run: one of each key, renewed in place.

    A resume is another flow run, whose artifacts are new versions. All methods may raise one of `REFUSALS`.
    """

    def __init__(self) -> None:
        self._ids: dict[str, UUID] = {}

    def show_markdown(self, key: str, markdown: str, description: str) -> None:
        """Show a text."""
        self._show(key, markdown, description, partial(create_markdown_artifact, markdown=markdown))

    def show_table(self, key: str, rows: list[Row], description: str) -> None:
        """Show rows that can be searched."""
        self._show(key, json.dumps(rows), description, partial(create_table_artifact, table=rows))

    def show_progress(self, key: str, percent: float, description: str) -> None:
        """Show how much of something is done."""
        self._show(key, percent, description, partial(create_progress_artifact, progress=percent))

    def _show(self, key: str, data: str | float, description: str, create: Callable[..., object]) -> None:
        known = self._ids.get(key)
        if known is None or not _renewed(known, data, description):
            # Prefect's functions return the id, or, to a caller that awaits, a promise of it.
            self._ids[key] = cast(UUID, create(key=key, description=description))


def _renewed(artifact: UUID, data: str | float, description: str) -> bool:
    """Whether an artifact could be replaced; false if it was removed."""
    client = get_client(sync_client=True)
    try:
        # `update_artifact` would send the content, pictures and all, a second time as an event, which the server keeps.
        client.request(
            "PATCH",
            "/artifacts/{id}",
            path_params={"id": artifact},
            json={"data": data, "description": description},
        )
    except httpx.HTTPStatusError as error:
        if error.response.status_code != _NOT_FOUND:
            raise
        return False
    return True


def show_memory(pages: Pages, run: str, markdown: str, headline: str, pictures: Sequence[Path]) -> None:
    """Show what takes the memory of a run."""
    text = "\n\n".join([markdown, plots_markdown(pictures)] if pictures else [markdown])
    key = artifact_key(run, "memory")
    _guarded(key, lambda: pages.show_markdown(key, text, f"Memory of run {run}: {headline}"))


def publish_cleaning(store: str, rows: list[Row]) -> None:
    """Show what was removed from the runs of a store."""
    _guarded("cleanup", lambda: create_table_artifact(table=rows, key="cleanup", description=f"Runs in {store}"))


def publish_report(run: str, markdown: str, headline: str) -> str:
    """Show the report of a run, from outside a flow run too; return the artifact's key.

    Prefect's pages show no HTML file: they show its verdict and figures, and name the file.

    Raises:
        httpx.HTTPError, prefect.exceptions.PrefectException, OSError: the server does not accept it.
    """
    key = artifact_key(run, "report")
    create_markdown_artifact(key=key, markdown=markdown, description=f"Report of run {run}: {headline}")
    return key


def _guarded(key: str, publish: Callable[[], object]) -> None:
    try:
        publish()
    except REFUSALS as error:
        get_run_logger().warning("The artifact %s could not be stored: %s: %s", key, type(error).__name__, error)
