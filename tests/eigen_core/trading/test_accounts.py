"""Accounts of trades and of weights, and the growth of weights, beside accounts kept in money day by day."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from trading_cases import (
    CPU,
    Position,
    SlowEpisode,
    SlowRules,
    decided_trades,
    panel_of,
    prices_of,
    random_panel,
    rates_of,
    with_instruments,
    with_volumes,
)

from eigen_core.common.errors import InputError
from eigen_core.config import AccountConfig, Config, TradingConfig
from eigen_core.judging.backtest import PortfolioBacktest
from eigen_core.market import Panel
from eigen_core.trading.metrics import gain_by_asset
from eigen_core.trading.order_fills import fill_offset
from eigen_core.trading.portfolio import Rebalancing, move_scores, smooth_scores, target_weights, weights_accounts
from eigen_core.trading.prices import Prices, prices_of_span
from eigen_core.trading.trades import ROUNDING, DecidedTrades, last_equity, trade_accounts

FILLS = ("next_open", "next_close", "same_close")


@pytest.mark.parametrize("days", [1, 2, 3, 17, 64])
def test_smoothing_all_days_is_moving_scores_day_by_day(days: int) -> None:
    random = np.random.default_rng(days)
    wanted, speeds = (
        torch.tensor(values) for values in (random.normal(size=(2, days, 3)), random.random((2, days, 3)))
    )
    scores, expected = wanted[:, 0], [wanted[:, 0]]
    for day in range(1, days):
        scores = move_scores(scores, wanted[:, day], speeds[:, day])
        expected.append(scores)
    np.testing.assert_allclose(smooth_scores(wanted, speeds), torch.stack(expected, dim=1), atol=1e-12)


def test_weights_of_equal_scores_are_equal_with_cash_and_none_of_what_cannot_be_traded() -> None:
    tradable = torch.tensor([True, True, False, True])
    assert target_weights(torch.zeros(4), tradable).tolist() == pytest.approx([0.25, 0.25, 0.0, 0.25])
    assert target_weights(torch.zeros(4), torch.zeros(4, dtype=torch.bool)).tolist() == [0.0] * 4


@pytest.mark.parametrize("short", [0.2, 1.0])
def test_what_is_sold_short_is_at_most_its_bound(short: float) -> None:
    scores = torch.tensor(np.random.default_rng(0).normal(size=(200, 5)) * 5.0)
    weights = target_weights(scores, torch.ones_like(scores, dtype=torch.bool), short)
    assert float(weights.min()) < -0.5 * short
    assert float(weights.clamp_max(0.0).sum(-1).min()) >= -short - 1e-12
    assert float(weights.clamp_min(0.0).sum(-1).max()) <= 1.0 + short + 1e-12


def test_the_gradient_of_a_stretch_is_that_of_finite_differences() -> None:
    panel = random_panel(4, 40, 4)
    table = Rebalancing.of(prices_of(panel), TradingConfig(cost_bps=20.0)).on(slice(4, 16))
    tradable = prices_of(panel).tradable[4:16]
    random = np.random.default_rng(0)
    wanted, speeds = (torch.tensor(random.random((12, 4)), requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(
        lambda wanted, speeds: table.growth(target_weights(smooth_scores(wanted, speeds), tradable))[0],
        (wanted, speeds),
    )


ASSETS, DAYS = 6, range(30, 100)
COSTS = ((0.0, 0.0), (5.0, 2.0), (80.0, 40.0))


def worth_at_fill(panel: Panel, trading: TradingConfig, day: int, asset: int) -> float:
    """What a share is worth at the fill of a day's decision."""
    rules = SlowEpisode(panel, trading, 0)
    if not (panel.close[: day + 1, asset] > 0.0).any():
        return 0.0
    if rules.has_ended(day, asset):
        return rules.close_known(day, asset) * (1.0 - (trading.delisting_loss or 0.0))
    fill_day = day + fill_offset(trading)
    price, _ = rules.fill_price(fill_day, asset)
    return rules.close_known(fill_day, asset) if math.isnan(price) else price


