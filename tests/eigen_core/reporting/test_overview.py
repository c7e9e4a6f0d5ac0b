"""The page of a run: what it says in which situation."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from synthetic_run import make_run

from eigen_core.common.text import clock, exact_clock, rough_duration
from eigen_core.reporting.pages import SHOWN_GENERATIONS, Overview, Progress
from eigen_core.reporting.tables import champion_card

NOW = datetime(2026, 11, 21, 3, 36, 10, tzinfo=UTC)
PROGRESS = Progress(done=14, generations=25, now=NOW, began=NOW - timedelta(hours=1), seconds_each=200.0, took=2_800.0)


def overview(generations: int = 14, progress: Progress = PROGRESS, **given: object) -> Overview:
    history, telemetry = make_run(generations, 6)
    page = Overview(
        "mine",
        progress,
        "`/runs/mine`",
        checkpoint=NOW,
        history=history[-2 * SHOWN_GENERATIONS :],
        telemetry=telemetry,
        champion=champion_card(history),
    )
    return replace(page, **given)  # type: ignore[arg-type]  # fields by name


def test_a_course_says_how_long_and_until_when() -> None:
    assert PROGRESS.line() == "14 of 25, about 37 min left, until 04:12 UTC"
    late = replace(PROGRESS, now=NOW + timedelta(hours=20))
    assert late.line() == "14 of 25, about 37 min left, until 22 Nov 00:12 UTC"
    assert replace(PROGRESS, seconds_each=None, done=0).line() == "0 of 25, began 02:36 UTC"
    assert replace(PROGRESS, done=25).line() == "25 of 25, finished 03:36 UTC, took 46 min 40 s"
    assert replace(PROGRESS, ended="No memory.").line() == "14 of 25, ended 03:36 UTC"


def test_a_page_begins_with_the_numbers() -> None:
    page = overview().page()
    lines = page.splitlines()
    assert lines[0] == "# Generation 14 of 25 (56 %)"
    assert lines[2] == "**3 min 20 s each, about 37 min left, until 04:12 UTC.**"
    assert lines[4] == "| Run mine | as of 21 Nov 2026, 03:36:10 UTC |"
    assert "| **Last checkpoint** | generation 14, 21 Nov 2026, 03:36:10 UTC |" in lines
    assert "| **Kept in** | `/runs/mine` |" in lines


def test_a_page_says_how_well_it_goes() -> None:
    history, _ = make_run(14, 6)
    newest = history[-1]
    shown = overview()
    page = shown.page()
    later = sum(record.mean_fitness for record in history[-6:]) / 6
    earlier = sum(record.mean_fitness for record in history[-12:-6]) / 6
    assert (
        f"| **Fitness** | best {newest.best_fitness:,.2f}, mean {newest.mean_fitness:,.2f}; mean over the last "
        f"6 generations {later:,.2f} (the 6 before: {earlier:,.2f}) |"
    ) in page
    assert f"- **champion**: agent {newest.champion_agent} of generation {newest.champion_generation}" in page
    assert "32 gradient steps an agent, critic loss" in page
    rows = re.findall(r"^\| (\d+) \| \S+ \| \S+ \| \S+ \| \S+ \| \S+ \|$", page, flags=re.MULTILINE)
    assert rows == ["14", "13", "12", "11", "10", "9"]
    assert "## Agents of generation 14" in page
    assert f"| 1 | {max(range(6), key=lambda agent: newest.fitness[agent])} | {newest.best_fitness:,.2f} |" in page
    assert shown.line() == f"14 of 25, about 37 min left, until 04:12 UTC; best {newest.best_fitness:,.2f}"


def test_every_reward_has_two_decimals() -> None:
    page = overview().page()
    for table in re.findall(r"(?:^\|.*\n?)+", page, flags=re.MULTILINE):
        columns, _, *rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
        for row in rows:
            for column, cell in zip(columns, row, strict=True):
                if column.endswith("(reward)"):
                    assert re.fullmatch(r"-?[\d,]+\.\d\d", cell), (column, cell)


def test_a_finished_run_says_when_and_how_long_it_took() -> None:
    page = overview(25, replace(PROGRESS, done=25)).page()
    assert page.startswith("# Finished: generation 25 of 25 (100 %)\n\n**Finished 03:36 UTC, took 46 min 40 s.**")
    assert "left" not in page.split("## Champion")[0]


def test_a_training_that_was_ended_says_why_and_what_comes_next() -> None:
    page = overview(progress=replace(PROGRESS, ended="Memory: 93% are taken.")).page()
    assert page.startswith(
        "# Ended after generation 14 of 25 (56 %)\n\n"
        "**Memory: 93% are taken.** A resume goes on with generation 15.\n\n| Run mine |"
    )
    last = overview(25, replace(PROGRESS, done=25, ended="The store is away.")).page()
    assert "**The store is away.**\n" in last


def test_a_run_without_its_holdout_is_not_finished() -> None:
    progress = replace(PROGRESS, done=25, holdout_is_left=True)
    page = Overview("mine", progress, "there").page()
    assert page.startswith("# Generation 25 of 25 (100 %)")
    assert "the holdout episodes remain to be played" in page
    page = Overview("mine", replace(progress, ended="It was stopped."), "there").page()
    assert "A resume plays the holdout episodes." in page


def test_a_run_that_has_nothing_yet_has_a_page() -> None:
    page = Overview("mine", replace(PROGRESS, done=0, seconds_each=None), "`/runs/mine`").page()
    assert page.startswith("# Generation 0 of 25 (0 %)\n\n**Began 02:36 UTC.**")
    assert page.endswith("| **Last checkpoint** | none yet |\n| **Kept in** | `/runs/mine` |")


@pytest.mark.parametrize(("generations", "told"), [(1, ""), (2, " (before: "), (5, "; mean over the last 2 ")])
def test_a_young_run_is_compared_with_what_there_is(generations: int, told: str) -> None:
    history, _ = make_run(generations, 6)
    fitness = f"mean {history[-1].mean_fitness:,.2f}{told}"
    assert fitness in overview(generations).page()


def test_what_is_too_wide_for_a_cell_stands_below_the_table() -> None:
    wide = "x" * 96
    linked = f"in [gs://bucket/mine](https://console.cloud.google.com/{wide})"
    page = overview(notes=[("Uploads", wide), ("Store", linked)]).page()
    assert f"**Uploads**: {wide}" in page
    assert f"| **Store** | {linked} |" in page


def test_the_course_of_the_fitness_follows_the_facts_and_other_plots_come_last() -> None:
    page = overview(curve="![fitness](data:)", plots="## Plots, drawn after generation 10").page()
    assert page.index("| **Kept in** |") < page.index("![fitness](data:)") < page.index("## Champion")
    assert page.endswith("## Plots, drawn after generation 10")


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(40.2, "40 s"), (62, "62 s"), (2_199, "37 min"), (18_720, "5 h 12 min"), (273_600, "3 days 4 h")],
)
def test_what_is_guessed_is_rounded(seconds: float, told: str) -> None:
    assert rough_duration(seconds) == told


def test_moments_are_told_in_utc() -> None:
    elsewhere = datetime.fromisoformat("2026-11-21T05:12:00+01:00")
    assert clock(elsewhere, NOW) == "04:12 UTC"
    assert exact_clock(elsewhere) == "21 Nov 2026, 04:12:00 UTC"
