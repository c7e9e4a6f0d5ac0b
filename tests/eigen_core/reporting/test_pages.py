"""The pages beside a run's own: data, memory plan, uploads, summary."""

from datetime import UTC, datetime

import pytest
from science_cases import random_panel, small_config
from synthetic_run import make_run

from eigen_core.checkpoint.uploads import GenerationUpload, UploadStatus
from eigen_core.common.records import HoldoutResult
from eigen_core.market import PanelFacts
from eigen_core.reporting.pages import data_page, link_to_run, plan_page, summary_page, uploads_page, uploads_sentence
from eigen_core.reporting.tables import readable
from eigen_core.task.panel import days_of

NOW = datetime(2026, 11, 21, 3, 36, 10, tzinfo=UTC)


def part(name: str, host: float, device: float = 0.0) -> dict[str, str | float]:
    return {"part": name, "host (MB)": host, "device (MB)": device, "phases": "all", "how": f"how {name} is reckoned"}


def status(**given: object) -> UploadStatus:
    done = GenerationUpload(generation=3, state="done", bytes=2_500_000, attempts=1, error=None)
    values: dict[str, object] = {
        "run": "mine",
        "store": "gs://bucket/runs",
        "state": "idle",
        "updated": NOW,
        "pending": 0,
        "pending_mb": 0.0,
        "pending_files": 0,
        "done": 3,
        "failed": 0,
        "mb_per_second": 12.34,
        "oldest_seconds": None,
        "last_error": None,
        "generations": (done,),
    }
    return UploadStatus.model_validate(values | given)


def test_the_data_page_says_each_thing_once() -> None:
    panel = random_panel(small_config())
    lines = ["Read 10 rows from prices.csv (long).", "The panel has many days."]
    page = data_page("mine", str(PanelFacts.of(panel)), lines, days_of(panel))
    assert page.startswith("# Data of run mine\n\n- Read 10 rows from prices.csv (long).\n- The panel has many days.\n")
    splits = panel.splits
    for name, days in (("train", splits.train), ("validation", splits.validation), ("holdout", splits.holdout)):
        row = f"| {name} | {len(days):,} | {panel.dates[days[0]]} | {panel.dates[days[-1]]} |" if days else ""
        assert row in page
    assert f"{panel.columns} columns, {panel.assets} of them tradable, {len(panel.feature_names)} features" in page
    assert data_page("mine", "one number", [], []) == "# Data of run mine\n\n- Size: one number.\n"


def test_the_plan_page_is_narrow_and_merges_what_is_small() -> None:
    rows = [part("process", 545.0), part("population", 0.4), part("replay", 87.1), part("noise", 0.3)]
    page = plan_page("mine", "The run fits.", rows)
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert table == [
        "| part | host (MB) | phases |",
        "| --- | --- | --- |",
        "| process | 545.0 | all |",
        "| replay | 87.1 | all |",
        "| 2 smaller parts | 0.7 | – |",
    ]
    assert "- **replay**: how replay is reckoned" in page
    assert "how noise is reckoned" not in page
    page = plan_page("mine", "The run fits.", [part("process", 545.0), part("weights", 0.0, 3_000.0)])
    assert "| part | host (MB) | device (MB) | phases |" in page
    assert page.index("| weights | 0.0 | 3,000.0 | all |") < page.index("| process |")


def test_the_uploads_are_told_in_a_sentence_and_on_a_page() -> None:
    assert uploads_sentence(status()) == "Everything is in gs://bucket/runs (3 generations uploaded, 12.3 MB/s)."
    away = status(pending=2, pending_mb=7.5, oldest_seconds=61.0, last_error="503 from the store")
    assert uploads_sentence(away) == (
        "2 generations (7.5 MB, the oldest for 61 s) wait for upload to gs://bucket/runs. 503 from the store"
    )
    page = uploads_page(away)
    assert page.startswith("# Uploads to gs://bucket/runs: 2 pending (7.5 MB), 3 done")
    assert "Last error: 503 from the store" in page
    assert "As of 21 Nov 2026, 03:36:10 UTC." in page
    assert "| 3 | done | 2.5 | 1 |  |" in page


@pytest.mark.parametrize("holdout", [True, False])
def test_the_summary_says_how_a_run_ended(holdout: bool) -> None:
    history, telemetry = make_run(60, 6)
    played = HoldoutResult(
        generation=60,
        slices=(1, 2),
        champion_rewards=(10.0, 20.5),
        champion_statistics=(("trades", 3.0), ("win_rate", 0.5)),
        random_rewards=(1.0, 30.0),
    )
    page = summary_page("mine", history, telemetry, played if holdout else None, "`/runs/mine`", NOW)
    assert page.startswith(
        "# Run mine has its 60 generations\n\nFinished at 21 Nov 2026, 03:36:10 UTC; its generations"
    )
    assert ("the champion earns 15.25 (trades 3, win rate 0.5)" in page) is holdout
    assert ("There are no holdout episodes." in page) is not holdout
    assert "Checkpoints and plots: `/runs/mine`" in page
    assert f"`{history[-1].weights_sha256}`" in page
    assert f"`{history[-1].replay_sha256}`" in page
    assert "\n| 60 |" in page
    assert "\n| 11 |" in page
    assert "\n| 10 |" not in page


def test_a_run_in_a_bucket_is_linked_to_the_console_and_rewards_have_two_decimals() -> None:
    rows = readable([{"rank": 1, "fitness (reward)": -1234.5, "time (s)": 2.0}])
    assert rows == [{"rank": 1, "fitness (reward)": "-1,234.50", "time (s)": 2.0}]
    assert link_to_run("/runs/", "mine") == "`/runs/mine`"
    assert link_to_run("gs://bucket/a b", "mine") == (
        "[gs://bucket/a b/mine](https://console.cloud.google.com/storage/browser/bucket/a%20b/mine)"
    )