def growth_in_money(panel: Panel, config: Config, targets: torch.Tensor) -> np.ndarray:
    """Log growth in percent of the account of a backtest, from before each fill to before the next."""
    offset, trading = fill_offset(config.trading), config.trading
    decisions = range(DAYS.start, DAYS.stop + 1)
    # Nothing is decided on the last day, whose fill ends the last reward.
    weights = np.vstack([targets.numpy(), np.full((1 + offset, ASSETS), np.nan)])
    accounts = PortfolioBacktest(config, panel, CPU).accounts(weights[None], range(DAYS.start, DAYS.stop + 1 + offset))
    cash = accounts.equity[0] * (1.0 - accounts.exposure[0])
    worth = [accounts.capital]
    for day in decisions[1:]:
        before = day - DAYS.start + offset - 1
        held = accounts.shares[0, before]
        prices = [worth_at_fill(panel, trading, day, asset) for asset in range(ASSETS)]
        worth.append(cash[before] + float(held @ np.array(prices)))
        # Never borrows, and a position that is not filled keeps its shares.
        assert cash[before] > -1e-9 * accounts.equity[0, before] or config.portfolio.short > 0.0
    assert (accounts.shares[0] != 0.0)[np.isnan(panel.close[DAYS.start : DAYS.stop + 1 + offset])].any()
    return 100.0 * np.diff(np.log(worth))


@pytest.mark.parametrize("short", [0.0, 0.6])
@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("seed", [3, 4, 10])
def test_rewards_are_the_growth_of_the_account(seed: int, fill: Any, costs: tuple[float, float], short: float) -> None:
    trading = {"fill": fill, "cost_bps": costs[0], "slippage_bps": costs[1], "delisting_bars": 12}
    config = Config.model_validate({"trading": trading, "portfolio": {"short": short}})
    panel = random_panel(seed, 140, ASSETS)
    panel = with_instruments(panel, seed) if seed == 10 else panel
    prices = Prices.of_panel(panel, CPU)
    random = np.random.default_rng(seed)
    scores = torch.tensor(random.normal(size=(len(DAYS), ASSETS)))
    # On most days next to nothing is left in cash.
    scores = scores + torch.tensor(random.choice([0.0, 40.0], (len(DAYS), 1), p=[0.3, 0.7]))
    stretch = slice(DAYS.start, DAYS.stop)
    targets = target_weights(scores, prices.tradable[stretch], short)
    rewards = Rebalancing.of(prices, config.trading).on(stretch).growth(targets)[0].numpy()
    found = growth_in_money(panel, config, targets)
    np.testing.assert_allclose(found, rewards, atol=1e-9, rtol=0.0)
    assert found.sum() == pytest.approx(rewards.sum(), abs=1e-9)
    assert np.abs(rewards).max() > 1.0


SYMBOLS = tuple("ABCDE")
DATES = np.datetime64("2020-01-01") + np.arange(40)
ORDER_RULES = {"minimum_fee": 20.0, "lot_size": 5.0, "minimum_size": 6.0, "minimum_notional": 900.0}
"""Bounds of random rules."""


def columns_of(settings: AccountConfig, panel: Panel) -> dict[str, int]:
    return {symbol: panel.symbols.index(symbol) for symbol in settings.holdings}


def slow_costs(
    rules: SlowRules, day: int, change: dict[int, float], fills: list[float], ended: list[int]
) -> dict[int, float]:
    costs = {}
    for asset, number in change.items():
        slippage = rates_of(rules.panel, rules.trading, asset)[1]
        size, value = abs(number), abs(number) * fills[asset]
        if number > 0:
            costs[asset] = rules.paid(day, asset, size, fills[asset] * (1 + slippage)) - value
        elif asset in ended:
            sold = value * (1 - slippage)
            costs[asset] = value - sold + rules.fee(asset, sold)
        else:
            costs[asset] = value - rules.received(day, asset, size, fills[asset] * (1 - slippage))
    return costs


def slow_orders(
    rules: SlowRules,
    day: int,
    change: dict[int, float],
    shares: list[float],
    fills: list[float],
    cash: float,
    least: float,
    ended: list[int],
) -> dict[int, float]:
    """The orders that an exchange takes of those that are planned; less is bought than planned if the cash is short."""
    placed = {}
    for asset, number in change.items():
        target = rules.lots(asset, shares[asset] + number)
        wanted = abs(target - shares[asset])
        if wanted * fills[asset] <= least:
            wanted = 0.0
        if target == 0.0 and (asset in ended or wanted <= rules.most(day, asset)):
            size = wanted
        else:
            size = rules.sized(day, asset, wanted, fills[asset])
        placed[asset] = size if target > shares[asset] else -size
    costs = slow_costs(rules, day, placed, fills, ended)
    needed = sum(number * fills[asset] + costs[asset] for asset, number in placed.items() if number > 0)
    available = cash + sum(-number * fills[asset] - costs[asset] for asset, number in placed.items() if number <= 0)
    if needed > available * (1 + 1e-10):
        fees = sum(rules.of(asset, "minimum_fee") for asset, number in placed.items() if number > 0)
        part = max(available - fees, 0.0) / needed
        for asset, number in placed.items():
            if number > 0:
                placed[asset] = rules.sized(day, asset, number * part, fills[asset])
    return placed


