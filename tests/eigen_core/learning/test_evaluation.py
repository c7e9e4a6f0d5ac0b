"""Rollouts are what the obvious environment says, and depend on nothing but the agent and its episodes."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from science_cases import random_panel, small_config
from torch import Tensor
from trading_cases import SlowEpisode

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.learning.fitness import mean_of_lowest, spread_starts
from eigen_core.market import Panel
from eigen_core.networks.policies import Heads
from eigen_core.networks.population import initial_weights
from eigen_core.task.interface import Rollout
from eigen_core.task.market import MarketTask
from eigen_core.trading.environment import EpisodeSummary

CPU = torch.device("cpu")
AGENTS = 4
STARTS = np.tile(np.array([20, 47, 60]), (AGENTS, 1))


class Table:
    def __init__(self, **sections: Any) -> None:
        self.config: Config = small_config(**sections)
        self.panel: Panel = random_panel(self.config)
        self.task = MarketTask(self.config, self.panel, CPU, Heads())
        self.weights = 3.0 * initial_weights(self.task.network.layouts, AGENTS, 1, CPU)

    def noise(self) -> Tensor:
        shape = (AGENTS, STARTS.shape[1], self.task.episode_steps, self.panel.assets, 2)
        return torch.tensor(keyed_generator(1, "noise").standard_normal(shape, dtype=np.float32)) * 0.3

    def play(
        self, starts: NDArray[np.int64], noise: Tensor | None = None
    ) -> tuple[Rollout, EpisodeSummary, dict[str, Tensor]]:
        """Return rollout, summary, and the stored columns `[episodes, days, ...]`."""
        rollout, summary = self.task.play(self.weights, starts, noise, record=True)
        assert rollout.transitions is not None
        rows = rollout.transitions.items()
        return rollout, summary, {name: torch.unflatten(column, 0, (starts.size, -1)) for name, column in rows}


RULES: list[dict[str, Any]] = [
    {},
    {"credit": "realized", "fill": "same_close", "max_coefficient": None},
    {"credit": "marked", "fill": "next_close"},
    {"observe_portfolio": False},
    {"observe_portfolio": False, "credit": "realized", "fill": "same_close", "max_coefficient": None},
    {"observe_portfolio": False, "credit": "marked"},
]


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("rules", RULES)
def test_recorded_episodes_are_what_the_obvious_environment_makes_of_their_actions(
    rules: dict[str, Any], noisy: bool
) -> None:
    table = Table(trading=rules, replay={"settlement_bars": noisy})
    starts = keyed_generator(1, "starts").integers(8, 80, STARTS.shape) if noisy else STARTS
    rollout, summary, stored = table.play(starts, noise=table.noise() if noisy else None)
    trading, days = table.config.trading, table.task.episode_steps
    assert days == (trading.episode_bars if noisy else trading.trading_bars)
    assert stored["reward"].dtype == stored["action"].dtype == torch.float32
    traded = 0
    for index, first_day in enumerate(starts.flatten().tolist()):
        assert stored["day"][index].tolist() == list(range(first_day, first_day + days))
        assert stored["step"][index].tolist() == list(range(days))
        assert stored["terminal"][index].nonzero().tolist() == [[days - 1]]
        actions = stored["action"][index].double().numpy()
        slow = SlowEpisode(table.panel, trading, first_day).run(actions[..., 0], actions[..., 1])
        # The environment was given float32 actions too, so only the kept rewards are rounded.
        booked = [*slow.rewards[: days - 1], sum(slow.rewards[days - 1 :])]
        np.testing.assert_allclose(stored["reward"][index].numpy(), booked, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(rollout.rewards.flatten()[index], sum(slow.rewards), rtol=1e-9, atol=1e-9)
        assert summary.trades[index] == len(slow.trades)
        assert summary.wins[index] == sum(float(trade["gain"]) > 0 for trade in slow.trades)
        assert summary.idle_days[index] == slow.idle_days
        np.testing.assert_allclose(summary.fees[index], sum(float(trade["fees"]) for trade in slow.trades), rtol=1e-9)
        traded += len(slow.trades)
        if trading.observe_portfolio:
            np.testing.assert_allclose(
                stored["portfolio"][index].double().numpy(), slow.portfolios[:days], rtol=1e-3, atol=1e-7
            )
        else:
            assert stored["portfolio"][index].shape == (days, table.panel.assets, 0)
    assert traded > 20


def test_each_step_takes_the_noise_of_its_own_place() -> None:
    """Noise for one agent, slice, day and asset moves that action, and of the others only what follows from it."""
    for rules in ({}, {"observe_portfolio": False}):
        table = Table(trading=rules)
        noise = torch.zeros_like(table.noise())
        noise[2, 1, 9, 3, 1] = 0.2
        moved = table.play(STARTS, noise=noise)[2]["action"] != table.play(STARTS)[2]["action"]
        episode = 2 * STARTS.shape[1] + 1
        assert moved[episode, 9].nonzero().tolist() == [[3, 1]]
        assert not moved[episode, :9].any()
        moved[episode] = False
        assert not moved.any()


def test_fitness_is_the_mean_of_the_lowest_of_starts_that_are_spread_evenly() -> None:
    rewards = np.array([[3.0, -1.0, 5.0, 0.0], [2.0, 2.0, 2.0, -9.0]])
    assert mean_of_lowest(rewards, 2).tolist() == [-0.5, -3.5]
    assert spread_starts(range(10, 21), 3).tolist() == [10, 15, 20]
    assert spread_starts(range(10, 21), 1).tolist() == [10]
