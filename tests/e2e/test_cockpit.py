"""The pages of a run in a real browser; `--basetemp` tells where their pictures are kept."""

from collections.abc import Callable, Iterator

import pytest
from browser import Browser, browser, missing_browser
from operated import GENERATIONS, PHASES, Operated, Undisturbed
from selenium.webdriver.support.ui import Select

from eigen_core.config import PRESET_NAMES, Config
from flows.server.artifacts import artifact_key
from flows.server.deployments import client_of, run_page_of

_MISSING = missing_browser()

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))]

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
    assert len(widths) == 5
    assert min(widths) >= _SMALLEST_PLOT
    pages.keep("run", height=1_000)
    pages.keep("run-whole", height=4_800)


def test_the_form_explains_all_settings_and_leaves_a_preset_its_own(operated: Operated, pages: Browser) -> None:
    (deployment,) = operated.ask("deployments/filter", deployments={"name": {"any_": ["gpu"]}})
    page = f"{operated.pages}/deployments/deployment/{deployment['id']}/run"
    pages.open(page, "Generations to train.", "Days on which the champion is chosen")
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
    with operated.pool_paused():
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