def slow_equity(
    weights: Any, panel: Panel, trading: TradingConfig, settings: AccountConfig
) -> tuple[list[float], list[float], list[float]]:
    rates = [rates_of(panel, trading, asset) for asset in range(panel.assets)]
    slippages = [slippage for _, slippage in rates]
    rate = {
        1: [(1 + slippage) * (1 + cost) - 1 for cost, slippage in rates],
        -1: [1 - (1 - slippage) * (1 - cost) for cost, slippage in rates],
    }
    rules, offset = SlowEpisode(panel, trading, 0), 0 if trading.fill == "same_close" else 1
    exchange = SlowRules(panel, trading, settings)
    assets, loss = range(panel.assets), trading.delisting_loss or 0.0
    cash, shares = settings.capital, [settings.holdings.get(symbol, 0.0) for symbol in panel.symbols[: panel.assets]]
    equity: list[float] = []
    traded, costs = [0.0] * len(weights), [0.0] * len(weights)

    def worth_at_close(day: int) -> float:
        worth = [rules.close_known(day, asset) * (1 - loss * rules.has_ended(day, asset)) for asset in assets]
        return float(sum(number * price for number, price in zip(shares, worth, strict=True)))

    for day in range(len(weights)):
        elapsed = (DATES[day] - DATES[max(day - 1, 0)]).item().days
        cash *= (1 + settings.interest) ** (elapsed / 365.25)
        decided = day - offset
        if decided >= 0:
            fills = [rules.fill_price(day, asset)[0] for asset in assets]
            prices = [rules.close_known(day, asset) if math.isnan(fills[asset]) else fills[asset] for asset in assets]
            targets = list(weights[decided])
            filled = [a for a in assets if not math.isnan(fills[a] + panel.close[decided, a] + targets[a])]
            for asset in assets:
                if rules.has_ended(decided, asset):
                    # It is paid out, whatever is decided.
                    fills[asset] = prices[asset] = rules.close_known(decided, asset) * (1 - loss)
                    targets[asset] = 0.0
                    filled.append(asset)
            held = [number * price for number, price in zip(shares, prices, strict=True)]
            before = cash + sum(held)
            wanted = {asset: targets[asset] * before for asset in filled}
            bought = sum(max(wanted[asset] - held[asset], 0.0) for asset in filled)
            left = cash + sum(max(held[asset] - wanted[asset], 0.0) for asset in filled)
            # Weights with a sum above 1 borrow the rest.
            left += max(sum(weight for weight in targets if not math.isnan(weight)) - 1.0, 0.0) * before
            if bought > left * (1 + 1e-10):
                for asset in filled:
                    if wanted[asset] > held[asset]:
                        wanted[asset] = held[asset] + (wanted[asset] - held[asset]) * left / bought
            paid = {a: abs(wanted[a] - held[a]) * rate[1 if wanted[a] > held[a] else -1][a] for a in filled}
            pays = cash + sum(held[asset] for asset in filled)
            share = sum(paid.values()) / pays if filled else 0.0
            change = {asset: wanted[asset] * (1 - share) / fills[asset] - shares[asset] for asset in filled}
            borrowed = max(sum(number * fills[a] + paid[a] for a, number in change.items()) - cash, 0.0)
            if settings.participation is not None or any(one.lot_size for one in panel.instruments):
                ended = [asset for asset in filled if rules.has_ended(decided, asset)]
                least = before * 1e-10
                change = slow_orders(exchange, decided, change, shares, fills, cash + borrowed, least, ended)
                paid = slow_costs(exchange, decided, change, fills, ended)
            elif settings.shares == "whole":
                change = {asset: math.trunc(shares[asset] + number) - shares[asset] for asset, number in change.items()}
                needed = sum(max(number, 0) * fills[a] * (1 + rate[1][a]) for a, number in change.items())
                available = cash + borrowed
                available += sum(max(-number, 0) * fills[a] * (1 - rate[-1][a]) for a, number in change.items())
                if needed > available * (1 + 1e-10):
                    # Fewer whole shares are sold short than was planned.
                    buys = {a: math.floor(number * available / needed) for a, number in change.items() if number > 0}
                    change |= buys
                paid = {a: abs(number) * fills[a] * rate[1 if number > 0 else -1][a] for a, number in change.items()}
            for asset, number in change.items():
                shares[asset] += number
                cash -= number * fills[asset] + paid[asset]
                traded[day] += abs(number) * fills[asset] * (1 + slippages[asset] * (1 if number > 0 else -1))
                costs[day] += paid[asset]
        equity.append(cash + worth_at_close(day))
    return equity, traded, costs


