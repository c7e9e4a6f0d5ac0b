"""An episode as the replaced system plays it (its commit 3498eef): a day at a time, from a description of its rules.

Each day: positions are looked at in the order in which they were opened, then the one with the highest coefficient of
all assets is bought at the close of the day, if it can be.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eigen_core.config import TradingConfig
from eigen_core.market.panel import Panel

Array = NDArray[np.float64]


@dataclass
class ReplacedPosition:
    entry: float
    coefficient: float
    target_percent: float
    days_held: int = 0

    @property
    def target_price(self) -> float:
        return self.entry * (1.0 + self.target_percent / 100.0)


@dataclass
class ReplacedEpisode:
    """Counts and rewards of one episode; `corners` counts what its rules are about."""

    panel: Panel
    trading: TradingConfig
    first_day: int
    rewards: list[float] = field(default_factory=list)
    positions: dict[int, ReplacedPosition] = field(default_factory=dict)
    trades: int = 0
    wins: int = 0
    losses: int = 0
    idle_days: int = 0
    corners: set[str] = field(default_factory=set)

    def run(self, coefficients: Array, targets: Array) -> "ReplacedEpisode":
        """Trade with actions `[days, assets]`, targets as fractions."""
        for step in range(self.trading.episode_days):
            day = self.first_day + step
            held_before = bool(self.positions)
            reward = self.close_positions(day)
            closed_all = held_before and not self.positions
            if step < self.trading.trading_days:
                self.buy(day, coefficients[step], targets[step])
            if not held_before and not self.positions:
                reward -= self.trading.idle_penalty
                self.idle_days += 1
            elif closed_all and not self.positions:
                self.corners.add("closed all")
            self.rewards.append(reward)
        if self.trades == 0:
            self.rewards[-1] -= self.trading.no_trade_penalty
        return self

    def prices(self, day: int, asset: int) -> dict[str, float]:
        panel = self.panel
        return {name: float(getattr(panel, name)[day, asset]) for name in ("open", "high", "low", "close")}

    def close_positions(self, day: int) -> float:
        reward = 0.0
        for asset, position in list(self.positions.items()):
            position.days_held += 1
            prices = self.prices(day, asset)
            if all(math.isnan(price) for price in prices.values()):
                price = position.entry
                self.corners.add("no data")
            elif not math.isnan(prices["high"]) and prices["high"] >= position.target_price:
                price = position.target_price
                self.corners.add("target")
            elif position.days_held >= self.trading.holding_days:
                price = position.entry if math.isnan(prices["close"]) else prices["close"]
                self.corners.add("no last close" if math.isnan(prices["close"]) else "time")
            else:
                continue
            del self.positions[asset]
            reward += self.booked(position, price)
        return reward

    def booked(self, position: ReplacedPosition, price: float) -> float:
        percent = (price - position.entry) / position.entry * 100.0
        self.trades += 1
        if percent >= 0.0:
            self.wins += 1
            return position.coefficient * percent
        self.losses += 1
        return -self.trading.loss_multiplier * position.coefficient * abs(percent)

    def buy(self, day: int, coefficients: Array, targets: Array) -> None:
        asset = int(np.argmax(coefficients))
        if coefficients[asset] < self.trading.buy_threshold or asset in self.positions:
            return
        close = self.prices(day, asset)["close"]
        if math.isnan(close) or close <= 0.0:
            self.corners.add("no price" if math.isnan(close) else "price of zero")
            return
        percent = 100.0 * min(max(float(targets[asset]), self.trading.min_target), self.trading.max_target)
        self.positions[asset] = ReplacedPosition(close, float(coefficients[asset]), percent)
