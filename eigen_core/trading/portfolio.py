"""Portfolios of weights: what scores stand for, and how an account grows that is brought to target weights every day.

Scores, weights and held weights are `[..., assets]`, shares of the equity; cash is what they leave of 1. Trades do not
move prices, so that the growth of an account is a differentiable function of the weights (Moody and Saffell 2001,
"Learning to trade via direct reinforcement", section II).
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import TradingConfig
from eigen_core.trading.fills import BASIS_POINTS, fill_offset
from eigen_core.trading.orders import PERCENT
from eigen_core.trading.prices import Prices

_MASKED = -1e9
_ROUNDING_STEPS = 64
_LEAST_GROWTH = 1e-3
"""An account loses at most all but this share in a day, so that the logarithm of its growth stays finite."""


def _halted(stays: Tensor) -> NDArray[np.bool_]:
    """Return the days on which some position stays, on the host."""
    halted: NDArray[np.bool_] = stays.any(-1).cpu().numpy()
    return halted


def moved_scores(scores: Tensor, wanted: Tensor, speeds: Tensor) -> Tensor:
    """Move scores to `wanted` by the share `speeds`, from 0 to 1; all `[..., assets]`."""
    return scores + speeds * (wanted - scores)


def smoothed_scores(wanted: Tensor, speeds: Tensor) -> Tensor:
    """Return the scores of all days: those of the first are as wanted, then each day moves them (`moved_scores`).

    The recurrence is linear, so days are joined in pairs, then in fours, and so on (Hillis and Steele 1986, "Data
    parallel algorithms", "Sum of an array": all partial sums).

    Args:
        wanted, speeds: `[..., days, assets]`.
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
    """Return the weights that scores stand for: (1 + short) softmax(scores) - short softmax(-scores).

    The softmax is over the tradable assets and cash, whose score is 0.

    Args:
        scores: `[..., assets]`.
        tradable: bool `[..., assets]`; the others get no weight.
        short: see `PortfolioConfig.short`.
    """
    long = _shares(scores, tradable)
    return (1.0 + short) * long - short * _shares(-scores, tradable) if short else long


def equal_weights_like(weights: Tensor, tradable: Tensor) -> Tensor:
    """Return the same weight in each tradable asset, as much together as `weights` have; both `[..., assets]`."""
    return weights.sum(-1, keepdim=True) * tradable / tradable.sum(-1, keepdim=True).clamp_min(1)


def _shares(scores: Tensor, tradable: Tensor) -> Tensor:
    """Softmax with cash, by hand: the library's backward pass rounds by the number of threads."""
    masked = scores.masked_fill(~tradable, _MASKED)
    highest = masked.detach().amax(-1, keepdim=True).clamp_min(0.0)
    powers = torch.exp(masked - highest)
    return powers / (powers.sum(-1, keepdim=True) + torch.exp(-highest))


@dataclass(frozen=True)
class Rebalancing:
    """What becomes of target weights on each day on which they are decided, `[days, assets]`; without the last days.

    Attributes:
        returns: float, from the fill of a day's decision to the fill of the next day's, as a fraction.
        stays: bool, the day's order is not filled: the position stays as it is.
        ended: bool, the asset counts as ended on the day of the decision (`Fills`): the position is paid out.
        halted: bool `[days]` on the host: days on which some position stays or is paid out, or more days than these.
        buying, selling: what buying and selling cost, slippage included, as a share of the value at the fill's price.
    """

    returns: Tensor
    stays: Tensor
    ended: Tensor
    halted: NDArray[np.bool_]
    buying: float
    selling: float

    @classmethod
    def of(cls, prices: Prices, trading: TradingConfig) -> Self:
        """Return the table of a market; float64, for as many days as have a next day's fill.

        Fills are those of `Fills`. Where there is none, a position is worth its last known close, and what `Fills`
        says once the asset has ended.
        """
        offset, fills = fill_offset(trading), prices.fills(trading)
        price = fills.price[offset:]
        ended = fills.ended[: len(price)]
        worth = torch.where(price > 0.0, price, prices.last_close[offset:])
        worth = torch.where(ended, fills.end_price[: len(price)], worth)
        returns = (worth[1:] / worth[:-1] - 1.0).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        slippage, cost = trading.slippage_bps / BASIS_POINTS, trading.cost_bps / BASIS_POINTS
        stays = (fills.entry[: len(price)].isnan() & ~ended)[:-1]
        return cls(
            returns=returns,
            stays=stays,
            ended=ended[:-1],
            halted=_halted(stays | ended[:-1]),
            buying=(1.0 + slippage) * (1.0 + cost) - 1.0,
            selling=1.0 - (1.0 - slippage) * (1.0 - cost),
        )

    def on(self, days: Tensor | slice, dtype: torch.dtype = torch.float64) -> "Rebalancing":
        """Return the table of some days; an index of any shape `[..., days]`, or a slice."""
        returns = self.returns[days].to(dtype)
        # Days on the device are not read back: those of the whole table are more than these.
        halted = self.halted[days] if isinstance(days, slice) else self.halted
        return replace(self, returns=returns, stays=self.stays[days], ended=self.ended[days], halted=halted)

    def grown(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Bring an account that begins with cash to its target weights day after day.

        Args:
            targets: `[..., days, assets]`, decided on the days of this table; differentiable.

        Returns:
            Logarithm of the growth from each day's fill to the next in percent, costs included, and what is traded at
            the fill, as a share of the equity; both `[..., days]`. Costs are those of the change from the weights that
            are held, and are taken from all positions and cash alike.
        """
        weights = self._filled(targets) if self.halted.any() else targets
        growth = self._growth(weights)
        drifted = (weights * (1.0 + self.returns) / growth[..., None])[..., :-1, :]
        change = weights - torch.cat([torch.zeros_like(weights[..., :1, :]), drifted], dim=-2)
        costs = torch.where(change > 0.0, change * self.buying, change * -self.selling).sum(-1)
        logarithm = torch.log((1.0 - costs).clamp_min(_LEAST_GROWTH)) + torch.log(growth)
        return logarithm * PERCENT, change.abs().sum(-1)

    def _filled(self, targets: Tensor) -> Tensor:
        """Return the weights after each fill where some positions stay as they are.

        What is bought is made smaller together where it would take more than the cash, as `weights_accounts` does.
        """
        weights, held = [], torch.zeros_like(targets[..., 0, :])
        for day, of_day in enumerate(targets.unbind(-2)):
            table = replace(self, **{name: getattr(self, name)[..., day, :] for name in ("returns", "stays", "ended")})
            wanted = torch.where(table.stays, held, of_day.masked_fill(table.ended, 0.0))
            bought = (wanted - held).clamp_min(0.0)
            needed = bought.sum(-1, keepdim=True)
            cash = (1.0 - wanted.sum(-1, keepdim=True) + needed).clamp_min(0.0)
            too_much = needed > cash + _ROUNDING_STEPS * torch.finfo(needed.dtype).eps
            weights.append(
                torch.where(too_much & (bought > 0.0), held + bought * (cash / needed.clamp_min(1e-12)), wanted)
            )
            held = weights[-1] * (1.0 + table.returns) / table._growth(weights[-1])[..., None]
        return torch.stack(weights, dim=-2)

    def _growth(self, weights: Tensor) -> Tensor:
        return (1.0 + (weights * self.returns).sum(-1)).clamp_min(_LEAST_GROWTH)
