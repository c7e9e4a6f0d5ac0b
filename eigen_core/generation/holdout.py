"""The last look: the champion on days that nothing in training, validation or selection has seen."""

import numpy as np
import torch

from eigen_core.evaluation import Rollout, spread_starts
from eigen_core.generation.state import TrainingState
from eigen_core.population import Population
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

    def play(weights: torch.Tensor) -> Rollout:
        return state.evaluator.roll_out(weights, np.tile(slices, (len(weights), 1)))

    champion, random = play(state.champion.weights[None]), play(initial.weights)
    trades = champion.summary.trades.sum().item()
    return HoldoutResult(
        generation=state.generation,
        slices=tuple(int(day) for day in slices),
        champion_rewards=tuple(champion.rewards[0].tolist()),
        champion_trades=trades / len(slices),
        champion_win_rate=champion.summary.wins.sum().item() / max(trades, 1),
        random_rewards=tuple(random.rewards.mean(axis=1).tolist()),
    )
