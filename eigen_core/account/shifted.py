"""An agent's decisions at other times: what luck in timing earns.

The decisions are shifted in time against the prices, those of the last days to the first: exposure, turnover and what
decisions have in common with those before them stay; whether they came at the right time is lost. What an account earns
among all shifts is a test of timing, also where there is one asset and nothing to choose among (a rotation test, as of
Theiler and Prichard 1996, "Constrained-realization Monte-Carlo method for hypothesis testing", section 2).
"""

import numpy as np
from numpy.typing import NDArray

from eigen_core.account.equity import Values
from eigen_core.account.matched import MatchedTraders, share_of_capital, trades_at_close
from eigen_core.account.trades import DecidedTrades, trade_accounts
from eigen_core.account.weights import weights_accounts
from eigen_core.config import Config, TradingConfig
from eigen_core.trading import Prices

DESCRIPTION = "shifts of its own decisions in time"
FEWEST_SHIFTS = 19
"""Fewer than these cannot show that luck has a probability of 5 %."""
# Decisions or weights of shifted agents at a time, which bounds memory.
_VALUES = 2**20


def has_choice(tradable: NDArray[np.bool_]) -> bool:
    """Return whether there is a day with two assets or more to choose from: bool `[days, assets]`."""
    return bool((tradable.sum(axis=1) > 1).any())


def fewest_days(trading: TradingConfig) -> int:
    """Return how many days must be judged so that there are enough shifts."""
    return 2 * trading.holding_days + 1 + FEWEST_SHIFTS


def shifts_of(days: int, trading: TradingConfig, most: int) -> NDArray[np.int64]:
    """Return by how many days decisions are shifted: by more than the holding time, forward and back around the end.

    Args:
        days: of the span.
        trading: the rules.
        most: where there are more, so many of them at equal distances.
    """
    every = np.arange(trading.holding_days + 1, days - trading.holding_days)
    if len(every) <= most:
        return every
    return every[np.linspace(0, len(every) - 1, most).round().astype(np.int64)]


def play_shifted_trades(
    trades: DecidedTrades, known: Prices, dates: NDArray[np.datetime64], config: Config, most: int
) -> MatchedTraders:
    """Return what the agents' trades earn at other times, with sales that are due at the close after as many days.

    Args:
        trades: of the agents, `[agents, days, K]`; each agent has an equal share of the capital.
        known: prices of the span, as `prices_of_span` returns them.
        dates: datetime64[D] `[days]`.
        config: trading rules, account.
        most: shifts.

    A trade whose order is not filled at the other time is not made.
    """
    agents, days, _ = trades.asset.shape
    fills = known.fills(config.trading)
    entries, due_day = fills.entry.cpu().numpy(), trades.due_day(fills)
    closes = known.last_close[:days].cpu().numpy()
    settings, finals = share_of_capital(config.account, agents), [np.empty(0)]
    decided = np.arange(days)[:, None]
    for shifts in _groups(shifts_of(days, config.trading, most), trades.asset.size):
        moved = (decided[:, 0] - shifts[:, None]) % days
        # [shifts, agents, days, K]
        asset, held = (np.moveaxis(values[:, moved], 0, 1) for values in (trades.asset, due_day - decided))
        coefficient = np.moveaxis(trades.coefficient[:, moved], 0, 1)
        filled = (asset >= 0) & ~np.isnan(entries[decided, np.maximum(asset, 0)])
        asset, due = np.where(filled, asset, -1), np.where(filled, decided + held, -1)
        shifted = trades_at_close(asset, due, coefficient, known, config.trading)
        accounts = trade_accounts(shifted, closes, dates, config.trading, settings)
        finals.append(accounts.equity[:, -1].reshape(-1, agents).sum(axis=1))
    return MatchedTraders(np.concatenate(finals) / config.account.capital - 1.0, DESCRIPTION)


def play_shifted_weights(
    weights: Values, known: Prices, dates: NDArray[np.datetime64], config: Config, most: int
) -> MatchedTraders:
    """Return what the agents' weights earn at other times.

    Args:
        weights: of the agents, float64 `[agents, days, assets]`; each agent has an equal share of the capital.
        known, dates: see `weights_accounts`.
        config: trading rules, account.
        most: shifts.

    The weights of assets that are not tradable at the other time go to those that are, in equal parts.
    """
    agents, days, assets = weights.shape
    settings, finals = share_of_capital(config.account, agents), [np.empty(0)]
    tradable = known.tradable[:days].cpu().numpy()
    for shifts in _groups(shifts_of(days, config.trading, most), weights.size):
        moved = np.moveaxis(weights[:, (np.arange(days) - shifts[:, None]) % days], 0, 1)
        lost = np.where(tradable, 0.0, moved).sum(axis=-1, keepdims=True)
        usable = np.where(tradable, moved + lost / np.maximum(tradable.sum(axis=1, keepdims=True), 1), 0.0)
        flat = usable.reshape(-1, days, assets)
        accounts = weights_accounts(flat, known, dates, config.trading, settings)
        finals.append(accounts.equity[:, -1].reshape(-1, agents).sum(axis=1))
    return MatchedTraders(np.concatenate(finals) / config.account.capital - 1.0, DESCRIPTION)


def _groups(shifts: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    each = max(1, _VALUES // size)
    return [shifts[first : first + each] for first in range(0, len(shifts), each)]
