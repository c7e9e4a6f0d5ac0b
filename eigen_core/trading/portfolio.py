"""Portfolios of target weights: from an agent's scores to weights, the growth of an account, and accounts in money.

An agent gives each asset a score, a real number; `target_weights` turns scores into weights, `[..., assets]`, which are
shares of the equity; 1 less their sum is cash. Orders do not move prices, so the growth of an account is differentiable
with respect to the weights (Moody and Saffell 2001, "Learning to trade via direct reinforcement", section II).
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import AccountConfig, TradingConfig
from eigen_core.trading.equity import Accounts, Values, daily_rates, share_of
from eigen_core.trading.order_fills import OrderCosts, fill_offset
from eigen_core.trading.order_limits import OrderLimits
from eigen_core.trading.orders import PERCENT
from eigen_core.trading.prices import Prices, start_of
from eigen_core.trading.trades import ROUNDING

_MASKED = -1e9
_ROUNDING_STEPS = 64
_LEAST_GROWTH = 1e-3
"""Smallest growth factor of an account in one day; its logarithm so stays finite."""


def move_scores(scores: Tensor, wanted: Tensor, speeds: Tensor) -> Tensor:
    """Move scores towards `wanted` by fractions `speeds`, 0 (not at all) to 1 (all the way); all `[..., assets]`."""
    return scores + speeds * (wanted - scores)


def smooth_scores(wanted: Tensor, speeds: Tensor) -> Tensor:
    """Return the scores of all days: those wanted on the first day, then moved towards `wanted` daily (`move_scores`).

    The recurrence is linear, so days are joined in pairs, then in fours, and so on (Hillis and Steele 1986, "Data
    parallel algorithms", "Sum of an array": all partial sums). Arguments and result are `[..., days, assets]`.
    """
    kept = torch.cat([torch.zeros_like(speeds[..., :1, :]), 1.0 - speeds[..., 1:, :]], dim=-2)
    scores = wanted * (1.0 - kept)
    days, joined = wanted.shape[-2], 1
    while joined < days:
        reached = scores[..., joined:, :] + kept[..., joined:, :] * scores[..., :-joined, :]
        scores = torch.cat([scores[..., :joined, :], reached], dim=-2)
        kept = torch.cat([kept[..., :joined, :], kept[..., joined:, :] * kept[..., :-joined, :]], dim=-2)
        joined *= 2
    return scores


def target_weights(scores: Tensor, tradable: Tensor, short: float = 0.0) -> Tensor:
    """Return the weights of scores, `[..., assets]`: (1 + short) softmax(scores) - short softmax(-scores).

    The softmax is over the tradable assets and cash, whose score is 0; assets that are not tradable get weight 0.

    Args:
        scores, tradable: `[..., assets]`, tradable bool.
        short: value of assets that may be sold short, as a share of the equity (`PortfolioConfig.short`).
    """
    long = _shares(scores, tradable)
    return (1.0 + short) * long - short * _shares(-scores, tradable) if short else long


def equal_weights_like(weights: Tensor, tradable: Tensor) -> Tensor:
    """Return equal weights of the tradable assets whose sum is that of `weights`; all `[..., assets]`."""
    return weights.sum(-1, keepdim=True) * tradable / tradable.sum(-1, keepdim=True).clamp_min(1)


def _shares(scores: Tensor, tradable: Tensor) -> Tensor:
    """Return the softmax over assets and cash, by hand: the rounding of torch's backward pass depends on threads."""
    masked = scores.masked_fill(~tradable, _MASKED)
    highest = masked.detach().amax(-1, keepdim=True).clamp_min(0.0)
    powers = torch.exp(masked - highest)
    return powers / (powers.sum(-1, keepdim=True) + torch.exp(-highest))


def worth_at_fills(prices: Prices, trading: TradingConfig) -> Tensor:
    """Return the worth of a share at the fill of each day's decision, float64 `[days - fill_offset, assets]`.

    This is the price of the fill; without a fill, the last known close; once the asset counts as ended (`Fills`),
    `Fills.end_price`; before its first price, NaN.
    """
    offset, fills = fill_offset(trading), prices.fills(trading)
    price = fills.price[offset:]
    worth = torch.where(price > 0.0, price, prices.last_close[offset:])
    return torch.where(fills.ended[: len(price)], fills.end_price[: len(price)], worth)


def rebalance(held: Tensor, wanted: Tensor, stays: Tensor | None, costs: OrderCosts) -> tuple[Tensor, Tensor, Tensor]:
    """Bring positions to target weights at one fill; rewards, accounts and the orders of `eigen act` use this rule.

    Weights are shares of the equity at the prices of the fill. Sales come first, and purchases shrink in proportion
    where they would take more than the cash; weights with a sum above 1, as `PortfolioConfig.short` allows, borrow the
    excess over 1. Cash and the positions whose orders are filled pay the costs in proportion to their value, so that a
    position whose order is not filled keeps its number of shares.

    Args:
        held: `[..., assets]`, weights before the fill.
        wanted: `[..., assets]`, target weights; differentiable.
        stays: bool `[..., assets]`, the asset's order is not filled; None: all orders are filled.

    Returns:
        Weights after the fill, as shares of the equity after costs; purchases (below 0: sales) and their costs, as
        shares of the equity before costs; all `[..., assets]`.
    """
    weights = wanted if stays is None else _affordable(held, wanted, stays)
    change = weights - held
    paid = torch.where(change > 0.0, change * costs.buying, change * -costs.selling)
    return weights if stays is None else _without_costs(weights, stays, paid), change, paid


def _affordable(held: Tensor, wanted: Tensor, stays: Tensor) -> Tensor:
    borrowed = (wanted.sum(-1, keepdim=True) - 1.0).clamp_min(0.0)
    wanted = torch.where(stays, held, wanted)
    bought = (wanted - held).clamp_min(0.0)
    needed = bought.sum(-1, keepdim=True)
    cash = (1.0 - wanted.sum(-1, keepdim=True) + needed + borrowed).clamp_min(0.0)
    too_much = needed > cash + _ROUNDING_STEPS * torch.finfo(needed.dtype).eps
    return torch.where(too_much & (bought > 0.0), held + bought * (cash / needed.clamp_min(1e-12)), wanted)


def _without_costs(weights: Tensor, stays: Tensor, paid: Tensor) -> Tensor:
    """Take costs from cash and the filled positions; return weights as shares of the equity after costs."""
    costs = paid.sum(-1, keepdim=True)
    trades = 1.0 - weights.masked_fill(~stays, 0.0).sum(-1, keepdim=True)
    # With short sales, cash and filled positions can be worth less than the costs: then cash alone pays.
    enough = trades > 2.0 * costs
    share = torch.where(enough, costs / torch.where(enough, trades, 1.0), 0.0)
    left = (1.0 - costs).clamp_min(_LEAST_GROWTH)
    return torch.where(stays, weights / left, weights * ((1.0 - share) / left))


@dataclass(frozen=True)
class Rebalancing:
    """Returns of assets and fills of orders by the day of the decision, `[days, assets]`.

    Attributes:
        returns: float, of each asset from the fill of a day's decision to the fill of the next day's, as a fraction.
        stays: bool, the day's order is not filled: the position stays as it is. False before the asset's first close.
        ended: bool, the asset counts as ended on the day of the decision (`Fills`): it is sold at `Fills.end_price`.
        halted: bool on the host, `[days]`: an asset stays or has ended. `on` with a tensor keeps that of all days.
        costs: costs of orders.
    """

    returns: Tensor
    stays: Tensor
    ended: Tensor
    halted: NDArray[np.bool_]
    costs: OrderCosts

    @classmethod
    def of(cls, prices: Prices, trading: TradingConfig) -> Self:
        """Return the table, returns as float64, of all days but those whose next day's fill is after the last price."""
        fills, worth = prices.fills(trading), worth_at_fills(prices, trading)
        returns = (worth[1:] / worth[:-1] - 1.0).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        # Before its first close an asset is not held, and has no weight.
        unfilled = fills.entry.isnan() & ~prices.last_close.isnan() & ~fills.ended
        stays, ended = (values[: len(returns)] for values in (unfilled, fills.ended))
        return cls(returns, stays, ended, (stays | ended).any(-1).cpu().numpy(), prices.costs(trading))

    def on(self, days: Tensor | slice, dtype: torch.dtype = torch.float64) -> "Rebalancing":
        """Return the table of some days, as indices of any shape `[..., days]` or a slice; `dtype`: of the returns."""
        returns = self.returns[days].to(dtype)
        # Days on the device are not read back: the whole table's days include them.
        halted = self.halted[days] if isinstance(days, slice) else self.halted
        table = replace(self, returns=returns, stays=self.stays[days], ended=self.ended[days], halted=halted)
        return replace(table, costs=self.costs.to(dtype))

    def growth(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Rebalance accounts, which begin with cash alone, to target weights every day.

        Args:
            targets: weights `[..., days, assets]`, decided on the days of this table; differentiable.

        Returns:
            100 times the logarithm of the growth from each day's fill to the next, costs included, and the turnover
            (purchases plus sales) at the fill, as a share of the equity; both `[..., days]`.
        """
        if self.halted.any():
            weights, change, paid = self._day_by_day(targets)
            growth = self._growth(weights)
        else:
            growth = self._growth(targets)
            drifted = (targets * (1.0 + self.returns) / growth[..., None])[..., :-1, :]
            held = torch.cat([torch.zeros_like(targets[..., :1, :]), drifted], dim=-2)
            _, change, paid = rebalance(held, targets, None, self.costs)
        logarithm = torch.log((1.0 - paid.sum(-1)).clamp_min(_LEAST_GROWTH)) + torch.log(growth)
        return logarithm * PERCENT, change.abs().sum(-1)

    def _day_by_day(self, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        filled, held = [], torch.zeros_like(targets[..., 0, :])
        for day, of_day in enumerate(targets.unbind(-2)):
            table = replace(self, **{name: getattr(self, name)[..., day, :] for name in ("returns", "stays", "ended")})
            filled.append(rebalance(held, of_day.masked_fill(table.ended, 0.0), table.stays, self.costs))
            weights = filled[-1][0]
            held = weights * (1.0 + table.returns) / table._growth(weights)[..., None]
        weights, change, paid = (torch.stack(parts, dim=-2) for parts in zip(*filled, strict=True))
        return weights, change, paid

    def _growth(self, weights: Tensor) -> Tensor:
        return (1.0 + (weights * self.returns).sum(-1)).clamp_min(_LEAST_GROWTH)


@dataclass(frozen=True)
class WeightsAccounts(Accounts):
    """The accounts of traders (agents or baselines) that rebalance to target weights every day.

    Attributes:
        fill_offset: days from a decision to its fill.
        start: float64 `[assets]`, number of shares held before the first order.
        prices: float64 `[days - fill_offset, assets]`, of a share at the fill of a day's decision, without slippage.
        worth: float64 `[days, assets]`, of a share at the close: last known close, or `Fills.end_price` once ended.
        shares: float64 `[traders, days, assets]`, number of shares held at the close; below 0: sold short.
        paid: float64 `[traders, days, assets]`, money paid, costs included, for the day's orders; below 0: received.
        order_costs: float64 `[traders, days, assets]`, transaction costs and slippage of each order (money).
    """

    fill_offset: int
    start: Values
    prices: Values
    worth: Values
    shares: Values
    paid: Values
    order_costs: Values

    def held_weights(self) -> Values:
        """Return each asset's share of the total equity of all accounts at each close: float64 `[days, assets]`."""
        worth = values_of(self.shares, self.worth).sum(axis=0)
        return share_of(worth, self.equity.sum(axis=0)[:, None])

    def table(self, trader: int, symbols: tuple[str, ...]) -> pd.DataFrame:
        """Return the orders of one trader that were filled, one a row, sorted by day and asset.

        Columns: symbol, decision, fill (dates), shares (below 0: sold), price (of one share, without slippage), paid,
        received, costs (money), gain (money: worth of the shares on the last day less the money paid for them). The
        gains and the interest add up to the account's gain. `symbols` are the names of the assets. `start` counts as
        bought at the first close without costs, in the first rows.
        """
        changes = np.diff(np.vstack([self.start, self.shares[trader]]), axis=0, prepend=0.0)
        cells = row, asset = np.nonzero(changes)
        shares, money = changes[cells], np.vstack([values_of(self.start, self.worth[0]), self.paid[trader]])[cells]
        price = np.vstack([self.worth[: 1 + self.fill_offset], self.prices])[cells]
        costs = np.vstack([np.zeros_like(self.start), self.order_costs[trader]])[cells]
        day = np.maximum(row - 1, 0)
        decided = np.maximum(day - self.fill_offset, 0)
        return pd.DataFrame(
            {
                "symbol": np.array(symbols, dtype=object)[asset],
                "decision": self.dates[decided].astype("datetime64[s]"),
                "fill": self.dates[day].astype("datetime64[s]"),
                "shares": shares,
                "price": price,
                "paid": np.maximum(money, 0.0),
                "received": np.maximum(-money, 0.0),
                "costs": costs,
                "gain": shares * self.worth[-1, asset] - money,
            }
        )


def weights_accounts(
    weights: Values, known: Prices, dates: NDArray[np.datetime64], trading: TradingConfig, settings: AccountConfig
) -> WeightsAccounts:
    """Simulate accounts that rebalance to target weights, all accounts at once.

    Args:
        weights: float64 `[traders, days, assets]`, decided on after the close of each day; below 0: sold short; 1 less
            their sum is cash. NaN: the position stays as it is.
        known: prices of the days, as `prices_of_span` returns them.
        dates: datetime64[D] `[days]`.
        trading, settings: trading rules, and settings of the account, whose `sizing` does not apply.

    Orders are filled as `rebalance` says, so that with fractional shares and without interest an account grows by the
    rewards of training. Once an asset counts as ended (`Fills`), the next fill sells it at `Fills.end_price`. An
    account whose equity is 0 or below at a close loses everything: equity and positions are 0 from then on. Accounts
    begin with the shares of `start_of`.
    """
    offset, rates, fills = fill_offset(trading), daily_rates(settings.interest, dates), known.fills(trading)
    traders, days, assets = weights.shape
    decisions = days - offset
    prices, ended, unfilled = (
        values[:decisions].cpu().numpy()
        for values in (worth_at_fills(known, trading), fills.ended, fills.entry.isnan())
    )
    at_close = torch.where(fills.ended, fills.end_price, known.last_close)[:days].cpu().numpy()
    order_costs = known.costs(trading).to(torch.device("cpu"))
    slippage, limits = order_costs.numpy().slippage, OrderLimits.of(known, trading, settings)
    start, capital = start_of(known, settings)
    cash, shares, interest = np.full(traders, settings.capital), np.tile(start, (traders, 1)), np.zeros(traders)
    daily = {name: np.zeros((traders, days)) for name in ("equity", "exposure", "traded", "costs")}
    held = {name: np.zeros((traders, days, assets)) for name in ("shares", "paid", "order_costs")}
    for day in range(days):
        earned = cash * rates[day]
        interest += earned
        cash = cash + earned
        decided = day - offset
        if decided >= 0:
            wanted = np.where(ended[decided], 0.0, weights[:, decided])
            stays = np.where(ended[decided], False, unfilled[decided] | np.isnan(wanted))
            rules = order_costs, settings, limits and limits.at(decided)
            changes, costs = changes_to_weights(wanted, cash, shares, prices[decided], stays, *rules)
            value = values_of(changes, prices[decided])
            paid = value + costs
            cash, shares = cash - paid.sum(axis=1), shares + changes
            held["paid"][:, day], held["order_costs"][:, day] = paid, costs
            daily["traded"][:, day] = (np.abs(value) + value * slippage).sum(axis=1)
            daily["costs"][:, day] = costs.sum(axis=1)
        worth = values_of(shares, at_close[day]).sum(axis=1)
        equity = cash + worth
        lost = equity <= 0.0
        if lost.any():
            equity, worth, cash = (np.where(lost, 0.0, values) for values in (equity, worth, cash))
            shares = np.where(lost[:, None], 0.0, shares)
        daily["equity"][:, day] = equity
        daily["exposure"][:, day] = share_of(worth, equity)
        held["shares"][:, day] = shares
    return WeightsAccounts(
        dates=dates,
        capital=capital,
        interest=interest,
        fill_offset=offset,
        start=start,
        prices=prices,
        worth=at_close,
        **daily,
        **held,
    )


def _limited(
    target: Values, shares: Values, price: Values, cash: Values, least: Values, limits: OrderLimits
) -> tuple[Values, Values]:
    """Return changes towards `target` shares, and their costs, as an exchange takes orders worth more than `least`."""
    buys, wanted = target > shares, np.abs(target - shares)
    wanted = np.where(wanted * price > least, wanted, 0.0)
    # A whole position can be sold, however small.
    closes = (target == 0.0) & (wanted <= limits.most)

    def costs(size: Values) -> Values:
        bought = limits.paid(size, price * (1.0 + limits.slippage)) - size * price
        return np.where(buys, bought, size * price - limits.received(size, price * (1.0 - limits.slippage)))

    size = np.where(closes, wanted, limits.sized(wanted, price))
    money, spent = size * price, costs(size)
    needed = np.where(buys, money + spent, 0.0).sum(axis=1)
    available = cash + np.where(buys, 0.0, money - spent).sum(axis=1)
    short_of_cash = ((needed > 0.0) & (needed > available * (1.0 + ROUNDING)))[:, None]
    fees = np.where(buys & (size > 0.0), limits.minimum_fee, 0.0).sum(axis=1)
    smaller = np.maximum(available - fees, 0.0) / np.where(needed > 0.0, needed, 1.0)
    size = np.where(short_of_cash & buys, limits.sized(size * smaller[:, None], price), size)
    return np.where(buys, size, -size), costs(size)


def _product(values: Values, rates: float | Values) -> Values:
    """Return the sums over assets of values times rates, float64 `[traders]`."""
    return values.sum(axis=1) * rates if isinstance(rates, float) else values @ rates


def values_of(shares: Values, price: Values) -> Values:
    """Return shares x price; 0 where there are no shares, even if the price is NaN."""
    return np.where(shares != 0.0, shares * price, 0.0)


def changes_to_weights(
    weights: Values,
    cash: Values,
    shares: Values,
    price: Values,
    stays: NDArray[np.bool_],
    order: OrderCosts,
    settings: AccountConfig,
    limits: OrderLimits | None,
) -> tuple[Values, Values]:
    """Return how many shares to buy (below 0: to sell) to bring accounts to target weights, and the costs (money).

    Both results are float64 `[traders, assets]`.

    Args:
        weights, shares: float64 `[traders, assets]`, target weights, and numbers of shares held.
        cash: float64 `[traders]` (money).
        price: float64 `[assets]` or `[traders, assets]`, of one share at the fill, without slippage.
        stays: bool `[traders, assets]`, the position stays as it is; if the equity is 0 or below, all positions stay.
        order: costs of orders, on the host.
        limits: rules for orders, `[assets]` or `[traders, assets]`; an order of a rounding error is not placed.
    """
    values = values_of(shares, price)
    equity = cash[:, None] + values.sum(axis=1, keepdims=True)
    stays = stays | (equity <= 0.0)
    equity = np.where(equity > 0.0, equity, 1.0)
    held, wanted, unfilled = map(torch.tensor, (values / equity, np.nan_to_num(weights), stays))
    after, _, paid = (part.numpy() for part in rebalance(held, wanted, unfilled, order))
    costs = paid * equity
    left = equity - costs.sum(axis=1, keepdims=True)
    price = np.where(stays | ~(price > 0.0), 1.0, price)
    target = np.where(stays, shares, after * left / price)
    # Whole shares may need more sales than planned, which cost more.
    borrowed = np.maximum((left * (after.sum(axis=1, keepdims=True) - 1.0))[:, 0], 0.0)
    if limits is not None:
        target = np.where(stays, shares, np.sign(target) * limits.whole_lots(np.abs(target)))
        return _limited(target, shares, price, cash + borrowed, ROUNDING * equity, limits)
    if settings.shares == "fractional":
        return target - shares, costs
    order = order.numpy()
    changes = np.where(stays, 0.0, np.trunc(target) - shares)
    bought, sold = np.maximum(changes, 0.0) * price, np.maximum(-changes, 0.0) * price
    needed = _product(bought, 1.0 + order.buying)
    available = cash + borrowed + _product(sold, 1.0 - order.selling)
    short_of_cash = ((needed > 0.0) & (needed > available * (1.0 + ROUNDING)))[:, None]
    smaller = np.maximum(available, 0.0) / np.where(needed > 0.0, needed, 1.0)
    changes = np.where(short_of_cash & (changes > 0.0), np.floor(changes * smaller[:, None]), changes)
    return changes, np.where(changes > 0.0, changes * order.buying, changes * -order.selling) * price
