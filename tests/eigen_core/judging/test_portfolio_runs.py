"""A trained portfolio run: what its commands say, and the orders that a replay agrees with."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flow_cases import small_flow_config
from trained_run_cases import RUN, trained, trained_as
from typer.testing import CliRunner

from eigen_core.judging.run_backtests import Backtest, backtest
from eigen_core.judging.walk_forward import plan_walk, remember_walk, stored_walk, with_purge
from eigen_core.market import build_panel
from eigen_core.reporting.walk_report import play_walk
from flows.cli.app import app
from flows.server import reporter as publishing


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a finished run of the task portfolio."""
    folder = tmp_path_factory.mktemp("store")
    trained(folder, of=1, task="portfolio")
    return str(folder)


def asked(store: str, *command: str) -> str:
    found = CliRunner().invoke(app, [*command, "--store", store])
    assert found.exit_code == 0, found.output
    return found.output


def document(store: str, *command: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(asked(store, *command, "--json"))
    return values


def played(store: str, **given: Any) -> Backtest:
    return backtest(store, RUN, draws=20, **given)


def test_a_backtest_of_a_portfolio_adds_up_and_is_judged_by_a_year(store: str) -> None:
    found = played(store)
    gain = found.curve.equity[-1] - found.curve.capital
    assert found.by_asset["gain"].sum() + found.interest == pytest.approx(gain)
    assert found.by_month["gain"].sum() == pytest.approx(gain)
    assert found.excess is not None
    assert found.excess.per == "year"
    assert found.figures.beta is not None
    agents = [set(played(store, agent=agent).trades["agent"]) for agent in ("elites", "ensemble")]
    assert agents == [{0, 1}, {0}]
    assert "random portfolios with the same weights in other assets" in found.verdict.sentence


@pytest.mark.thorough
def test_the_commands_print_and_write_what_they_do_for_trades(store: str, tmp_path: Path) -> None:
    printed = document(store, "backtest", RUN, "--out", str(tmp_path / "tables"))
    assert printed["excess_per_trade"] is None
    assert printed["excess_per_year"].keys() == {"mean", "standard_error"}
    assert printed["win_rate"] is None
    assert (tmp_path / "tables" / "trades.csv").read_text().startswith("symbol,decision,fill,shares,price,")
    assert "a year (95 % interval" in asked(store, "backtest", RUN)
    assert "excess/year" in asked(store, "show", RUN)
    page = tmp_path / "report.html"
    asked(store, "report", RUN, "--out", str(page))
    assert "random portfolios with the same weights in other assets" in page.read_text()


@pytest.mark.thorough
def test_orders_are_changes_of_shares_that_a_later_replay_agrees_with(store: str, tmp_path: Path) -> None:
    ledger, days = ("--ledger", str(tmp_path / "act.json")), ("2022-12-05", "2022-12-06", "2022-12-08")
    acts = [document(store, "act", RUN, "--date", day, *ledger) for day in days]
    first = acts[0]["orders"]
    assert first[0].keys() == {"symbol", "side", "size", "money", "price", "target", "latest_exit"}
    assert {(order["side"], order["target"], order["latest_exit"]) for order in first} == {("buy", None, None)}
    assert acts[0]["positions"] == []
    assert {order["side"] for order in acts[1]["orders"]} == {"buy", "sell"}
    assert len(acts[1]["positions"]) == len(first)
    reconciled = acts[2]["reconciliation"]
    assert reconciled["agreeing"] == 2
    assert [(one["date"], one["missed"]) for one in reconciled["differences"]] == [("2022-12-07", True)]


@pytest.mark.thorough
def test_a_walk_of_portfolios_joins_accounts_and_weights_of_its_folds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "configured_api", lambda _: None)
    market = {"holdout_days": 60, "first_date": "2018-01-01"}
    config = with_purge(small_flow_config(tmp_path, generations=1, market=market, task="portfolio"), None)
    walk = plan_walk("years", config, build_panel(config)[0].dates, 2, seeds=2)
    for run, settings in walk.runs():
        trained_as(run, settings)
    remember_walk(walk)
    result = play_walk(stored_walk(str(tmp_path), "years"))
    assert result.excess is not None
    assert result.excess.per == "year"
    ends = [np.prod([1.0 + one.figures.total_return for one in result.of_seed(seed)]) for seed in walk.all_seeds]
    assert result.figures.total_return == pytest.approx(np.mean(ends) - 1.0)
    assert result.weights is not None
    assert list(result.weights.index) == list(result.curve.dates)
    sums = [pd.concat([one.weights for one in result.of_seed(seed)]).sum().sum() for seed in walk.all_seeds]
    assert result.weights.sum().sum() == pytest.approx(np.mean(sums))
    page = tmp_path / "walk.html"
    printed = document(str(tmp_path), "report", "years", "--out", str(page))
    assert printed["verdict"]["sentence"].lower() == result.verdict.sentence.lower()
    assert "Walk-forward folds" in page.read_text()


@pytest.mark.thorough
def test_trials_of_the_verdict_are_made_with_portfolios(tmp_path: Path) -> None:
    small = [
        *("generations=1", "population.size=2", "market.window=8", "trading.trading_days=20"),
        *("evaluation.slices=1", "evaluation.lowest=1", "learner.gradient_steps=1"),
    ]
    settings = [part for setting in small for part in ("--set", setting)]
    given = ["trust", "us5", "--preset", "portfolio", "--trials", "1", "--edges", "0.3", "--out", str(tmp_path)]
    found = CliRunner().invoke(app, [*given, "--json", *settings])
    assert found.exit_code == 0, found.output
    trust = json.loads(found.stdout)
    assert (trust["false_alarms"]["trials"], trust["power"][0]["trials"]) == (1, 1)
    trial = json.loads((tmp_path / "edge-0.3-1.json").read_text())
    assert trial["trades"] > 0
    assert isinstance(trial["excess"], float)
