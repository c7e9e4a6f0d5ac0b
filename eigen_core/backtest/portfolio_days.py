"""The target weights that agents decide on day after day over any span, their scores carried."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import Config
from eigen_core.market.panel import Panel
from eigen_core.networks import AgentNetwork
from eigen_core.task.portfolio_scores import decided_scores
from eigen_core.trading import episode_times
from eigen_core.trading.portfolio import target_weights


@torch.no_grad()
def decide_weights(
    network: AgentNetwork, panel: Panel, config: Config, weights: Tensor, span: range, *, ensemble: bool = False
) -> NDArray[np.float64]:
    """Return the target weights that agents decide on after the close of each day of a span.

    Args:
        network: forward passes, with the actions of the task `portfolio` (`portfolio_actions`).
        panel: the market.
        config: of the run.
        weights: float32 `[agents, parameters]`.
        span: days of the panel; a whole window lies before the first decision.
        ensemble: the agents decide together, by the means of their scores and speeds.

    Returns:
        float64 `[agents, days, assets]`, shares of the equity; cash is what they leave of 1. An ensemble is one agent.
    """
    critic = network.critic_layout.views(weights[:, : network.critic_layout.size])
    actor = network.actor_layout.views(weights[:, network.critic_layout.size :])
    time = episode_times(config.trading, weights.device)[:1]
    at_once = config.trading.trading_days
    decided, scores = [], None
    for first in range(span.start, span.stop, at_once):
        days = min(at_once, span.stop - first)
        prepared = network.prepare_actor(actor, network.encode_block(critic, first, days), time)
        for day in range(days):
            played = decided_scores(network, actor, prepared[:, day : day + 1], scores, None, ensemble=ensemble)
            scores = played.scores
            decided.append(scores)
    tradable = torch.tensor(panel.close[span.start : span.stop] > 0.0, device=weights.device)
    targets = target_weights(torch.cat(decided, dim=1).double(), tradable, config.portfolio.short)
    values: NDArray[np.float64] = targets.cpu().numpy()
    return values
