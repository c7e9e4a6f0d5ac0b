"""What a small walk comes to: its joined account, its tables and what the command prints."""

import json

import numpy as np
import pandas as pd
import pytest
from flow_cases import small_flow_config
from rich.console import Console
from trained_run_cases import trained_as

from eigen_core.errors import InputError
from eigen_core.market import build_panel
from eigen_core.records import Excess
from eigen_core.reporting.report import report_page
from flows.cli.walk_results import print_walk, walk_document
from flows.walk_report import report_of_walk
from flows.walk_results import WalkResult, equity_table, folds_table, play_walk, pooled, write_walk
from flows.walks import Walk, plan_walk

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """Two folds with two seeds, trained for a generation."""
    market = {"holdout_days": 60, "purge_days": 30, "first_date": "2018-01-01"}
    config = small_flow_config(tmp_path_factory.mktemp("runs"), generations=1, market=market)
    walk = plan_walk("years", config, build_panel(config)[0].dates, 2, seeds=2)
    for run, settings in walk.runs():
        trained_as(run, settings)
    return walk


@pytest.fixture(scope="module")
def result(walk: Walk) -> WalkResult:
    """What its champions earned."""
    return play_walk(walk)


def test_the_joined_account_is_that_of_the_folds_one_after_another(walk: Walk, result: WalkResult) -> None:
    assert [(one.fold.number, one.seed) for one in result.played] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert len(result.curve.dates) == 120
    for seed, curve in result.curves.items():
        of_seed = result.of_seed(seed)
        assert curve.equity[-1] / curve.capital == pytest.approx(
            np.prod([1.0 + played.figures.total_return for played in of_seed])
        )
        for fold, played in zip(walk.folds, of_seed, strict=True):
            assert (str(played.curve.dates[0]), str(played.curve.dates[-1])) == (fold.played.first, fold.played.last)
            assert played.training_days == 0
    ends = [curve.equity[-1] for curve in result.curves.values()]
    assert result.curve.equity[-1] == pytest.approx(np.mean(ends))
    mean, low, high = result.interquartile
    assert low <= mean <= high
    assert mean == pytest.approx(result.figures.total_return)
    weights = [played.baselines["equal_weight"] for played in result.of_seed(1)]
    assert result.baselines["equal_weight"].equity[-1] == pytest.approx(
        np.prod([weight.equity[-1] / weight.capital for weight in weights]) * weights[0].capital
    )


def test_a_matched_trader_plays_all_folds(result: WalkResult) -> None:
    each = [np.prod([1.0 + played.matched.total_returns[7] for played in result.of_seed(seed)]) for seed in (1, 2)]
    assert result.matched_returns[7] == pytest.approx(np.mean(each) - 1.0)
    assert len(result.matched_returns) == len(result.of_seed(1)[0].matched.total_returns)


def test_tables_plot_and_document_say_the_same(result: WalkResult) -> None:
    folder = write_walk(result)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("equity.csv", "equity.parquet", "equity.png", "folds.csv", "folds.parquet")
    ]
    equity = pd.read_parquet(folder / "equity.parquet")
    pd.testing.assert_frame_equal(equity, equity_table(result), check_dtype=False)
    assert equity.groupby("fold").size().to_dict() == {1: 60, 2: 60}
    document = json.loads(json.dumps(walk_document(result, folder), allow_nan=False))
    assert document["folds"] == folds_table(result).to_dict("records")
    assert document["final"] == pytest.approx(equity["equity"].iloc[-1])
    assert [one["seed"] for one in document["seeds"]] == [1, 2]
    assert document["looks"] >= 2
    assert document["verdict"]["sentence"]
    assert 0.0 <= document["baselines"]["matched_random"]["quantile_of_agent"] <= 1.0
    console = Console(width=160, record=True)
    print_walk(console, result, folder)
    text = console.export_text()
    assert document["verdict"]["sentence"] in text.replace("\n", "")
    assert "interquartile mean of 2 total returns" in text


def test_the_report_of_a_walk_has_its_folds_and_its_command(result: WalkResult) -> None:
    report = report_of_walk(result)
    page = report_page(report)
    assert report.figures.total_return == result.figures.total_return
    assert [(str(fold.first), str(fold.last)) for fold in report.folds] == [
        (fold.played.first, fold.played.last) for fold in result.walk.folds
    ]
    assert "Walk-forward folds" in page
    assert "eigen walk years --folds 2 --seeds 2 --preset quickstart --set " in page
    assert len(report.trades) == sum(len(one.played.trades) for one in result.played)


def test_a_fold_that_is_not_trained_is_refused(walk: Walk) -> None:
    with pytest.raises(InputError, match="There is no run 'others-fold-1-seed-1'"):
        play_walk(Walk("others", walk.config, walk.folds, None, 1))


def test_excess_is_pooled_over_all_trades() -> None:
    one, other = Excess(mean=1.0, standard_error=0.3, trades=30), Excess(mean=-1.0, standard_error=0.4, trades=10)
    found = pooled([[one, None, other]])
    assert found is not None
    assert found.mean == pytest.approx(0.5)
    assert found.trades == 40
    assert found.standard_error == pytest.approx((9.0**2 + 4.0**2) ** 0.5 / 40.0)
    # The same trades twice say no more than once.
    twice = pooled([[one, other], [one, other]])
    assert twice is not None
    assert (twice.mean, twice.standard_error) == pytest.approx((found.mean, found.standard_error))
    assert pooled([[None]]) is None
