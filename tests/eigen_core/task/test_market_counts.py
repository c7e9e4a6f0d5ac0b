"""What is counted in episodes in which several assets are bought a day, trade by trade."""

import numpy as np
import pytest
import torch
from science_cases import random_panel, small_config

from eigen_core.networks import Heads
from eigen_core.population import initial_weights
from eigen_core.task.market import MarketTask
from eigen_core.trading import Prices, market_gains

CPU = torch.device("cpu")


@pytest.mark.parametrize("observe", [True, False])
def test_the_excess_is_that_of_all_trades(observe: bool) -> None:
    config = small_config(trading={"purchases_per_day": 3, "observe_portfolio": observe})
    panel = random_panel(config)
    task = MarketTask(config, panel, CPU, Heads())
    weights = initial_weights((task.critic_layout, task.actor_layout), 4, 1, CPU)
    starts = np.tile(np.array([20, 41]), (4, 1))
    summary = task.evaluator.roll_out(weights, starts).summary
    counts = task.counts(starts, summary)
    gains = market_gains(Prices.of_panel(panel, CPU), config.trading)
    expected, number = np.zeros((8, 12)), np.zeros((8, 12))
    for episode, start in enumerate(starts.flatten().tolist()):
        for day, place in np.argwhere(summary.bought[episode].numpy()).tolist():
            market = gains[start + day, summary.exit_offset[episode, day, place]]
            expected[episode, day] += float(summary.gain[episode, day, place] - market)
            number[episode, day] += 1.0
    assert (counts["trades"] == summary.bought.sum(dim=(1, 2)).numpy()).all()
    assert summary.bought.sum(dim=2).max() > 1
    np.testing.assert_allclose(counts["excess_of_days"], expected, rtol=1e-9, atol=1e-11)
    assert (counts["trades_of_days"] == number).all()
    assert (counts["first_day"] == starts.flatten()).all()
    shares, _ = task.decisions(weights, starts)
    np.testing.assert_allclose(shares.sum(dim=(1, 2)).numpy(), counts["trades"] / 3.0)
