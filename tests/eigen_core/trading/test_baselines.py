"""Rules, random traders and portfolios that resemble an agent, and its decisions at other times."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from trading_cases import decided_trades, panel_of, prices_of, random_panel, suspended_market

from eigen_core.config import Config, TradingConfig, merge
from eigen_core.trading import orders
from eigen_core.trading.baselines import (
    MatchedTraders,
    active_share,
    baseline_curves,
    fewest_days,
    matched_traders,
    permuted_weights,
    play_matched_traders,
    play_shifted,
    shifts_of,
)
from eigen_core.trading.excess import excess_of_trades
from eigen_core.trading.portfolio import equal_weights_like, weights_accounts
from eigen_core.trading.prices import Prices, prices_of_span
from eigen_core.trading.trades import DecidedTrades, trade_accounts

PANEL = random_panel(11, days=260, assets=8)
SPAN = range(120, 220)
CONFIG = Config(
    trading={"holding_bars": 8, "settlement_bars": 8, "min_target": 0.02, "max_target": 0.1},
    account={"interest": 0.02},
)
DATES = PANEL.dates[SPAN.start : SPAN.stop]


def agents_trades(agents: int, trading: TradingConfig = CONFIG.trading) -> tuple[DecidedTrades, Prices]:
    known = prices_of_span(prices_of(PANEL), SPAN, CONFIG.trading.holding_bars)
    actions = np.random.default_rng(5).uniform(0.0, 3.0, (2, agents, len(SPAN), known.assets))
    return decided_trades(known, trading, actions[0], actions[1] / 30.0), known


def return_of(
    held: DecidedTrades | NDArray[np.float64], known: Prices, dates: NDArray[np.datetime64], config: Config
) -> float:
    """The total return of one agent's trades or weights."""
    if isinstance(held, DecidedTrades):
        equity = trade_accounts(held, known, dates, config.trading, config.account).equity
    else:
        equity = weights_accounts(held, known, dates, config.trading, config.account).equity
    return float(equity[0, -1] / config.account.capital - 1.0)


def due_days(trades: DecidedTrades, known: Prices, trading: TradingConfig) -> NDArray[np.int64]:
    """The day of the span on which the sale of each of the agents' trades was due, one after the other."""
    sessions, due = known.session.numpy(), trades.exit_day.copy()
    for agent, day, purchase in np.argwhere(trades.asset >= 0).tolist():
        at = (agent, day, purchase)
        held = sessions[day + 1 :, trades.asset[at]].cumsum()
        holding_ends = day + 1 + np.flatnonzero(held >= trading.holding_bars)
        due[at] = min([int(trades.exit_day[at]), *holding_ends[:1]])
    return due