@pytest.mark.parametrize("shares", ["fractional", "whole"])
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("seed", range(8))
def test_weights_are_held_as_an_obvious_account_holds_them(shares: Any, fill: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    closes = 40.0 * np.exp(np.cumsum(random.normal(0.0, 0.05, (40, 5)), axis=0))
    opens = closes * np.exp(random.normal(0.0, 0.03, (40, 5)))
    opens[random.random((40, 5)) < 0.1] = np.nan
    closes[1:][random.random((39, 5)) < 0.05] = np.nan
    # One asset ends and one is halted for some days.
    opens[25:, 0] = closes[25:, 0] = opens[10:14, 1] = closes[10:14, 1] = np.nan
    panel = panel_of(opens, opens, closes)
    panel = with_instruments(panel, seed, **(ORDER_RULES if seed > 3 else {})) if seed % 2 else panel
    volumes = {"participation": 0.1, "impact": 1.5} if seed > 4 else {}
    panel = with_volumes(panel, seed, 300.0) if volumes else panel
    weights = random.dirichlet(np.ones(5), 40) * random.choice([0.5, 1.0], (40, 1))
    weights[random.random(40) < 0.4] = np.nan
    weights[random.random((40, 5)) < 0.05] = np.nan
    trading = TradingConfig(fill=fill, cost_bps=20.0, slippage_bps=10.0, delisting_bars=8)
    start = (("S1 12.5", "S3 40", "S0 1e-3"), ("S2 30", "S4 -3"), ())[seed % 3]
    settings = AccountConfig(
        capital=3_000.0 if seed < 4 else 30_000.0, start=start, shares=shares, interest=0.04, **volumes
    )
    prices = replace(prices_of(panel), held=columns_of(settings, panel))
    short = (1.5 if shares == "fractional" else 1.4) * weights - 0.4 * random.dirichlet(np.ones(5), 40)
    accounts = weights_accounts(np.stack([weights, short]), prices, DATES, trading, settings)
    worth = sum(number * closes[0, prices.held[symbol]] for symbol, number in settings.holdings.items())
    assert accounts.capital == pytest.approx(settings.capital + worth)
    for trader, of_trader in enumerate((weights, short)):
        curve = accounts.curve(trader)
        equity, traded, costs = slow_equity(of_trader.tolist(), panel, trading, settings)
        np.testing.assert_allclose(curve.equity, equity, rtol=1e-9)
        np.testing.assert_allclose(curve.traded, traded, atol=1e-6)
        np.testing.assert_allclose(curve.costs, costs, atol=1e-6)
        assert trader or curve.exposure.max() <= 1.0 + 1e-9
        table = accounts.table(trader, SYMBOLS)
        assert table["gain"].sum() + accounts.interest[trader] == pytest.approx(equity[-1] - accounts.capital)
        assert table["costs"].sum() == pytest.approx(sum(costs))
        np.testing.assert_allclose(
            table["paid"] - table["received"], table["shares"] * table["price"] + table["costs"], rtol=1e-9, atol=1e-6
        )
        by_asset = gain_by_asset(table)
        assert by_asset["gain"].sum() == pytest.approx(table["gain"].sum())
        assert by_asset["won"].isna().all()
    assert accounts.shares[0].min() >= min(0.0, *settings.holdings.values(), 0.0) >= -3.0
    assert accounts.shares[1].min() < 0.0
    invested = accounts.held_weights().sum(axis=1)
    np.testing.assert_allclose(invested, accounts.combined_curve().exposure, atol=1e-12)


def test_whole_shares_never_take_more_than_the_cash() -> None:
    """Nor where every target is a whole number of shares but for the costs, which leaves nothing over."""
    closes = np.full((20, 2), 1.0)
    panel = panel_of(closes, closes, closes)
    weights = np.tile([[[0.25, 0.75], [0.75, 0.25]]], (1, 10, 1))
    trading = TradingConfig(fill="next_close", cost_bps=100.0, slippage_bps=50.0)
    settings = AccountConfig(capital=1e9, shares="whole")
    accounts = weights_accounts(weights, prices_of(panel), panel.dates, trading, settings)
    assert accounts.exposure.max() <= 1.0
    np.testing.assert_array_equal(accounts.shares, np.round(accounts.shares))


@pytest.mark.parametrize("every", [1, 3])
def test_cash_earns_its_interest_by_calendar_time(every: int) -> None:
    dates = np.datetime64("2020-01-01") + np.arange(0, 4 * 365 + 2, every)
    nothing = np.full((len(dates), 1), np.nan)
    settings = AccountConfig(capital=100.0, interest=0.05)
    known = prices_of(panel_of(nothing, nothing, nothing))
    curve = weights_accounts(nothing[None], known, dates, TradingConfig(), settings).curve(0)
    assert curve.equity[0] == 100.0
    assert curve.equity[-1] == pytest.approx(100.0 * 1.05**4, rel=3e-4)
    trades = trade_accounts(DecidedTrades.none(1, len(dates)), known, dates, TradingConfig(), settings)
    np.testing.assert_allclose(trades.curve(0).equity, curve.equity)


def test_what_an_account_begins_with_needs_a_price_and_equity_that_is_left() -> None:
    closes = np.array([[10.0, np.nan], [10.0, 5.0]])
    settings = AccountConfig(capital=100.0, start=("S1 3",))
    prices = prices_of(panel_of(closes, closes, closes))
    known = replace(prices, held={"S1": 1})
    with pytest.raises(
        InputError, match=r"account.start: S1 has no price at .*, where an account begins: leave it out"
    ):
        prices_of_span(known, range(2), 0)
    assert prices_of_span(known, range(1, 2), 0).held == {"S1": 1}
    short = settings.model_copy(update={"start": ("S0 -10",)})
    known, nothing = replace(prices, held={"S0": 0}), np.full((1, 2, 2), np.nan)
    with pytest.raises(InputError, match=r"raise account.capital"):
        weights_accounts(nothing, known, DATES[:2], TradingConfig(), short)


def test_an_account_that_loses_all_ends_there() -> None:
    closes = np.array([[10.0], [10.0], [21.0], [15.0], [10.0]])
    weights = np.full((2, 5, 1), [[[-1.0]], [[-0.2]]])
    trading, dates = TradingConfig(cost_bps=0.0, slippage_bps=0.0), DATES[:5]
    known = prices_of(panel_of(closes, closes, closes))
    accounts = weights_accounts(weights, known, dates, trading, AccountConfig(interest=0.05))
    assert accounts.equity[0, 1:].tolist() == [pytest.approx(accounts.equity[0, 1]), 0.0, 0.0, 0.0]
    assert accounts.exposure[0, 2:].tolist() == [0.0, 0.0, 0.0]
    assert accounts.traded[0, 3:].tolist() == [0.0, 0.0]
    assert (accounts.equity[1] > 0.0).all()


Decision = tuple[int, int]
"""Day of the decision, and which of the purchases of the day."""


@dataclass
class SlowAccount:
    panel: Panel
    trades: DecidedTrades
    trader: int
    trading: TradingConfig
    settings: AccountConfig
    first: int = 0
    cash: float = 0.0
    held: dict[Decision, float] = field(default_factory=dict)
    equity: list[float] = field(default_factory=list)
    decision_equity: list[float] = field(default_factory=list)
    traded: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    exposure: list[float] = field(default_factory=list)
    gains: dict[Decision, float] = field(default_factory=dict)
    begun_first: list[int] = field(default_factory=list)
    capital: float = 0.0
    days: int = 0
    begun: dict[int, float] = field(default_factory=dict)

    @cached_property
    def rules(self) -> SlowRules:
        return SlowRules(self.panel, self.trading, self.settings)

    def of(self, name: str, decided: Decision) -> Any:
        day, purchase = decided
        return getattr(self.trades, name)[
            self.trader, self.trades.day[self.trader].tolist().index(day), purchase
        ].item()

    def size(self, decided: Decision) -> float:
        if self.settings.sizing == "fixed":
            return self.settings.fixed_amount
        held = math.ceil(self.trading.holding_bars / int((self.trading.decide_every or "1d")[:-1]))
        equity = self.decision_equity[decided[0]] / held / self.trading.purchases_per_bar
        if self.settings.sizing == "equal" or self.trading.max_coefficient is None:
            return float(equity)
        return float(equity * self.of("coefficient", decided) / self.trading.max_coefficient)

    def buy_all(self, day: int, *, at_open: bool) -> None:
        if day in self.trades.day[self.trader]:
            for purchase in range(self.trading.purchases_per_bar):
                self.buy((day, purchase), at_open=at_open)

    def buy(self, decided: Decision, *, at_open: bool) -> None:
        if self.of("asset", decided) < 0 or self.of("at_open", decided) != at_open:
            return
        rules, asset, entry = self.rules, self.of("asset", decided), self.of("entry", decided)
        day, money = self.first + decided[0], min(self.size(decided), self.cash)
        if money <= 0 or self.cash <= ROUNDING * self.capital:
            return
        shares = rules.bought(day, asset, money, entry)
        if shares <= 0:
            return
        self.held[decided] = shares
        self.gains[decided] = -rules.paid(day, asset, shares, entry)
        self.cash += self.gains[decided]
        self.traded[-1] += shares * entry
        self.costs[-1] -= self.gains[decided] + shares * entry / (1 + rates_of(self.panel, self.trading, asset)[1])

    def sell(self, day: int) -> None:
        for decided in [decided for decided in self.held if self.of("exit_day", decided) == day]:
            asset, price, shares = self.of("asset", decided), self.of("exit", decided), self.held.pop(decided)
            value, at_target = shares * price, self.of("at_target", decided)
            received = value - self.rules.fee(asset, value)
            if not at_target and not self.of("delisted", decided):
                received = self.rules.received(self.first + day - 1, asset, shares, price)
            self.cash += received
            self.gains[decided] += received
            self.traded[-1] += value
            slippage = 0.0 if at_target else rates_of(self.panel, self.trading, asset)[1]
            self.costs[-1] += value / (1 - slippage) - received

    def begin(self, closes: Any) -> dict[int, dict[str, Any]]:
        """Hold the shares of `account.start` as positions of the first day without a target; return their sales."""
        episode = SlowEpisode(self.panel, self.trading, self.first, rewards=[0.0])
        for symbol, shares in self.settings.holdings.items():
            asset = self.panel.symbols.index(symbol)
            episode.held[asset] = Position(self.first, self.first, False, closes[asset], math.inf, 0.0)
            self.gains[-1, len(self.begun)] = -shares * closes[asset]
            self.begun[asset] = shares
        self.begun_first = list(self.begun)
        for day in range(self.first + 1, self.first + self.days):
            episode.close_positions(day)
        return {sale["asset"]: sale for sale in episode.trades}

    def sell_begun(self, day: int, sales: dict[int, dict[str, Any]]) -> None:
        for asset in [asset for asset in self.begun if asset in sales and sales[asset]["exit_day"] == self.first + day]:
            price, shares = sales[asset]["exit"], self.begun.pop(asset)
            value = shares * price
            received = self.rules.received(self.first + day - 1, asset, shares, price)
            if sales[asset]["reason"] == "delisted":
                received = value - self.rules.fee(asset, value)
            self.cash += received
            self.gains[-1, self.begun_first.index(asset)] += received
            self.traded[-1] += value
            self.costs[-1] += value / (1 - rates_of(self.panel, self.trading, asset)[1]) - received

    def worth(self, closes: Any) -> float:
        begun = sum(shares * closes[asset] for asset, shares in self.begun.items())
        return float(begun + sum(shares * closes[self.of("asset", decided)] for decided, shares in self.held.items()))

    def keep(self, last_close: Any, dates: Any) -> None:
        self.cash, self.days = self.settings.capital, len(last_close)
        sales = self.begin(last_close[0])
        self.capital = self.cash + self.worth(last_close[0])
        offset = fill_offset(self.trading)
        for day, closes in enumerate(last_close.tolist()):
            self.traded.append(0.0)
            self.costs.append(0.0)
            elapsed = (dates[day] - dates[max(day - 1, 0)]).item().days
            self.cash *= (1 + self.settings.interest) ** (elapsed / 365.25)
            self.buy_all(day - offset, at_open=True)
            self.sell(day)
            self.sell_begun(day, sales)
            self.decision_equity.append(self.cash + self.worth(closes))
            self.buy_all(day - offset, at_open=False)
            self.sell(day)
            self.equity.append(self.cash + self.worth(closes))
            self.exposure.append(self.worth(closes) / self.equity[-1])
        for decided, shares in self.held.items():
            self.gains[decided] += shares * last_close[-1][self.of("asset", decided)]
        for asset, shares in self.begun.items():
            self.gains[-1, self.begun_first.index(asset)] += shares * last_close[-1][asset]


TRADERS = 2


def random_case(seed: int) -> tuple[TradingConfig, AccountConfig, int]:
    random = np.random.default_rng(seed)
    holding = int(random.integers(1, 12))
    trading: dict[str, Any] = {
        "fill": random.choice(FILLS).item(),
        "bookkeeping": random.choice(["exact", "classic"]).item() if seed % 2 == 0 else "exact",
        "holding_bars": holding,
        "settlement_bars": holding,
        "decide_every": [None, None, "2d", "5d"][seed % 4],
        "min_target": 0.01,
        "max_target": 0.3,
        "max_coefficient": 3.0 if seed % 5 else None,
        "purchases_per_bar": 1 + (seed % 3 if seed % 2 else 0),
        "cost_bps": float(random.uniform(0.0, 50.0)),
        "slippage_bps": float(random.uniform(0.0, 30.0)),
    }
    settings: dict[str, Any] = {
        "capital": float(random.uniform(5_000.0, 1e6)),
        "sizing": random.choice(["coefficient", "equal", "fixed"]).item(),
        "fixed_amount": float(random.uniform(500.0, 60_000.0)),
        "shares": random.choice(["fractional", "whole"]).item(),
        "interest": float(random.uniform(-0.05, 0.1)),
    }
    days = int(random.integers(2, 60))
    if seed % 3 == 0:
        settings["participation"] = [None, 0.05, 0.4][random.integers(3)]
        settings["impact"] = [0.0, 0.7, 3.0][random.integers(3)]
        trading["delisting_bars"] = [3, 60][random.integers(2)]
    return TradingConfig(**trading), AccountConfig(**settings), days


MARKET = random_panel(7, days=400, assets=6)


@pytest.mark.parametrize("spans", [30, pytest.param(300, marks=pytest.mark.thorough)])
def test_accounts_equal_an_obvious_one_that_is_kept_day_by_day(spans: int) -> None:
    kept, reasons = 0, set()
    for seed in range(spans):
        panel = MARKET if seed % 3 else with_instruments(MARKET, seed, **ORDER_RULES)
        trading, settings, days = random_case(seed)
        if settings.participation is not None or settings.impact:
            panel = with_volumes(panel, seed, 800.0)
        prices = prices_of(panel)
        first = int(np.random.default_rng(seed).integers(0, 400 - days - trading.holding_bars))
        span = range(first, first + days)
        priced, random = np.flatnonzero(panel.close[first] > 0.0), np.random.default_rng([seed, 1])
        start = random.permutation(priced)[: random.integers(4)].tolist()
        texts = [f"{panel.symbols[one]} {random.uniform(1.0, 900.0)}" for one in start]
        settings = AccountConfig.model_validate({**settings.model_dump(), "start": texts})
        prices = replace(prices, held=columns_of(settings, panel))
        known, dates = prices_of_span(prices, span, trading.holding_bars), panel.dates[first : first + days]
        actions = np.random.default_rng(seed).uniform(0.0, [[[[3.0]]], [[[0.2]]]], (2, TRADERS, days, 6))
        trades = decided_trades(known, trading, *actions)
        accounts = trade_accounts(trades, known, dates, trading, settings)
        for trader in range(TRADERS):
            slow = SlowAccount(panel, trades, trader, trading, settings, first)
            slow.keep(known.last_close[:days].numpy(), dates)
            assert accounts.capital == pytest.approx(slow.capital, rel=1e-12)
            curve = accounts.curve(trader)
            for name in ("equity", "traded", "costs"):
                expected = np.array(getattr(slow, name))
                assert np.abs(getattr(curve, name) - expected).max() < 1e-9 * curve.equity.min(), (seed, name)
            np.testing.assert_allclose(curve.exposure, slow.exposure, atol=1e-9)
            table = accounts.table(trader, panel.symbols)
            kept += len(table)
            reasons |= {*table["reason"][: len(start)]}
            np.testing.assert_allclose(table["gain"], [slow.gains[day] for day in sorted(slow.gains)], atol=1e-5)
            gained = table["gain"].sum() + accounts.interest[trader]
            assert curve.equity[-1] == pytest.approx(slow.capital + gained, rel=1e-9)
            assert curve.costs.sum() == pytest.approx(table["costs"].sum(), rel=1e-9)
        # Neither the order of decisions nor the traders beside one change a bit.
        order = np.random.default_rng(seed).permutation(trades.day.shape[1])
        rules = known, dates, trading, settings
        moved = {name: values[1:, order] for name, values in vars(trades).items()}
        alone = trade_accounts(DecidedTrades(**moved).with_a_trade(), *rules)
        for name in ("equity", "exposure", "traded", "costs", "interest"):
            np.testing.assert_array_equal(getattr(alone, name), getattr(accounts, name)[1:])
        np.testing.assert_array_equal(last_equity(trades, *rules), accounts.equity[:, -1])
        # What is held is not bought again before its sale.
        sold = accounts.trades.exit_day[:, : len(start), :1].copy()
        for place, column in enumerate(start):
            assert not ((trades.asset == column) & (trades.day[..., None] < sold[:, place, None])).any()
    assert kept > 20 * spans
    assert reasons >= {"time", "held"}


def test_several_positions_in_an_asset_are_held_beside_each_other() -> None:
    """As by decisions that are shifted in time: each has a sale of its own."""
    random, days = np.random.default_rng(0), 50
    closes = 50.0 * np.exp(np.cumsum(random.normal(0.0, 0.05, (days, 1)), axis=0))
    panel = panel_of(closes, closes, closes)
    trading, settings = TradingConfig(holding_bars=3, settlement_bars=3), AccountConfig()
    known, trades = prices_of_span(prices_of(panel), range(days), 3), DecidedTrades.none(1, days)
    trades.asset[:], trades.coefficient[:] = 0, 3.0
    trades.entry[:], trades.exit[:] = random.uniform(30.0, 70.0, (2, *trades.asset.shape))
    trades.exit_day[:] = trades.day[..., None] + random.integers(1, 12, trades.asset.shape)
    account = trade_accounts(trades, known, panel.dates, trading, settings)
    slow = SlowAccount(panel, trades, 0, trading, settings)
    slow.keep(closes, panel.dates)
    np.testing.assert_allclose(account.equity[0], slow.equity, rtol=1e-12)
    assert account.shares[0].all(axis=1).sum() > 30


def test_the_sale_of_a_delisted_symbol_is_named_with_its_loss() -> None:
    """Beside a symbol that goes on; what is bought on the last days is still held."""
    closes = np.full((60, 2), 10.0)
    closes[20:, 0] = np.nan
    panel = panel_of(closes, closes, closes)
    rules: dict[str, Any] = {"holding_bars": 4, "settlement_bars": 4, "delisting_bars": 8, "delisting_loss": 0.25}
    trading = TradingConfig(**rules, cost_bps=0.0, slippage_bps=0.0, purchases_per_bar=2)
    known = prices_of_span(prices_of(panel), range(60), trading.holding_bars)

    coefficients = np.zeros((1, 60, 2))
    coefficients[:, [5, 17, 58]] = 3.0
    trades = decided_trades(known, trading, coefficients, 0.5)
    table = trade_accounts(trades, known, panel.dates, trading, AccountConfig()).table(0, panel.symbols)
    by_symbol = {symbol: rows["reason"].tolist() for symbol, rows in table.groupby("symbol")}
    assert by_symbol == {"S0": ["time", "delisted"], "S1": ["time", "time", "held"]}
    delisted = table[table["reason"] == "delisted"].iloc[0]
    assert (delisted["exit_price"], delisted["gain_percent"]) == pytest.approx((7.5, -25.0))
    # Day 27 is the eighth without a price.
    assert delisted["exit"] == panel.dates[27]
