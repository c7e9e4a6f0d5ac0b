"""Agents that trade the market day after day over any span, with their portfolios carried."""

import torch
from torch import Tensor

from eigen_core.account import DecidedTrades
from eigen_core.account.days import trade_day_by_day
from eigen_core.config import Config
from eigen_core.networks import AgentNetwork
from eigen_core.trading import Prices, episode_times


@torch.no_grad()
def play_days(
    network: AgentNetwork, known: Prices, config: Config, weights: Tensor, span: range, *, ensemble: bool = False
) -> DecidedTrades:
    """Let agents trade a span of days.

    Args:
        network: forward passes.
        known: prices of the span, as `prices_of_span` returns them.
        config: of the run.
        weights: float32 `[agents, parameters]`.
        span: days of the panel; a whole window lies before the first decision.
        ensemble: the agents trade together, one portfolio by the means of their actions.

    The time in the episode that agents see begins again after every `trading.trading_days` days, so that they see
    nothing that they were not trained on.
    """
    trading, agents = config.trading, len(weights)
    critic = network.critic_layout.views(weights[:, : network.critic_layout.size])
    actor = network.actor_layout.views(weights[:, network.critic_layout.size :])
    times = episode_times(trading, weights.device)
    prepared = torch.empty(0)

    def decide(step: int, portfolios: Tensor) -> tuple[Tensor, ...]:
        nonlocal prepared
        row = step % trading.trading_days
        if row == 0:
            days = min(trading.trading_days, len(span) - step)
            market = network.encode_block(critic, span.start + step, days)
            prepared = network.prepare_actor(actor, market, times[:days])
        seen = portfolios.float().unsqueeze(1).expand(agents, -1, -1, -1) if network.portfolio_values else None
        actions = network.policy(actor, prepared[:, row : row + 1], seen).play(None).actions[:, 0]
        if ensemble:
            actions = actions.mean(dim=0, keepdim=True)
        return actions.unbind(-1)

    return trade_day_by_day(known, trading, len(span), 1 if ensemble else agents, decide)
