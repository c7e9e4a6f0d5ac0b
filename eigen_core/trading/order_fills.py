"""Fills of orders, by the same rules for rewards and accounts: day, price, slippage and transaction costs."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.errors import InputError
from eigen_core.config import TradingConfig
from eigen_core.config.instruments import Instrument
from eigen_core.trading.equity import Values

_BASIS_POINTS = 10_000.0
_CELLS_AT_A_TIME = 2**18

Money = TypeVar("Money", float, Values, Tensor)
"""Prices or values of any shape."""


@dataclass(frozen=True)
class OrderCosts:
    """Transaction cost of each purchase and sale, and slippage of market orders, as fractions of the price.

    Both are numbers, or float64 tensors or arrays: `[assets]`, or of the shape of the assets given to `of_assets`.
    """

    cost: Any
    slippage: Any

    @classmethod
    def of(cls, trading: TradingConfig, instruments: Sequence[Instrument] = ()) -> Self:
        """Return the rates of `trading`, or of each asset if there are `instruments`."""
        if not instruments:
            return cls(trading.cost_bps / _BASIS_POINTS, trading.slippage_bps / _BASIS_POINTS)
        rates = [
            [getattr(trading, name) if (own := getattr(one, name)) is None else own for one in instruments]
            for name in ("cost_bps", "slippage_bps")
        ]
        return cls(*(torch.tensor(rates, dtype=torch.float64) / _BASIS_POINTS))

    def of_assets(self, assets: Tensor | NDArray[np.int64] | slice | int) -> Self:
        """Return the costs of assets, given by their numbers in any shape."""
        return self._each(lambda rate: rate[assets])

    def to(self, place: torch.device | torch.dtype) -> Self:
        return self._each(lambda rate: rate.to(place))

    def numpy(self) -> Self:
        """Return the costs as numbers or arrays."""
        return self._each(lambda rate: rate.cpu().numpy())

    def _each(self, change: Callable[[Any], Any]) -> Self:
        return self if isinstance(self.cost, float) else type(self)(change(self.cost), change(self.slippage))

    def purchase_price(self, price: Money) -> Money:
        """Return the price at which a market order buys: slippage included, transaction cost not."""
        bought: Money = price * (1.0 + self.slippage)
        return bought

    def sale_price(self, price: Money) -> Money:
        """Return the price at which a market order sells: slippage included, transaction cost not."""
        sold: Money = price * (1.0 - self.slippage)
        return sold

    def paid(self, value: Money) -> Money:
        """Return the money paid for a purchase: its value at the `purchase_price` plus the transaction cost."""
        paid: Money = value * (1.0 + self.cost)
        return paid

    def received(self, value: Money) -> Money:
        """Return the money received for a sale: its value at the `sale_price` or a target less the transaction cost."""
        received: Money = value * (1.0 - self.cost)
        return received

    def net_gain(self, entry: Tensor, exit_price: Tensor) -> Tensor:
        """Return the gain of a trade after all costs, as a fraction of the money paid; both prices include slippage."""
        return self.received(exit_price) / self.paid(entry) - 1.0

    def gain_at_market(self, entry: Tensor, price: Tensor) -> Tensor:
        """Return the `net_gain` of a position that a market order sells at `price`, a price without slippage."""
        return self.net_gain(entry, self.sale_price(price))

    def purchase_costs(self, entry: Values) -> Values:
        """Return transaction cost plus slippage (money) of buying a share at `entry`, which includes slippage."""
        costs: Values = entry * (self.cost + self.slippage / (1.0 + self.slippage))
        return costs

    def sale_costs(self, exit_price: Values, at_target: NDArray[np.bool_]) -> Values:
        """Return transaction cost plus slippage (money) of selling a share at `exit_price`, which includes slippage.

        A sale at its target has no slippage.
        """
        some = np.less(self.slippage, 1.0)
        slippage = np.where(some & ~at_target, self.slippage / np.where(some, 1.0 - self.slippage, 1.0), 0.0)
        costs: Values = exit_price * (self.cost + slippage)
        return costs

    @property
    def buying(self) -> Any:  # noqa: ANN401 - a number, a tensor or an array
        """Transaction cost plus slippage of a purchase, as a fraction of its value without slippage."""
        return (1.0 + self.slippage) * (1.0 + self.cost) - 1.0

    @property
    def selling(self) -> Any:  # noqa: ANN401 - a number, a tensor or an array
        """Transaction cost plus slippage of a sale, as a fraction of its value without slippage."""
        return 1.0 - (1.0 - self.slippage) * (1.0 - self.cost)


@dataclass(frozen=True)
class Fills:
    """Fills of market orders, `[days, assets]`; a day is a row of the prices, an asset a tradable column.

    An order is filled on a day on which the asset has a price: at its open if `trading.fill` is `next_open` and there
    is an open, else at its close. A purchase that is not filled on its day lapses. A sale is due at the close of the
    day that is `trading.holding_bars` sessions of the asset after its decision (a session is a day on which the asset's
    market is open); where the asset has no close on that day, the sale waits for its next fill. An asset without a
    price for `trading.delisting_bars` of its sessions counts as ended (delisted) on the last of them, and no earlier: a
    sale that waits is then booked at the last close less `trading.delisting_loss`. A position whose sale is not filled
    by `Prices.last_day` stays open and counts at the last close.

    Attributes:
        price: float64, price at which an order is filled on the day, without slippage; NaN: it is not filled.
        end_price: float64, worth of a share once the asset has ended: the last close less `trading.delisting_loss`.
        entry: float64, by the day of the decision: price of one share bought, slippage included; NaN: not filled.
        sale, sale_day: float64, int64, by the day on which a sale is due: the price of its fill, without slippage, and
            the day of its fill; a day after `Prices.last_day` where it is not filled.
        exit, exit_offset: float64, int64, by the day of the decision: price of the sale that ends the holding time,
            without slippage, and days from the decision to its fill.
        due_offset: int64, by the day of the decision: days to the day on which the sale that ends the holding time is
            due; less than `exit_offset` where this sale waits.
        target_offset: int64, by the day of the decision: days to the last day on which a sale target can be reached.
        ended: bool, the asset counts as ended on the day.
        waits: bool, the asset has no open, high or close on the day, and no position in it is sold.
        sale_delisted: bool, by the day on which a sale is due: it is booked because the asset has ended.
        exit_delisted: bool, by the day of the decision: as `sale_delisted`, for the sale that ends the holding time.
        longest: most days from the decision of an order that is filled to its sale; at least `trading.holding_bars`.
        before_wait: most days from such a decision to the last one before the sale on which the asset has an open, high
            or close, or on which the sale is due; at least `trading.holding_bars`. Then a position only waits.
    """

    price: Tensor
    end_price: Tensor
    entry: Tensor
    sale: Tensor
    sale_day: Tensor
    exit: Tensor
    exit_offset: Tensor
    due_offset: Tensor
    target_offset: Tensor
    ended: Tensor
    waits: Tensor
    sale_delisted: Tensor
    exit_delisted: Tensor
    longest: int
    before_wait: int

    @staticmethod
    def rules(trading: TradingConfig) -> Hashable:
        """Return the settings that fills depend on, as a key of a dictionary."""
        sales = (trading.holding_bars, trading.delisting_bars, trading.delisting_loss, trading.bookkeeping)
        return trading.fill, trading.slippage_bps, *sales

    @classmethod
    def of(
        cls,
        open: Tensor,
        high: Tensor,
        close: Tensor,
        last_close: Tensor,
        session: Tensor,
        last_day: Tensor,
        trading: TradingConfig,
        costs: OrderCosts,
    ) -> Self:
        """Compute the fills of all days; see `Prices` for the arguments.

        Raises:
            InputError: `trading.delisting_loss` is None, and an asset has no price on a day after its first price.
        """
        _require_fills(open, close, last_day, trading)
        found: dict[str, Any] = {}
        # Some assets at a time, so that what is computed on the way takes little memory.
        for first in range(0, close.shape[1], step := max(1, _CELLS_AT_A_TIME // len(close))):
            some = slice(first, first + step)
            of_some = [values[:, some].contiguous() for values in (open, high, close, last_close, session)]
            for name, values in vars(cls._of_assets(of_some, last_day, trading, costs.of_assets(some))).items():
                if isinstance(values, Tensor):
                    found.setdefault(name, values.new_empty(close.shape))[:, some] = values
                else:
                    found[name] = max(values, found.get(name, 0))
        return cls(**found)

    @classmethod
    def _of_assets(cls, prices: Sequence[Tensor], last_day: Tensor, trading: TradingConfig, costs: OrderCosts) -> Self:
        open, high, close, last_close, session = prices
        days, device = len(close), close.device
        day = torch.arange(days, device=device)[:, None]
        at_open, price = _fill_prices(open, close, trading)
        filled = price > 0.0
        sessions = session.to(torch.int64).cumsum(0)
        ended = ended_by(filled, session, trading.delisting_bars)

        # Sales, by the day on which they are due.
        closes = close > 0.0
        next_fill = _first_after(filled, day)
        ends = _first_from(ended, day)
        waits_until = torch.minimum(next_fill, ends)
        unsold = ~closes & (waits_until > last_day[:, None])
        sale_day = torch.where(closes, day, waits_until)
        sale_day = torch.where(unsold, torch.maximum(day, last_day[:, None] + 1), sale_day)
        row = sale_day.clamp(max=days - 1)
        is_end = ~closes & ~unsold & (ends < next_fill)
        end_price = last_close * (1.0 - (trading.delisting_loss or 0.0))
        sale = torch.where(closes | unsold, last_close, price.gather(0, row))
        sale = torch.where(is_end, end_price, sale)
        last_target = torch.where(closes | ~at_open.gather(0, row), sale_day, sale_day - 1)
        last_target = torch.where(unsold, torch.minimum(day, last_day[:, None]), last_target)

        # The sale that ends the holding time, by the day of the decision.
        offset = fill_offset(trading)
        holding, classic = trading.holding_bars, trading.bookkeeping == "classic"
        due = torch.searchsorted(sessions.mT.contiguous(), (sessions + holding).mT.contiguous()).mT
        beyond = due > torch.maximum(last_day[:, None], day + holding)
        row = due.clamp(max=days - 1)
        at_the_end = last_close[last_day.clamp(max=days - 1)]
        exit_day = torch.where(beyond | (due >= days), due, sale_day.gather(0, row))
        last_target = torch.where(beyond, last_day[:, None], last_target.gather(0, row))
        exit_price = torch.where(beyond, at_the_end, sale.gather(0, row))
        fill_row = (day[:, 0] + offset).clamp(max=days - 1)
        can_buy = closes & filled[fill_row] & (day + offset < days)
        entry = torch.where(can_buy, costs.purchase_price(price[fill_row]), torch.nan)
        quiet = open.isnan() & high.isnan() & close.isnan()
        last_priced = torch.where(quiet, 0, day).cummax(0).values.gather(0, (exit_day - 1).clamp(max=days - 1))
        before_wait = torch.maximum(torch.minimum(due, exit_day), last_priced) - day
        return cls(
            price=price,
            end_price=end_price,
            entry=entry,
            sale=sale,
            sale_day=sale_day,
            exit=exit_price,
            exit_offset=exit_day - day,
            due_offset=due - day,
            target_offset=last_target - day,
            ended=ended,
            waits=quiet & (sale_day > day) & (day <= last_day.roll(1)[:, None]),
            sale_delisted=is_end,
            exit_delisted=is_end.gather(0, row) & ~beyond & (due < days),
            longest=max(holding, 0 if classic else int(torch.where(can_buy, exit_day - day, 0).amax())),
            before_wait=max(holding, 0 if classic else int(torch.where(can_buy, before_wait, 0).amax())),
        )

    def to(self, device: torch.device) -> Self:
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        moved: dict[str, Any] = {name: value.to(device) for name, value in tensors.items()}
        return replace(self, **moved)

    def due_after(self, day: Tensor, asset: Tensor, exit_offset: Tensor) -> Tensor:
        """Return the days from the decision to the day on which each trade's sale was due, int64.

        This is `exit_offset` unless the sale that ends the holding time waited for its fill. The arguments are the day
        of the decision, the asset and the days to the exit of each trade, int64, and are broadcast to each other.
        """
        return torch.minimum(exit_offset, self.due_offset[day, asset])


def _fill_prices(open: Tensor, close: Tensor, trading: TradingConfig) -> tuple[Tensor, Tensor]:
    """Return which orders are filled at the open, bool, and `Fills.price`."""
    at_open = ~open.isnan() if trading.fill == "next_open" else torch.zeros_like(open, dtype=torch.bool)
    return at_open, torch.where(at_open, open, close)


def _require_fills(open: Tensor, close: Tensor, last_day: Tensor, trading: TradingConfig) -> None:
    if trading.delisting_loss is not None:
        return
    filled, day = _fill_prices(open, close, trading)[1] > 0.0, torch.arange(len(close), device=close.device)
    unfilled = ~filled & filled.cummax(0).values & (day <= last_day)[:, None]
    if bool(unfilled.any()):
        row, column = unfilled.nonzero()[0].tolist()
        raise InputError(
            "trading.delisting_loss is empty, as in runs of earlier versions of Eigen: every symbol then needs a price "
            f"on all days after its first. The symbol in column {column} does not trade on day {row} (both counted "
            "from 0): results would be wrong. Train a new run."
        )


def fill_offset(trading: TradingConfig) -> int:
    """Return the days from a decision to the fill of its order."""
    return 0 if trading.fill == "same_close" else 1


def ended_by(filled: Tensor, session: Tensor, delisting_bars: int) -> Tensor:
    """Return on which days assets count as ended (`Fills`), after `delisting_bars` sessions without a price.

    All are bool `[days, assets]`: `filled`, the asset has a price on the day; `session`, its market is open.
    """
    sessions = session.to(torch.int64).cumsum(0)
    before = torch.where(filled, torch.arange(len(filled), device=filled.device)[:, None], -1).cummax(0).values
    without = sessions - sessions.gather(0, before.clamp(min=0))
    return (before >= 0) & (without >= delisting_bars)


def _first_from(where: Tensor, day: Tensor) -> Tensor:
    """Return the first day from each day on on which `where` is true, `[days, assets]`; none: the number of days."""
    return torch.where(where, day, len(where)).flip(0).cummin(0).values.flip(0)


def _first_after(where: Tensor, day: Tensor) -> Tensor:
    """Return the first day after each day on which `where` is true, `[days, assets]`; none: the number of days."""
    first = _first_from(where, day)
    return torch.cat([first[1:], torch.full_like(first[:1], len(where))])
