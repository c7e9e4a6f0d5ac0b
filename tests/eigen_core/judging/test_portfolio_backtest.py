"""Portfolios of weights over a span: what agents decide, earn, and order next."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import science_cases
from cli_cases import document, eigen
from flow_cases import small_flow_config
from science_cases import small_config
from trading_cases import CPU, panel_of, prices_of, random_panel
from trained_run_cases import RUN, trained, trained_as

from eigen_core.config import Config
from eigen_core.judging.backtest import (
    NextOrders,
    PortfolioBacktest,
    SpanResult,
    decide_weights,
    decision_of,
    orders_of_days,
)
from eigen_core.judging.run_backtests import Backtest, backtest
from eigen_core.judging.walk_forward import plan_walk, remember_walk, stored_walk, with_purge
from eigen_core.market import Panel, build_panel
from eigen_core.networks import AgentNetwork, Heads, portfolio_actions
from eigen_core.networks.population import initial_weights
from eigen_core.reporting.walk_report import play_walk
from eigen_core.trading.metrics import gain_by_asset, gain_by_month
from flows.server import reporter as publishing

PANEL = random_panel(11, days=260, assets=8)
SPAN = range(120, 220)
CONFIG = Config(account={"interest": 0.02})


def weights_of(agents: int, panel: Panel = PANEL, seed: int = 0) -> np.ndarray:
    tradable = prices_of(panel).tradable.numpy()[SPAN.start : SPAN.stop]
    drawn = np.random.default_rng(seed).dirichlet(np.full(panel.assets, 0.3), (agents, len(SPAN))) * tradable
    return np.asarray(0.9 * drawn)


def played(weights: np.ndarray, panel: Panel = PANEL, config: Config = CONFIG) -> SpanResult:
    market, agents = PortfolioBacktest(config, panel, CPU), len(weights)
    initial = market.accounts(weights, SPAN).together(1.0 / agents)
    return market.played(weights, agents, SPAN, initial, "champion", draws=40)


def test_what_a_portfolio_gained_adds_up_by_asset_and_by_month() -> None:
    found = played(weights_of(2))
    gain = found.curve.equity[-1] - found.curve.capital
    assert found.curve.capital == CONFIG.account.capital
    assert gain_by_asset(found.trades)["gain"].sum() + found.interest == pytest.approx(gain)
    months = gain_by_month(found.curve, found.trades)
    assert months["gain"].sum() == pytest.approx(gain)
    assert months["bought"].sum() == (found.trades["shares"] > 0.0).sum()
    assert set(found.trades["agent"]) == {0, 1}
    assert found.weights is not None
    np.testing.assert_allclose(found.weights.sum(axis=1), found.curve.exposure)
    assert len(found.matched.total_returns) == 40
    assert found.excess is not None
    assert (found.excess.per, found.excess.trades) == ("year", len(SPAN))


def test_agents_with_the_same_weights_are_one_agent() -> None:
    one = weights_of(1)
    alone, together = played(one), played(np.concatenate([one, one]))
    np.testing.assert_allclose(alone.curve.equity, together.curve.equity)
    np.testing.assert_allclose(alone.matched.total_returns[:10], together.matched.total_returns[:10])
    assert together.excess is not None
    assert alone.excess is not None
    assert together.excess.mean == pytest.approx(alone.excess.mean)


def test_equal_weight_has_no_excess_and_is_its_own_permutation() -> None:
    tradable = prices_of(PANEL).tradable.numpy()[SPAN.start : SPAN.stop]
    found = played((tradable / tradable.sum(axis=1, keepdims=True))[None])
    assert found.excess is not None
    assert (found.excess.mean, found.excess.standard_error) == (0.0, 0.0)
    assert found.active_share == pytest.approx(0.0)
    np.testing.assert_allclose(found.matched.total_returns, found.curve.equity[-1] / found.curve.capital - 1.0)


def test_nothing_depends_on_days_after_it() -> None:
    weights, last = weights_of(1), 60
    whole = played(weights)
    known = np.arange(PANEL.days)[:, None] < SPAN.start + last
    opens, highs, closes = (np.where(known, prices, np.nan) for prices in (PANEL.open, PANEL.high, PANEL.close))
    cut = played(weights, replace(panel_of(opens, highs, closes), dates=PANEL.dates))
    np.testing.assert_array_equal(whole.curve.equity[:last], cut.curve.equity[:last])
    early = whole.trades[whole.trades["fill"] < str(PANEL.dates[SPAN.start + last])]
    assert early["shares"].tolist() == cut.trades["shares"][: len(early)].tolist()


def test_an_asset_that_has_ended_is_paid_out_at_a_loss_and_a_halt_is_waited_out() -> None:
    closes = np.full((260, 3), 10.0)
    closes[SPAN.start + 30 :, 1] = np.nan
    closes[SPAN.start + 50 : SPAN.start + 62, 2] = np.nan
    panel = panel_of(closes, closes, closes)
    tradable = closes[SPAN.start : SPAN.stop] > 0.0
    trading = {"cost_bps": 0.0, "slippage_bps": 0.0, "delisting_days": 13, "delisting_loss": 0.4}
    config = Config(trading=trading)
    accounts = PortfolioBacktest(config, panel, CPU).accounts(np.where(tradable, 0.3, 0.0)[None], SPAN)
    held = accounts.shares[0] > 0.0
    ends = 42
    # It is worth less at the close of that day, and is paid out at the next fill.
    assert held[1 : ends + 1, 1].all()
    assert not held[ends + 1 :, 1].any()
    assert held[1:, 2].all()
    np.testing.assert_allclose(accounts.equity[0, :ends], accounts.capital)
    np.testing.assert_allclose(accounts.equity[0, ends:], accounts.capital * (1.0 - 0.3 * 0.4))
    table = accounts.table(0, panel.symbols)
    assert table["gain"].sum() == pytest.approx(-0.12 * accounts.capital)
    assert table.loc[table["symbol"] == "S1", "price"].tolist() == [10.0, 6.0]


def orders_on(day: int, weights: np.ndarray, config: Config = CONFIG) -> NextOrders:
    span = range(SPAN.start, SPAN.start + day)
    accounts = PortfolioBacktest(config, PANEL, CPU).accounts(weights[:, :day], span)
    closes = PANEL.close[SPAN.start : SPAN.start + day]
    return orders_of_days(weights[0, :day], accounts, closes, PANEL.symbols, config)


def test_orders_are_the_changes_of_shares_to_the_target_weights() -> None:
    weights = weights_of(1)
    found = orders_on(50, weights)
    shares = {position.symbol: position.size for position in found.positions}
    for order in found.orders:
        shares[order.symbol] = shares.get(order.symbol, 0.0) + (order.size if order.side == "buy" else -order.size)
        assert (order.target, order.latest_exit) == (None, None)
    closes = PANEL.close[SPAN.start + 49]
    traded = np.flatnonzero(closes > 0.0)
    worth = np.array([shares.get(PANEL.symbols[asset], 0.0) * closes[asset] for asset in traded])
    # What all of them pay for the costs is the same share.
    reached = worth / (weights[0, 49, traded] * found.equity)
    np.testing.assert_allclose(reached, reached[0], rtol=1e-6)
    assert 0.998 < reached[0] < 1.0
    sides = [order.side for order in found.orders]
    assert sides == sorted(sides, reverse=True)
    invested = sum(position.worth for position in found.positions)
    assert found.cash == pytest.approx(found.equity - invested, abs=1e-12 * found.equity)
    assert found.decided[found.date] == decision_of(found.orders)


def test_what_was_ordered_on_a_day_is_what_a_later_replay_orders_on_it() -> None:
    weights = weights_of(1)
    later = orders_on(60, weights)
    for day in (2, 31, 59):
        found = orders_on(day, weights)
        assert later.decided[found.date] == decision_of(found.orders)
    assert list(later.decided) == [str(day) for day in PANEL.dates[SPAN.start : SPAN.start + 60]]


@pytest.mark.parametrize("observe", [True, False])
def test_agents_decide_on_weights_of_what_has_a_price(observe: bool) -> None:
    config = small_config(trading={"observe_portfolio": observe})
    panel, span = science_cases.random_panel(config), range(30, 70)
    network = AgentNetwork(panel, config, CPU, Heads(), portfolio_actions(config, CPU))
    rows = initial_weights(network.layouts, 3, config.seed, CPU)
    decided = decide_weights(network, panel, config, rows, span)
    assert decided.shape == (3, 40, panel.assets)
    priced = ~np.isnan(panel.close[span.start : span.stop])
    assert ((decided > 0.0) == priced).all()
    assert (decided.sum(-1) < 1.0).all()
    together = decide_weights(network, panel, config, rows, span, ensemble=True)
    assert together.shape == (1, 40, panel.assets)
    alone = decide_weights(network, panel, config, rows[:1], span, ensemble=True)
    np.testing.assert_allclose(alone[0], decided[0], atol=1e-6)
    alike = decide_weights(network, panel, config, rows[:1].expand(4, -1), span, ensemble=True)
    np.testing.assert_allclose(alike, alone, atol=1e-6)
    assert not np.allclose(together, alone, atol=1e-6)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("store")
    trained(folder, of=1, task="portfolio")
    return str(folder)


def asked(*command: str) -> str:
    found = eigen(*command, code=0)
    return found.output


def backtest_of(store: str, **given: Any) -> Backtest:
    return backtest(store, RUN, draws=20, **given)


def test_a_backtest_of_a_portfolio_adds_up_and_is_judged_by_a_year(store: str) -> None:
    found = backtest_of(store)
    gain = found.curve.equity[-1] - found.curve.capital
    assert found.by_asset["gain"].sum() + found.interest == pytest.approx(gain)
    assert found.by_month["gain"].sum() == pytest.approx(gain)
    assert found.excess is not None
    assert found.excess.per == "year"
    assert found.figures.beta is not None
    agents = [set(backtest_of(store, agent=agent).trades["agent"]) for agent in ("elites", "ensemble")]
    assert agents == [{0, 1}, {0}]
    assert "random portfolios with the same weights in other assets" in found.verdict.sentence


@pytest.mark.thorough
def test_the_commands_print_and_write_what_they_do_for_trades(store: str, tmp_path: Path) -> None:
    printed = document("backtest", RUN, "--out", str(tmp_path / "tables"), "--store", store)
    assert printed["excess_per_trade"] is None
    assert printed["excess_per_year"].keys() == {"mean", "standard_error"}
    assert printed["win_rate"] is None
    assert (tmp_path / "tables" / "trades.csv").read_text().startswith("symbol,decision,fill,shares,price,")
    assert "a year (95 % interval" in asked("backtest", RUN, "--store", store)
    assert "excess/year" in asked("show", RUN, "--store", store)
    page = tmp_path / "report.html"
    asked("report", RUN, "--out", str(page), "--store", store)
    assert "random portfolios with the same weights in other assets" in page.read_text()


@pytest.mark.thorough
def test_orders_are_changes_of_shares_that_a_later_replay_agrees_with(store: str, tmp_path: Path) -> None:
    ledger, days = ("--ledger", str(tmp_path / "act.json")), ("2022-12-05", "2022-12-06", "2022-12-08")
    acts = [document("act", RUN, "--date", day, *ledger, "--store", store) for day in days]
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
    printed = document("report", "years", "--out", str(page), "--store", str(tmp_path))
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
    found = eigen(*given, "--json", *settings, code=0)
    trust = json.loads(found.stdout)
    assert (trust["false_alarms"]["trials"], trust["power"][0]["trials"]) == (1, 1)
    trial = json.loads((tmp_path / "edge-0.3-1.json").read_text())
    assert trial["trades"] > 0
    assert isinstance(trial["excess"], float)
