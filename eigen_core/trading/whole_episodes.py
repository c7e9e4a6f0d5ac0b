"""The other form of the environment: whole episodes at once, for actions that do not depend on the portfolio."""

import torch
from torch import Tensor

from eigen_core.config import TradingConfig
from eigen_core.trading.booking import book
from eigen_core.trading.environment import check_actions, check_first_days
from eigen_core.trading.orders import Orders, combine_orders, episode_parts, place_orders
from eigen_core.trading.prices import Prices
from eigen_core.trading.summary import EpisodeSummary, account


@torch.no_grad()
def trade_whole_episodes(
    prices: Prices,
    trading: TradingConfig,
    first_days: Tensor,
    coefficients: Tensor,
    targets: Tensor,
    ranks: Tensor | None = None,
) -> tuple[Tensor, EpisodeSummary]:
    """Trade E episodes of T = `trading.episode_days` days whose actions are all known beforehand.

    The rules are those of `TradingEnvironment`. As the market does not react, every order is resolved over all days at
    once; only what is already held has to be followed from step to step.

    Args:
        prices: prices of all days.
        trading: the rules.
        first_days: int64 `[E]`, on any device.
        coefficients: any float dtype `[E, D, A]`, D at least `trading.trading_days`; those of later days do not count.
        targets, ranks: the same; ranks as in `TradingEnvironment.step`.

    Returns:
        Rewards, float64 `[E, T]`, and the account of the episodes.

    Raises:
        InputError: an episode would leave the prices.
        ValueError: `first_days` or an action has the wrong shape.
        FloatingPointError: an action that counted or a reward is not finite.
    """
    first_days = check_first_days(prices, trading, first_days)
    decisions = trading.trading_days
    shape = (len(first_days), max(decisions, *coefficients.shape[1:2]), prices.assets)
    check_actions(shape, coefficients, targets, ranks)
    steps = torch.arange(decisions, device=first_days.device)
    days = first_days.unsqueeze(1) + steps
    actions = [coefficients, targets] if ranks is None else [coefficients, targets, ranks]
    orders = _place_all(prices, trading, days, [values[:, :decisions] for values in actions])
    bought = _leave_out_held(orders, steps, prices.assets)
    rewards, idle = book(prices, trading, days, orders, bought)
    return rewards, account(trading, orders, bought, idle.sum(dim=1), rewards.sum(dim=1))


def _place_all(prices: Prices, trading: TradingConfig, days: Tensor, actions: list[Tensor]) -> Orders:
    """Place the orders of all decisions, some episodes at a time."""
    parts = episode_parts(len(days), actions[0][0].numel())
    orders = [place_orders(prices, trading, days[part], *(values[part] for values in actions)) for part in parts]
    return combine_orders(orders, torch.cat)


def _leave_out_held(orders: Orders, steps: Tensor, assets: int) -> Tensor:
    """Return which placed orders become trades, bool `[E, decisions, K]`: those whose asset is not held."""
    bought = torch.zeros_like(orders.placed)
    exit_step = steps.unsqueeze(1) + orders.exit_offset
    # One column more than assets: it takes the orders that are not bought, so that no step has to select. It is flat:
    # with more dimensions a deterministic `scatter_` copies strides from the host, which a GPU waits for.
    free_from = torch.zeros(len(bought) * (assets + 1), dtype=torch.int64, device=bought.device)
    first_cells = torch.arange(0, len(free_from), assets + 1, device=bought.device).unsqueeze(1)
    for step in range(bought.shape[1]):
        cells = first_cells + orders.asset[:, step]
        buy = orders.placed[:, step] & (free_from.take(cells) <= step)
        bought[:, step] = buy
        free_from.scatter_(0, torch.where(buy, cells, first_cells + assets).flatten(), exit_step[:, step].flatten())
    return bought
