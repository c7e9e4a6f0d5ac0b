"""The rules of a trade: what is ordered, at which price it fills, when and at what price it closes, its worth."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import reduce

import torch
from torch import Tensor

from eigen_core.config import TradingConfig
from eigen_core.trading.prices import Prices

BASIS_POINTS = 10_000.0
PERCENT = 100.0


@dataclass(frozen=True)
class Trades:
    """How orders fill and close once they are placed. Where `filled` is false, the rest has no meaning.

    Attributes:
        filled: bool `[...]`, there was a price to fill the order.
        exit_offset: int64 `[...]`, days from the decision to the exit, 1 to `trading.holding_days`.
        entry: float64 `[...]`, price paid for one share, slippage included.
        exit: float64 `[...]`, price got for one share, slippage included.
        at_target: bool `[...]`, sold at the target, not at the end of the holding time.
    """

    filled: Tensor
    exit_offset: Tensor
    entry: Tensor
    exit: Tensor
    at_target: Tensor


@dataclass(frozen=True)
class Orders:
    """The orders that decisions ask for, and how they would fill and close.

    The last dimension has the K = `trading.purchases_per_day` orders of a decision, that of the highest rank first.
    Where `placed` is false, only the first three have a meaning.

    Attributes:
        asset: int64 `[..., K]`, the asset; those of a decision's placed orders are different.
        coefficient: float64 `[..., K]`, its coefficient within the bounds; -1 if no more assets are tradable.
        target: float64 `[..., K]`, its sale target as the agent gave it.
        placed: bool `[..., K]`, the coefficient reaches `trading.buy_threshold` and there is a price to fill the order.
        exit_offset, entry, exit, at_target: as in `Trades`.
        gain: float64 `[..., K]`, net gain of the trade as a fraction.
        value: float64 `[..., K]`, reward of the trade.
    """

    asset: Tensor
    coefficient: Tensor
    target: Tensor
    placed: Tensor
    exit_offset: Tensor
    entry: Tensor
    exit: Tensor
    at_target: Tensor
    gain: Tensor
    value: Tensor


def combine_orders(parts: list[Orders], combine: Callable[[list[Tensor]], Tensor]) -> Orders:
    """Join orders by applying `combine` (a stack, a concatenation) to each of their tensors."""
    return Orders(**{field.name: combine([getattr(part, field.name) for part in parts]) for field in fields(Orders)})


def sum_of_day(values: Tensor) -> Tensor:
    """Return what the orders of each decision come to together: `[..., K]` to `[...]`.

    They are added one after the other, so that the bits do not depend on how many decisions there are.
    """
    return reduce(torch.add, values.unbind(-1))


def fill_offset(trading: TradingConfig) -> int:
    """Return the days from a decision to the fill of its order."""
    return 0 if trading.fill == "same_close" else 1


def choose_assets(
    prices: Prices, trading: TradingConfig, days: Tensor, coefficients: Tensor, ranks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Choose the assets that each decision is about: the tradable ones with the highest ranks.

    Of equals the one with the highest `Prices.precedence` comes first, so that no column is favoured. With classic
    bookkeeping the first column of equals does, and assets that are not tradable take part.

    Args:
        prices: prices of all days.
        trading: the rules.
        days: int64 `[...]`, day of the decision, made after its close.
        coefficients: any float dtype `[..., assets]`, clipped to 0 and `trading.max_coefficient`.
        ranks: any float dtype `[..., assets]`, clipped to 0 and 1; None: the coefficients are. Not with classic
            bookkeeping.

    Returns:
        K = `trading.purchases_per_day` assets, int64 `[..., K]`, the highest rank first, and their coefficients,
        float64 `[..., K]`: -1 if no more assets take part, not a number if the rank of any asset that does is not a
        number, so that it cannot go unseen.
    """
    bounded = coefficients.to(torch.float64).clamp(min=0.0, max=trading.max_coefficient)
    if trading.bookkeeping == "classic":
        best, asset = bounded.max(dim=-1, keepdim=True)
        return asset, best
    ranked = bounded if ranks is None else ranks.to(torch.float64).clamp(min=0.0, max=1.0)
    ranked = torch.where(prices.tradable[days], ranked, -1.0)
    lowest = torch.iinfo(torch.int64).min
    assets: list[Tensor] = []
    highest: list[Tensor] = []
    for _ in range(trading.purchases_per_day):
        if assets:
            ranked.scatter_(-1, assets[-1], -1.0)
        highest.append(ranked.amax(dim=-1, keepdim=True))
        first = torch.where(ranked == highest[-1], prices.precedence[days], lowest).argmax(dim=-1, keepdim=True)
        assets.append(first)
    asset, rank = torch.cat(assets, dim=-1), torch.cat(highest, dim=-1)
    return asset, rank if ranks is None else torch.where(rank >= 0.0, bounded.gather(-1, asset), rank)


