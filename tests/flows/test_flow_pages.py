"""What a user finds in Prefect's pages after, and during, a training; the flow that cleans a store.

Artifacts at a server are renewed in place, in a thread that waits for no unavailable server.
"""

import logging
import re
import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import httpx
import pytest
from fault_proxy import Fault, FaultProxy
from flow_cases import small_flow_config, train
from gcs_emulator import GcsEmulator
from operation_cases import listening
from prefect import State
from prefect.artifacts import Artifact as StoredArtifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import Artifact, FlowRun
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_CSRF_SUPPORT_ENABLED, temporary_settings
from store_cases import objects_of, run_config, save_generations
from upload_cases import whole_generations

from eigen_core import generation
from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.checkpoint.store_location import open_store
from eigen_core.config import Config
from eigen_core.planning.run_plan import RunTooLargeError
from eigen_core.runs.drawing import Drawing
from eigen_core.runs.listener import Listener, observed_by
from eigen_core.task import open_data
from flows.server import artifacts as artifacts_module
from flows.server.artifacts import KINDS, SERVER_ERRORS, Artifacts, Reporter, artifact_key, retry_once
from flows.server.flow_runs import FINISHED_NAME
from flows.server.flows import cleanup_flow, train_flow

pytestmark = pytest.mark.usefixtures("prefect_api")

_PICTURE = re.compile(r"!\[[a-z ]+\]\(data:image/png;base64,iVBOR")


def flow_run_of(state: State[Any]) -> FlowRun:
    assert state.state_details.flow_run_id is not None
    with get_client(sync_client=True) as client:
        return client.read_flow_run(state.state_details.flow_run_id)


def pages_of(flow_run: UUID) -> dict[str, Artifact]:
    """All artifacts of a flow run; no key may come twice."""
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=wanted)
    assert len({page.key for page in found}) == len(found)
    return {str(page.key): page for page in found}


@pytest.mark.thorough
def test_a_flow_run_has_one_page_of_each_kind_and_a_resume_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts_module, "_EVERY_SECONDS", 0.0)
    monkeypatch.setattr("eigen_core.run.Drawing", Drawing)
    monkeypatch.setattr(Drawing, "is_done", lambda drawing: drawing._process.wait() == 0)
    config = small_flow_config(tmp_path, reporting={"plot_every": 2}, market={"holdout": 50})
    heard: list[dict[str, str]] = []

    def shown() -> dict[str, str]:
        """The name of the flow run that was stopped, and its pages."""
        with get_client(sync_client=True) as client:
            run = min(
                (run for run in client.read_flow_runs() if run.name.startswith("paged ")),
                key=lambda run: str(run.created),
            )
        return {"name": run.name} | {key: str(page.data) for key, page in pages_of(run.id).items()}

    class Observer(Listener):
        def phase_started(self, generation: int, phase: str) -> None:
            if (generation, phase) == (3, "train"):
                end = time.monotonic() + 60.0
                while "## Plots, drawn after generation 2" not in (found := shown()).get("paged", ""):
                    assert time.monotonic() < end
                heard.append(found)
                raise KeyboardInterrupt

    with observed_by(Observer()), pytest.raises(KeyboardInterrupt):
        train(config, "paged")
    (during,) = heard
    assert during["name"] == "paged gen 1-3 (2 done)"
    assert during["paged"].startswith("# Generation 2 of 3 (67 %)")
    before = shown()
    assert before["paged"].startswith(
        "# Ended after generation 2 of 3 (67 %)\n\n**It was stopped.** A resume goes on with generation 3."
    )
    assert "## Plots, drawn after generation 2" in before["paged"]
    assert len(_PICTURE.findall(before["paged"])) == 4

    resumed = flow_run_of(train(config.model_copy(update={"generations": 10}), "paged"))
    pages = pages_of(resumed.id)
    assert set(pages) == {"paged", "paged-data", "paged-plan"}
    assert resumed.name == "paged gen 3-10 (10 done)"
    assert {"run:paged", f"preset:{config.preset}"} <= set(resumed.tags)
    page = str(pages["paged"].data)
    assert page.startswith("# Finished: generation 10 of 10 (100 %)\n\n**Finished ")
    assert "## Plots, drawn after generation 10" in page
    assert "**Holdout**: In " in page
    assert re.search(r"\*\*Trend\*\*:? .*The mean fitness of the last 4 generations ", page)
    assert "| **Memory** | fine: " in page
    # The look at the holdout is in the ledger.
    assert [look.name.count("/") for look in open_store(str(tmp_path)).objects("looks/")] == [1]
    # What the first process has shown stays as it was.
    assert shown() == before


def test_a_run_that_cannot_fit_shows_its_plan(tmp_path: Path) -> None:
    config = small_flow_config(tmp_path / "store", memory={"limit_gb": 0.1})
    # Where the panel is not in the cache yet, the guard ends what reads the prices.
    open_data(config)
    ended = train(config, "large")
    assert (ended.is_failed(), ended.name) == (True, "MemoryPlan")
    assert isinstance(ended.result(raise_on_failure=False), RunTooLargeError)
    assert "memory.limit_gb" in str(ended.message)
    assert not (tmp_path / "store").exists()
    pages = pages_of(flow_run_of(ended).id)
    assert set(pages) == {"large-plan"}
    assert "The run does not fit" in str(pages["large-plan"].data)


def text_of(key: str) -> str:
    """What an artifact shows."""
    found: Any = StoredArtifact.get(key)
    return str(found.data)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The worker's store of two runs of four generations each, of which two stay."""
    monkeypatch.setenv("EIGEN_STORE", str(tmp_path / "store"))
    for name in ("first", "second"):
        save_generations(run_config(tmp_path / "store", tmp_path, keep_last=2, keep_every=0), name, *range(1, 5))
    return tmp_path / "store"


