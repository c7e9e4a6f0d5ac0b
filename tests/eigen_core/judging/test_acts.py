"""Orders of a champion: day after day those of one backtest, kept in a file that is always whole.

Importance is zero for what cannot reach a decision, and found for what decides alone.
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from cli_cases import eigen
from science_cases import random_panel, small_config
from torch import Tensor
from trained_run_cases import RUN, trained
from typer.testing import CliRunner

from eigen_core.checkpoint.integrity import checksummed, parse_checksummed
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.generation import start_training
from eigen_core.housekeeping import verify_run
from eigen_core.judging import act as act_ledger
from eigen_core.judging.act import Act, Correction, Difference, Reconciliation, act
from eigen_core.judging.importance import Importance, importance
from eigen_core.judging.orders import decisions_among
from eigen_core.judging.run_backtests import backtest
from eigen_core.market import Panel
from eigen_core.runs.handle import Run, status_of
from flows.cli.app import app

_DAYS = 400


def closes(days: int = _DAYS) -> pd.DataFrame:
    random = np.random.default_rng(4)
    steps = 0.03 * random.standard_normal((_DAYS + 20, 4))
    dates = pd.bdate_range("2019-01-01", periods=_DAYS + 20, name="date")
    table = pd.DataFrame(30.0 * np.exp(steps.cumsum(axis=0)), dates, ["AA", "BB", "CC", "DD"])
    return table.iloc[:days].round(6)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("acting")
    closes().to_csv(folder / "prices.csv")
    market = {"data": str(folder / "prices.csv"), "layout": "wide", "suspicious": "keep"}
    trading = {"buy_threshold": 0.0, "purchases_per_bar": 2}
    trained(folder / "runs", of=1, market=market, trading=trading)
    trained(folder / "runs", "portfolio", of=1, market=market, trading=trading, task="portfolio")
    return folder


def acted(store: Path, folder: Path, date: str, run: str = RUN, **given: Any) -> Act:
    return act(str(store / "runs"), run, date=date, ledger=folder / "ledger.json", **given)


def date_of(day: int) -> str:
    return str(closes(_DAYS + 20).index[day].date())


def keep(kept: dict[str, Any], path: Path) -> None:
    values = {name: value for name, value in kept.items() if name != "checksum"}
    act_ledger.write_ledger(act_ledger.ActLedger.model_validate(values), path)


@pytest.mark.thorough
@pytest.mark.parametrize("start", [(), ("account.start=BB 1500, DD 20.5", "account.capital=30000")])
@pytest.mark.parametrize("run", [RUN, "portfolio"])
def test_day_after_day_the_orders_are_the_trades_of_one_backtest(
    store: Path, tmp_path: Path, run: str, start: tuple[str, ...]
) -> None:
    first, days = 350, 30
    found = [acted(store, tmp_path, date_of(first), run, settings=start)]
    found += [acted(store, tmp_path, date_of(day), run) for day in range(first + 1, first + days)]
    span = f"{date_of(first)}:{date_of(first + days)}"
    whole = backtest(str(store / "runs"), run, span=span, settings=start, draws=20)
    # The first rows are what is held from the start.
    trades = whole.trades[whole.trades["decision"] < date_of(first + days)][2 if start else 0 :]
    decided = [(one.next.date, order) for one in found for order in decisions_among(one.next.orders)]
    ordered = [(date, order.symbol) for date, order in decided]
    if run == RUN:
        ended = trades[trades["reason"] == "time"].set_index(["decision", "symbol"])["exit"].dt.strftime("%Y-%m-%d")
        due = [order.latest_exit for date, order in decided if (date, order.symbol) in ended.index]
        assert due == ended.tolist() != []
        # The fill of an order of a portfolio is at another price, which may turn a small one.
        assert ordered == list(zip(trades["decision"].dt.strftime("%Y-%m-%d"), trades["symbol"], strict=True))
    assert len(ordered) > 5
    sales = [order for one in found for order in one.next.orders if order.side == "sell"]
    assert {order.target is None for order in sales} == {run != RUN} | {bool(start or run != RUN)}
    # At a target, or at the last close with slippage; by default it costs 5 basis points of the value.
    assert [order.money for order in sales] == pytest.approx([0.9995 * order.size * order.price for order in sales])
    assert sales
    assert found[-1].reconciliation == Reconciliation(days - 1, (), (), ())
    equity = [one.next.equity for one in found]
    np.testing.assert_allclose(equity, whole.curve.equity[:days])


@pytest.mark.parametrize("run", [RUN, "portfolio"])
def test_an_account_begins_with_the_shares_that_its_user_holds(store: Path, tmp_path: Path, run: str) -> None:
    start = ["account.start=BB 1500, DD 20.5", "account.capital=30000"]
    path, close = tmp_path / "ledger.json", closes().iloc[360]
    with pytest.raises(InputError, match=r"account.start: 'XX' cannot be traded here"):
        acted(store, tmp_path, date_of(360), run, settings=["account.start=XX 1"])
    assert not path.exists()
    after = acted(store, tmp_path, date_of(360), run, settings=start).next
    assert [(one.symbol, one.size, one.entry, one.decided) for one in after.positions] == [
        ("BB", 1500.0, None, None),
        ("DD", 20.5, None, None),
    ]
    assert (after.cash, after.equity) == pytest.approx((30_000.0, 30_000.0 + 1500.0 * close["BB"] + 20.5 * close["DD"]))
    sold = {order.symbol: order for order in after.orders if order.side == "sell"}
    if run == RUN:
        # A position of the first day, which has no target, in a symbol that is not bought.
        config = Run.open(str(store / "runs"), run).config
        due = str(np.busday_offset(np.datetime64(date_of(360)), config.trading.holding_bars))
        assert {(one.symbol, one.size, one.target, one.latest_exit) for one in sold.values()} == {
            ("BB", 1500.0, None, due),
            ("DD", 20.5, None, due),
        }
        assert sold["BB"].price == pytest.approx(close["BB"] * (1.0 - config.trading.slippage_bps / 1e4))
    else:
        # More than half of the equity is in one symbol.
        assert 0.0 < sold["BB"].size < 1500.0
    # The ledger keeps what the account began with.
    content = path.read_bytes()
    for other in (["account.start=BB 1501"], ["account.start="]):
        with pytest.raises(InputError, match=r"began with other settings of the account"):
            acted(store, tmp_path, date_of(361), run, settings=other)
    assert path.read_bytes() == content
    acted(store, tmp_path, date_of(361), run, settings=start)
    found = acted(store, tmp_path, date_of(362), run)
    assert found.reconciliation == Reconciliation(2, (), (), ())
    assert {one.symbol for one in found.next.positions} >= {"BB"}


def test_a_calendar_knows_the_next_session_and_the_days_of_sales(store: Path, tmp_path: Path) -> None:
    market = {"data": str(store / "prices.csv"), "layout": "wide", "suspicious": "keep", "calendar": "XNYS"}
    trained(store / "runs", "exchange", of=1, market=market, trading={"buy_threshold": 0.0, "purchases_per_bar": 2})
    found = acted(store, tmp_path, "2020-07-02", run="exchange")
    # Independence Day was a Saturday.
    assert found.session == ("2020-07-06T13:30:00Z", "2020-07-06T20:00:00Z")
    bought = [order for order in found.next.orders if order.side == "buy"]
    holding = Run.open(str(store / "runs"), "exchange").config.trading.holding_bars
    due = np.busday_offset(np.datetime64("2020-07-02"), holding, holidays=[np.datetime64("2020-07-03")])
    assert {order.latest_exit for order in bought} == {str(due)}
    text = CliRunner().invoke(
        app, ["act", "exchange", "--store", str(store / "runs"), "--date", "2020-07-02"], catch_exceptions=False
    )
    assert "The next session is from 2020-07-06T13:30:00Z to 2020-07-06T20:00:00Z." in text.output
    assert "latest exits are those of the calendar" in text.output
    assert acted(store, tmp_path / "plain", "2020-07-02").session is None


def test_acting_twice_changes_nothing_and_later_days_change_no_order(store: Path, tmp_path: Path) -> None:
    first = acted(store, tmp_path, date_of(360))
    content = (tmp_path / "ledger.json").read_bytes()
    closes(_DAYS + 20).to_csv(tmp_path / "fresh.csv")
    again = acted(store, tmp_path, date_of(360), data=str(tmp_path / "fresh.csv"))
    assert again.next == first.next
    assert (tmp_path / "ledger.json").read_bytes() == content
    later = acted(store, tmp_path, date_of(_DAYS + 10), data=str(tmp_path / "fresh.csv"))
    assert later.next.date == date_of(_DAYS + 10)
    assert [difference.missed for difference in later.reconciliation.differences] == [True] * (_DAYS + 9 - 360)
    with pytest.raises(InputError, match=r"has orders up to .*, which is after"):
        acted(store, tmp_path, date_of(370))


def test_other_orders_are_named_and_another_champion_is_refused(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    began = acted(store, tmp_path, date_of(360))
    kept = json.loads(path.read_text())
    kept["days"][date_of(360)] = []
    keep(kept, path)
    found = acted(store, tmp_path, date_of(361))
    replayed = began.next.decided[date_of(360)]
    assert found.reconciliation.differences == (Difference(date_of(360), None, replayed, missed=False),)
    keep({**kept, "champion": "0"}, path)
    with pytest.raises(InputError, match=r"another file with --ledger"):
        acted(store, tmp_path, date_of(362))
    path.write_text("{}")
    with pytest.raises(InputError, match=r"is no ledger of orders"):
        acted(store, tmp_path, date_of(362))


def test_corrected_prices_are_named_by_symbol_and_day(store: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.csv"
    table = closes()
    acted(store, tmp_path, date_of(360))
    assert acted(store, tmp_path, date_of(361)).reconciliation == Reconciliation(1, (), (), ())
    table["BB"] /= np.where(np.arange(_DAYS) < 359, 2.0, 1.0)
    table["CC"] += np.where(np.arange(_DAYS) == 360, 0.5, 0.0)
    table.to_csv(fresh)
    found = acted(store, tmp_path, date_of(362), data=str(fresh)).reconciliation
    window = status_of(str(store / "runs"), RUN).config.market.window
    # A price of the days before, and of none that came since.
    kept = tuple(date_of(day) for day in range(360 - window + 1, 359))
    split, revised = found.corrections
    assert (split.symbol, split.dates, split.price) == ("BB", kept, "close")
    assert split.factor == pytest.approx(0.5)
    assert split.then == closes().iloc[360 - window + 1, 1]
    then, now = (float(one.to_numpy()[360, 2]) for one in (closes(), table))
    assert revised == Correction("CC", (date_of(360),), "close", then, now, None)
    # What was there when orders were issued stays in the ledger.
    later = acted(store, tmp_path, date_of(363), data=str(fresh)).reconciliation
    assert [one.symbol for one in later.corrections] == ["BB", "CC"]
    given = ["--store", str(store / "runs"), "--ledger", str(tmp_path / "ledger.json"), "--data", str(fresh)]
    shown = CliRunner().invoke(app, ["act", RUN, *given, "--date", date_of(363)], terminal_width=400)
    said = " ".join(shown.output.split())
    assert f"BB: prices on {window - 2} days from {kept[0]} to {kept[-1]} were corrected since" in said
    assert "all by the factor 0.5, as after a split" in said


def test_orders_of_another_size_are_named(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    order, other = (one for one in acted(store, tmp_path, date_of(360)).next.orders if one.side == "buy")
    assert order.symbol != other.symbol
    kept = json.loads(path.read_text())
    kept["days"][date_of(360)][0]["money"] *= 1.01
    keep(kept, path)
    found = acted(store, tmp_path, date_of(361)).reconciliation
    assert (found.agreeing, found.differences, found.corrections) == (0, (), ())
    [size] = found.sizes
    assert (size.date, size.symbol) == (date_of(360), order.symbol)
    assert (size.issued, size.replayed) == pytest.approx((1.01 * order.money, order.money))


def test_a_ledger_without_checksum_is_believed_once_and_only_of_an_old_run(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(store, tmp_path / "old")
    path, config = tmp_path / "old" / "runs" / RUN / "act.json", tmp_path / "old" / "runs" / RUN / "config.json"

    def orders(day: int) -> str | None:
        with suppress(InputError):
            return str(act(str(tmp_path / "old" / "runs"), RUN, date=date_of(day)).next.orders)
        assert "act.json has no checksum" in verify_damage(tmp_path / "old" / "runs")
        return None

    acted(store, tmp_path, date_of(360))
    kept = json.loads((tmp_path / "ledger.json").read_text())
    del kept["prices"], kept["checksum"]
    old = json.dumps({**kept, "format": "eigen act 1"})
    path.write_text(old)
    assert orders(360) is None
    begun: Any = parse_checksummed(config.read_bytes())
    for version in (True, 7, 6):
        config.write_bytes(checksummed({**begun, "config": {**begun["config"], "format_version": version}}))
        assert path.read_text() == old
        assert (orders(360) is not None) == (version == 6)
    assert "act.json had no checksum, since an earlier version of Eigen wrote it" in caplog.text
    assert verify_damage(tmp_path / "old" / "runs") == ""
    assert "checksum" in json.loads(path.read_text())
    assert orders(361) is not None
    assert list(json.loads(path.read_text())["prices"])[-1] == date_of(361)
    path.write_text(old)
    assert orders(361) is None


def verify_damage(store: Path) -> str:
    return "; ".join(str(damage) for damage in verify_run(str(store), RUN, deep=True).damages)


@pytest.mark.parametrize("change", ["began", "checksum", "order"])
def test_a_ledger_that_was_edited_orders_nothing(store: Path, tmp_path: Path, change: str) -> None:
    path = tmp_path / "ledger.json"
    acted(store, tmp_path, date_of(360))
    kept = json.loads(path.read_text())
    if change == "order":
        kept["days"][date_of(360)][0]["size"] *= 2.0
    elif change == "began":
        kept["began"] = date_of(359)
    else:
        del kept["checksum"]
    content = json.dumps(kept, indent=2, sort_keys=True) + "\n"
    path.write_text(content)
    options = ["--store", str(store / "runs"), "--ledger", str(path), "--date", date_of(361)]
    shown = CliRunner().invoke(app, ["act", RUN, *options], terminal_width=400)
    assert shown.exit_code == 2
    assert "was changed since the last orders were written to it" in " ".join(shown.output.split())
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("change", "date", "sentence"),
    [
        (lambda table: table.iloc[5:], 360, r"The prices begin on .*, but training began on"),
        (lambda table: table.drop(columns="BB"), 360, r"The prices lack BB: give"),
        (lambda table: table.drop(index=table.index[50]), 360, r"normalised differently"),
        (lambda table: table.iloc[:355], 360, r"There are no prices of .*, the last day before it"),
        (lambda table: table, 100, r"is a training day of the run"),
    ],
)
def test_prices_that_do_not_fit_are_refused(store: Path, tmp_path: Path, change: Any, date: int, sentence: str) -> None:
    change(closes()).to_csv(tmp_path / "fresh.csv")
    with pytest.raises(InputError, match=sentence):
        acted(store, tmp_path, date_of(date), data=str(tmp_path / "fresh.csv"))


@pytest.mark.parametrize("text", ["tomorrow", "2020-02-30", "2020-1-1", ""])
def test_what_is_no_date_is_refused(store: Path, tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="is no date: write it as"):
        acted(store, tmp_path, text)
    assert not (tmp_path / "ledger.json").exists()


def test_the_command_prints_orders_and_the_ledger_is_no_damage(store: Path) -> None:
    arguments = ["act", RUN, "--store", str(store / "runs")]
    shown = eigen(*arguments, code=0)
    assert f"after the close of {date_of(_DAYS - 1)}" in shown.output
    document = json.loads(eigen(*arguments, "--json").stdout)
    assert {"run", "date", "orders", "positions", "equity", "cash", "began", "reconciliation"} <= set(document)
    for order in document["orders"]:
        assert {"symbol", "side", "size", "target", "latest_exit"} <= set(order)
        assert order["target"] > 0.0
        assert order["latest_exit"] > document["date"]
    assert RunDirectory.open(store / "runs", RUN).path.joinpath("act.json").exists()
    assert not verify_run(str(store / "runs"), RUN, deep=True).damages


_FEATURES = 4


def deaf_to(features: list[int], config: Config, panel: Panel) -> Tensor:
    """The weights of an agent whose encoder gives some features no weight at all."""
    state = start_training(config, panel)
    weights = state.initial_weights()[0].clone()
    critic = state.task.critic_layout.views(weights[None, : state.task.critic_layout.size])
    # Moving means of all features over one scale, then over the next.
    by_scale = critic["encoder.hidden.weight"].view(1, len(config.network.scales), _FEATURES, -1)
    by_scale[:, :, features] = 0.0
    return weights


def found_for(weights: Tensor, config: Config, panel: Panel) -> tuple[dict[str, Importance], dict[str, Importance]]:
    starts = [110, 115]
    features, columns = importance(config, panel, weights, starts, range(100, 140), draws=3)
    return {one.name: one for one in features}, {one.name: one for one in columns}


@pytest.mark.parametrize(
    ("task", "unheard"), [("market", [0, 2]), ("market", [1, 2, 3]), ("portfolio", [0, 2]), ("portfolio", [3])]
)
def test_what_has_no_weight_has_no_importance(task: str, unheard: list[int]) -> None:
    config = small_config(market={"holdout": 0}, trading={"buy_threshold": 0.0}, task=task)
    panel = random_panel(config)
    features, columns = found_for(deaf_to(unheard, config, panel)[None], config, panel)
    names = list(panel.feature_names)
    for index in unheard:
        assert (features[names[index]].changed, features[names[index]].excess_lost) == (0.0, 0.0)
    heard = [features[name] for index, name in enumerate(names) if index not in unheard]
    assert 0.0 < max(one.changed for one in heard) <= 1.0
    assert any(one.excess_lost for one in heard)
    assert max(one.changed for one in columns.values()) > 0.0
    changes = [one.changed for one in features.values()]
    assert changes == sorted(changes, reverse=True)
    assert set(columns) == set(panel.symbols)
    for one in (*features.values(), *columns.values()):
        low, high = one.changed_interval
        assert 0.0 <= low <= one.changed <= high <= 1.0


@pytest.mark.thorough
def test_json_is_about_every_feature_and_column(tmp_path: Path) -> None:
    trained(tmp_path, of=1, market={"data": "us5", "context": ["IBM"]})
    asked = ("importance", RUN, "--store", str(tmp_path), "--draws", "2")
    document, table = json.loads(eigen(*asked, "--json").stdout), eigen(*asked).stdout
    assert (document["agent"], document["agents"], document["draws"]) == ("champion", 1, 2)
    assert len(document["features"]) == 15
    assert {column["name"] for column in document["columns"]} == {"AAPL", "FB", "GOOG", "MSFT", "IBM"}
    low = {column["name"] for column in document["columns"] if column["changed_interval"][1] <= 0.01}
    assert set(document["low_columns"]) == low
    assert all(one["name"] in table for one in (*document["features"], *document["columns"]))


def test_the_importance_for_agents_is_the_mean_over_them() -> None:
    config = small_config(market={"holdout": 0}, trading={"buy_threshold": 0.0})
    panel = random_panel(config)
    agents = torch.stack([deaf_to(unheard, config, panel) for unheard in ([0, 2], [1, 2])])
    each, together = [found_for(one[None], config, panel)[0] for one in agents], found_for(agents, config, panel)[0]
    for name, found in together.items():
        assert found.changed == pytest.approx(np.mean([one[name].changed for one in each]))
        assert found.excess_lost == pytest.approx(np.mean([one[name].excess_lost for one in each]))