def place_orders(
    prices: Prices,
    trading: TradingConfig,
    days: Tensor,
    coefficients: Tensor,
    targets: Tensor,
    ranks: Tensor | None = None,
) -> Orders:
    """Turn decisions into orders and resolve them; whether the asset is already held is left to the caller.

    Args:
        prices: prices of all days.
        trading: the rules.
        days: int64 `[...]`, days of the decisions.
        coefficients: any float dtype `[..., assets]`.
        targets: any float dtype `[..., assets]`, sale targets as fractions of the entry price.
        ranks: as in `choose_assets`.
    """
    asset, coefficient = choose_assets(prices, trading, days, coefficients, ranks)
    target = targets.gather(-1, asset).to(torch.float64)
    days = days.unsqueeze(-1)
    trades = resolve_orders(prices, trading, days, asset, target)
    gain = net_gain(trading, trades.entry, trades.exit)
    tradable = prices.tradable.take(days * prices.assets + asset)
    return Orders(
        asset=asset,
        coefficient=coefficient,
        target=target,
        placed=(coefficient >= trading.buy_threshold) & tradable & trades.filled,
        exit_offset=trades.exit_offset,
        entry=trades.entry,
        exit=trades.exit,
        at_target=trades.at_target,
        gain=gain,
        value=trade_value(trading, coefficient, gain),
    )


def resolve_orders(prices: Prices, trading: TradingConfig, days: Tensor, assets: Tensor, targets: Tensor) -> Trades:
    """Resolve orders from their opening to their end; the market does not react, so all of it is known from the prices.

    Args:
        prices: prices of all days.
        trading: the rules.
        days: int64, day of the decision t; `t + trading.holding_days` must lie inside the prices.
        assets: int64 `[...]`, asset ordered, with a close on day t; `days` has the same shape or is broadcast to it.
        targets: float64 `[...]`, sale target as a fraction of the entry price, clipped to
            `trading.min_target` and `trading.max_target`.

    The rules:
        Fill: `same_close` at the close of t. `next_open` at the open of t + 1; without an open at the close of t + 1;
        without either the order lapses. `next_close` at the close of t + 1, else it lapses. The entry price is the
        fill price times (1 + slippage).
        Exit: at the target price, entry price times (1 + target), on the first day whose high reaches it, counted
        from the day of the fill if that was at the open, else from the day after it; days without a high are
        skipped. If the target is not reached by day t + `holding_days`, at that day's last known close times
        (1 - slippage): a series in a gap or at its end closes at its last known price. With classic bookkeeping
        the first day without any price ends the holding time, and a last day without a close closes at the entry price.
    """
    holding, columns = trading.holding_days, prices.assets
    slippage = trading.slippage_bps / BASIS_POINTS
    cell = days * columns + assets
    price = prices.close.take(cell + fill_offset(trading) * columns)
    opened = None
    if trading.fill == "next_open":
        first = prices.open.take(cell + columns)
        opened = ~torch.isnan(first)
        price = torch.where(opened, first, price)
    entry = price * (1.0 + slippage)
    target = target_price(trading, entry, targets)

    offsets = torch.arange(1, holding + 1, device=days.device)
    reached = prices.high.take(cell.unsqueeze(-1) + offsets * columns) >= target.unsqueeze(-1)
    if opened is not None:
        reached[..., 0] &= opened
    elif trading.fill == "next_close":
        reached[..., 0] = False
    first_reached = torch.where(reached, offsets, holding + 1).amin(dim=-1)
    if trading.bookkeeping == "classic":
        missing = prices.missing.take(cell.unsqueeze(-1) + offsets * columns)
        latest = torch.where(missing, offsets, holding).amin(dim=-1)
        last_close = prices.close.take(cell + latest * columns)
        at_the_latest = torch.where(torch.isnan(last_close), entry, last_close * (1.0 - slippage))
    else:
        latest = torch.full_like(first_reached, holding)
        at_the_latest = prices.last_close.take(cell + holding * columns) * (1.0 - slippage)
    at_target = first_reached <= latest
    return Trades(
        filled=price > 0.0,
        exit_offset=torch.minimum(first_reached, latest),
        entry=entry,
        exit=torch.where(at_target, target, at_the_latest),
        at_target=at_target,
    )


def target_price(trading: TradingConfig, entry: Tensor, targets: Tensor) -> Tensor:
    """Return the price at which a position is sold before its last day; `targets` as in `resolve_orders`."""
    return entry * (1.0 + targets.clamp(trading.min_target, trading.max_target))


def net_gain(trading: TradingConfig, entry: Tensor, exit_price: Tensor) -> Tensor:
    """Return the gain of a trade after the costs of both sides, as a fraction of what was paid; float64, any shape."""
    cost = trading.cost_bps / BASIS_POINTS
    return (exit_price * (1.0 - cost)) / (entry * (1.0 + cost)) - 1.0


def gain_at_close(trading: TradingConfig, entry: Tensor, last_close: Tensor) -> Tensor:
    """Return the net gain of a position sold at the market at `last_close`, slippage and costs paid."""
    return net_gain(trading, entry, last_close * (1.0 - trading.slippage_bps / BASIS_POINTS))


def trade_value(trading: TradingConfig, coefficient: Tensor, gain: Tensor) -> Tensor:
    """Return the reward of a trade: coefficient times gain in percent, a loss times `trading.loss_multiplier`."""
    plain = coefficient * gain * PERCENT
    return torch.where(gain < 0.0, plain * trading.loss_multiplier, plain)


def is_win(trading: TradingConfig, gain: Tensor) -> Tensor:
    """Return which trades count as won, bool: those with a net gain, with classic bookkeeping those without a loss."""
    return gain >= 0.0 if trading.bookkeeping == "classic" else gain > 0.0


def trade_fees(trading: TradingConfig, coefficient: Tensor, entry: Tensor, exit_price: Tensor) -> Tensor:
    """Return the transaction costs of a trade, both sides, without slippage.

    In percent of the entry's value times the coefficient: the unit of the reward before `loss_multiplier`.
    """
    return coefficient * PERCENT * (trading.cost_bps / BASIS_POINTS) * (1.0 + exit_price / entry)
