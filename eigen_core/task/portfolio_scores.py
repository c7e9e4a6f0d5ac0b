"""How the decisions of agents move the scores of their portfolios."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigen_core.networks import AgentNetwork
from eigen_core.networks.layout import Parameters
from eigen_core.trading.portfolio import moved_scores, smoothed_scores


@dataclass(frozen=True)
class DecidedScores:
    """Decisions, and the scores that they lead to.

    Attributes:
        scores: float32 `[agents, ..., assets]`, after the decision.
        observed: float16 `[agents, ..., assets, portfolio values]`, the scores before it as they were observed.
        stored: float32 `[agents, ..., assets, values]`, the actions as the policy stores them.
    """

    scores: Tensor
    observed: Tensor
    stored: Tensor


def decided_scores(
    network: AgentNetwork,
    actor: Parameters,
    prepared: Tensor,
    scores: Tensor | None,
    noise: Tensor | None,
    *,
    ensemble: bool = False,
) -> DecidedScores:
    """Let agents decide after a day.

    Args:
        network: forward passes.
        actor: parameters of the agents.
        prepared: what `AgentNetwork.prepare_actor` returns for the day, float32 `[agents, ..., assets, width]`.
        scores: float32 `[agents, ..., assets]`, before the decision; None on the first day: 0, and the decision moves
            them all the way.
        noise: what the policies play with; None: none.
        ensemble: the agents decide together, by the means of their actions, on scores that they share.
    """
    before = prepared.new_zeros(prepared.shape[:-1]) if scores is None else scores.expand(prepared.shape[:-1])
    observed = (before / network.box.high[0]).half()[..., None][..., : network.portfolio_values]
    policy = network.policy(actor, prepared, observed.float() if network.portfolio_values else None)
    actions, stored = policy.play(noise)
    if ensemble:
        actions, before = actions.mean(dim=0, keepdim=True), before[:1]
    wanted, speeds = actions.unbind(-1)
    if scores is None:
        speeds = torch.ones_like(speeds)
    return DecidedScores(moved_scores(before, wanted, speeds), observed, stored)


def episode_scores(network: AgentNetwork, actor: Parameters, prepared: Tensor, noise: Tensor | None) -> DecidedScores:
    """Let agents decide on all days of episodes; differentiable.

    Args:
        network: forward passes.
        actor: parameters of the agents.
        prepared: float32 `[agents, episodes, days, assets, width]`.
        noise: float32 `[agents, episodes, days, assets, values]`; None: none.

    Returns:
        `[agents, episodes, days, assets, ...]`.
    """
    if not network.portfolio_values:
        policy = network.policy(actor, prepared.flatten(1, 2), None)
        played = policy.play(None if noise is None else noise.flatten(1, 2))
        actions, stored = (part.reshape(*prepared.shape[:-1], -1) for part in played)
        observed = torch.empty((*prepared.shape[:-1], 0), dtype=torch.float16, device=prepared.device)
        return DecidedScores(smoothed_scores(*actions.unbind(-1)), observed, stored)
    days: list[DecidedScores] = []
    for day, of_day in enumerate(prepared.unbind(2)):
        before = days[-1].scores if days else None
        days.append(decided_scores(network, actor, of_day, before, None if noise is None else noise[:, :, day]))
    names = ("scores", "observed", "stored")
    return DecidedScores(**{name: torch.stack([getattr(day, name) for day in days], dim=2) for name in names})
