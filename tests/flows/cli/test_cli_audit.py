"""`eigen audit`, and a run that is known by its prices: their files may have another name, and later rows."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_cases import document, eigen, refused
from feature_cases import install_features
from flow_cases import small_settings


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


DAYS, LATER = 700, 5


def write_prices(file: str, days: int, changed: float = 1.0) -> None:
    """Write closes of three symbols; the tenth close of the first symbol is multiplied by `changed`."""
    steps = np.random.default_rng(7).normal(0.0, 0.01, (DAYS + LATER, 3))
    closes = 100.0 * np.exp(steps.cumsum(axis=0))
    closes[9, 0] *= changed
    index = pd.Index(pd.bdate_range("2020-01-01", periods=DAYS + LATER), name="date")
    pd.DataFrame(closes, index, ["AAA", "BBB", "CCC"])[:days].to_csv(file)


@pytest.mark.thorough
@pytest.mark.usefixtures("user_folder")
def test_a_run_goes_on_with_its_prices_in_another_file_and_not_with_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prices("begun.csv", DAYS)
    write_prices("renamed.csv", DAYS)
    write_prices("later.csv", DAYS + LATER)
    write_prices("changed.csv", DAYS + LATER, changed=1.01)
    settings = [*small_settings(generations=1, market={"holdout": 60}), "--set", "market.layout=wide"]
    for name in ("moved", "whole"):
        eigen("train", "--run", name, "--data", "begun.csv", *settings, code=0)
    for generation, (before, other) in enumerate((("begun.csv", "renamed.csv"), ("begun.csv", "later.csv")), 2):
        eigen("resume", "whole", "--generations", str(generation), "--data", before, code=0)
        eigen("resume", "moved", "--generations", str(generation), "--data", other, code=0)
    assert "only its days are used: 2020-01-01 to 2022-09-06" in caplog.text
    weights = [[row["weights_sha256"] for row in document("show", name)["history"]] for name in ("whole", "moved")]
    assert weights[0] == weights[1]
    said = eigen("resume", "moved", "--generations", "4", "--data", "changed.csv", code=2).stderr
    assert "trained on other data" in said
    assert "of 2020-01-01 to 2022-09-06" in said
    # Neither days nor decisions about them may change; later decisions may.
    again = ["train", "--run", "moved", "--data", "later.csv", *settings, "--set"]
    assert "market.first_date differs" in eigen(*again, "market.first_date=2020-02-03", code=2).stderr
    eigen(*again, "market.first_date=2020-01-01", code=0)
    eigen(*again, "market.events=AAA 2022-09-08 keep", code=0)
    accounts = []
    for data in ("begun.csv", "later.csv"):
        monkeypatch.setenv("EIGEN_DATA", data)
        accounts.append(document("backtest", "whole"))
    assert accounts[0] == accounts[1]
    monkeypatch.setenv("EIGEN_DATA", "changed.csv")
    assert "trained on other data" in refused("backtest", "whole")
