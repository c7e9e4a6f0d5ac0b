"""The pages of a run in a real browser, whose pictures are kept in `--basetemp`; those of others begin nothing."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import Browser, browser, missing_browser
from operated import GENERATIONS, PHASES, Operated, Undisturbed
from operation_cases import listening, serving
from selenium.webdriver.support.ui import Select

from eigen_core.config import PRESET_NAMES, Config
from flows.server.artifacts import artifact_key
from flows.server.deployments import client_of, run_page_of
from flows.server.flow_runs import POOL

_MISSING = missing_browser()

pytestmark = pytest.mark.thorough
needs_browser = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))

_RUN = Undisturbed.NAME
_SMALLEST_PLOT = 400


@pytest.fixture(scope="module")
def pages(
    undisturbed: Undisturbed,  # noqa: ARG001 - the run that is looked at
    tmp_path_factory: pytest.TempPathFactory,
    measured: Callable[[str], None],
) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("pages")
    measured(f"pictures of the pages: {folder}")
    with browser(folder) as found:
        yield found


@needs_browser
def test_a_flow_run_shows_what_it_trains_and_its_tasks_by_name(operated: Operated, pages: Browser) -> None:
    # The one that has trained the run from its first generation.
    page = f"{operated.pages}/runs/flow-run/{operated.flow_runs(_RUN)[0]['id']}"
    pages.open(page, f"{_RUN} gen 1-{GENERATIONS} ({GENERATIONS} done)", f"run:{_RUN}", "Completed")
    pages.wait_for("evaluate 1: 4 agents x 6 training episodes, mean fitness ")
    assert "Finished in state Completed()" not in pages.text().split("checkpoint 1:")[0]
    # The time line is a canvas: it is for the eye.
    pages.keep("flow-run")
    pages.click("Task Runs")
    pages.wait_for(*(f"{phase}-{generation:03d}" for phase in PHASES for generation in range(1, GENERATIONS + 1)))
    pages.keep("task-runs", height=2_000)
    pages.click("Artifacts")
    pages.wait_for(*(artifact_key(_RUN, kind) for kind in ("plan", "data")))
    pages.wait_for(f"{GENERATIONS} of {GENERATIONS}, finished ")
    cards = [line for line in pages.text().splitlines() if line in ("MARKDOWN", "TABLE", "PROGRESS")]
    assert len(cards) == 3, "however many generations there were"
    pages.keep("artifacts", height=2_000)


@needs_browser
def test_the_page_of_a_run_tells_it_all_with_its_plots_drawn(
    operated: Operated, pages: Browser, undisturbed: Undisturbed
) -> None:
    assert undisturbed.outcome(GENERATIONS)
    with client_of(operated.api) as client:
        page = run_page_of(client, operated.api, _RUN)
    assert page is not None
    pages.open(page, f"Finished: generation {GENERATIONS} of {GENERATIONS} (100 %)", "Champion")
    pages.wait_for("Fitness", "Last checkpoint", "Kept in", "Memory", "fine: ", "Learning", "Training episodes")
    pages.wait_for("The last generations", f"Agents of generation {GENERATIONS}")
    pages.wait_for(f"Plots, drawn after generation {GENERATIONS}")
    widths = pages.picture_widths()
    assert len(widths) == 4
    assert min(widths) >= _SMALLEST_PLOT
    pages.keep("run", height=1_000)
    pages.keep("run-whole", height=4_800)


@needs_browser
def test_the_form_explains_all_settings_and_leaves_a_preset_its_own(operated: Operated, pages: Browser) -> None:
    (deployment,) = operated.ask("deployments/filter", deployments={"name": {"any_": ["gpu"]}})
    page = f"{operated.pages}/deployments/deployment/{deployment['id']}/run"
    pages.open(page, "Generations to train.", "Bars on which the champion is chosen")
    pages.wait_for("Name of the run", "Continue a run, which must exist")
    pages.keep("form")
    preset = Select(pages.fields("select")[0])
    assert [option.text for option in preset.options] == list(PRESET_NAMES)
    assert preset.first_selected_option.text == "quickstart"

    def submit() -> str:
        Select(pages.fields("select")[0]).select_by_visible_text("eigen2")
        pages.click("Submit")
        return pages.wait_for_one(tab, "Something went wrong")

    # Of the page that follows the form.
    tab = "Upcoming"
    assert tab not in pages.text()
    before = {run["id"] for run in operated.asked_for()}
    with operated.patched(f"work_pools/{POOL}", "is_paused", True):
        # A server that is busy may answer that its database is locked.
        tries = 1
        try:
            while (seen := submit()) != tab and tries < 5:
                pages.open(page, "Generations to train.", "Continue a run, which must exist")
                tries += 1
        finally:
            # More than one where an earlier try was taken although it was answered with an error.
            created = [
                run for run in operated.asked_for() if run["id"] not in before and run["parameters"].get("config")
            ]
            for run in created:
                operated.forget(run["id"])
    assert seen == tab
    parameters = created[0]["parameters"]
    assert all(run["parameters"] == parameters for run in created)
    # The form gives the fields of a section within a section, each as none.
    assert set(parameters["config"]) <= {"preset", "market"}
    assert set(parameters["config"].get("market", {})) <= {"columns"}
    assert Config.model_validate(parameters["config"]) == Config(preset="eigen2")
    assert set(parameters) <= {"config", "run", "resume"}
    assert not parameters.get("run")
    assert not parameters.get("resume")


_PAGE = """<!doctype html><title>A page of somebody else</title><pre id="said">asking</pre><script>
const url = URL, body = BODY;
const json = {method: "POST", headers: {"content-type": "application/json"}, body: body};
const plain = {method: "POST", mode: "no-cors", body: body};
const told = answer => "answered " + answer.type + " " + answer.status, failed = error => "refused";
const socket = new Promise(done => {
  const opened = new WebSocket(url.replace("http", "ws").replace(/api.*/, "api/events/out"));
  opened.onopen = () => done("opened");
  opened.onerror = () => done("refused");
});
Promise.all([fetch(url, json).then(told, failed), fetch(url, plain).then(told, failed), socket])
  .then(found => { document.getElementById("said").textContent = "said: " + found.join("; "); });
