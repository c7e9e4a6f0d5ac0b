"""Artifacts: one of each key in a flow run, renewed in place, and new ones in the next."""

import json
import re
from collections.abc import Callable
from uuid import UUID

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.objects import Artifact

import flows.server.reporter
from flows.server.reporter import KINDS, Pages, artifact_key, publish_cleaning, show_memory

pytestmark = pytest.mark.usefixtures("prefect_api")


def versions(key: str) -> list[Artifact]:
    with get_client(sync_client=True) as client:
        return client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))


def in_a_flow_run(act: Callable[[], None]) -> None:
    @flow(name="acting")
    def acting() -> None:
        act()

    acting()


def test_a_page_is_created_once_and_then_renewed() -> None:
    pages = Pages()
    seen: list[UUID] = []

    def act() -> None:
        for generation in (1, 2, 3):
            pages.show_markdown("renewed", f"# {generation}", f"generation {generation}")
            pages.show_table("renewed-population", [{"rank": generation}], f"generation {generation}")
            pages.show_progress("renewed-progress", 10.0 * generation, f"{generation} of 10")
            seen.extend(version.id for version in versions("renewed"))

    in_a_flow_run(act)
    assert len(set(seen)) == 1
    (page,), (table,), (progress,) = map(versions, ("renewed", "renewed-population", "renewed-progress"))
    assert (page.data, page.description, page.type) == ("# 3", "generation 3", "markdown")
    assert json.loads(str(table.data)) == [{"rank": 3}]
    assert (table.description, table.type) == ("generation 3", "table")
    assert (progress.data, progress.description, progress.type) == (30.0, "3 of 10", "progress")
    assert len({page.flow_run_id, table.flow_run_id, progress.flow_run_id}) == 1


def test_another_flow_run_makes_a_new_version_and_leaves_the_old_one() -> None:
    in_a_flow_run(lambda: Pages().show_markdown("resumed", "before", "first"))
    in_a_flow_run(lambda: Pages().show_markdown("resumed", "after", "second"))
    found = versions("resumed")
    assert sorted(str(version.data) for version in found) == ["after", "before"]
    assert len({version.flow_run_id for version in found}) == 2


def test_a_page_that_was_removed_is_made_again() -> None:
    pages = Pages()

    def act() -> None:
        pages.show_markdown("removed", "before", "first")
        with get_client(sync_client=True) as client:
            client.delete_artifact(versions("removed")[0].id)
        pages.show_markdown("removed", "after", "second")

    in_a_flow_run(act)
    assert [version.data for version in versions("removed")] == ["after"]


def test_what_a_server_does_not_take_is_logged_where_nothing_else_is_to_be_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(**options: object) -> None:  # noqa: ARG001
        raise httpx.ConnectError("no server")

    monkeypatch.setattr(flows.server.reporter, "create_markdown_artifact", failing)
    monkeypatch.setattr(flows.server.reporter, "create_table_artifact", failing)

    def act() -> None:
        show_memory(Pages(), "lost", "# Memory", "93 %", [])
        publish_cleaning("runs", [])

    in_a_flow_run(act)
    assert "The artifact lost-memory could not be stored: ConnectError: no server" in caplog.text
    assert "The artifact cleanup could not be stored: ConnectError: no server" in caplog.text
    assert versions("lost-memory") == []


def test_the_page_of_a_run_has_no_other_key_than_a_page_beside_it() -> None:
    names = ["mine", *(f"mine-{kind}" for kind in KINDS), "mine-data-data", "Mine", "data", "-data"]
    names += ["a-b", "a.b", "a_b", "A-b", "a--b", "-a-b", "...", "---"]
    keys = [artifact_key(name, kind) for name in names for kind in ("", *KINDS)]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]*", key) for key in keys)
    assert artifact_key("mine") == "mine"
    assert artifact_key("mine", "data") == "mine-data"
