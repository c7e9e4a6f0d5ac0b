"""The market as agents see it in their episodes: each day is encoded once, however many episodes it belongs to."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.networks import AgentNetwork, MarketEmbedding
from eigen_core.networks.population import agent_groups


def day_runs(starts: NDArray[np.int64], steps: int, days_before: int) -> list[range]:
    """Return the runs of consecutive days that are encoded for episodes of so many steps.

    Where fewer days lie between two episodes than are computed before a run anyway, they are encoded too.

    Args:
        starts: first day of each episode, int64 `[episodes]`.
        steps: of an episode.
        days_before: days before a run that are computed with it.
    """
    runs: list[range] = []
    for start in np.unique(starts).tolist():
        if runs and start <= runs[-1].stop + days_before:
            runs[-1] = range(runs[-1].start, start + steps)
        else:
            runs.append(range(start, start + steps))
    return runs


class EncodedEpisodes:
    """Observations of the market in the episodes of agents.

    Args:
        network: forward passes.
        weights: float32 `[agents, parameters]`.
        starts: first day of each episode, int64 `[agents, episodes]`.
        times: time in the episode of each of its steps, float32 `[steps, values]`.

    Attributes:
        actor: the parameters of the agents' actors.
    """

    def __init__(self, network: AgentNetwork, weights: Tensor, starts: NDArray[np.int64], times: Tensor) -> None:
        self.actor = network.actor_layout.views(weights[:, network.critic_layout.size :])
        self._network = network
        self._times = times
        runs = [day_runs(own, len(times), network.days_before) for own in starts]
        days = [np.concatenate(own) for own in runs]
        first_rows = np.cumsum([0, *map(len, days)])
        self._days = network.empty_embedding(int(first_rows[-1]))
        # Agents with the same episodes are encoded together.
        together = len(starts) if bool((starts == starts[0]).all()) else 1
        for agents in agent_groups(len(starts), together):
            rows = self._days.split(slice(*first_rows[[agents.start, agents.stop]]), agents.stop - agents.start)
            self._encode(weights[agents], runs[agents.start], rows)
        rows = np.stack([np.searchsorted(*pair) for pair in zip(days, starts, strict=True)]) + first_rows[:-1, None]
        self._rows = torch.tensor(rows[..., None] + np.arange(len(times)), device=weights.device)

    def _encode(self, weights: Tensor, runs: list[range], days: MarketEmbedding) -> None:
        """Write the days of agents that play the same episodes."""
        network, done = self._network, 0
        for run in runs:
            agents_at_once, days_at_once = network.encoded_at_once(len(weights), len(run), len(self._times))
            for agents in agent_groups(len(weights), agents_at_once):
                critic = network.critic_layout.views(weights[agents, : network.critic_layout.size])
                for first in range(0, len(run), days_at_once):
                    count = min(days_at_once, len(run) - first)
                    days.put(agents, done + first, network.encode_block(critic, run.start + first, count))
            done += len(run)

    def of_step(self, step: int) -> tuple[Tensor, Tensor]:
        """Return what `prepared` needs to know of a step: numbers of encoded days, and the time in the episode."""
        return self._rows[:, :, step], self._times[step]

    def of_all_steps(self) -> Tensor:
        """Return what is `prepared` for all steps, float32 `[agents, episodes, steps, assets, width]`."""
        shape = (*self._rows.shape, self._network.assets, self._network.prepared_width)
        prepared = torch.empty(shape, device=self._rows.device)
        # An episode at a time: what is picked of the days takes little memory beside them.
        for episode, rows in enumerate(self._rows.unbind(1)):
            prepared[:, episode] = self.prepared(rows, self._times)
        return prepared

    def prepared(self, rows: Tensor, times: Tensor) -> Tensor:
        """Return what `AgentNetwork.prepare_actor` makes of encoded days, float32 `[agents, days, assets, width]`.

        Args:
            rows: numbers of the days, int64 `[agents, days]`.
            times: time in the episode, float32 `[..., days, values]`.
        """
        return self._network.prepare_actor(self.actor, self._days.picked(rows), times)
