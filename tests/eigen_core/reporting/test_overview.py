"""The page of a run and those beside it: what they say in which situation."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from synthetic_run import make_run

from eigen_core.common.text import clock, exact_clock, rough_duration
from eigen_core.reporting.tables import SHOWN_GENERATIONS, Overview, Progress, champion_card, link_to_run, plan_page

NOW = datetime(2026, 11, 21, 3, 36, 10, tzinfo=UTC)
PROGRESS = Progress(done=14, generations=25, now=NOW, began=NOW - timedelta(hours=1), seconds_each=200.0, took=2_800.0)


def overview(generations: int = 14, progress: Progress = PROGRESS, **given: object) -> Overview:
    history, telemetry = make_run(generations, 6)
    card, shown = champion_card(history) if history else {}, history[-SHOWN_GENERATIONS:]
    page = Overview("mine", progress, "`/runs/mine`", NOW, history=shown, telemetry=telemetry, champion=card)
    return replace(page, **given)  # type: ignore[arg-type]  # fields by name


def test_progress_says_how_long_and_until_when_in_utc() -> None:
    assert replace(PROGRESS, ended="No memory.").line() == "14 of 25, ended 03:36 UTC"
    late = replace(PROGRESS, now=NOW + timedelta(hours=20))
    assert late.line() == "14 of 25, about 37 min left, until 22 Nov 00:12 UTC"
    elsewhere = datetime.fromisoformat("2026-11-21T05:12:00+01:00")
    assert (clock(elsewhere, NOW), exact_clock(elsewhere)) == ("04:12 UTC", "21 Nov 2026, 04:12:00 UTC")
    told = [rough_duration(seconds) for seconds in (40.2, 62, 2_199, 18_720, 273_600)]
    assert told == ["40 s", "62 s", "37 min", "5 h 12 min", "3 days 4 h"]


def test_a_page_begins_with_the_numbers_and_says_how_well_it_goes() -> None:
    history, _ = make_run(14, 6)
    newest, page, line = history[-1], overview().page(), overview().line()
    assert line == f"14 of 25, about 37 min left, until 04:12 UTC; best {newest.best_fitness:,.2f}"
    lines = page.splitlines()
    assert lines[0] == "# Generation 14 of 25 (56 %)"
    assert lines[2] == "**3 min 20 s each, about 37 min left, until 04:12 UTC.**"
    assert f"best {newest.best_fitness:,.2f}, mean {newest.mean_fitness:,.2f} |" in page
    assert f"- **champion**: agent {newest.champion_agent} of generation {newest.champion_generation}" in lines
    rows = re.findall(r"^\| (\d+) \| \S+ \| \S+ \| \S+ \| \S+ \| \S+ \|$", page, flags=re.MULTILINE)
    assert rows == ["14", "13", "12", "11", "10", "9"]
    assert f"| 1 | {max(range(6), key=lambda agent: newest.fitness[agent])} | {newest.best_fitness:,.2f} |" in page


@pytest.mark.parametrize(
    ("given", "history", "title", "state"),
    [
        ({"done": 25}, 25, "# Finished: generation 25 of 25 (100 %)", "**Finished 03:36 UTC, took 46 min 40 s.**"),
        (
            {"ended": "Memory: 93 % are taken."},
            14,
            "# Ended after generation 14 of 25 (56 %)",
            "**Memory: 93 % are taken.** A resume goes on with generation 15.",
        ),
        ({"done": 25, "ended": "No disk."}, 25, "# Ended after generation 25 of 25 (100 %)", "**No disk.**"),
        (
            {"done": 25, "ended": "It was stopped.", "holdout_is_left": True},
            25,
            "# Ended after generation 25 of 25 (100 %)",
            "**It was stopped.** A resume plays the holdout episodes.",
        ),
        (
            {"done": 25, "holdout_is_left": True},
            25,
            "# Generation 25 of 25 (100 %)",
            "**3 min 20 s each, the holdout episodes remain to be played.**",
        ),
        ({"done": 0, "seconds_each": None}, 0, "# Generation 0 of 25 (0 %)", "**Began 02:36 UTC.**"),
    ],
)
def test_a_page_says_whether_and_how_the_training_ended(
    given: dict[str, Any], history: int, title: str, state: str
) -> None:
    assert overview(history, replace(PROGRESS, **given)).page().splitlines()[:3:2] == [title, state]


def test_wide_facts_stand_below_the_table_and_plots_after_it() -> None:
    wide, linked = "x" * 96, f"in [gs://bucket/mine](https://console.cloud.google.com/{'x' * 96})"
    page = overview(notes=[("Uploads", wide), ("Store", linked)], curve="![fitness](data:)", plots="## Plots").page()
    places = [page.index(part) for part in (f"| **Store** | {linked} |", f"**Uploads**: {wide}", "![fitness](data:)")]
    assert places == sorted(places)
    assert page.endswith("## Plots")


def test_the_plan_page_is_narrow_and_merges_what_is_small() -> None:
    sizes = {"process": (545.0, 0.0), "population": (0.4, 0.0), "weights": (0.0, 3_000.0), "noise": (0.3, 0.0)}
    rows: list[dict[str, str | float]] = [
        {"part": name, "host (MB)": host, "device (MB)": device, "phases": "all"}
        for name, (host, device) in sizes.items()
    ]
    page = plan_page("mine", "The run fits.", rows)
    assert [line for line in page.splitlines() if line.startswith("|")] == [
        "| part | host (MB) | device (MB) | phases |",
        "| --- | --- | --- | --- |",
        "| weights | 0.0 | 3,000.0 | all |",
        "| process | 545.0 | 0.0 | all |",
        "| 2 smaller parts | 0.7 | 0.0 | – |",
    ]


def test_a_run_in_a_bucket_is_a_link_to_googles_console() -> None:
    assert "(https://console.cloud.google.com/storage/browser/bucket/a%20b/mine)" in link_to_run(
        "gs://bucket/a b", "mine"
    )
