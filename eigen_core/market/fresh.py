"""Prices that are newer than those of a training, with features normalised as in the training."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from eigen_core.config import Config
from eigen_core.errors import InputError
from eigen_core.market.build import build_panel, read_prices
from eigen_core.market.panel import Panel


@dataclass(frozen=True)
class TrainingDays:
    """The days that features are normalised by.

    Attributes:
        first, last: dates, YYYY-MM-DD.
        number: of days with prices.
    """

    first: str
    last: str
    number: int

    @classmethod
    def of(cls, panel: Panel) -> Self:
        """Return the training days of a panel."""
        train = panel.splits.train
        return cls(str(panel.dates[train[0]]), str(panel.dates[train[-1]]), len(train))


def fresh_panel(
    config: Config, training: TrainingDays, symbols: tuple[str, ...], features: tuple[str, ...], date: str | None
) -> Panel:
    """Build a panel of newer prices whose training days are those of a run: all later days are validation days.

    Args:
        config: of the run, with the newer prices as `market.data`.
        training: the run's training days.
        symbols, features: those that its agents observe.
        date: its last day; None: that of the prices. No later price is used.

    Raises:
        InputError: the prices begin later or end before `date`, have other symbols, features or training days, or there
            is no day after training.
    """
    market = config.market.model_copy(update={"first_date": training.first, "last_date": date})
    if date is not None and date <= training.last:
        raise InputError(f"{date} is a training day of the run: act on a day after {training.last}.")
    prices = read_prices(market)
    first, last = str(prices.days[0]), str(prices.days[-1])
    if first != training.first:
        raise InputError(
            f"The prices begin on {first}, but training began on {training.first}: give prices from then on."
        )
    if date is not None and last != date:
        raise InputError(f"There are no prices of {date}: the last day before it is {last}.")
    if set(prices.symbols) != set(symbols):
        missing, new = sorted(set(symbols) - set(prices.symbols)), sorted(set(prices.symbols) - set(symbols))
        differing = [
            f"{text} {', '.join(names[:5])}" for text, names in (("lack", missing), ("also have", new)) if names
        ]
        raise InputError(
            f"The prices {' and '.join(differing)}: give those of the symbols that the run was trained on."
        )
    trained = int(np.searchsorted(prices.days, np.datetime64(training.last, "D"), side="right"))
    if trained != training.number:
        raise InputError(
            f"The prices have {trained:,} days from {training.first} to {training.last}, but training had "
            f"{training.number:,}: features would be normalised otherwise. Give prices of the same days."
        )
    if trained == len(prices.days):
        raise InputError(f"The prices end on {last}, within training: give prices of later days.")
    days = {"validation_days": len(prices.days) - trained, "holdout_days": 0, "purge_days": 0}
    panel, _ = build_panel(config.model_copy(update={"market": market.model_copy(update=days)}))
    if (panel.symbols, panel.feature_names) != (symbols, features):
        raise InputError(
            f"The prices give the features {', '.join(panel.feature_names)} of {', '.join(panel.symbols[:5])}..., but "
            f"agents observe {', '.join(features)} of {', '.join(symbols[:5])}...: give files of the same columns."
        )
    return panel
