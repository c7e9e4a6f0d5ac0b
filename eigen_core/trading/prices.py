"""The prices that trades are settled with, on the device."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.market.panel import Panel


def _last_known(prices: NDArray[np.float64]) -> NDArray[np.float64]:
    """Carry each column's last price forward over its gaps and its end."""
    row = np.where(np.isnan(prices), 0, np.arange(len(prices))[:, None])
    np.maximum.accumulate(row, axis=0, out=row)
    return np.take_along_axis(prices, row, axis=0)


@dataclass(frozen=True)
class Prices:
    """Prices of the tradable columns, float64 `[days, assets]`, NaN where there is none.

    Attributes:
        open, high, close: prices of the day.
        last_close: the last known close at the end of the day; NaN before the first.
        tradable: bool, the asset has a close above zero on the day.
        missing: bool, the asset has no price at all on the day.
    """

    open: Tensor
    high: Tensor
    close: Tensor
    last_close: Tensor
    tradable: Tensor
    missing: Tensor

    @classmethod
    def of_panel(cls, panel: Panel, device: torch.device) -> "Prices":
        """Move the prices of `panel` to `device`."""

        def on_device(values: NDArray[np.float64]) -> Tensor:
            return torch.tensor(np.asarray(values), dtype=torch.float64, device=device)

        close = on_device(panel.close)
        of_day = (panel.open, panel.high, panel.low, panel.close)
        return cls(
            open=on_device(panel.open),
            high=on_device(panel.high),
            close=close,
            last_close=on_device(_last_known(np.asarray(panel.close))),
            tradable=close > 0.0,
            missing=torch.tensor(np.logical_and.reduce([np.isnan(prices) for prices in of_day]), device=device),
        )

    @property
    def assets(self) -> int:
        """Number of tradable columns."""
        return int(self.close.shape[1])

    @property
    def days(self) -> int:
        """Number of days."""
        return int(self.close.shape[0])
