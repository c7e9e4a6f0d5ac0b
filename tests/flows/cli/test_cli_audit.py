"""`eigen audit`: exit codes, sentences, JSON."""

from pathlib import Path

import pytest
from cli_cases import document, eigen
from feature_cases import install_features


def test_clean_prices_are_exit_code_0_with_what_was_tried() -> None:
    ended = eigen("audit", "--data", "us5", "--days", "1", code=0)
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("Read 12,154 rows from ")
    assert lines[-3].startswith("Tried 15 features of 5 symbols on 1 day (2011-03-01 to 2011-03-01): the days after")
    assert lines[-2] == "No value up to these days changed: no look-ahead was found."
    # Of 3,019 days before those held out: thirds of 1,006, in which 7 standard errors are 0.22 and 0.49.
    assert "It misses look-ahead that correlates less than 0.22 (1 day) to 0.49 (5 days) in each symbol" in lines[-1]


def test_look_ahead_is_exit_code_1_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_features(monkeypatch, tmp_path, ["next_return"])
    arguments = ("audit", "--data", "us5", "--days", "1", "--set", "market.own_features=next_return")
    ended = eigen(*arguments, code=1)
    assert (
        "The next_return of AAPL (us5_ohlcv_2000_2013_long.csv.gz) on 2011-03-01 changes when the days" in ended.stdout
    )
    assert "no look-ahead was found" not in ended.stdout
    audited = document(*arguments, code=1)
    assert set(audited) == {"is_clean", "features", "symbols", "days", "found", "suspected", "unseen", "report"}
    assert (audited["is_clean"], audited["symbols"], audited["days"]) == (False, 5, ["2011-03-01"])
    (found,) = audited["found"]
    assert found.pop("sentence") in ended.stdout
    assert found == {
        "feature": "next_return",
        "normalised": False,
        "symbol": "AAPL",
        "files": ["us5_ohlcv_2000_2013_long.csv.gz"],
        "day": "2011-03-01",
        "last_known": "2011-03-01",
        "future": "cut off",
        "symbols": 4,
    }
    assert [leak["feature"] for leak in audited["suspected"]] == ["next_return"]
    assert audited["report"]["own_features"] == ["next_return"]
    assert audited["report"]["universe"]["ended_symbols"] == 0
