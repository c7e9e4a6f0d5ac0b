"""The last look: the champion on days that nothing in training, validation or selection has seen."""

import numpy as np
import torch

from eigen_core.evaluation import Rollout, spread_starts
from eigen_core.generation.state import TrainingState
from eigen_core.population import Population, agent_groups
from eigen_core.progress import report_progress
from eigen_core.records import HoldoutResult


def hold_out(state: TrainingState) -> HoldoutResult | None:
    """Play the champion and the initial population on the holdout days; None where there are none, or no champion.

    Meant to be called once, when a run has ended: choosing anything by its result would make these days validation
    days.
    """
    config = state.config
    if state.champion is None or config.market.holdout_days == 0:
        return None
    slices = spread_starts(state.panel.holdout_starts(config), config.evaluation.validation_slices)
    initial = Population.initial(state.network, config.population.size, config.seed, state.device)

    groups = agent_groups(initial.size, config.population.group_size)

    def play(weights: torch.Tensor) -> Rollout:
        return state.evaluator.roll_out(weights, np.tile(slices, (len(weights), 1)))

    champion = play(state.champion.weights[None])
    random_rewards = []
    for index, agents in enumerate(groups):
        random_rewards.append(play(initial.weights[agents]).rewards)
        report_progress("holdout", index + 1, len(groups))
    trades = champion.summary.trades.sum().item()
    return HoldoutResult(
        generation=state.generation,
        slices=tuple(int(day) for day in slices),
        champion_rewards=tuple(champion.rewards[0].tolist()),
        champion_trades=trades / len(slices),
        champion_win_rate=champion.summary.wins.sum().item() / max(trades, 1),
        random_rewards=tuple(np.concatenate(random_rewards).mean(axis=1).tolist()),
    )
