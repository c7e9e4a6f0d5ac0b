"""What a small walk comes to: its joined account, its tables and what the command prints."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_cases import eigen
from flow_cases import small_flow_config
from rich.console import Console
from trained_run_cases import trained_as

from eigen_core.checkpoint.store_location import open_store
from eigen_core.common.errors import InputError
from eigen_core.common.records import Excess
from eigen_core.judging.walk_forward import (
    Walk,
    WalkResult,
    load_walk,
    plan_walk,
    play_walk,
    pool_excess,
    save_walk,
    walk_equity_table,
    write_walk,
)
from eigen_core.market import build_panel
from eigen_core.reporting.report import is_report_of_walk, report_of_walk, report_page
from eigen_core.runs.handle import Run
from flows.cli.walk import print_walk, walk_document

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module", params=["market", "portfolio"])
def walk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Walk:
    market = {"holdout": 60, "purge": 30, "first_date": "2018-01-01"}
    config = small_flow_config(tmp_path_factory.mktemp("runs"), generations=1, market=market, task=request.param)
    walk = plan_walk("years", config, build_panel(config)[0].dates, 2, seeds=2)
    for run, settings in walk.runs():
        trained_as(run, settings)
    return walk


@pytest.fixture(scope="module")
def result(walk: Walk) -> WalkResult:
    return play_walk(walk)


def test_the_joined_account_is_that_of_the_folds_one_after_another(walk: Walk, result: WalkResult) -> None:
    assert [(one.fold.number, one.seed) for one in result.played] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert len(result.curve.dates) == 120
    for seed, curve in result.curves.items():
        of_seed = result.of_seed(seed)
        assert curve.equity[-1] / curve.capital == pytest.approx(
            np.prod([1.0 + played.metrics.total_return for played in of_seed])
        )
        for fold, played in zip(walk.folds, of_seed, strict=True):
            assert (str(played.curve.dates[0]), str(played.curve.dates[-1])) == (fold.played.first, fold.played.last)
            assert "were trained on" not in played.verdict.sentence
    ends = [curve.equity[-1] for curve in result.curves.values()]
    assert result.curve.equity[-1] == pytest.approx(np.mean(ends))
    mean, low, high = result.interquartile
    assert low <= mean <= high
    assert mean == pytest.approx(result.metrics.total_return)
    weights = [played.baselines["equal_weight"] for played in result.of_seed(1)]
    assert result.baselines["equal_weight"].equity[-1] == pytest.approx(
        np.prod([weight.equity[-1] / weight.capital for weight in weights]) * weights[0].capital
    )


def test_weights_are_the_mean_over_the_seeds(result: WalkResult) -> None:
    of_seeds = [[one.weights for one in result.of_seed(seed) if one.weights is not None] for seed in (1, 2)]
    if result.weights is None:
        assert of_seeds == [[], []]
        return
    assert list(result.weights.index) == list(result.curve.dates)
    sums = [pd.concat(weights).sum().sum() for weights in of_seeds]
    assert result.weights.sum().sum() == pytest.approx(np.mean(sums))


def test_a_matched_trader_plays_all_folds(result: WalkResult) -> None:
    each = [np.prod([1.0 + played.matched.total_returns[7] for played in result.of_seed(seed)]) for seed in (1, 2)]
    assert result.matched.total_returns[7] == pytest.approx(np.mean(each) - 1.0)
    assert len(result.matched.total_returns) == len(result.of_seed(1)[0].matched.total_returns)


def test_tables_and_document_say_the_same(result: WalkResult) -> None:
    folder = write_walk(result)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("equity.csv", "equity.parquet", "folds.csv", "folds.parquet")
    ]
    equity = pd.read_parquet(folder / "equity.parquet")
    pd.testing.assert_frame_equal(equity, walk_equity_table(result), check_dtype=False)
    assert equity.groupby("fold").size().to_dict() == {1: 60, 2: 60}
    document = json.loads(json.dumps(walk_document(result, folder), allow_nan=False))
    assert document["folds"] == pd.read_parquet(folder / "folds.parquet").to_dict("records")
    assert document["final"] == pytest.approx(equity["equity"].iloc[-1])
    assert [one["seed"] for one in document["seeds"]] == [1, 2]
    assert document["looks"] >= 2
    assert 0.0 <= document["baselines"]["matched_random"]["quantile_of_agent"] <= 1.0
    console = Console(width=160, record=True)
    print_walk(console, result, folder)
    text = console.export_text()
    assert document["verdict"]["sentence"] in text.replace("\n", "")
    assert "interquartile mean of 2 total returns" in text


def test_the_command_report_makes_the_report_of_a_walk(walk: Walk, result: WalkResult, tmp_path: Path) -> None:
    store, file = walk.config.checkpoint.store, tmp_path / "walk.html"
    save_walk(walk)
    assert is_report_of_walk(store, "years", span=None, agent="champion")
    given = ["report", "years", "--store", store, "--out", str(file), "--json"]
    shown = eigen(*given, code=0)
    document, report = json.loads(shown.stdout), report_of_walk(result)
    assert (document["run"], document["slice"], document["days"]) == ("years", "walk", 120)
    assert document["folds"] == [
        {"fold": f"fold {fold.number}", "first": fold.played.first, "last": fold.played.last} for fold in walk.folds
    ]
    assert document["figures"]["total_return"] == result.metrics.total_return
    assert document["verdict"] == {"claim": result.verdict.claim, "sentence": report.verdict.statement}
    assert file.read_text(encoding="utf-8") == report_page(report)
    assert "eigen walk years --folds 2 --seeds 2 --preset ddpg --set " in report_page(report)
    assert not is_report_of_walk(store, "years-fold-1-seed-1", span=None, agent="champion")
    for name, span, agent, sentence in (
        ("others", None, "champion", r"There is no run 'others' .*Its walks: years\."),
        ("years", "holdout", "champion", r"'years' is a walk.*such as years-fold-1-seed-1"),
        ("years", None, "0", r"leave out --slice and --agent"),
        ("years-fold-1-seed-1", "walk", "champion", r"There is no walk 'years-fold-1-seed-1' .*only a run"),
    ):
        with pytest.raises(InputError, match=sentence):
            is_report_of_walk(store, name, span=span, agent=agent)


def test_a_name_of_a_run_and_a_walk_is_one_of_them_by_the_slice(walk: Walk) -> None:
    run = "years-fold-1-seed-1"
    save_walk(replace(walk, name=run))
    store = walk.config.checkpoint.store
    with pytest.raises(InputError, match=r"is a run and a walk in .*--slice walk .*--slice holdout"):
        is_report_of_walk(store, run, span=None, agent="champion")
    assert is_report_of_walk(store, run, span="walk", agent="champion")
    assert not is_report_of_walk(store, run, span="holdout", agent="0")
    with pytest.raises(InputError, match=r"There is no run 'years-fold-1-seed-1-fold-1-seed-1'"):
        load_walk(store, run)
    open_store(store).delete([f"walks/{run}.json"])


def test_a_stored_walk_is_that_which_was_begun_or_refused(walk: Walk) -> None:
    store = walk.config.checkpoint.store
    save_walk(walk)
    assert load_walk(store, "years") == walk
    panel = build_panel(walk.config)[0]
    unfinished = plan_walk("half", walk.config, panel.dates, 2)
    save_walk(unfinished)
    run, settings = next(unfinished.runs())
    Run(settings.checkpoint, run).begin(settings)
    with pytest.raises(InputError, match=r"Walk 'half' is not finished: its run 'half-fold-1-seed-1' is not"):
        load_walk(store, "half")
    with pytest.raises(InputError, match="There is no walk 'other'"):
        load_walk(store, "other")
    with pytest.raises(InputError, match="There is no run 'others-fold-1-seed-1'"):
        play_walk(replace(walk, name="others"))


def test_excess_is_pooled_over_all_trades() -> None:
    one = Excess(mean=1.0, standard_error=0.3, freedom=12.0, trades=30)
    other = Excess(mean=-1.0, standard_error=0.4, freedom=3.0, trades=10)
    found = pool_excess([[one, None, other]])
    assert found is not None
    assert found.mean == pytest.approx(0.5)
    assert found.trades == 40
    assert found.standard_error == pytest.approx((9.0**2 + 4.0**2) ** 0.5 / 40.0)
    # The same trades twice say no more than once.
    twice = pool_excess([[one, other], [one, other]])
    assert twice is not None
    assert twice.interval == pytest.approx(found.interval)
    assert found.interval[1] - found.mean == pytest.approx(
        2.131 * (16.0 / 15.0) ** 0.5 * found.standard_error, rel=1e-3
    )
    assert pool_excess([[None]]) is None
