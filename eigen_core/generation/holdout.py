"""The champion in the holdout episodes, which training, validation and selection do not use."""

import numpy as np
import torch

from eigen_core.common.progress import report_progress
from eigen_core.common.records import HoldoutResult
from eigen_core.evolution.fitness import spread_starts
from eigen_core.generation.state import TrainingState
from eigen_core.networks.population import agent_groups
from eigen_core.task import Rollout


def hold_out(state: TrainingState) -> HoldoutResult | None:
    """Play the champion and the initial population in the holdout episodes; None where there are none, or no champion.

    Meant to be called once, when a run has ended: choosing anything by its result would make these validation
    episodes.
    """
    config = state.config
    if state.champion is None or not state.task.holdout_starts:
        return None
    state.task.state = state.champion.task_state
    slices = spread_starts(state.task.holdout_starts, config.evaluation.holdout_episodes)
    initial = state.initial_weights()
    groups = agent_groups(len(initial), state.playing_size)

    def play(weights: torch.Tensor) -> Rollout:
        return state.task.roll_out(weights, np.tile(slices, (len(weights), 1)))

    champion = play(state.champion.weights[None])
    random_rewards = []
    for index, agents in enumerate(groups):
        random_rewards.append(play(initial[agents]).rewards)
        report_progress("holdout", index + 1, len(groups))
    return HoldoutResult(
        generation=state.generation,
        slices=tuple(int(day) for day in slices),
        champion_rewards=tuple(champion.rewards[0].tolist()),
        champion_excess=state.task.excess([champion]),
        champion_statistics=tuple(state.task.statistics([champion]).items()),
        random_rewards=tuple(np.concatenate(random_rewards).mean(axis=1).tolist()),
    )
