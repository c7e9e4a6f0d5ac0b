"""Order rules of accounts in money: smallest fees and sizes, lots, a largest share of the volume, and price impact."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eigen_core.common.errors import InputError
from eigen_core.config import AccountConfig, TradingConfig
from eigen_core.config.instruments import ORDER_RULES
from eigen_core.market.panel import Panel
from eigen_core.trading.equity import Values, share_of
from eigen_core.trading.prices import Prices

VOLUME_BARS = 20
"""Number of a symbol's last bars with a volume whose mean volume and volatility orders are compared with."""
# Of a lot, or of a smallest size: decimal fractions are not exact.
_ROUNDING = 1e-9


def liquidity_of(panel: Panel) -> tuple[Values, Values]:
    """Return mean volume (shares) and volatility of a symbol's last `VOLUME_BARS` bars with a volume, up to each bar.

    Both are float64 `[days, assets]`, NaN before they are known. The volatility is the standard deviation of returns
    between these bars; a volume in money is divided by its bar's close. `InputError` if the data have no volumes.
    """
    close = np.asarray(panel.close)
    given = np.full(close.shape, np.nan) if panel.volume is None else np.asarray(panel.volume)
    in_money = [one.volume_unit == "money" for one in panel.instruments] or [False] * panel.assets
    shares = np.where(in_money, given / close, given)
    if not (shares > 0.0).any():
        raise InputError(
            "account.participation and account.impact compare orders with volumes, and the prices have none: give "
            "prices with volumes, or leave both settings out."
        )
    volume, volatility = (pd.DataFrame(np.full(close.shape, np.nan)) for _ in range(2))
    for asset in range(panel.assets):
        bars = np.flatnonzero(shares[:, asset] > 0.0)
        volume.iloc[bars, asset] = pd.Series(shares[bars, asset]).rolling(VOLUME_BARS, min_periods=1).mean()
        returns = pd.Series(close[bars, asset]).pct_change()
        volatility.iloc[bars, asset] = returns.rolling(VOLUME_BARS - 1, min_periods=2).std()
    return volume.ffill().to_numpy(), volatility.ffill().to_numpy()


@dataclass(frozen=True)
class OrderLimits:
    """Rules for the sizes of orders, and for costs that depend on them: float64 `[days, assets]`, or of some orders.

    The impact on the price follows the square-root law (Toth et al. 2011, "Anomalous price impact and the critical
    nature of liquidity in financial markets", equation 1): volatility x sqrt(shares / volume) times `account.impact`.

    Attributes:
        cost, slippage: as in `OrderCosts`.
        minimum_fee, lot_size, minimum_size, minimum_notional: as in `Instrument`; whole shares are lots of one share.
        most: largest number of shares of an order.
        impact: change of the price by an order of one share, a fraction; of n shares it is sqrt(n) times this.
    """

    cost: Values
    slippage: Values
    minimum_fee: Values
    lot_size: Values
    minimum_size: Values
    minimum_notional: Values
    most: Values
    impact: Values

    @classmethod
    def of(cls, known: Prices, trading: TradingConfig, settings: AccountConfig) -> Self | None:
        """Return the rules of orders by the day of their decision; None: orders of any size are filled at one rate."""
        rules: dict[str, Any] = {name: [getattr(one, name) for one in known.instruments] or 0.0 for name in ORDER_RULES}
        if known.liquidity is None and not any(map(np.any, rules.values())):
            return None
        lots = np.asarray(rules["lot_size"])
        rules["lot_size"] = np.where(lots > 0.0, lots, float(settings.shares == "whole"))
        rules |= vars(known.costs(trading).numpy()) | {"most": np.inf, "impact": 0.0}
        if known.liquidity is not None:
            volume, volatility = (np.nan_to_num(values.numpy()) for values in known.liquidity)
            share, ended = settings.participation, known.fills(trading).ended.cpu().numpy()
            # No symbol is bought before its first volume, and what has ended is paid out.
            most = np.where(volume > 0.0, np.inf, 0.0) if share is None else share * volume
            rules["most"] = np.where(ended, np.inf, most)
            rules["impact"] = np.where(ended, 0.0, settings.impact * share_of(volatility, np.sqrt(volume)))
        return cls(**{name: np.broadcast_to(values, known.close.shape) for name, values in rules.items()})

    def at(self, *index: Any) -> Self:  # noqa: ANN401 - whatever indexes an array
        """Return the rules of orders at an index of the arrays."""
        return replace(self, **{name: values[index] for name, values in vars(self).items()})

    def sized(self, shares: Values, price: Values) -> Values:
        """Return the shares of orders that are placed: whole lots, at most `most`; 0 where an order is too small."""
        lots = self.whole_lots(np.minimum(shares, self.most))
        enough = lots * (1.0 + _ROUNDING)
        return np.where((enough >= self.minimum_size) & (enough * price >= self.minimum_notional), lots, 0.0)

    def whole_lots(self, shares: Values) -> Values:
        """Round shares, at least 0, down to lots."""
        lot = np.where(self.lot_size > 0.0, self.lot_size, 1.0)
        return np.where(self.lot_size > 0.0, np.floor(shares / lot + _ROUNDING) * lot, shares)

    def bought(self, money: Values, price: Values) -> Values:
        """Return the shares that at most `money` buys at a price with slippage: its impact is that of the shares that
        the money would buy without any impact, so a purchase may leave some of the money."""

        def affordable(price: Values) -> Values:
            return np.minimum(money / (price * (1.0 + self.cost)), (money - self.minimum_fee) / price).clip(min=0.0)

        moved = self.impact * np.sqrt(np.minimum(affordable(price), self.most))
        return self.sized(affordable(price * (1.0 + moved)), price)

    def paid(self, shares: Values, price: Values) -> Values:
        """Return the money paid for shares at a price with slippage, all costs included."""
        value = shares * price * (1.0 + self.impact * np.sqrt(shares))
        return value + self._fee(value)

    def received(self, shares: Values, price: Values, moves: NDArray[np.bool_] | bool = True) -> Values:
        """Return the money received for shares at a price with slippage, which the sale `moves` or not, after costs."""
        value = shares * price * (1.0 - np.minimum(self.impact * np.sqrt(shares), 1.0) * moves)
        return value - self._fee(value)

    def _fee(self, value: Values) -> Values:
        return np.where(value > 0.0, np.maximum(value * self.cost, self.minimum_fee), 0.0)
