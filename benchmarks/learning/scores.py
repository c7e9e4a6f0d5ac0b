"""Scores by which assets are ranked: those of baselines without agents, those of agents, and what they know."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.preprocessing import PolynomialFeatures
from torch import Tensor

from eigen_core.config import Config, TradingConfig
from eigen_core.generation import TrainingState
from eigen_core.market import Panel
from eigen_core.networks.actions import margins
from eigen_core.task.panel import PanelTask
from eigen_core.trading.environment import episode_times
from eigen_core.trading.equity import Values
from eigen_core.trading.ridge import fit_ridge
from eigen_core.trading.synthetic import coming_returns

Score = Callable[[Panel], Values]
"""Returns the scores of all days of a panel, float64 `[days, assets]`; the higher the better."""
Fit = Callable[[Panel, Config], Score]
"""Fits a score to the training days, on which it has mean 0 and standard deviation 1."""


def ridge(panel: Panel, config: Config) -> Score:
    return fit_ridge(panel, config).of


def second_order_ridge(panel: Panel, config: Config) -> Score:
    """Fit `ridge` to the features, their squares, and the products of each two."""
    score = ridge(_with_products(panel), config)
    return lambda later: score(_with_products(later))


def _with_products(panel: Panel) -> Panel:
    products = PolynomialFeatures(2, include_bias=False)
    features = products.fit_transform(panel.features.reshape(-1, panel.features.shape[2]))
    names = tuple(products.get_feature_names_out(panel.feature_names))
    return replace(panel, features=features.reshape(*panel.features.shape[:2], -1), feature_names=names)


def boosted_trees(panel: Panel, config: Config) -> Score:
    """Fit boosted trees to the coming returns of all assets beyond their mean on the day.

    They stop by the last fifth of the training days. No return ends beyond the days that it belongs to. The settings
    were written down before any run, and are not tuned.
    """
    held = config.trading.holding_bars
    first, stop = max(panel.splits.train.start, config.market.window - 1), panel.splits.train.stop - held
    middle = stop - (stop - first) // 5
    returns = coming_returns(panel, config.trading)[:stop]
    returns -= np.nanmean(returns, axis=1, keepdims=True)
    fitted, stopping = slice(first, middle - held), slice(middle, stop)
    trees = HistGradientBoostingRegressor(
        learning_rate=0.05, max_iter=200, max_leaf_nodes=15, min_samples_leaf=200, early_stopping=True
    )
    last = {"X_val": _rows(panel, stopping), "y_val": returns[stopping].ravel()}
    trees.fit(_rows(panel, fitted), returns[fitted].ravel(), **last)
    predicted = trees.predict(_rows(panel, slice(first, stop)))
    mean, deviation = float(predicted.mean()), float(predicted.std()) or 1.0

    def score(later: Panel) -> Values:
        scores: Values = (trees.predict(_rows(later, slice(0, later.days))) - mean) / deviation
        return scores.reshape(later.days, later.assets)

    return score


def _rows(panel: Panel, days: slice) -> NDArray[np.float32]:
    """Return the features of all assets on these days, `[days * assets, features]`."""
    return panel.features[days, : panel.assets].reshape(-1, panel.features.shape[2])


@torch.no_grad()
def agent_scores(state: TrainingState, weights: Tensor) -> Values:
    """Return the scores by which an agent ranks assets while it holds none, float64 `[days, assets]`.

    They are the values of its actions before squashing, or of counterfactual learning the best margin of each asset.
    On days before the first window they are NaN. `weights` are float32 `[parameters]`.
    """
    task, trading = state.task, state.config.trading
    assert isinstance(task, PanelTask)
    network, panel = task.network, task.panel
    critic = network.critic_layout.views(weights[None, : network.critic_layout.size])
    actor = network.actor_layout.views(weights[None, network.critic_layout.size :])
    ranked_by = 2 if state.config.task == "market" and trading.rank == "separate" else 0
    time = episode_times(trading, state.device)[:1]
    scores = np.full((panel.days, panel.assets), np.nan)
    for first in range(state.config.market.window - 1, panel.days, trading.trading_bars):
        days = min(trading.trading_bars, panel.days - first)
        prepared = network.prepare_actor(actor, network.encode_block(critic, first, days), time)
        if state.heads.outcomes:
            found = margins(actor, network.expected(actor, prepared)).amax(dim=-1)
        else:
            values = network.portfolio_values
            nothing = torch.zeros((1, days, panel.assets, values), device=state.device) if values else None
            found = network.policy(actor, prepared, nothing).mean[..., ranked_by]
        scores[first : first + days] = found[0].double().cpu().numpy()
    return scores


def information_coefficient(scores: Values, panel: Panel, trading: TradingConfig, days: range) -> float | None:
    """Return the mean over days of the correlation over assets of scores, `[days, assets]`, and the coming returns.

    Left out are days without the returns of all assets, or whose scores are equal; None if no day is left.
    """
    of_days = slice(days.start, days.stop)
    returns, own = coming_returns(panel, trading)[of_days], scores[of_days]
    known = ~np.isnan(returns).any(axis=1) & (own.std(axis=1) > 0.0)
    if not known.any():
        return None
    one, other = (
        (values - values.mean(axis=1, keepdims=True)) / values.std(axis=1, keepdims=True)
        for values in (own[known], returns[known])
    )
    return float((one * other).mean())
