"""Random traders and portfolios matched to an agent, and its own decisions at other times."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import AccountConfig, Config, TradingConfig
from eigen_core.trading.equity import Values
from eigen_core.trading.fills import BASIS_POINTS, fill_offset
from eigen_core.trading.portfolio import equal_weights_like
from eigen_core.trading.prices import Prices
from eigen_core.trading.trades import DecidedTrades, trade_accounts
from eigen_core.trading.weights import weights_accounts

TRADERS = "random traders with the same days, sizes and holding times"
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
    return MatchedTraders(np.concatenate(finals) / config.account.capital - 1.0, TRADERS)


def share_of_capital(settings: AccountConfig, agents: int) -> AccountConfig:
    """Return the settings of one of several accounts that share the capital equally."""
    return settings.model_copy(update={"capital": settings.capital / agents})


PORTFOLIOS = "random portfolios with the same weights in other assets"
# Weights of random portfolios held at a time, which bounds memory.
_WEIGHTS = 2**20


def permuted_weights(weights: Values, tradable: NDArray[np.bool_], draws: int, seed: int, key: str) -> Iterator[Values]:
    """Yield weights with the assets permuted, some draws at a time: float64 `[draws, agents, days, assets]`.

    Args:
        weights: of the agents, float64 `[agents, days, assets]`; 0 for assets that are not tradable.
        tradable: bool `[days, assets]`.
        draws: permutations to draw.
        seed: of the run.
        key: whom they are matched to.

    A draw is one permutation of all assets, for all days and agents. On days on which some assets are not tradable,
    each of the others has the weight of the first tradable one that the permutation leads to, step by step: this too is
    a permutation, and as few weights as possible change their asset when an asset begins or ends.
    """
    sets, of_day = np.unique(tradable, axis=0, return_inverse=True)
    group = max(1, _WEIGHTS // weights.size)
    for first in range(0, draws, group):
        generator = keyed_generator(seed, first, "backtest", key, "permuted assets")
        orders = generator.permuted(np.tile(np.arange(weights.shape[2]), (min(group, draws - first), 1)), axis=1)
        permuted = np.empty((len(orders), *weights.shape))
        for index, tradable_set in enumerate(sets):
            days = np.flatnonzero(of_day == index)
            permuted[:, :, days] = np.moveaxis(weights[:, days][:, :, _sources(orders, tradable_set)], 2, 0)
        yield permuted


def _sources(orders: NDArray[np.int64], tradable: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the asset whose weight each asset has, int64 `[draws, assets]`."""
    sources = orders
    while True:
        unusable = tradable & ~tradable[sources]
        if not unusable.any():
            return np.where(tradable, sources, np.arange(len(tradable)))
        sources = np.where(unusable, np.take_along_axis(orders, sources, axis=1), sources)


def play_permuted_weights(
    weights: Values,
    known: Prices,
    dates: NDArray[np.datetime64],
    config: Config,
    draws: int,
    key: str,
) -> MatchedTraders:
    """Return what permuted weights earn with the agents' accounts, of which each has an equal share of the capital.

    Args:
        weights, draws, key: see `permuted_weights`.
        known, dates: see `weights_accounts`.
        config: trading rules, account, seed.
    """
    agents, days, assets = weights.shape
    settings, finals = share_of_capital(config.account, agents), [np.empty(0)]
    tradable = known.tradable[:days].cpu().numpy()
    for group in permuted_weights(weights, tradable, draws, config.seed, key):
        flat = group.reshape(-1, days, assets)
        accounts = weights_accounts(flat, known, dates, config.trading, settings)
        finals.append(accounts.equity[:, -1].reshape(-1, agents).sum(axis=1))
    return MatchedTraders(np.concatenate(finals) / config.account.capital - 1.0, PORTFOLIOS)


def active_share(weights: Values, tradable: NDArray[np.bool_]) -> float:
    """Return the mean share of the equity that is in other assets than equal weight of the same exposure has it in.

    Half of the sum of the absolute differences (Cremers and Petajisto 2009, "How active is your fund manager?",
    equation 1), over days and agents.
    """
    equal = equal_weights_like(torch.tensor(weights), torch.tensor(tradable)).numpy()
    return float(np.abs(weights - equal).sum(axis=2).mean() / 2.0)


SHIFTS = "shifts of its own decisions in time"
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
    return MatchedTraders(np.concatenate(finals) / config.account.capital - 1.0, SHIFTS)


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
    return MatchedTraders(np.concatenate(finals) / config.account.capital - 1.0, SHIFTS)


def _groups(shifts: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    each = max(1, _VALUES // size)
    return [shifts[first : first + each] for first in range(0, len(shifts), each)]
