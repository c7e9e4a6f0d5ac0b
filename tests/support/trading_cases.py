"""Markets with every kind of bad price, and the rules of an episode once more: slow, obvious, day by day."""

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from eigen_core.config import AccountConfig, MarketConfig, TradingConfig
from eigen_core.config.instruments import Instrument
from eigen_core.market.panel import Panel, Splits
from eigen_core.trading.environment import TradingEnvironment
from eigen_core.trading.equity import EquityCurve
from eigen_core.trading.order_fills import fill_offset
from eigen_core.trading.order_limits import liquidity_of
from eigen_core.trading.orders import target_price
from eigen_core.trading.prices import Prices, precedence_of
from eigen_core.trading.trades import DecidedTrades, trade_day_by_day

CPU = torch.device("cpu")
Array = NDArray[np.float64]


def panel_of(open_: Array, high: Array, close: Array, window: int = 5) -> Panel:
    """A panel of given prices, float64 `[days, assets]`, with three features that mean nothing."""
    days, assets = close.shape
    market = MarketConfig(window=window, validation=max(1, days // 5), holdout=days // 5)
    features = np.random.default_rng(3).normal(size=(days, assets, 3)).astype(np.float32)
    dates = np.datetime64("2000-01-03") + np.arange(days)
    return Panel(
        features=features,
        valid=~np.isnan(close),
        open=open_,
        high=high,
        low=close,
        close=close,
        dates=dates,
        symbols=tuple(f"S{index}" for index in range(assets)),
        feature_names=("one", "two", "three"),
        splits=Splits.of(dates, market),
        fingerprint="0" * 64,
    )


def random_panel(seed: int, days: int, assets: int) -> Panel:
    """Prices that jump, with gaps, series that start late and end early, and opens and highs missing on their own."""
    random = np.random.default_rng(seed)
    close = 50.0 * np.exp(np.cumsum(random.normal(0.0, 0.04, (days, assets)), axis=0))
    open_ = close * np.exp(random.normal(0.0, 0.02, (days, assets)))
    high = np.maximum(open_, close) * np.exp(np.abs(random.normal(0.0, 0.02, (days, assets))))
    high *= np.where(random.random((days, assets)) < 0.03, 1.4, 1.0)
    open_[random.random((days, assets)) < 0.15] = np.nan
    high[random.random((days, assets)) < 0.15] = np.nan
    for asset in range(assets):
        closed = random.random(days) < 0.05
        for _ in range(3):
            start = random.integers(days)
            closed[start : start + random.integers(1, 40)] = True
        if asset % 4 == 1:
            closed[: random.integers(days)] = True
        if asset % 4 == 2:
            closed[random.integers(days) :] = True
        if asset % 5 == 3:
            # The first day is a Monday.
            closed |= np.arange(days) % 7 > 4
        for prices in (open_, high, close):
            prices[closed, asset] = np.nan
    # Days that opened but never closed.
    stray = np.isnan(close) & (random.random((days, assets)) < 0.3)
    open_[stray] = random.uniform(30.0, 60.0, (days, assets))[stray]
    panel = panel_of(open_, high, close)
    # Suspended: the day has prices, but nothing is traded.
    suspended = random.random((days, assets)) < 0.02
    for prices in (panel.open, panel.high, panel.close):
        prices[suspended] = np.nan
    return panel


def with_instruments(panel: Panel, seed: int, **rules: float) -> Panel:
    """The panel with rates of each asset, of which some are those of all; `rules` bound random order rules."""
    random = np.random.default_rng(seed)
    instruments = []
    for symbol in panel.symbols[: panel.assets]:
        cost, slippage = (None if random.random() < 0.2 else float(random.uniform(0.0, 90.0)) for _ in range(2))
        own = {name: float(random.uniform(0.0, most)) * (random.random() < 0.7) for name, most in rules.items()}
        unit = random.choice(["shares", "money"]).item()
        instruments.append(Instrument(symbol, cost, slippage, **own, volume_unit=unit))
    return replace(panel, instruments=tuple(instruments))


def rates_of(panel: Panel, trading: TradingConfig, asset: int) -> tuple[float, float]:
    """Transaction cost and slippage of an asset, as fractions."""
    own = panel.instruments[asset] if panel.instruments else Instrument(panel.symbols[asset])
    cost = trading.cost_bps if own.cost_bps is None else own.cost_bps
    slippage = trading.slippage_bps if own.slippage_bps is None else own.slippage_bps
    return cost / 10_000, slippage / 10_000


def with_volumes(panel: Panel, seed: int, mean: float) -> Panel:
    """The panel with volumes that vary much, and are missing or zero on some days."""
    random = np.random.default_rng(seed)
    volume = mean * np.exp(random.normal(0.0, 1.0, panel.close.shape))
    volume[random.random(volume.shape) < 0.1] = np.nan
    volume[random.random(volume.shape) < 0.1] = 0.0
    return replace(panel, volume=np.where(np.isnan(panel.close), np.nan, volume))


@dataclass
class SlowRules:
    """What an exchange makes of an order, a loop at a time."""

    panel: Panel
    trading: TradingConfig
    settings: AccountConfig
    known: dict[tuple[int, int], list[tuple[float, float]]] = field(default_factory=dict)

    def of(self, asset: int, name: str) -> float:
        return float(getattr(self.panel.instruments[asset], name)) if self.panel.instruments else 0.0

    def bars(self, day: int, asset: int) -> list[tuple[float, float]]:
        """Volume in shares and close of the last 20 bars with a volume."""
        assert self.panel.volume is not None
        found = self.known.setdefault((day, asset), [])
        if found:
            return found
        while day >= 0 and len(found) < 20:
            volume, close = float(self.panel.volume[day, asset]), float(self.panel.close[day, asset])
            if volume > 0.0:
                in_money = self.panel.instruments and self.panel.instruments[asset].volume_unit == "money"
                found.append((volume / close if in_money else volume, close))
            day -= 1
        found.reverse()
        return found

    def most(self, day: int, asset: int) -> float:
        if self.settings.participation is None and not self.settings.impact:
            return math.inf
        bars = self.bars(day, asset)
        if self.settings.participation is None or not bars:
            return math.inf if bars else 0.0
        return self.settings.participation * sum(volume for volume, _ in bars) / len(bars)

    def impact(self, day: int, asset: int, shares: float) -> float:
        """Change of the price, a fraction."""
        if not self.settings.impact or not shares:
            return 0.0
        bars = self.bars(day, asset)
        returns = [after / before - 1 for (_, before), (_, after) in pairwise(bars)]
        if len(returns) < 2:
            return 0.0
        mean = sum(returns) / len(returns)
        deviation = math.sqrt(sum((one - mean) ** 2 for one in returns) / (len(returns) - 1))
        volume = sum(volume for volume, _ in bars) / len(bars)
        return self.settings.impact * deviation * math.sqrt(shares / volume)

    def lots(self, asset: int, shares: float) -> float:
        """Shares, perhaps below 0, rounded towards 0."""
        lot = self.of(asset, "lot_size") or (1.0 if self.settings.shares == "whole" else 0.0)
        return math.copysign(math.floor(abs(shares) / lot + 1e-9) * lot, shares) if lot else shares

    def sized(self, day: int, asset: int, shares: float, price: float) -> float:
        found = self.lots(asset, min(shares, self.most(day, asset)))
        too_few = found < self.of(asset, "minimum_size") * (1 - 1e-9)
        too_cheap = found * price < self.of(asset, "minimum_notional") * (1 - 1e-9)
        return 0.0 if too_few or too_cheap else found

    def fee(self, asset: int, value: float) -> float:
        cost, _ = rates_of(self.panel, self.trading, asset)
        return max(cost * value, self.of(asset, "minimum_fee")) if value > 0.0 else 0.0

    def bought(self, day: int, asset: int, money: float, price: float) -> float:
        """Shares for at most this money, at a price with slippage."""
        cost, _ = rates_of(self.panel, self.trading, asset)

        def affordable(price: float) -> float:
            return max(min(money / (price * (1 + cost)), (money - self.of(asset, "minimum_fee")) / price), 0.0)

        planned = min(affordable(price), self.most(day, asset))
        return self.sized(day, asset, affordable(price * (1 + self.impact(day, asset, planned))), price)

    def paid(self, day: int, asset: int, shares: float, price: float) -> float:
        value = shares * price * (1 + self.impact(day, asset, shares))
        return value + self.fee(asset, value)

    def received(self, day: int, asset: int, shares: float, price: float) -> float:
        value = shares * price * (1 - min(self.impact(day, asset, shares), 1.0))
        return value - self.fee(asset, value)


def prices_of(panel: Panel) -> Prices:
    """Prices of a panel, of which an order may meet all days: the episodes of tests lie in several splits."""
    prices = Prices.of_panel(panel, CPU)
    if panel.volume is not None:
        prices = replace(prices, liquidity=tuple(map(torch.tensor, liquidity_of(panel))))
    return replace(prices, last_day=torch.full((panel.days,), panel.days - 1))


def decided_trades(known: Prices, trading: TradingConfig, coefficients: Array, targets: Array | float) -> DecidedTrades:
    """The trades of agents that take these actions after each day of a span, float64 `[agents, days, assets]`."""
    wanted, sold = (torch.tensor(values) for values in np.broadcast_arrays(coefficients, targets))
    agents, days, _ = wanted.shape
    return trade_day_by_day(known, trading, days, agents, lambda day, _: (wanted[:, day], sold[:, day]))


def trades_of(environment: TradingEnvironment) -> pd.DataFrame:
    """The trades of all episodes, one a row, sorted by episode, decision and then rank."""
    trading, (orders, bought) = environment.trading, environment.orders()
    episode, step, _ = bought.nonzero(as_tuple=True)
    trade = {name: values[bought] for name, values in vars(orders).items()}
    decision_day = environment.days[episode] - environment.step_index + step
    columns = {
        "episode": episode,
        "asset": trade["asset"],
        "decision_day": decision_day,
        "fill_day": decision_day + fill_offset(trading),
        "exit_day": decision_day + trade["exit_offset"],
        **{name: trade[name] for name in ("entry", "exit")},
        "target": target_price(trading, trade["entry"], trade["target"]),
        **{name: trade[name] for name in ("coefficient", "gain", "value")},
    }
    delisted = environment.prices.fills(trading).exit_delisted[decision_day, trade["asset"]]
    reasons = [trade["at_target"], delisted & (trading.bookkeeping == "exact")]
    return pd.DataFrame(columns).assign(reason=np.select([*map(np.asarray, reasons)], ["target", "delisted"], "time"))


@dataclass
class Position:
    decision: int
    fill: int
    at_open: bool
    entry: float
    target: float
    coefficient: float
    mark: float = 0.0
    sessions: int = 0
    waits: bool = False


@dataclass
class SlowEpisode:
    """One episode by the rules, a day at a time; `decide(step, portfolio)` returns coefficients and targets.

    The days of trading of a `calendar`, which is known in advance, may go on after those of the panel.
    """

    panel: Panel
    trading: TradingConfig
    first_day: int
    rewards: list[float] = field(default_factory=list)
    portfolios: list[list[list[float]]] = field(default_factory=list)
    trades: list[dict[str, Any]] = field(default_factory=list)
    idle_days: int = 0
    held: dict[int, Position] = field(default_factory=dict)
    ordered: list[tuple[int, float, float]] = field(default_factory=list)
    sessions: dict[tuple[int, int], bool] = field(default_factory=dict)
    calendar: Panel | None = None

    @property
    def last(self) -> int:
        return self.trading.episode_bars - 1

    def close_known(self, day: int, asset: int) -> float:
        while math.isnan(self.panel.close[day, asset]):
            day -= 1
        return float(self.panel.close[day, asset])

    def is_session(self, day: int, asset: int) -> bool:
        """Whether the asset trades, or one has a price whose days of the week are all days of this one's week."""
        if (day, asset) not in self.sessions:
            weeks = [self._week(day, int(one)) for one in np.flatnonzero(self.panel.valid[day, : self.panel.assets])]
            traded, week = self.panel.close[day, asset] > 0.0, self._week(day, asset)
            self.sessions[day, asset] = traded or any(day % 7 in other and other <= week for other in weeks)
        return self.sessions[day, asset]

    def _week(self, day: int, asset: int) -> set[int]:
        """Days of the week of the last 25 trades and of the next 25; of one side if the other has fewer than 10."""
        trades = np.flatnonzero((self.calendar or self.panel).close[:, asset] > 0.0)
        past, future = trades[trades <= day], trades[trades >= day]
        last, coming = ({one % 7 for one in some.tolist()} for some in (past[-25:], future[:25]))
        return (
            (last | coming)
            & (last if len(past) >= 10 else {*range(7)})
            & (coming if len(future) >= 10 else {*range(7)})
        )

    def fill_price(self, day: int, asset: int) -> tuple[float, bool]:
        first = float(self.panel.open[day, asset])
        if self.trading.fill == "next_open" and not math.isnan(first):
            return first, True
        return float(self.panel.close[day, asset]), False

    def has_ended(self, day: int, asset: int) -> bool:
        sessions = 0
        while math.isnan(self.fill_price(day, asset)[0]):
            sessions += self.is_session(day, asset)
            day -= 1
        return sessions >= self.trading.delisting_bars

    def due_day(self, decision: int, asset: int, exit_day: int) -> int:
        sessions = 0
        for day in range(decision + 1, exit_day):
            sessions += self.is_session(day, asset)
            if sessions >= self.trading.holding_bars:
                return day
        return exit_day

    def gain(self, asset: int, entry: float, price: float) -> float:
        cost, _ = rates_of(self.panel, self.trading, asset)
        return price * (1 - cost) / (entry * (1 + cost)) - 1

    def worth(self, coefficient: float, gain: float) -> float:
        if gain < 0:
            return coefficient * gain * 100 * self.trading.loss_multiplier
        return coefficient * gain * 100

    def market_price(self, asset: int, price: float, side: int) -> float:
        return price * (1 + side * rates_of(self.panel, self.trading, asset)[1])

    def buy(
        self, asset: int, price: float, decision: int, fill: int, order: tuple[float, float], at_open: bool
    ) -> None:
        entry = self.market_price(asset, price, +1)
        self.held[asset] = Position(decision, fill, at_open, entry, entry * (1 + order[1]), order[0])

    def fill_orders(self, day: int) -> None:
        for asset, coefficient, target in self.ordered:
            price, at_open = self.fill_price(day, asset)
            if not math.isnan(price):
                self.buy(asset, price, day - 1, day, (coefficient, target), at_open=at_open)
        self.ordered = []

    def close_positions(self, day: int) -> None:
        for asset in sorted(self.held):
            position = self.held[asset]
            if position.decision == day:
                continue
            high, close = float(self.panel.high[day, asset]), float(self.panel.close[day, asset])
            position.sessions += self.is_session(day, asset)
            price, at_open = self.fill_price(day, asset)
            if position.waits and at_open:
                self.sell(asset, self.market_price(asset, price, -1), day, "time")
                continue
            watched = day > position.fill or position.at_open
            if watched and not math.isnan(high) and high >= position.target:
                self.sell(asset, position.target, day, "target")
            elif position.sessions >= self.trading.holding_bars:
                if not math.isnan(close):
                    self.sell(asset, self.market_price(asset, close, -1), day, "time")
                elif self.has_ended(day, asset):
                    last = self.close_known(day, asset) * (1 - (self.trading.delisting_loss or 0.0))
                    self.sell(asset, self.market_price(asset, last, -1), day, "delisted")
                else:
                    position.waits = True

    def sell(self, asset: int, price: float, day: int, reason: str) -> None:
        position = self.held.pop(asset)
        gain = self.gain(asset, position.entry, price)
        value = self.worth(position.coefficient, gain)
        cost, _ = rates_of(self.panel, self.trading, asset)
        self.trades.append(
            {
                "asset": asset,
                "decision_day": position.decision,
                "fill_day": position.fill,
                "exit_day": day,
                "entry": position.entry,
                "exit": price,
                "target": position.target,
                "coefficient": position.coefficient,
                "gain": gain,
                "value": value,
                "reason": reason,
                "fees": position.coefficient * 100 * cost * (1 + price / position.entry),
            }
        )
        # Only the credit `marked` has marks.
        credited = position.decision if self.trading.credit == "decision" else day
        self.rewards[min(credited - self.first_day, self.last)] += value - position.mark

    def mark_positions(self, day: int) -> None:
        if self.trading.credit != "marked":
            return
        for asset, position in self.held.items():
            price = self.market_price(asset, self.close_known(day, asset), -1)
            mark = self.worth(position.coefficient, self.gain(asset, position.entry, price))
            self.rewards[min(day - self.first_day, self.last)] += mark - position.mark
            position.mark = mark

    def observe(self, day: int) -> list[list[float]]:
        seen = []
        for asset in range(self.panel.assets):
            position = self.held.get(asset)
            if position is None or not self.trading.observe_portfolio:
                seen.append([0.0, 0.0, 0.0, 0.0])
                continue
            gain = self.close_known(day, asset) / position.entry - 1
            unit = 1.0 if self.trading.max_coefficient is None else self.trading.max_coefficient
            age = min((day - position.decision) / self.trading.holding_bars, 1.0)
            seen.append([1.0, age, min(max(gain, -5.0), 5.0), min(position.coefficient / unit, 65_504.0)])
        return seen

    def decide(self, day: int, coefficients: Array, targets: Array, ranks: Array | None) -> None:
        every = self.trading.decide_every
        assert every is None or every.endswith("d")
        if every is not None and self.panel.dates[day].astype("datetime64[D]").astype(int) % int(every[:-1]):
            return
        precedence = precedence_of(self.panel.dates[day : day + 1], self.panel.assets)[0]
        wanted = []
        for asset in range(self.panel.assets):
            if math.isnan(self.panel.close[day, asset]):
                continue
            coefficient = max(float(coefficients[asset]), 0.0)
            if self.trading.max_coefficient is not None:
                coefficient = min(coefficient, self.trading.max_coefficient)
            rank = coefficient if ranks is None else min(max(float(ranks[asset]), 0.0), 1.0)
            wanted.append((rank, int(precedence[asset]), asset, coefficient))
        for _, _, asset, coefficient in sorted(wanted, reverse=True)[: self.trading.purchases_per_bar]:
            if coefficient < self.trading.buy_threshold or asset in self.held:
                continue
            target = min(max(float(targets[asset]), self.trading.min_target), self.trading.max_target)
            if self.trading.fill == "same_close":
                price = float(self.panel.close[day, asset])
                self.buy(asset, price, day, day, (coefficient, target), at_open=False)
            else:
                self.ordered.append((asset, coefficient, target))

    def run(self, coefficients: Array, targets: Array, ranks: Array | None = None) -> "SlowEpisode":
        trading = self.trading
        for step in range(self.last + 1):
            day = self.first_day + step
            self.rewards.append(0.0)
            self.fill_orders(day)
            self.close_positions(day)
            self.portfolios.append(self.observe(day))
            if step < trading.trading_bars:
                self.decide(day, coefficients[step], targets[step], None if ranks is None else ranks[step])
            self.mark_positions(day)
            if not self.held:
                self.idle_days += 1
                self.rewards[step] -= trading.idle_penalty
        for day in range(self.first_day + self.last + 1, self.panel.days):
            self.close_positions(day)
            self.mark_positions(day)
        for asset in sorted(self.held):
            price = self.market_price(asset, self.close_known(self.panel.days - 1, asset), -1)
            self.sell(asset, price, self.panel.days, "time")
        if not self.trades:
            self.rewards[trading.trading_bars - 1] -= trading.no_trade_penalty
        return self


def slow_sale(rules: SlowEpisode, due: int, asset: int) -> float:
    """What a sale gets that is due at the close of a day; after the last day, what is held is worth the last close."""
    if due >= rules.panel.days:
        return rules.close_known(rules.panel.days - 1, asset)
    last = rules.close_known(due, asset)
    if not math.isnan(rules.panel.close[due, asset]):
        return last
    for day in range(due, rules.panel.days):
        price, _ = rules.fill_price(day, asset)
        if day > due and not math.isnan(price):
            return price
        if rules.has_ended(day, asset):
            return last * (1.0 - (rules.trading.delisting_loss or 0.0))
    return last


def slow_market_gain(rules: SlowEpisode, day: int, offset: int) -> float:
    gains, trading = [], rules.trading
    fill_day = day if trading.fill == "same_close" else day + 1
    for asset in range(rules.panel.assets):
        if fill_day >= rules.panel.days or math.isnan(rules.panel.close[day, asset]):
            continue
        fill, _ = rules.fill_price(fill_day, asset)
        if math.isnan(fill):
            continue
        cost, slippage = rates_of(rules.panel, trading, asset)
        paid = fill * (1.0 + slippage) * (1.0 + cost)
        sold = slow_sale(rules, day + offset, asset)
        gains.append(sold * (1.0 - slippage) * (1.0 - cost) / paid - 1.0)
    return float(np.mean(gains)) if gains else math.nan


def suspended_market(days: int, assets: int = 1) -> Panel:
    """Prices with an open each day, and days of the market on which some asset is suspended: a vendor's volume is 0."""
    random = np.random.default_rng(days)
    close = 50.0 * np.exp(np.cumsum(random.normal(0.0, 0.03, (days, assets)), axis=0))
    close[random.random((days, assets)) < 0.15] = np.nan
    panel = panel_of(close * np.exp(random.normal(0.0, 0.02, (days, assets))), close, close)
    return replace(panel, valid=np.ones_like(panel.valid))


CAPITAL = 1_000.0


def curve_of(
    returns: "pd.Series[float]",
    *,
    exposure: Array | None = None,
    traded: Array | None = None,
) -> EquityCurve:
    """The equity of an account with these daily returns, by date; without costs, and idle unless it is given."""
    none = np.zeros(len(returns))
    return EquityCurve(
        dates=returns.index.to_numpy().astype("datetime64[D]"),
        capital=CAPITAL,
        equity=CAPITAL * np.cumprod(1.0 + returns.to_numpy(dtype=np.float64)),
        exposure=none if exposure is None else exposure,
        traded=none if traded is None else traded,
        costs=none,
    )
