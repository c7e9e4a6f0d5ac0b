"""Each day of the episodes is encoded once, in pieces of any size, which changes no bit."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from training_cases import market_of, small_state

from eigen_core.networks import AgentNetwork, MarketEmbedding
from eigen_core.task.panel import EncodedEpisodes, day_runs
from eigen_core.trading import episode_times


@given(st.lists(st.integers(0, 200), min_size=1, max_size=20), st.integers(1, 30), st.integers(0, 30))
def test_runs_hold_the_days_of_all_episodes_and_gaps_that_are_cheaper_to_encode(
    starts: list[int], steps: int, days_before: int
) -> None:
    runs = day_runs(np.array(starts), steps, days_before)
    wanted = {start + step for start in starts for step in range(steps)}
    held = [day for run in runs for day in run]
    assert held == sorted(set(held))
    assert wanted <= set(held)
    for former, run in pairwise(runs):
        assert run.start - former.stop > days_before
    for run in runs:
        assert run.start in wanted
        inside = [day for day in run if day in wanted]
        assert max(np.diff(inside), default=1) - 1 <= days_before


_SHARED = np.array([[30, 9, 33, 30, 70]] * 3)
_OWN = _SHARED + np.array([[0], [4], [1]])


@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
@pytest.mark.parametrize("starts", [_SHARED, _OWN], ids=["shared", "own"])
@pytest.mark.cpu
def test_what_agents_see_is_what_is_encoded_for_each_day_alone(
    monkeypatch: pytest.MonkeyPatch, encoder: str, starts: NDArray[np.int64]
) -> None:
    state = small_state(network={"encoder": encoder})
    network = market_of(state).network
    times = episode_times(state.config.trading, torch.device("cpu"))[:12]
    weights = state.population.weights[:3]
    critic = network.critic_layout.views(weights[:, : network.critic_layout.size])
    actor = network.actor_layout.views(weights[:, network.critic_layout.size :])
    calls: list[int] = []
    encode = AgentNetwork.encode_block

    def counted(*given: Any) -> MarketEmbedding:
        calls.append(given[3])
        return encode(*given)

    monkeypatch.setattr(AgentNetwork, "encode_block", counted)
    with torch.no_grad():
        for sizes in ((3, 1), (1, 5), (2, 12), (3, 100)):
            monkeypatch.setattr(AgentNetwork, "encoded_at_once", lambda *_, sizes=sizes: sizes)
            calls.clear()
            encoded = EncodedEpisodes(network, weights, starts, times)
            days = sum(map(len, day_runs(starts[0], 12, network.days_before)))
            groups = 3 if starts is _OWN else -(-3 // sizes[0])
            assert sum(calls) == groups * days
            at_once = encoded.of_all_steps()
            for step in range(12):
                of_step = encoded.prepared(*encoded.of_step(step))
                assert torch.equal(of_step, at_once[:, :, step])
                for agent, episode in np.ndindex(starts.shape):
                    market = encode(network, critic, int(starts[agent, episode]) + step, 1)
                    alone = network.prepare_actor(actor, market, times[step])[agent, 0]
                    assert torch.equal(of_step[agent, episode], alone)
