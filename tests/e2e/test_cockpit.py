"""The pages of a run in a real browser; `--basetemp` tells where their pictures are kept."""

from collections.abc import Callable, Iterator

import pytest
from browser import Browser, browser, missing_browser
from operated import GENERATIONS, PHASES, Operated, Undisturbed
from selenium.webdriver.common.keys import Keys

from tasks.artifacts import artifact_key
from tasks.phase import run_name

_MISSING = missing_browser()

pytestmark = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))

_RUN = Undisturbed.NAME
_SMALLEST_PLOT = 400


@pytest.fixture(scope="module")
def pages(
    undisturbed: Undisturbed,  # noqa: ARG001 - the run that is looked at
    tmp_path_factory: pytest.TempPathFactory,
    measured: Callable[[str], None],
) -> Iterator[Browser]:
    """A browser for the pages of a finished run."""
    folder = tmp_path_factory.mktemp("pages")
    measured(f"pictures of the pages: {folder}")
    with browser(folder) as found:
        yield found


@pytest.fixture(scope="module")
def flow_run_page(operated: Operated, pages: Browser) -> str:  # noqa: ARG001 - the run must have been trained
    """Address of the page of the flow run that has trained the run from its first generation."""
    return f"{operated.pages}/runs/flow-run/{operated.flow_runs(_RUN)[0]['id']}"


def artifact_page(operated: Operated, kind: str) -> str:
    """Address of the newest version of an artifact of the run."""
    found = {entry["key"]: entry["latest_id"] for entry in operated.ask("artifacts/latest/filter", limit=100)}
    return f"{operated.pages}/artifacts/artifact/{found[artifact_key(_RUN, kind)]}"


def test_a_flow_run_shows_what_it_trains_and_its_tasks_by_name(pages: Browser, flow_run_page: str) -> None:
    pages.open(flow_run_page, f"{_RUN} gen 1-{GENERATIONS}", f"run:{_RUN}", "Completed")
    pages.wait_for("generation 1: fitness best")
    # The time line is a canvas: it is for the eye.
    pages.keep("flow-run")
    pages.click("Task Runs")
    pages.wait_for(*(run_name(phase, generation) for phase in PHASES for generation in range(1, GENERATIONS + 1)))
    pages.keep("task-runs", height=2_000)
    pages.click("Artifacts")
    pages.wait_for(*(artifact_key(_RUN, kind) for kind in ("progress", "population", "plan", "data", "summary")))
    pages.keep("artifacts", height=2_000)


def test_the_plots_are_drawn(operated: Operated, pages: Browser) -> None:
    pages.open(artifact_page(operated, "plots"), f"Run {_RUN} after generation {GENERATIONS}", "champion", "Fitness")
    widths = pages.picture_widths()
    assert len(widths) >= 5
    assert min(widths) >= _SMALLEST_PLOT
    pages.keep("plots", height=4_800)


def test_the_population_is_a_table(operated: Operated, pages: Browser) -> None:
    pages.open(artifact_page(operated, "population"), f"generation {GENERATIONS}", "4 Items", "fitness", "origin")
    pages.keep("population")


def test_the_summary_tells_how_it_ended(operated: Operated, pages: Browser, undisturbed: Undisturbed) -> None:
    _, weights, replay = undisturbed.outcome(GENERATIONS)[-1]
    pages.open(artifact_page(operated, "summary"), f"Run {_RUN} has its {GENERATIONS} generations", weights, replay)
    pages.keep("summary", height=1_400)


def test_the_form_explains_all_settings_and_leaves_a_preset_its_own(operated: Operated, pages: Browser) -> None:
    (deployment,) = operated.ask("deployments/filter", deployments={"name": {"any_": ["gpu"]}})
    page = f"{operated.pages}/deployments/deployment/{deployment['id']}/run"
    pages.open(page, "Generations to train.", "Days kept for choosing the champion")
    pages.wait_for("Name of the run", "The run must exist")
    pages.keep("form")
    preset = pages.fields("textarea")[0]
    assert preset.get_attribute("value") == "quickstart"
    preset.send_keys(Keys.CONTROL, "a")
    preset.send_keys("eigen2")
    with operated.pool_paused():
        pages.click("Submit")
        pages.wait_for("Next Run")
        created = max(operated.ask("flow_runs/filter"), key=lambda flow_run: flow_run["created"])
        operated.forget(created["id"])
    assert created["parameters"]["config"] == {"preset": "eigen2"}
