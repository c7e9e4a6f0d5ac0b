"""Open positions of many episodes, as agents observe them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigen_core.config import TradingConfig
from eigen_core.trading.orders import target_price
from eigen_core.trading.prices import Prices

PORTFOLIO_VALUES = 4
"""Length of an asset's portfolio state: held, days held, unrealised gain, coefficient."""
GAIN_LIMIT = 5.0
"""Bound of the observed unrealised gain, as a fraction."""
_LARGEST_HALF = float(torch.finfo(torch.float16).max)


@dataclass(frozen=True)
class HeldPrices:
    """Prices that positions need, arranged so that those of one position lie close together in memory.

    Attributes:
        values: float64 `[5, assets, days]`: the entry price of the day's decision, minus infinity if it buys nothing;
            the price to compare sale targets with on the day after the decision, and on later days (the high, minus
            infinity where no target can be reached, infinity where the holding time ends); the last known close; the
            days from the decision to the sale that ends the holding time.
        offsets: int64 `[2 longest, 1, 1]`, indices into the flat `values`, relative to the cell of a position's asset
            and decision: the entry price, the days to the sale, and on each day before the last the price to compare
            and the close.
        longest: `Fills.longest`.
    """

    values: Tensor
    offsets: Tensor
    longest: int

    @classmethod
    def of(cls, prices: Prices, trading: TradingConfig) -> "HeldPrices":
        values = torch.empty((5, prices.assets, prices.days), dtype=torch.float64, device=prices.close.device)
        entry, first, reached, last_close, exit_offset = values.mT.unbind()
        fills = prices.fills(trading)
        entry.copy_(fills.entry.nan_to_num(nan=-torch.inf, posinf=torch.inf))
        exit_offset.copy_(fills.exit_offset)
        reached.copy_(prices.high.nan_to_num(nan=-torch.inf, posinf=torch.inf))
        if trading.fill == "next_open":
            first.copy_(reached.masked_fill(prices.open.isnan(), -torch.inf))
        elif trading.fill == "next_close":
            first.fill_(-torch.inf)
        else:
            first.copy_(reached)
        if trading.bookkeeping == "classic":
            for compared in (first, reached):
                compared.masked_fill_(prices.missing, torch.inf)
        last_close.copy_(prices.last_close)
        later, part = range(1, fills.longest), entry.numel()
        cells = [0, part * 4, *(part * min(day, 2) + day for day in later), *(part * 3 + day for day in later)]
        return cls(values, torch.tensor(cells, device=values.device)[:, None, None], fills.longest)


class Positions:
    """The open positions of E episodes, from one decision to the next.

    As orders do not move prices, all future observations of a position are known when it is opened. A table then gets
    them: it holds the observations of the coming days if nothing more is bought.
    """

    def __init__(self, prices: HeldPrices, trading: TradingConfig, episodes: int) -> None:
        self._prices, self._trading = prices, trading
        _, assets, self._price_days = prices.values.shape
        longest, device = prices.longest, prices.values.device
        # The four values of an asset are moved as one int64. After a day its row serves the day `longest` later.
        coming = torch.zeros((longest, episodes, assets), dtype=torch.int64, device=device)
        self._coming, self._rows = coming.view(-1), coming.unbind()
        self._observed = coming.view(torch.float16).view(*coming.shape, PORTFOLIO_VALUES).unbind()
        rows = torch.arange(2 * longest, device=device) % longest * (episodes * assets)
        cells = rows[:, None, None] + torch.arange(episodes, device=device)[:, None] * assets
        self._cells_later = [cells[row + 1 : row + longest] for row in range(longest)]
        # All purchases are computed in the same memory, so that its views are made once.
        of_day = (episodes, trading.purchases_per_day)
        self._met = torch.empty((2 * longest, *of_day), dtype=torch.float64, device=device)
        self._entry, self._exit = self._met[:1], self._met[1:2]
        self._compared, self._close = self._met[2 : longest + 1], self._met[longest + 1 :]
        self._cells = torch.empty((longest - 1, *of_day), dtype=torch.int64, device=device)
        self._written = torch.empty_like(self._cells)
        self._flat = self._cells.view(-1), self._written.view(-1)
        observed = torch.ones((longest - 1, *of_day, PORTFOLIO_VALUES), dtype=torch.float16, device=device)
        _, days_held, self._gain, self._size = observed.unbind(-1)
        self._ages = torch.arange(1, longest, dtype=torch.float64, device=device)[:, None, None]
        # Days on which its market is closed, or on which its sale waits, make a position older than the holding time.
        days_held.copy_((self._ages / trading.holding_days).clamp(max=1.0))
        self._position = observed.view(torch.int64).squeeze(-1)
        self._minus_one = torch.tensor(-1.0, dtype=torch.float64, device=device)

    def observed(self, step: int) -> Tensor:
        """Return the observed portfolios of a step; see `TradingEnvironment.portfolio`."""
        return self._observed[step % self._prices.longest].clone()

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the arguments `observed` and `later` of `open` for a step.

        These are the observations, int64 `[E, A]`, with an asset's four values as one number, and the cells of the
        first asset on each of the days after the step, int64 `[longest - 1, E, 1]`.
        """
        row = step % self._prices.longest
        return self._rows[row], self._cells_later[row]

    def open(
        self, days: Tensor, observed: Tensor, later: Tensor, asset: Tensor, coefficient: Tensor, target: Tensor
    ) -> Tensor:
        """Open the positions of a step's decisions where they can be filled and the asset is not held.

        Args:
            days: int64 `[E, 1]`, the step's day.
            observed, later: `at` of the step.
            asset, coefficient, target: `[E, K]`, the decisions, as in `Orders`.

        Returns:
            Whether the asset was held already, bool `[E, K]`.
        """
        trading = self._trading
        held = observed.gather(1, asset) != 0
        cell = days.add(asset, alpha=self._price_days)
        torch.take(self._prices.values, cell + self._prices.offsets, out=self._met)
        sale = target_price(trading, self._entry, target)
        sale.masked_fill_(held | (coefficient < trading.buy_threshold), -torch.inf)
        # 1 on the days before the first that reaches the target.
        remains = (self._compared < sale).cumprod(0)
        if self._prices.longest > trading.holding_days:
            # Prices after the sale do not count: beyond the last day they are those of another asset.
            remains *= self._ages < self._exit
        gain = torch.addcdiv(self._minus_one, self._close, self._entry)
        self._gain.copy_(gain.clamp_(-GAIN_LIMIT, GAIN_LIMIT))
        limit = trading.max_coefficient
        self._size.copy_(coefficient.clamp(max=_LARGEST_HALF) if limit is None else coefficient / limit)
        torch.add(later, asset, out=self._cells)
        torch.mul(self._position, remains, out=self._written)
        # Adding writes the values: an asset that is bought has zeros on all of the coming days.
        self._coming.scatter_add_(0, *self._flat)
        return held

    def end_day(self, step: int) -> None:
        """Clear the observations of a step."""
        self._rows[step % self._prices.longest].zero_()
