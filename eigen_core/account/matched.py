"""Random traders matched to an agent.

A matched trader makes as many trades as the agent, decided on the same days, of the same sizes, with sales due on the
same days; only the assets are drawn at random. The market's own move, and how often and how long one is invested, earn
both the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eigen_core.account.trades import DecidedTrades, trade_accounts
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import AccountConfig, Config, TradingConfig
from eigen_core.trading import Prices
from eigen_core.trading.fills import BASIS_POINTS, fill_offset

Values = NDArray[np.float64]

DESCRIPTION = "random traders with the same days, sizes and holding times"
# Decisions of random traders drawn at a time, which bounds memory.
_DECISIONS = 2**20


def matched_traders(
    trades: DecidedTrades, known: Prices, trading: TradingConfig, draws: int, seed: int, key: str
) -> Iterator[DecidedTrades]:
    """Yield random traders matched to each agent of `trades`, some at a time: `[traders x agents, days, K]`.

    Args:
        trades: of the agents, `[agents, days, K]`.
        known: prices of the span, as `prices_of_span` returns them.
        trading: the rules.
        draws: traders to draw.
        seed: of the run.
        key: whom they are matched to.

    For each trade of the agent a trader buys, on the day of its decision, an asset drawn from those that are tradable
    that day, that an order is filled for, and that the trader does not hold; where there is none, it buys nothing. Its
    sale is due at the close of the day on which the agent's sale was due (`DecidedTrades.due_day`). Agents that buy the
    same asset on the same day have traders that buy the same asset, if both may: accounts of agents that trade alike
    vary as much together as those of their traders.
    """
    group = max(1, _DECISIONS // trades.asset.size)
    for first in range(0, draws, group):
        generator = keyed_generator(seed, first, "backtest", key, "matched traders")
        yield _draw(trades, known, trading, min(group, draws - first), generator)


def _draw(
    trades: DecidedTrades,
    known: Prices,
    trading: TradingConfig,
    traders: int,
    generator: np.random.Generator,
) -> DecidedTrades:
    fills = known.fills(trading)
    entries, sale_days = fills.entry.cpu().numpy(), fills.sale_day.cpu().numpy()
    agents, days, purchases = trades.asset.shape
    due_day = trades.due_day(fills)
    due = np.clip(due_day, 0, known.days - 1)
    rows, agent = np.arange(traders)[:, None], np.arange(agents)
    asset = np.full((traders, agents, days, purchases), -1)
    free_from = np.zeros((traders, agents, known.assets), dtype=np.int64)
    available = ~np.isnan(entries)
    for day in range(days):
        # Assets lie on a circle in random order; one that bought an asset looks from a random point of it for the next
        # one that is free. The point is that of the asset, so that agents that buy the same are matched by the same.
        points, starts = generator.random((2, traders, known.assets))
        for purchase in range(purchases):
            bought = trades.asset[:, day, purchase]
            free = available[day] & (free_from <= day)
            ahead = (points[:, None] - starts[:, np.maximum(bought, 0), None]) % 1.0
            chosen = np.where(free, ahead, np.inf).argmin(axis=2)
            buys = (bought >= 0) & free.any(axis=2)
            asset[:, :, day, purchase] = np.where(buys, chosen, -1)
            sold = sale_days[due[:, day, purchase], chosen]
            held_until = np.where(buys, sold, free_from[rows, agent, chosen])
            free_from[rows, agent, chosen] = held_until
    return trades_at_close(asset, due_day, trades.coefficient, known, trading)


def trades_at_close(
    asset: NDArray[np.int64],
    due_day: NDArray[np.int64],
    coefficient: NDArray[np.float64],
    known: Prices,
    trading: TradingConfig,
) -> DecidedTrades:
    """Return trades without a target, whose sale is due at a close (`Fills`): `[traders x agents, days, K]`.

    Args:
        asset: int64 `[traders, agents, days, K]`; -1: nothing is bought.
        due_day, coefficient: of each, or of each agent's; -1: none.
        known: prices of the span, as `prices_of_span` returns them.
        trading: the rules.
    """
    fills = known.fills(trading)
    entries, sales, sale_days = (values.cpu().numpy() for values in (fills.entry, fills.sale, fills.sale_day))
    shape = asset.shape
    days, purchases = shape[-2:]
    decided, due = np.arange(days)[:, None], np.clip(due_day, 0, known.days - 1)
    column = np.maximum(asset, 0)
    opened = (
        ~torch.isnan(known.open).cpu().numpy() if trading.fill == "next_open" else np.zeros(entries.shape, np.bool_)
    )
    columns: dict[str, NDArray[Any]] = {
        "asset": asset,
        "exit_day": np.where(due_day < 0, -1, sale_days[due, column]),
        "entry": entries[decided, column],
        "exit": sales[due, column] * (1.0 - trading.slippage_bps / BASIS_POINTS),
        "target": np.full(shape, np.nan),
        "coefficient": np.broadcast_to(coefficient, shape),
        "at_target": np.zeros(shape, dtype=np.bool_),
        "delisted": fills.sale_delisted.cpu().numpy()[due, column],
        "at_open": opened[decided + fill_offset(trading), column],
    }
    return DecidedTrades(**{name: values.reshape(-1, days, purchases) for name, values in columns.items()})


@dataclass(frozen=True)
class MatchedTraders:
    """Earnings of random traders matched to an agent.

    Attributes:
        total_returns: last equity / capital - 1, float64 `[draws]`.
        description: what they have in common with the agent, in words.
    """

    total_returns: Values
    description: str

    @property
    def median_return(self) -> float | None:
        """Median of the total returns; None without any trader."""
        return float(np.median(self.total_returns)) if len(self.total_returns) else None

    def quantile_of(self, total_return: float) -> float | None:
        """Return the share of the traders that earned less, half of those that earned as much; None without any."""
        if not len(self.total_returns):
            return None
        below, equal = self.total_returns < total_return, self.total_returns == total_return
        return float(below.mean() + equal.mean() / 2.0)


def play_matched_traders(
    trades: DecidedTrades,
    known: Prices,
    dates: NDArray[np.datetime64],
    config: Config,
    draws: int,
    key: str,
) -> MatchedTraders:
    """Return what matched traders earn with the agents' accounts, of which each has an equal share of the capital.

    Args:
        trades: of the agents, `[agents, days, K]`.
        known: prices of the span, as `prices_of_span` returns them.
        dates: datetime64[D] `[days]`.
        config: trading rules, account, seed.
        draws: traders to draw.
        key: whom they are matched to.
    """
    agents, days, _ = trades.asset.shape
    settings = share_of_capital(config.account, agents)
    finals = [np.empty(0)]
    for group in matched_traders(trades, known, config.trading, draws, config.seed, key):
        closes = known.last_close[:days].cpu().numpy()
        accounts = trade_accounts(group, closes, dates, config.trading, settings)
        finals.append(accounts.equity[:, -1].reshape(-1, agents).sum(axis=1))
    return MatchedTraders(np.concatenate(finals) / config.account.capital - 1.0, DESCRIPTION)


def share_of_capital(settings: AccountConfig, agents: int) -> AccountConfig:
    """Return the settings of one of several accounts that share the capital equally."""
    return settings.model_copy(update={"capital": settings.capital / agents})