def with_purchases(purchases: int) -> TradingConfig:
    return CONFIG.trading.model_copy(update={"purchases_per_bar": purchases, "holding_bars": 8 // purchases})


@pytest.mark.parametrize("purchases", [1, 3])
def test_a_matched_trader_differs_from_the_agent_in_the_assets_alone(purchases: int) -> None:
    trading = with_purchases(purchases)
    trades, known = agents_trades(2, trading)
    drawn = next(matched_traders(trades, known, trading, 20, 1, "champion"))
    entries = known.fills(CONFIG.trading).entry.numpy()
    made = drawn.asset >= 0
    expected = np.tile(trades.asset >= 0, (20, 1, 1))
    assert made.sum() > 0.9 * expected.sum()
    assert not (made & ~expected).any()
    assert expected[..., -1].any()
    np.testing.assert_array_equal(drawn.coefficient[made], np.tile(trades.coefficient, (20, 1, 1))[made])
    # A sale that is due on the agent's day waits for the next price of the trader's own asset.
    due, sold = np.tile(due_days(trades, known, trading), (20, 1, 1))[made], drawn.exit_day[made]
    closes, opens = known.close.numpy(), known.open.numpy()
    for day, exit_day, asset in zip(due.tolist(), sold.tolist(), drawn.asset[made].tolist(), strict=True):
        has_price = ~np.isnan(closes[day:, asset])
        has_price[1:] |= ~np.isnan(opens[day + 1 :, asset])
        assert exit_day == (day + int(has_price.argmax()) if has_price.any() else max(day, len(SPAN)))
    assert (due < sold).any()
    for trader in range(40):
        free_from: dict[int, int] = {}
        for day, purchase in np.argwhere(made[trader]).tolist():
            asset = int(drawn.asset[trader, day, purchase])
            assert known.tradable[day, asset]
            assert free_from.get(asset, 0) <= day
            assert drawn.entry[trader, day, purchase] == entries[day, asset]
            free_from[asset] = int(drawn.exit_day[trader, day, purchase])


@pytest.mark.parametrize("fill", ["next_open", "next_close", "same_close"])
def test_one_asset_is_the_market_and_all_its_traders_also_where_its_sales_wait(fill: str) -> None:
    """Without a sale target, where the asset is suspended on some days."""
    trading = {"holding_bars": 5, "settlement_bars": 5, "fill": fill, "min_target": 5.0, "max_target": 6.0}
    config, panel = Config.model_validate({"trading": trading}), suspended_market(len(SPAN))
    known = prices_of_span(prices_of(panel), range(panel.days), 5)
    trades = decided_trades(known, config.trading, np.full((1, panel.days, 1), 3.0), 3.0)
    waited = trades.exit_day - np.arange(panel.days)[:, None] > 5
    assert (waited & (trades.asset >= 0) & (trades.exit_day < panel.days)).any()
    matched = play_matched_traders(trades, known, DATES, config, 3, "champion")
    assert matched.total_returns == pytest.approx(return_of(trades, known, DATES, config), abs=1e-12)
    excess, _ = excess_of_trades(trades, known, config.trading)
    assert excess is not None
    assert excess.trades > 10
    assert excess.mean == excess.standard_error == 0.0


def test_the_quantile_is_the_share_of_traders_that_earned_less() -> None:
    matched = MatchedTraders(np.arange(10.0), "traders")
    assert matched.quantile_of(2.0) == pytest.approx(0.25)
    assert matched.quantile_of(10.0) == 1.0
    trades, known = agents_trades(1)
    assert play_matched_traders(trades, known, DATES, CONFIG, 0, "champion").quantile_of(0.0) is None


def test_agents_that_trade_alike_are_matched_alike() -> None:
    trades, known = agents_trades(2)
    first = {name: values[:1] for name, values in vars(trades).items()}
    alike = DecidedTrades(**{name: np.concatenate([values, values]) for name, values in first.items()})
    drawn = next(matched_traders(alike, known, CONFIG.trading, 50, 1, "elites"))
    np.testing.assert_array_equal(drawn.asset[::2], drawn.asset[1::2])
    other = next(matched_traders(trades, known, CONFIG.trading, 50, 1, "elites"))
    assert (other.asset[::2] != other.asset[1::2]).any()


def test_days_without_a_trade_cost_no_draw_and_change_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the number of draws that are computed at once."""
    trades, known = agents_trades(2)
    trades.asset[:, np.arange(len(SPAN)) % 20 > 0] = -1
    monkeypatch.setattr(orders, "_CELLS_AT_A_TIME", 3 * 2 * len(SPAN))
    parts = list(matched_traders(trades, known, CONFIG.trading, 8, 1, "elites"))
    few = trades.with_a_trade()
    assert 2 < few.asset.shape[1] <= len(SPAN) // 20
    together = list(matched_traders(few, known, CONFIG.trading, 8, 1, "elites"))
    assert len(together) < len(parts)
    drawn = np.concatenate([part.asset for part in parts])[:, trades.day[0][np.isin(trades.day[0], few.day[0])]]
    np.testing.assert_array_equal(np.concatenate([part.asset for part in together]), drawn)


@pytest.mark.parametrize(("purchases", "purchase"), [(1, 0), (2, 0), (2, 1)])
def test_each_free_asset_is_drawn_as_often(purchases: int, purchase: int) -> None:
    trades, known = agents_trades(1, with_purchases(purchases))
    day = int(np.flatnonzero((trades.asset[0] >= 0).all(axis=1))[0])
    drawn = next(matched_traders(trades, known, CONFIG.trading, 4_000, 1, "champion"))
    entries = known.fills(CONFIG.trading).entry.numpy()
    assert (trades.asset[0, :day] < 0).all()
    often = np.bincount(drawn.asset[:, day, purchase], minlength=known.assets)
    free = ~np.isnan(entries[day])
    assert (often[~free] == 0).all()
    expected = 4_000 / free.sum()
    assert np.abs(often[free] - expected).max() < 4.5 * expected**0.5


PERMUTED_DAYS, PERMUTED_ASSETS = 40, 6
PERMUTED_DATES = np.datetime64("2020-01-01") + np.arange(PERMUTED_DAYS)


def permuted_market(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of two agents, what is tradable, closes: an asset begins late, another ends, one misses single days."""
    random = np.random.default_rng(seed)
    tradable = np.ones((PERMUTED_DAYS, PERMUTED_ASSETS), dtype=bool)
    tradable[:15, 0] = False
    tradable[30:, 2] = False
    tradable[[7, 20], 4] = False
    weights = random.dirichlet(np.ones(PERMUTED_ASSETS), (2, PERMUTED_DAYS)) * tradable
    closes = 50.0 * np.exp(np.cumsum(random.normal(0.0, 0.02, (PERMUTED_DAYS, PERMUTED_ASSETS)), axis=0))
    return weights, tradable, closes


def test_permuted_weights_are_those_of_an_obvious_walk_along_the_permutation() -> None:
    weights, tradable, _ = permuted_market()
    drawn = next(permuted_weights(weights, tradable, 30, 1, "champion"))
    assert drawn.shape == (30, 2, PERMUTED_DAYS, PERMUTED_ASSETS)
    np.testing.assert_allclose(np.sort(drawn, axis=-1), np.sort(np.tile(weights, (30, 1, 1, 1)), axis=-1))
    assert (drawn[:, :, ~tradable] == 0.0).all()
    full = np.flatnonzero(tradable.all(axis=1))[0]
    for draw in drawn:
        # All weights differ, so the day on which all can be traded gives the permutation away.
        order = [int(np.flatnonzero(weights[0, full] == value)[0]) for value in draw[0, full]]
        for day in range(PERMUTED_DAYS):
            for asset in np.flatnonzero(tradable[day]):
                source = order[asset]
                while not tradable[day, source]:
                    source = order[source]
                assert (draw[:, day, asset] == weights[:, day, source]).all()


def test_each_permutation_is_drawn_as_often() -> None:
    weights, tradable, _ = permuted_market()
    drawn = next(permuted_weights(weights, tradable, 3_000, 1, "champion"))
    for asset in range(1, PERMUTED_ASSETS):
        often = (drawn[:, 0, 0, asset, None] == weights[0, 0, None, 1:]).mean(axis=0)
        assert np.abs(often - 0.2).max() < 0.04


def test_permuted_portfolios_earn_what_their_accounts_earn_one_after_the_other() -> None:
    weights, tradable, closes = permuted_market(1)
    config = Config(account={"capital": 1_000.0, "interest": 0.02})
    prices = np.where(tradable, closes, np.nan)
    known = (prices_of(panel_of(prices, prices, prices)), PERMUTED_DATES)
    found = play_matched_traders(weights, *known, config, 7, "elites")
    alone = config.account.model_copy(update={"capital": 500.0})
    expected = [
        sum(weights_accounts(agent[None], *known, config.trading, alone).equity[0, -1] for agent in draw) / 1_000.0
        - 1.0
        for draw in next(permuted_weights(weights, tradable, 7, config.seed, "elites"))
    ]
    assert found.total_returns == pytest.approx(expected)


def test_equal_weight_is_that_of_the_same_exposure() -> None:
    weights, tradable, _ = permuted_market()
    equal = equal_weights_like(torch.tensor(weights), torch.tensor(tradable)).numpy()
    np.testing.assert_allclose(equal.sum(axis=2), weights.sum(axis=2))
    assert active_share(equal, tradable) == pytest.approx(0.0)
    one = np.zeros((1, PERMUTED_DAYS, PERMUTED_ASSETS))
    one[:, :, 1] = 0.5
    expected = np.mean(0.5 * (1.0 - 1.0 / tradable.sum(axis=1)))
    assert active_share(one, tradable) == pytest.approx(expected)


SHIFTED_DAYS, HOLDING = 90, 5
COSTLESS = Config.model_validate(
    {
        "trading": {
            "holding_bars": HOLDING,
            "settlement_bars": HOLDING,
            "cost_bps": 0.0,
            "slippage_bps": 0.0,
            "min_target": 5.0,
            "max_target": 6.0,
        }
    }
)
MOST = 1_000


def shifted_market(closes: np.ndarray) -> tuple[Prices, np.ndarray]:
    panel = panel_of(closes, closes, closes)
    return prices_of_span(prices_of(panel), range(len(closes)), HOLDING), panel.dates


def trades_on(days: list[int], known: Prices) -> DecidedTrades:
    coefficients = np.zeros((1, SHIFTED_DAYS, 1))
    coefficients[:, days] = COSTLESS.trading.max_coefficient
    return decided_trades(known, COSTLESS.trading, coefficients, 6.0)


def test_shifts_are_all_beyond_the_holding_time_both_ways() -> None:
    found = shifts_of(SHIFTED_DAYS, COSTLESS.trading, MOST)
    assert found.tolist() == list(range(HOLDING + 1, SHIFTED_DAYS - HOLDING))
    some = shifts_of(SHIFTED_DAYS, COSTLESS.trading, 7)
    assert len(some) == 7
    assert {found[0], found[-1]} <= set(some) <= set(found)
    assert not len(shifts_of(2 * HOLDING, COSTLESS.trading, MOST))
    trading = TradingConfig(holding_bars=20)
    assert len(shifts_of(fewest_days(trading), trading, MOST)) == 19


def test_decisions_that_knew_the_right_days_are_the_best_of_all_times() -> None:
    steps = np.where(np.arange(SHIFTED_DAYS) % 30 == 10, 0.2, 0.0)[:, None]
    steps[40] = 0.0
    known, dates = shifted_market(100.0 * np.exp(np.cumsum(steps, axis=0)))
    trades = trades_on([7, 67], known)
    own = return_of(trades, known, dates, COSTLESS)
    found = play_shifted(trades, known, dates, COSTLESS, MOST)
    assert found.quantile_of(own) == 1.0
    # At most other times nothing happens; shifted by a month, one of both is right.
    assert found.median_return == 0.0
    assert 0.0 < found.total_returns.max() < own


def test_a_steady_market_gives_every_time_as_much() -> None:
    known, dates = shifted_market(100.0 * 1.01 ** np.arange(SHIFTED_DAYS)[:, None])
    trades = trades_on([20, 25, 30, 50], known)
    own = return_of(trades, known, dates, COSTLESS)
    found = play_shifted(trades, known, dates, COSTLESS, MOST).total_returns
    whole = found[np.isclose(found, own, rtol=1e-9)]
    # The end of the days cuts each of the trades off at some of the other times.
    assert len(whole) == len(found) - 4 * HOLDING
    assert (found <= own + 1e-9).all()
    # Nor is anything earned at another time by agents that decide nothing.
    idle = play_shifted(trades_on([], known), known, dates, COSTLESS, MOST).total_returns
    assert idle.tolist() == [0.0] * len(found)


def test_the_wait_of_a_sale_is_not_shifted_with_its_trade() -> None:
    """The market of the other days does not halt: a sale there is filled when it is due."""
    closes: NDArray[np.float64] = 100.0 * 1.01 ** np.arange(SHIFTED_DAYS, dtype=np.float64)[:, None]
    closes[22:36] = np.nan
    panel = panel_of(closes, closes, closes)
    panel = replace(panel, valid=np.ones_like(panel.valid))
    known = prices_of_span(prices_of(panel), range(SHIFTED_DAYS), HOLDING)
    trades = trades_on([20], known)
    assert trades.exit_day[0, 20, 0] == 36
    found = play_shifted(trades, known, panel.dates, COSTLESS, MOST)
    assert found.median_return == pytest.approx((1.01 ** (HOLDING - 1) - 1.0) / HOLDING)


def test_weights_keep_their_exposure_where_an_asset_is_not_tradable() -> None:
    closes = np.repeat(100.0 * 1.01 ** np.arange(SHIFTED_DAYS)[:, None], 3, axis=1)
    closes[:40, 1] = np.nan
    known, dates = shifted_market(closes)
    weights = np.zeros((1, SHIFTED_DAYS, 3))
    weights[0, :, 1] = 0.8
    tradable = known.tradable[:SHIFTED_DAYS].numpy()
    found = play_shifted(weights, known, dates, COSTLESS, MOST).total_returns
    spread = np.array([[[0.4, 0.0, 0.4]]]) * ~tradable[None, :, 1:2] + weights * tradable
    np.testing.assert_allclose(found, return_of(spread, known, dates, COSTLESS))


RULE_DAYS = 420
RULE_SPAN = range(300, RULE_DAYS)
FREE = {
    "trading": {"cost_bps": 0.0, "slippage_bps": 0.0, "holding_bars": 2},
    "account": {"periods_per_year": 252},
}


def steady_growth(rates: list[float]) -> np.ndarray:
    """Closes of assets that grow at steady rates, a day."""
    closes: np.ndarray = 100.0 * np.exp(np.outer(np.arange(RULE_DAYS), rates))
    return closes


def test_each_rule_holds_the_assets_that_it_names() -> None:
    rates = [-0.002, -0.001, 0.0, 0.001, 0.002, 0.003]
    closes = steady_growth(rates)
    panel = panel_of(closes, closes, closes)
    curves = baseline_curves(prices_of(panel), panel.dates, Config(**FREE), RULE_SPAN)
    assert set(curves) == {"cash", "equal_weight", "rebalanced", "momentum", "reversal", "classic"}
    for curve in curves.values():
        np.testing.assert_array_equal(curve.dates, panel.dates[RULE_SPAN.start : RULE_SPAN.stop])
    total = {name: curve.equity[-1] / curve.capital for name, curve in curves.items()}
    held = len(RULE_SPAN) - 2  # bought at the second day's open, which is its close here
    assert total["cash"] == 1.0
    assert total["equal_weight"] == pytest.approx(np.mean(np.exp(held * np.array(rates))))
    assert total["rebalanced"] == pytest.approx(np.exp(rates).mean() ** held, rel=1e-4)
    assert np.exp(held * 0.002) < total["momentum"] < np.exp(held * 0.003)
    assert np.exp(held * -0.002) < total["reversal"] < np.exp(held * -0.001)
    # The two best are held by turns, each from the close after its decision to the next: one day of two.
    assert total["classic"] == pytest.approx(np.exp(held * 0.0025 / 2), rel=0.01)
    # Two a day: the two best, then the two after them, by turns.
    two = Config(**merge(FREE, {"trading": {"purchases_per_bar": 2}}))
    classic = baseline_curves(prices_of(panel), panel.dates, two, RULE_SPAN)["classic"]
    assert classic.equity[-1] / classic.capital == pytest.approx(np.exp(held * 0.0015 / 2), rel=0.01)
    traded_days = np.flatnonzero(curves["momentum"].traded > 1.0)
    assert set(traded_days) <= {day + 1 for day in range(0, len(RULE_SPAN), 21)}


def test_equal_weight_waits_for_the_first_fill_of_each_asset() -> None:
    """One is halted on the first days, one trades on them but not on the day of its fill, one has ended before."""
    closes = steady_growth([0.0, 0.002, 0.004, 0.004])
    first = RULE_SPAN.start
    closes[first - 3 : first + 8, 1] = np.nan
    closes[first + 1, 2] = np.nan
    closes[first - 90 :, 3] = np.nan
    panel = panel_of(closes, closes, closes)
    curve = baseline_curves(prices_of(panel), panel.dates, Config(**FREE), RULE_SPAN)["equal_weight"]
    days = len(RULE_SPAN)
    assert set(np.flatnonzero(curve.traded)) == {1, 3, 9}
    np.testing.assert_allclose(curve.traded[[1, 3]], curve.capital / 3.0)
    assert curve.traded[9] == pytest.approx(curve.capital / 3.0)
    grown = np.exp(0.002 * (days - 1 - 9)), np.exp(0.004 * (days - 1 - 3))
    assert curve.equity[-1] / curve.capital == pytest.approx((1.0 + sum(grown)) / 3.0, rel=0.01)
    # Where nothing trades on the first days, all wait.
    closes[first : first + 5] = np.nan
    panel = panel_of(closes, closes, closes)
    waited = baseline_curves(prices_of(panel), panel.dates, Config(**FREE), RULE_SPAN)["equal_weight"]
    assert set(np.flatnonzero(waited.traded)) == {6, 9}
    assert waited.equity[-1] > 1.2 * waited.capital


def test_a_year_of_momentum_is_that_of_the_market() -> None:
    closes = steady_growth([0.001, 0.002, 0.003])
    panel = panel_of(closes, closes, closes)  # on all days of the week
    coins = Config.model_validate({**FREE, "account": {}})
    for first, bought in ((350, False), (370, True)):
        span = range(first, first + 14)
        # A rule that holds nothing is no baseline.
        assert ("momentum" in baseline_curves(prices_of(panel), panel.dates, coins, span)) is bought
