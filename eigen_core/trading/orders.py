"""Orders and their exits: which assets are bought, when they are sold, and the reward of a trade.

A day is a row of the prices; an asset is the number of a tradable column, from 0; K is `trading.purchases_per_bar`.
"""

from dataclasses import dataclass, fields
from functools import cache, reduce

import numpy as np
import torch
from torch import Tensor

from eigen_core.config import TradingConfig
from eigen_core.trading.prices import MAX_ASSETS, NOT_TRADABLE, Prices

PERCENT = 100.0
# Values computed at a time, which bounds memory; a batch that fits into the cache is 2.6 times as fast.
_CELLS_AT_A_TIME = 2**20
_ASSET = MAX_ASSETS - 1


@dataclass(frozen=True)
class Trades:
    """Fills and exits of orders, of any shape. Where `filled` is false, the other values have no meaning.

    Attributes:
        filled: bool, there is a price to fill the order.
        exit_offset: int64, days from the decision to the exit, 1 to `Fills.longest`.
        entry, exit: float64, prices of one share, slippage included.
        at_target: bool, sold at the target price; else by the sale that ends the holding time.
    """

    filled: Tensor
    exit_offset: Tensor
    entry: Tensor
    exit: Tensor
    at_target: Tensor


@dataclass(frozen=True)
class Orders(Trades):
    """Orders of decisions, `[..., K]`, and how they fill and close if their asset is not held already.

    The highest rank comes first. Where `placed` is false, only asset, coefficient and target have a meaning.

    Attributes:
        asset: int64; the placed orders of a decision are of different assets.
        coefficient: float64, from 0 to `trading.max_coefficient`; -1 where fewer than K assets are tradable.
        target: float64, the agent's sale target as a fraction of the entry price, not clipped.
        placed: bool, the coefficient reaches `trading.buy_threshold` and there is a price to fill the order.
        gain: float64, net gain of the trade as a fraction of the money paid.
        value: float64, reward of the trade; see `trade_value`.
    """

    asset: Tensor
    coefficient: Tensor
    target: Tensor
    placed: Tensor
    gain: Tensor
    value: Tensor


def concat_orders(parts: list[Orders]) -> Orders:
    return Orders(**{field.name: torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Orders)})


