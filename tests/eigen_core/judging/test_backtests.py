"""Backtests of a small run: what they hold, what they refuse, what the command prints and writes."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cli_cases import eigen
from flow_cases import small_flow_config
from rich.console import Console
from trained_run_cases import RUN, trained

from eigen_core.checkpoint.store import EVALUATION_LOG
from eigen_core.checkpoint.store_location import open_store
from eigen_core.common.errors import InputError
from eigen_core.judging import verdicts
from eigen_core.judging.run_backtests import Backtest, backtest, play
from eigen_core.reporting.report import facts_of
from eigen_core.runs.handle import Run
from flows.cli.judging import backtest_document, print_backtest

DRAWS = 20
CONTRACT = {
    *("run", "agent", "slice", "first", "last", "days", "capital", "final", "total_return", "cagr", "volatility"),
    *("sharpe", "max_drawdown", "longest_drawdown_days", "exposure", "turnover", "trades", "win_rate", "costs"),
    *("sharpe_interval", "excess_per_trade", "excess_per_year", "looks", "deflated_sharpe", "baselines", "verdict"),
    *("warnings", "periods_per_year", "timing", "capacity"),
}
BASELINES = {
    *("cash", "equal_weight", "rebalanced", "momentum", "reversal", "classic", "ridge", "initial_population"),
    "matched_random",
}


TASKS = ("market", "portfolio")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folders = {task: tmp_path_factory.mktemp(task) for task in TASKS}
    for task, folder in folders.items():
        trained(folder, of=1, task=task)
    return {task: str(folder) for task, folder in folders.items()}


@pytest.fixture(scope="module")
def store(stores: dict[str, str]) -> str:
    return stores["market"]


def played(store: str, **given: Any) -> Backtest:
    return backtest(store, RUN, draws=DRAWS, **given)


@pytest.mark.parametrize("task", TASKS)
def test_a_backtest_of_the_champion_on_the_holdout(stores: dict[str, str], task: str) -> None:
    found = played(stores[task])
    assert (found.agent, found.span, len(found.curve.dates)) == ("champion", "holdout", 60)
    assert "were trained on" not in found.verdict.sentence
    assert {*found.baselines, "matched_random"} == BASELINES
    gain = found.curve.equity[-1] - found.curve.capital
    assert found.by_asset["gain"].sum() + found.interest == pytest.approx(gain)
    assert found.by_asset["trades"].sum() == len(found.trades)
    again = played(stores[task])
    np.testing.assert_array_equal(found.curve.equity, again.curve.equity)
    np.testing.assert_array_equal(found.matched.total_returns, again.matched.total_returns)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_few_days_have_an_account_and_too_few_for_a_verdict(stores: dict[str, str], task: str) -> None:
    dates = played(stores[task]).curve.dates
    for days in (1, 2, 5, 7, 9, 10):
        span = f"{dates[20]}:{dates[19 + days]}"
        if days == 1:
            with pytest.raises(InputError, match=r"holds 1 day of prices: an account needs 2 or more"):
                played(stores[task], span=span)
            continue
        found = played(stores[task], span=span)
        assert len(found.curve.dates) == days
        too_few = f"too few days for a verdict: {days} days, and it needs 10 or more; it earned "
        assert found.verdict.sentence.startswith(too_few) == (days < 10)
        assert days >= 10 or found.verdict.claim == "undecided"


@pytest.mark.thorough
def test_each_look_at_a_holdout_counts_and_an_error_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, of=1)
    dates = played(str(tmp_path)).curve.dates
    parts = [f"{dates[first]}:{dates[first + 19]}" for first in (0, 20, 40, 0)]
    assert [played(str(tmp_path), span=span).verdict.looks for span in parts] == [2, 3, 4, 4]
    with monkeypatch.context() as patched:
        patched.setattr(verdicts, "superiority", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            played(str(tmp_path), agent="1")
    assert len(open_store(str(tmp_path)).objects(EVALUATION_LOG)) == 4


@pytest.mark.thorough
@pytest.mark.parametrize("task", TASKS)
def test_elites_share_the_capital_and_an_ensemble_has_one_account(stores: dict[str, str], task: str) -> None:
    elites, ensemble = played(stores[task], agent="elites"), played(stores[task], agent="ensemble")
    assert elites.agents == ensemble.agents == 2
    alone = [play(stores[task], RUN, span=None, agent=str(agent), draws=1)[0].curve.equity for agent in range(2)]
    np.testing.assert_allclose(elites.curve.equity, np.mean(alone, axis=0))
    assert set(ensemble.trades["agent"]) <= {0}
    assert played(stores[task], agent="population").agents == 4


@pytest.mark.thorough
def test_settings_of_the_account_change_the_account_alone(store: str) -> None:
    whole = played(store, span="validation", settings=["account.shares=whole", "account.capital=5000"])
    assert whole.curve.capital == 5_000.0
    assert (whole.trades["shares"] % 1.0 == 0.0).all()
    with pytest.raises(InputError, match=r"trading\.cost_bps is fixed by the run"):
        played(store, settings=["trading.cost_bps=0"])


@pytest.mark.thorough
def test_every_look_is_counted_once_and_so_are_the_validations_that_chose_the_agents(tmp_path: Path) -> None:
    config = trained(tmp_path, of=1)
    found = [played(str(tmp_path), agent=agent).verdict.looks for agent in ("champion", "champion", "3", "champion")]
    assert found == [1, 1, 2, 2]
    validation = played(str(tmp_path), span="validation")
    assert validation.looks.count == 1
    assert validation.verdict.looks == 1 + config.population.size
    command = ("backtest", RUN, "--store", str(tmp_path), "--slice", "validation")
    assert "The champion was chosen on these days" in eigen(*command).stdout
    assert "The champion was chosen on these days" in json.loads(eigen(*command, "--json").stdout)["warnings"][0]
    trained_on = played(str(tmp_path), span="2015-01-01:2015-03-31").verdict
    assert trained_on.claim == "none"
    assert "were trained on" in trained_on.sentence
    shown = eigen("backtest", RUN, "--store", str(tmp_path), "--slice", "2015-01-01:2015-06-30")
    assert all(text in shown.stdout for text in ("initial population", "random traders", "No skill shown: the agents"))
    assert list((tmp_path / RUN / "backtests").glob("champion-2015-01-*/equity.csv"))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"agent": "4"}, r"There is no agent '4': choose .* a number from 0 to 3\."),
        ({"span": "tomorrow"}, r"'tomorrow' is no span: write holdout, validation, or dates such as"),
        ({"span": "2015-02-30:2015-03-30"}, r"'2015-02-30:2015-03-30' is no span"),
        ({"span": "2015-02-01:2014-03-30"}, r"ends before it begins"),
        ({"span": "2035-02-01:2035-03-30"}, r"holds 0 days of prices"),
        ({"span": "1980-02-01:1995-03-30"}, r"begins after fewer days of prices than the 20 that agents observe"),
    ],
)
def test_what_cannot_be_played_is_refused_with_a_sentence(store: str, given: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        played(store, **given)


def test_the_holdout_of_an_unfinished_run_is_looked_at_only_on_request(tmp_path: Path) -> None:
    trained(tmp_path, of=2)
    with pytest.raises(InputError, match=r"has 1 of 2 generations\. .*--slice holdout"):
        played(str(tmp_path))
    assert played(str(tmp_path), span="holdout").span == "holdout"


def test_runs_without_a_market_agents_holdout_or_their_own_prices_are_refused(tmp_path: Path) -> None:
    config = small_flow_config(tmp_path, task="gym:CartPole-v1")
    Run(config.checkpoint, "poles").begin(config)
    with pytest.raises(InputError, match=r"Run 'poles' plays 'gym:CartPole-v1', which has no prices"):
        backtest(str(tmp_path), "poles")
    config = small_flow_config(tmp_path, market={"holdout": 60})
    Run(config.checkpoint, "begun").begin(config)
    with pytest.raises(InputError, match=r"Run 'begun' has no agents yet"):
        backtest(str(tmp_path), "begun", span="validation")
    Run(small_flow_config(tmp_path).checkpoint, "all").begin(small_flow_config(tmp_path))
    with pytest.raises(InputError, match=r"Run 'all' has no holdout days"):
        backtest(str(tmp_path), "all")


@pytest.mark.parametrize("task", TASKS)
def test_the_command_prints_the_contract_and_writes_tables(stores: dict[str, str], tmp_path: Path, task: str) -> None:
    folder = tmp_path / "tables"
    result = eigen("backtest", RUN, "--store", stores[task], "--out", str(folder), "--json", code=0)
    document = json.loads(result.stdout)
    assert set(document) == CONTRACT
    assert set(document["baselines"]) == BASELINES
    assert document["baselines"]["cash"] == {"total_return": 0.0, "sharpe": None, "max_drawdown": 0.0}
    assert document["verdict"]["claim"] in ("skill", "none", "undecided")
    assert document["looks"] >= 1
    assert document["capacity"] == {}
    assert document["timing"]["shifts"] == 60 - 2 * 10 - 1
    if task == "portfolio":
        assert (document["excess_per_trade"], document["win_rate"]) == (None, None)
        assert document["excess_per_year"].keys() == {"mean", "standard_error"}
        assert "random portfolios with the same weights in other assets" in document["verdict"]["sentence"]
    assert document["final"] == pytest.approx(document["capital"] * (1.0 + document["total_return"]))
    equity = pd.read_csv(folder / "equity.csv", parse_dates=["date"])
    pd.testing.assert_frame_equal(equity, pd.read_parquet(folder / "equity.parquet"), check_dtype=False)
    assert equity["equity"].iloc[-1] == pytest.approx(document["final"])
    assert equity["drawdown"].min() == pytest.approx(document["max_drawdown"])
    assert len(pd.read_parquet(folder / "trades.parquet")) == document["trades"]
    assert len(pd.read_csv(folder / "by_asset.csv")) == len(pd.read_parquet(folder / "by_asset.parquet"))


def test_capacity_is_shown_and_needs_volumes(store: str, tmp_path: Path) -> None:
    volumes = "account.participation and account.impact compare orders with volumes, and the prices have none"
    with pytest.raises(InputError, match=volumes):
        played(store, settings=["account.impact=1"])
    found = replace(played(store), capacity={1: 0.123, 10: 0.045})
    assert backtest_document(found, tmp_path)["capacity"] == {"1": 0.123, "10": 0.045}
    shown = StringIO()
    print_backtest(Console(file=shown, width=200), found, tmp_path)
    assert "total return by multiples of the capital: 1: 12.30 %; 10: 4.50 %" in shown.getvalue()
    facts = {fact.name: fact.value for fact in facts_of(found, found.verdict)}
    assert (facts["Capital x 1"], facts["Capital x 10"]) == ("12.3 %", "4.5 %")
