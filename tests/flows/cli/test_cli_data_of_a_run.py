"""A run is known by its prices: under another name, and with later rows, its files are those that it began with."""

import numpy as np
import pandas as pd
import pytest
from cli_cases import document, eigen
from flow_cases import small_settings

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
    settings = [*small_settings(generations=1, market={"holdout_days": 60}), "--set", "market.layout=wide"]
    for name in ("moved", "whole"):
        eigen("train", "--run", name, "--data", "begun.csv", *settings, code=0)
    for generation, (before, other) in enumerate((("begun.csv", "renamed.csv"), ("begun.csv", "later.csv")), 2):
        eigen("resume", "whole", "--generations", str(generation), "--data", before, code=0)
        eigen("resume", "moved", "--generations", str(generation), "--data", other, code=0)
    assert "only its days are used: 2020-01-01 to 2022-09-06" in caplog.text
    weights = [[row["weights_sha256"] for row in document("show", name)["history"]] for name in ("whole", "moved")]
    assert weights[0] == weights[1]
    refused = eigen("resume", "moved", "--generations", "4", "--data", "changed.csv", code=2).stderr
    assert "trained on other data" in refused
    assert "of 2020-01-01 to 2022-09-06" in refused
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
