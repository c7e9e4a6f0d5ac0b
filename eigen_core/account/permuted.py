"""Random portfolios matched to an agent's: its weights with the assets permuted.

A permuted portfolio is as concentrated and as exposed as the agent's, and traded as much, but for the drift of prices:
what differs is which assets have which weights.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from eigen_core.account.equity import Values
from eigen_core.account.matched import MatchedTraders, share_of_capital
from eigen_core.account.weights import weights_accounts
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.trading import Prices
from eigen_core.trading.portfolio import equal_weights_like

DESCRIPTION = "random portfolios with the same weights in other assets"
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
    return MatchedTraders(np.concatenate(finals) / config.account.capital - 1.0, DESCRIPTION)


def active_share(weights: Values, tradable: NDArray[np.bool_]) -> float:
    """Return the mean share of the equity that is in other assets than equal weight of the same exposure has it in.

    Half of the sum of the absolute differences (Cremers and Petajisto 2009, "How active is your fund manager?",
    equation 1), over days and agents.
    """
    equal = equal_weights_like(torch.tensor(weights), torch.tensor(tradable)).numpy()
    return float(np.abs(weights - equal).sum(axis=2).mean() / 2.0)