def batch_slices(count: int, cells: int) -> list[slice]:
    """Return slices that cut `count` items of `cells` values each into batches of at most 2^20 values or one item."""
    step = max(1, _CELLS_AT_A_TIME // cells)
    return [slice(start, start + step) for start in range(0, count, step)]


def sum_of_day(values: Tensor) -> Tensor:
    """Sum over the K orders of each decision, `[..., K]` to `[...]`, one by one: bits are the same in every batch."""
    return reduce(torch.add, values.unbind(-1))


def decides(prices: Prices, trading: TradingConfig, days: Tensor) -> Tensor:
    """Return whether agents may buy after the close of each of `days`, int64 (`trading.decide_every`): bool."""
    if (every := trading.seconds_between_decisions) is None:
        return torch.ones_like(days, dtype=torch.bool)
    return prices.time.index_select(0, days.flatten()).view(days.shape) % every == 0


def bars_between_decisions(time: Tensor, trading: TradingConfig) -> int:
    """Return the median number of bars from one decision to the next (`trading.decide_every`).

    `time`: that of all days of a panel, as `Prices.panel_time`.
    """
    if (every := trading.seconds_between_decisions) is None:
        return 1
    between = (time % every == 0).nonzero().flatten().diff()
    return int(between.median()) if len(between) else 1


def decisions_of_holding(time: Tensor, trading: TradingConfig) -> int:
    """Return the number of decisions in a holding time, rounded up; `time` as in `bars_between_decisions`."""
    return -(-trading.holding_bars // bars_between_decisions(time, trading))


def choose_assets(
    prices: Prices, trading: TradingConfig, days: Tensor, coefficients: Tensor, ranks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Choose the K tradable assets with the highest ranks for each decision.

    Ranks are compared as float32. Among equal ranks the asset with the highest `Prices.precedence` comes first, so that
    none is favoured. With classic bookkeeping the first asset does, and assets that are not tradable can be chosen.

    Args:
        days: int64 `[...]`, day of each decision, which is made after the close.
        coefficients: any float dtype `[..., assets]`, clipped to [0, `trading.max_coefficient`].
        ranks: any float dtype `[..., assets]`, clipped to [0, 1]; None, or classic bookkeeping: the coefficients.

    Returns:
        Assets, int64 `[..., K]`, the highest rank first, and their coefficients, float64 `[..., K]`: -1 where fewer
        than K assets are tradable, or on a day without decisions (`decides`), NaN where the rank is NaN. NaN ranks
        highest, so that a diverged agent is noticed.
    """
    asset, coefficient = _choose_assets(prices, trading, days, coefficients, ranks)
    if trading.decide_every is not None:
        coefficient = coefficient.masked_fill_(~decides(prices, trading, days).view(*asset.shape[:-1], 1), -1.0)
    return asset, coefficient


def _choose_assets(
    prices: Prices, trading: TradingConfig, days: Tensor, coefficients: Tensor, ranks: Tensor | None
) -> tuple[Tensor, Tensor]:
    most = trading.max_coefficient
    if trading.bookkeeping == "classic":
        best, asset = coefficients.to(torch.float64).clamp(min=0.0, max=most).max(dim=-1, keepdim=True)
        return asset, best
    wanted, limit = (coefficients, most) if ranks is None else (ranks, 1.0)
    keys = _sort_keys(prices, days, wanted, limit)
    highest = [keys.amax(dim=-1, keepdim=True)]
    while len(highest) < trading.purchases_per_bar:
        keys.scatter_(-1, highest[-1] & _ASSET, -NOT_TRADABLE)
        highest.append(keys.amax(dim=-1, keepdim=True))
    key = torch.cat(highest, dim=-1) if len(highest) > 1 else highest[0]
    asset = key & _ASSET
    coefficient = coefficients.gather(-1, asset).to(torch.float64).clamp_(min=0.0, max=most)
    if ranks is not None:
        coefficient = torch.where(ranks.gather(-1, asset).isnan(), torch.nan, coefficient)
    return asset, coefficient.masked_fill_(key < 0, -1.0)


def _sort_keys(prices: Prices, days: Tensor, wanted: Tensor, limit: float | None) -> Tensor:
    """Return keys that sort assets by rank and then precedence, int64 `[..., assets]`; below 0: not tradable.

    The highest key is that of the asset to choose first; its last 16 bits are the asset's number. The bits of a float32
    that is not negative, read as an integer, sort like the numbers, with NaN at the end; precedence takes lower bits.
    """
    # The smallest float32 that is not below the limit, so that the same values are equal as in float64.
    bounded = wanted.to(torch.float32).clamp(min=0.0, max=None if limit is None else _float32_from(limit))
    # No sign may be left, neither of a zero nor of NaN.
    bits = bounded.abs_().view(torch.int32)
    return prices.precedence.index_select(0, days.flatten()).view(bits.shape).add_(bits, alpha=MAX_ASSETS**2)


@cache
def _float32_from(value: float) -> float:
    nearest = np.float32(value)
    return float(nearest if float(nearest) >= value else np.nextafter(nearest, np.float32(np.inf)))


def orders_of(
    prices: Prices, trading: TradingConfig, days: Tensor, asset: Tensor, coefficient: Tensor, target: Tensor
) -> Orders:
    """Return the orders `[..., K]` of decisions on `days`, int64 `[...]`, as if no asset were held already."""
    days = days.unsqueeze(-1)
    trades = resolve_orders(prices, trading, days, asset, target)
    gain = prices.costs(trading).of_assets(asset).net_gain(trades.entry, trades.exit)
    wanted = (coefficient >= trading.buy_threshold) & prices.tradable.take(days * prices.assets + asset)
    return Orders(
        **vars(trades),
        asset=asset,
        coefficient=coefficient,
        target=target,
        placed=wanted & trades.filled,
        gain=gain,
        value=trade_value(trading, coefficient, gain),
    )


def resolve_orders(prices: Prices, trading: TradingConfig, days: Tensor, assets: Tensor, targets: Tensor) -> Trades:
    """Return when and at which prices orders are filled and closed; orders do not move prices.

    Args:
        days: int64, day t of the decision; day t + `trading.holding_bars` must have a row in the prices.
        assets: int64 `[...]`, asset to buy, with a close on day t; `days` has the same shape or is broadcast to it.
        targets: float64 `[...]`, sale targets (fractions), clipped to [`trading.min_target`, `trading.max_target`].

    The rules:
        Fill: if `trading.fill` is `same_close` on day t, else on t + 1, at `Fills.price`; without a price on that day
        the order lapses. The entry price is the fill price times (1 + slippage).
        Exit: at the target price, entry price times (1 + target), on the first day whose high reaches it, from the day
        of the fill on if that was at the open, else from the day after; days without a high are skipped. If no high
        reaches the target within `trading.holding_bars` sessions of the asset, at the fill of the sale that is due then
        (`Fills`), times (1 - slippage). With classic bookkeeping the first day without any price ends the holding time
        early, and a position without a close on its last day closes at the entry price.
    """
    fills, columns = prices.fills(trading), prices.assets
    cell = days * columns + assets
    entry = fills.entry.take(cell)
    target = target_price(trading, entry, targets)
    # Days are the first dimension, along which a maximum is fast.
    within = fills.before_wait
    offsets, cells_later, days_left = _days_held(within, columns, cell.dim(), days.device)
    last_cell = prices.high.numel() - 1
    reached = prices.high.take((cell + cells_later).clamp_(max=last_cell)) >= target
    if trading.fill == "next_open":
        reached[0] &= ~prices.open.take(cell + columns).isnan()
    elif trading.fill == "next_close":
        reached[0] = False
    # The days left from the first day that reaches the target; 0 if none does.
    left = (reached * days_left).amax(dim=0)
    first_reached = within + 1 - left.to(torch.int64)
    costs = prices.costs(trading).of_assets(assets)
    if trading.bookkeeping == "exact":
        latest = fills.exit_offset.take(cell)
        if fills.longest > within:
            # A position that only waits has no price before the day of its sale.
            reached_last = prices.high.take((cell + latest * columns).clamp_(max=last_cell)) >= target
            reached_last &= latest > within
            first_reached = torch.where(left > 0, first_reached, torch.where(reached_last, latest, fills.longest + 1))
        at_target = first_reached <= fills.target_offset.take(cell)
        last_price = costs.sale_price(fills.exit.take(cell))
    else:
        latest = torch.where(prices.missing.take(cell + cells_later), offsets, trading.holding_bars).amin(dim=0)
        at_target = first_reached <= latest
        close = prices.close.take(cell + latest * columns)
        last_price = torch.where(close.isnan(), entry, costs.sale_price(close))
    return Trades(
        filled=~entry.isnan(),
        exit_offset=torch.where(at_target, first_reached, latest),
        entry=entry,
        exit=torch.where(at_target, target, last_price),
        at_target=at_target,
    )


@cache
def _days_held(holding: int, columns: int, dimensions: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return for the `holding` days after a decision: their numbers, from 1; offsets of their prices, flat `[days,
    columns]`; days left, to 1, in the fastest dtype. Each is `[holding, 1, ...]` with `dimensions` ones."""
    offsets = torch.arange(1, holding + 1, device=device).view(-1, *[1] * dimensions)
    small = torch.uint8 if holding < torch.iinfo(torch.uint8).max else torch.int32
    return offsets, offsets * columns, (holding + 1 - offsets).to(small)


def target_price(trading: TradingConfig, entry: Tensor, targets: Tensor) -> Tensor:
    """Return the price at which a sale target is reached; `targets` as in `resolve_orders`."""
    return entry * (1.0 + targets.clamp(trading.min_target, trading.max_target))


def trade_value(trading: TradingConfig, coefficient: Tensor, gain: Tensor) -> Tensor:
    """Return the reward of a trade: coefficient x net `gain` (a fraction) x 100, a loss x `trading.loss_multiplier`."""
    plain = coefficient * gain * PERCENT
    return torch.where(gain < 0.0, plain * trading.loss_multiplier, plain)