</script>"""


def request_of(operated: Operated, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    url = f"{operated.api}/deployments/{operated.deployment()['id']}/create_flow_run"
    return url, {"parameters": {"config": config, "run": "theirs"}}


def test_a_request_of_another_page_or_under_another_name_begins_nothing(operated: Operated) -> None:
    before = operated.asked_for()
    url, body = request_of(operated, {"preset": "quickstart"})
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null", "Content-Type": "text/plain"},
        {"Host": "evil.example:4200"},
    ):
        answer = httpx.post(url, content=json.dumps(body), headers=headers)
        assert answer.status_code == 403, headers
        assert "access-control-allow-origin" not in answer.headers
    assert operated.asked_for() == before


@needs_browser
def test_a_page_of_another_origin_begins_nothing_in_a_browser(operated: Operated, tmp_path: Path) -> None:
    before = operated.asked_for()
    of_folder = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with listening() as (address, connections), serving(of_folder) as origin, browser(tmp_path) as pages:
        url, body = request_of(operated, {"preset": "quickstart", "scheduler": f"tcp://{address}"})
        page = _PAGE.replace("URL", json.dumps(url), 1).replace("BODY", json.dumps(json.dumps(body)), 1)
        (tmp_path / "page.html").write_text(page)
        # What a page may not read it may still have sent: that, too, must have done nothing.
        pages.open(f"{origin}/page.html", "said: refused; answered opaque 0; refused")
        harmless = json.dumps(json.dumps(request_of(operated, {"preset": "quickstart"})[1]))
        (tmp_path / "page.html").write_text(page.replace(json.dumps(json.dumps(body)), harmless))
        pages.open(f"{origin}/page.html?again", "said: refused; answered opaque 0; refused")
        assert operated.asked_for() == before
        assert connections == []
        # Its own pages go on.
        pages.console_errors()
        pages.open(operated.pages, "Runs")
        assert [line for line in pages.console_errors() if "status of 403" in line] == []
