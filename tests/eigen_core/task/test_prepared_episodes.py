"""The market of an episode is encoded some days at a time, which changes no bit."""

import numpy as np
import pytest
import torch
from training_cases import market_of, small_state

from eigen_core.networks import AgentNetwork
from eigen_core.task.market_rollouts import prepared_episodes
from eigen_core.trading import episode_times


@pytest.mark.parametrize("shared", [False, True])
def test_pieces_of_days_change_no_bit(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    state = small_state()
    task = market_of(state)
    starts = np.array([[3, 30]] * 3, dtype=np.int64)
    if not shared:
        starts += np.arange(3)[:, None]
    times = episode_times(state.config.trading, torch.device("cpu"))[: task.episode_steps]
    weights = torch.cat([state.population.weights] * 3)[:3]

    def prepared(days: int) -> torch.Tensor:
        monkeypatch.setattr(AgentNetwork, "days_at_once", lambda *_: days)
        with torch.no_grad():
            return prepared_episodes(task.network, weights, starts, times)

    whole = prepared(task.episode_steps)
    for days in (1, 3, task.episode_steps - 1):
        assert torch.equal(prepared(days), whole)
