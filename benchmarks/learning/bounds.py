"""What no trader can exceed, and what traders without knowledge earn: the ends of the scale of a market."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.learning.markets import KnownMarket
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.trading import Prices, trade_whole_episodes
from eigen_core.trading.orders import net_gain, resolve_orders, trade_value

_TARGETS = 9
_RANDOM_TRADERS = 32


def hindsight_bound(market: KnownMarket, config: Config, starts: NDArray[np.int64]) -> float:
    """Return a bound of the mean reward of episodes, for a trader who knows all prices and sells at one of 9 targets.

    The lower of two: an asset may be bought that is held, or any number may be bought on a day.
    """
    trading = config.trading
    prices = Prices.of_panel(market.panel, torch.device("cpu"))
    days = torch.from_numpy(starts[:, None] + np.arange(trading.trading_days))
    targets = torch.linspace(trading.min_target, trading.max_target, _TARGETS, dtype=torch.float64)
    shape = (*days.shape, prices.assets, _TARGETS)
    trades = resolve_orders(
        prices,
        trading,
        days[..., None, None].expand(shape),
        torch.arange(prices.assets)[:, None].expand(shape),
        targets.expand(shape),
    )
    size = torch.tensor(trading.max_coefficient or 1.0, dtype=torch.float64)
    worth = trade_value(trading, size, net_gain(trading, trades.entry, trades.exit))
    worth = worth.masked_fill(~(trades.filled & prices.tradable[days][..., None]), 0.0).clamp(min=0.0)
    purchases = min(trading.purchases_per_day, prices.assets)
    any_held = worth.amax(dim=-1).topk(purchases, dim=-1).values.sum(dim=(1, 2))
    any_number = best_schedules(worth, trades.exit_offset).sum(dim=1)
    return float(torch.minimum(any_held, any_number).mean())


def best_schedules(worth: Tensor, exit_offset: Tensor) -> Tensor:
    """Return what each asset earns if its trades do not overlap and are chosen best, float64 `[episodes, assets]`.

    Args:
        worth: float64 `[episodes, days, assets, targets]`.
        exit_offset: int64, alike: days from the decision to the exit.
    """
    episodes, days, assets, targets = worth.shape
    best = torch.zeros((episodes, days + 1, assets), dtype=torch.float64)
    for day in reversed(range(days)):
        free = (day + exit_offset[:, day]).clamp(max=days)
        later = best.gather(1, free.permute(0, 2, 1).reshape(episodes, targets, assets))
        taken = worth[:, day] + later.permute(0, 2, 1)
        best[:, day] = torch.maximum(best[:, day + 1], taken.amax(dim=-1))
    return best[:, 0]


def random_reward(market: KnownMarket, config: Config, starts: NDArray[np.int64], trades: NDArray[np.float64]) -> float:
    """Return the mean reward of traders who try to buy a random asset as often as a trader did in each episode.

    Args:
        market: what is traded.
        config: the rules.
        starts: first day of each episode, `[episodes]`.
        trades: purchases in each, float64 `[episodes]`.

    They buy on random days, at full size, with the middle of the sale targets; where the asset is held already, the
    purchase does not take place.
    """
    trading, assets, purchases = config.trading, market.panel.assets, config.trading.purchases_per_day
    generator = keyed_generator(config.seed, 0, "bench", "random traders")
    episodes = _RANDOM_TRADERS * len(starts)
    often = np.tile(trades, _RANDOM_TRADERS)[:, None, None] / (trading.trading_days * purchases)
    buys = generator.random((episodes, trading.episode_days, purchases)) < often
    asset = generator.integers(0, assets, buys.shape)
    size = trading.max_coefficient or 1.0
    wanted = ((np.arange(assets) == asset[..., None]) & buys[..., None]).any(axis=2)
    coefficients = size * torch.from_numpy(wanted).float()
    targets = torch.full_like(coefficients, (trading.min_target + trading.max_target) / 2.0)
    first_days = torch.from_numpy(np.tile(starts, _RANDOM_TRADERS))
    prices = Prices.of_panel(market.panel, torch.device("cpu"))
    rewards, _ = trade_whole_episodes(prices, trading, first_days, coefficients, targets)
    return float(rewards.sum(dim=1).mean())
