"""The last look: the champion on days that nothing in training, validation or selection has seen."""

import numpy as np
import torch
from pydantic import Field

from eigen_core.evaluation import Rollout, spread_starts
from eigen_core.generation.state import TrainingState
from eigen_core.population import Population
from eigen_core.records import Record


class HoldoutResult(Record):
    """The champion beside agents with random weights, on the same holdout episodes."""

    slices: tuple[int, ...]
    """First day of each holdout episode, evenly spread."""
    champion_rewards: tuple[float, ...]
    """The champion's reward in each of them."""
    champion_trades: float = Field(ge=0.0)
    """Its trades per episode."""
    champion_win_rate: float = Field(ge=0.0, le=1.0)
    """Share of its trades with a gain; 0 without trades."""
    random_rewards: tuple[float, ...]
    """Mean reward over these episodes of each agent of the population that the run began with."""

    @property
    def champion_reward(self) -> float:
        """The champion's mean reward."""
        return float(np.mean(self.champion_rewards))

    @property
    def random_reward(self) -> float:
        """Mean reward of the random agents."""
        return float(np.mean(self.random_rewards))

    @property
    def share_of_random_beaten(self) -> float:
        """Share of the random agents whose mean reward is below the champion's."""
        return float(np.mean(np.array(self.random_rewards) < self.champion_reward))


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
        slices=tuple(int(day) for day in slices),
        champion_rewards=tuple(champion.rewards[0].tolist()),
        champion_trades=trades / len(slices),
        champion_win_rate=champion.summary.wins.sum().item() / max(trades, 1),
        random_rewards=tuple(random.rewards.mean(axis=1).tolist()),
    )
