"""Rollouts of a group of agents over slices of the market."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import Config
from eigen_core.machine.gpu import CapturedStep, on_device
from eigen_core.networks import AgentNetwork
from eigen_core.task.encoded_episodes import EncodedEpisodes
from eigen_core.task.market_transitions import EpisodeBatch, stored_rewards, stored_steps
from eigen_core.trading import (
    Decision,
    DecisionInputs,
    EpisodeSummary,
    HeldPrices,
    Prices,
    TradingEnvironment,
    episode_times,
    trade_whole_episodes,
)


@dataclass(frozen=True)
class MarketRollout:
    """Results of the slices of a group of agents; an episode is (agent, slice), agents first.

    Attributes:
        rewards: reward of each episode, float64 `[agents, slices]`, on the host.
        summary: counts of each episode.
        episodes: the transitions, only if they were recorded.
    """

    rewards: NDArray[np.float64]
    summary: EpisodeSummary
    episodes: EpisodeBatch | None


class _Day(NamedTuple):
    """Inputs that differ from one day of a group's episodes to the next.

    Attributes:
        rows, time: of `EncodedEpisodes.of_step`.
        portfolio: float16 `[agents, slices, assets, values]`.
        noise: what the policy plays with, float32 `[agents, slices, assets, values]`; None: none.
        decision: of the environment; None: nothing is bought any more.
    """

    rows: Tensor
    time: Tensor
    portfolio: Tensor
    noise: Tensor | None
    decision: DecisionInputs | None


class Evaluator:
    """Plays episodes with groups of agents.

    Args:
        network: forward passes.
        prices: what trades are settled with.
        config: trading rules.
        device: where everything is computed.
    """

    def __init__(self, network: AgentNetwork, prices: Prices, config: Config, device: torch.device) -> None:
        self._network = network
        self.prices = prices
        self._trading = config.trading
        self._device = device
        self._held_prices = HeldPrices.of(prices, config.trading) if network.portfolio_values else None
        self._steps = stored_steps(config)
        self._captures = config.cuda_graphs
        self._episode_times = episode_times(config.trading, device)[: self._steps]

    @torch.no_grad()
    def roll_out(
        self,
        weights: Tensor,
        starts: NDArray[np.int64],
        noise: Tensor | None = None,
        record: bool = False,
        fixed: int = 0,
    ) -> MarketRollout:
        """Play one episode for each agent and slice.

        Args:
            weights: float32 `[agents, parameters]`.
            starts: first day of each episode, `[agents, slices]`.
            noise: what the policy plays with in episodes that are not fixed, float32 `[agents, slices, days, assets,
                values]`; None: none.
            record: keep the transitions of episodes that are not fixed.
            fixed: how many of an agent's last episodes are.
        """
        recorded = starts.shape[1] - fixed if record else 0
        encoded = EncodedEpisodes(self._network, weights, starts, self._episode_times)
        if self._network.portfolio_values:
            return self._step_by_step(encoded, starts, noise, recorded)
        return self._at_once(encoded, starts, noise, recorded)

    def _step_by_step(
        self, encoded: EncodedEpisodes, starts: NDArray[np.int64], noise: Tensor | None, recorded: int
    ) -> MarketRollout:
        days, assets = self._steps, self.prices.assets
        environment = TradingEnvironment(self.prices, self._trading, held_prices=self._held_prices)
        environment.reset(torch.tensor(starts).flatten())
        kept = (len(starts), recorded, days, assets)
        portfolios = torch.empty((*kept, self._network.portfolio_values), dtype=torch.float16, device=self._device)
        stored = torch.empty((*kept, self._network.box.values), device=self._device)

        def decide(day: _Day) -> tuple[Tensor, Decision | None]:
            prepared = encoded.prepared(day.rows, day.time)
            policy = self._network.policy(encoded.actor, prepared, day.portfolio.float())
            played = policy.play(day.noise)
            actions = played.actions.flatten(0, 1).unbind(-1)
            return played.stored, None if day.decision is None else environment.decide(day.decision, *actions)

        repeated = CapturedStep(decide, self._device, captures=self._captures)
        for step in range(days):
            portfolio = environment.portfolio().reshape(*starts.shape, assets, -1)
            of_noise = None if noise is None else noise[:, :, step]
            day = _Day(*encoded.of_step(step), portfolio, of_noise, environment.decision_inputs())
            chosen, decision = repeated(day)
            if recorded:
                portfolios[:, :, step] = portfolio[:, :recorded]
                stored[:, :, step] = chosen[:, :recorded]
            environment.end_day(decision)
        # Its inputs are views that would keep all positions in memory while the account is made.
        del day
        nothing = torch.zeros((starts.size, assets), device=self._device)
        while not environment.done:
            environment.step(nothing, nothing)
        return self._rollout(environment.rewards(), environment.summary(), starts, portfolios, stored)

    def _at_once(
        self, encoded: EncodedEpisodes, starts: NDArray[np.int64], noise: Tensor | None, recorded: int
    ) -> MarketRollout:
        policy = self._network.policy(encoded.actor, encoded.of_all_steps().flatten(1, 2), None)
        played = policy.play(None if noise is None else noise.flatten(1, 2))
        taken, stored = (part.reshape(len(part), -1, self._steps, *part.shape[2:]) for part in played)
        actions = taken.flatten(0, 1).unbind(-1)
        first_days = torch.tensor(starts).flatten()
        rewards, summary = trade_whole_episodes(self.prices, self._trading, first_days, *actions)
        stored = stored[:, :recorded]
        nothing_seen = torch.empty((*stored.shape[:-1], 0), dtype=torch.float16, device=self._device)
        return self._rollout(rewards, summary, starts, nothing_seen, stored)

    def _rollout(
        self,
        rewards: Tensor,
        summary: EpisodeSummary,
        starts: NDArray[np.int64],
        portfolios: Tensor,
        stored: Tensor,
    ) -> MarketRollout:
        """Return the rollout, with the transitions of the episodes of which portfolios and actions are kept."""
        agents, recorded = stored.shape[:2]
        batch = None
        if recorded:
            of_recorded = stored_rewards(
                rewards.reshape(agents, -1, rewards.shape[1])[:, :recorded].flatten(0, 1), self._steps
            )
            first_days = on_device(starts[:, :recorded].flatten(), self._device)
            batch = EpisodeBatch(first_days, portfolios.flatten(0, 1), stored.flatten(0, 1), of_recorded)
        return MarketRollout(_totals(rewards, agents), summary, batch)


def _totals(rewards: Tensor, agents: int) -> NDArray[np.float64]:
    """Sum float64 `[episodes, days]` over the days, on the host, to `[agents, slices]`."""
    totals: NDArray[np.float64] = rewards.cpu().numpy().sum(axis=1).reshape(agents, -1)
    return totals