def test_every_run_of_a_store_is_cleaned_and_named(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    places = [RunLocation.of(run_config(store, tmp_path).checkpoint, name) for name in ("first", "second")]
    before = [objects_of(location) for location in places]
    said = cleanup_flow(0.0, dry_run=True)
    assert [objects_of(location) for location in places] == before
    assert f"Dry run of a cleanup of {store}: nothing is removed" in caplog.text
    named = [message for message in caplog.messages if message.startswith(("first: 2 generations, ", "second: 2 "))]
    caplog.clear()
    assert cleanup_flow(0.0) == said > 0
    assert f"Cleanup of the runs in {store}" in caplog.text
    assert [message for message in named if message in caplog.messages] == named
    assert len(named) == 2
    assert [whole_generations(location.local) for location in places] == [[3, 4]] * 2


def bucket_config(url: str, **checkpoint: Any) -> Config:
    config = small_flow_config(Path("runs"), checkpoint={"upload_mb_per_second": 0, **checkpoint})
    return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"store": url})})


@pytest.mark.usefixtures("quick_retries", "no_pauses", "user_folder")
@pytest.mark.thorough
def test_a_training_whose_store_has_gone_away_fails_and_says_what_is_missing(
    fault_proxy: FaultProxy, gcs_emulator: GcsEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"gs://{gcs_emulator.make_bucket()}"
    config = bucket_config(url, finish_seconds=0.5)
    location = RunLocation.of(config.checkpoint, "away")
    evolve = generation.evolve

    def going_away(*args: Any) -> Any:
        if not any(manifest.generation for manifest in location.local.manifests()):
            fault_proxy.add(Fault("status", method="POST|PUT", path="upload", times=None))
        return evolve(*args)

    with monkeypatch.context() as patch:
        patch.setattr(generation, "evolve", going_away)
        ended = train_flow(config, "away", return_state=True)
    error = ended.result(raise_on_failure=False)
    assert isinstance(error, StoreUnavailableError), error
    assert f"Run 'away' is not completely in {url}" in str(error)
    assert "generation 1, generation 2, generation 3" in str(error)
    page = text_of(artifact_key("away"))
    assert page.startswith("# Ended after generation 3 of 3 (100 %)\n\n**StoreUnavailableError: Run 'away' is not")
    assert location.stored.manifests() == []
    fault_proxy.clear()
    assert train_flow(bucket_config(url), "away", return_state=True).name == FINISHED_NAME
    assert whole_generations(location.stored) == [1, 2, 3]


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the server answers: the last value; nothing of Prefect's is asked."""
    answers = [True]

    def require() -> None:
        if not answers[-1]:
            raise httpx.ConnectError("it does not answer")

    monkeypatch.setattr(artifacts_module, "require_server", require)
    monkeypatch.setattr(artifacts_module, "SyncClientContext", nullcontext)
    return answers


@pytest.mark.usefixtures("present")
def test_of_reports_of_a_kind_the_newest_is_sent_and_none_waits_for_another() -> None:
    sent: list[str] = []
    entered, opened = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert opened.wait(60.0)

    with Reporter("mine") as reporter:
        reporter.report("first", wait)
        assert entered.wait(60.0)
        for number in range(3):
            for kind in ("page", "name"):
                reporter.report(kind, partial(sent.append, f"{kind} {number}"))
        assert sent == []
        opened.set()
    assert sent == ["page 2", "name 2"]


def test_a_server_that_does_not_answer_is_logged_once_and_asked_again(
    present: list[bool], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(artifacts_module, "_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(artifacts_module, "get_run_logger", lambda: logging.getLogger("reporter"))
    sent: list[int] = []
    reporter = Reporter("mine")
    for number, answers in enumerate((False, False, True, False, True)):
        present.append(answers)
        reporter._send_batch([partial(sent.append, number)] * 2)
    assert sent == [2, 2, 4, 4]
    assert caplog.text.count("its pages are outdated") == 2

    # One that has become silent would let each report wait.
    reporter._send_batch([Mock(side_effect=httpx.ReadTimeout("no answer")), partial(sent.append, 5)])
    assert sent == [2, 2, 4, 4]


@pytest.mark.usefixtures("present")
def test_what_is_no_refusal_ends_the_training() -> None:
    with pytest.raises(ZeroDivisionError), Reporter("mine") as reporter:
        reporter.report("page", Mock(side_effect=ZeroDivisionError))


@pytest.mark.usefixtures("present")
def test_a_reporter_that_ends_with_an_error_sends_the_last_reports_and_keeps_the_error() -> None:
    sent: list[int] = []

    def stopped(reporter: Reporter) -> None:
        with reporter:
            reporter.report("page", lambda: sent.append(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped(Reporter("mine"))
    assert sent == [1]


def test_the_page_of_a_run_has_no_other_key_than_a_page_beside_it() -> None:
    names = ["mine", *(f"mine-{kind}" for kind in KINDS), "mine-data-data", "Mine", "-data", "a-b", "a.b", "a_b", "..."]
    keys = [artifact_key(name, kind) for name in names for kind in ("", *KINDS)]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]*", key) for key in keys)


@pytest.mark.thorough
def test_a_page_waits_a_bounded_time_for_a_server_that_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts_module, "_CALL_SECONDS", 0.5)
    began = time.monotonic()
    with listening() as (address, connections):
        settings = {PREFECT_API_URL: f"http://{address}/api", PREFECT_CLIENT_CSRF_SUPPORT_ENABLED: False}
        with temporary_settings(settings), retry_once(), pytest.raises(SERVER_ERRORS):
            Artifacts().show("key", "text", "description")
        assert connections
    assert 0.5 <= time.monotonic() - began < 50.0
