"""The loss by which an encoder learns the known returns of all assets."""

import numpy as np
import pytest
import torch
from science_cases import learner_with, random_panel, small_config
from training_cases import advance, market_of

from benchmarks.synthetic import leaking_market
from eigen_core.generation import TrainingState, start_training
from eigen_core.task.panel import MarketObservation
from eigen_core.trading.environment import episode_times
from eigen_core.trading.prices import Prices
from eigen_core.trading.ridge import relative_gains


def loss_and_predictions(state: TrainingState, days: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return every agent's loss on the same days, and its predictions."""
    task, size = market_of(state), state.population.size
    critic = task.critic_layout.views(state.population.weights[:, : task.critic_layout.size])
    times = episode_times(state.config.trading, state.device)[:1]
    encoding = task.encode(critic, MarketObservation(days.expand(size, -1), None, times, 0))
    return task.known_return_loss(critic, encoding), task.network.predicted_returns(critic, encoding.market)


def test_it_is_the_squared_error_of_returns_that_end_within_the_training_days() -> None:
    config = small_config(learner={"known_return_weight": 1.0})
    state = start_training(config, random_panel(config))
    task = market_of(state)
    gains, known, ended = relative_gains(task.panel, Prices.of_panel(task.panel, torch.device("cpu")), config.trading)
    train = task.panel.splits.train
    usable = known & (ended < train.stop)
    deviation = gains[usable].std()
    days = torch.arange(train.stop - 12, train.stop)
    loss, predicted = loss_and_predictions(state, days)
    assert 0 < usable[train.stop - 12 : train.stop].sum() < 12 * task.panel.assets
    for agent in range(state.population.size):
        errors = [
            float(predicted[agent, index, asset]) - gains[day, asset] / deviation
            for index, day in enumerate(days.tolist())
            for asset in range(task.panel.assets)
            if usable[day, asset]
        ]
        assert float(loss[agent]) == pytest.approx(np.square(errors).mean(), rel=1e-4)


@pytest.mark.parametrize("learner", ["ddpg", "ppo"])
def test_the_encoder_learns_what_the_critic_alone_does_not(learner: str) -> None:
    found = []
    for weight in (1e-9, 1.0):
        section = learner_with(learner, known_return_weight=weight, critic_learning_rate=1e-2, gradient_steps=20)
        config = small_config(learner=section, evolution={"enabled": False}, population={"size": 2})
        state = start_training(config, leaking_market(config, 400, 8, 1))
        found.append(loss_and_predictions(advance(state, 5), torch.arange(20, 200))[0].mean().item())
    critic_alone, with_returns = found
    assert with_returns < 0.8 < critic_alone
