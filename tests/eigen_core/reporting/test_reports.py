"""Reports and comparisons of small runs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_cases import document, eigen
from trained_run_cases import trained
from typer.testing import CliRunner

from eigen_core.common.errors import InputError
from eigen_core.judging.run_backtests import backtest
from eigen_core.market import build_panel
from eigen_core.reporting.compare import write_comparison
from eigen_core.reporting.report import HEADLINES, write_report
from eigen_core.runs.evaluation_log import Look
from flows.cli.app import app

ONE, OTHER, LONGER = "one", "other", "longer"
REPORT_KEYS = {
    *("run", "agent", "slice", "first", "last", "days", "file", "periods_per_year", "risk_free"),
    *("figures", "baselines", "verdict", "folds", "warnings"),
}
COMPARISON_KEYS = {
    *("slice", "first", "last", "file", "periods_per_year", "risk_free", "runs", "benchmark", "warnings"),
    "differences",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with two runs on the same days, and one on others."""
    folder = tmp_path_factory.mktemp("store")
    trained(folder, ONE, of=1)
    trained(folder, OTHER, of=1, seed=7, learner={"batch_size": 8})
    trained(folder, LONGER, of=1, market={"holdout": 61})
    return str(folder)


@pytest.mark.thorough
def test_a_report_of_a_run_says_what_was_played_and_how_to_get_it_again(store: str, tmp_path: Path) -> None:
    file = tmp_path / "new" / "report.html"
    report = write_report(store, ONE, span=None, agent="champion", file=file)
    page = file.read_text(encoding="utf-8")
    assert (report.span, len(report.played.curve.dates), report.warnings) == ("holdout", 60, ())
    assert f"eigen report {ONE} --slice holdout --agent champion" in page
    assert f"eigen train --run {ONE} --preset ddpg --set generations=1 " in page
    assert "Read 8,313 rows from sp500_20_close_1990_2022.csv.gz" in page
    assert store not in page
    assert HEADLINES[report.verdict.claim] in page
    assert "in the evaluation log, of run one" in report.looks
    chosen = write_report(store, ONE, span="validation", agent="elites", file=file)
    assert chosen.warnings[0].startswith("The champion was chosen on these days")


@pytest.mark.thorough
def test_the_command_report_prints_the_contract(store: str, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    found = document("report", ONE, "--store", store, "--out", str(file))
    assert set(found) == REPORT_KEYS
    assert file.is_file()
    assert found["baselines"]["cash"]["sharpe"] is None
    shown = eigen("report", ONE, "--store", store, "--out", str(file))
    assert found["verdict"]["sentence"] in shown.stdout


@pytest.mark.thorough
def test_the_command_compare_prints_the_contract_and_writes_a_page(store: str, tmp_path: Path) -> None:
    file = tmp_path / "comparison.html"
    found = document("compare", ONE, OTHER, "--store", store, "--out", str(file))
    assert set(found) == COMPARISON_KEYS
    assert list(found["runs"]) == [ONE, OTHER]
    assert set(found["differences"]) == {"seed", "learner.batch_size"}
    assert found["differences"]["learner.batch_size"] == {ONE: "16", OTHER: "8"}
    assert "learner.batch_size" in file.read_text(encoding="utf-8")
    shown = eigen("compare", ONE, OTHER, "--store", store).stdout
    assert "learner.batch_size" in shown


@pytest.mark.thorough
def test_a_comparison_says_which_looks_are_missing(store: str, tmp_path: Path) -> None:
    copy, file = tmp_path / "copy", tmp_path / "comparison.html"
    shutil.copytree(store, copy)
    assert document("compare", ONE, OTHER, "--store", str(copy))["warnings"] == []
    newest = max((copy / "looks-chain").iterdir())
    (copy / Look.model_validate(json.loads(newest.read_bytes())["look"]).name).unlink()
    newest.unlink()
    for found in (
        document("compare", ONE, OTHER, "--store", str(copy), "--out", str(file)),
        document("backtest", ONE, "--store", str(copy)),
        document("report", ONE, "--store", str(copy), "--out", str(tmp_path / "report.html")),
    ):
        (warning,) = found["warnings"]
        assert newest.name in warning
    assert newest.name in file.read_text(encoding="utf-8")
    verified = eigen("verify", ONE, "--deep", "--store", str(copy), code=1)
    assert newest.name in verified.stdout


@pytest.mark.thorough
def test_runs_with_other_holdouts_are_compared_on_the_same_days(store: str) -> None:
    same = write_comparison(store, [ONE, LONGER], span="2022-11-01:2022-12-01", agent="champion", file=None)
    assert same.differences["market.holdout"] == {ONE: "60", LONGER: "61"}


@pytest.mark.thorough
def test_runs_on_other_prices_stand_beside_their_own_equal_weight(store: str, tmp_path: Path) -> None:
    prices = tmp_path / "others.csv"
    dates = build_panel(trained(tmp_path, of=1))[0].dates[-400:]
    walk = np.exp(np.cumsum(np.random.default_rng(1).normal(0.0, 0.01, (400, 8)), axis=0))
    pd.DataFrame(walk, index=dates, columns=[f"S{index}" for index in range(8)]).to_csv(prices, index_label="date")
    trained(Path(store), "elsewhere", of=1, market={"data": str(prices), "layout": "wide"})
    runs, file = [ONE, "elsewhere", OTHER], tmp_path / "comparison.html"
    found = document("compare", *runs, "--store", store, "--out", str(file))
    assert found["benchmark"] is None
    for run in runs:
        own = backtest(store, run, draws=0)
        shown = found["runs"][run]["benchmark"]["figures"]
        for name in ("total_return", "sharpe", "max_drawdown"):
            assert shown[name] == getattr(own.baseline_metrics["equal_weight"], name)
        assert found["runs"][run]["figures"]["beta"] == own.metrics.beta
    names = ["Equal weight (held) of one, other", "Equal weight (held) of elsewhere"]
    assert [found["runs"][run]["benchmark"]["name"] for run in runs] == [names[0], names[1], names[0]]
    shown = CliRunner().invoke(
        app, ["compare", *runs, "--store", store], catch_exceptions=False, env={"COLUMNS": "200"}
    )
    for text in (shown.stdout, file.read_text(encoding="utf-8")):
        assert all(name in text for name in names)


@pytest.mark.parametrize("runs", [["one"], ["one", "one"], [f"run-{number}" for number in range(8)]])
def test_two_to_seven_different_runs_are_compared(runs: list[str]) -> None:
    with pytest.raises(InputError, match="from two to 7 different runs"):
        write_comparison("runs", runs, span=None, agent="champion", file=None)
