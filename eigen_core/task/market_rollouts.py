"""Rollouts of a group of agents over slices of the market."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import Config
from eigen_core.networks import AgentNetwork
from eigen_core.networks.layout import Parameters
from eigen_core.task.market_transitions import EpisodeBatch, stored_rewards, stored_steps
from eigen_core.trading import (
    EpisodeSummary,
    HeldPrices,
    Prices,
    TradingEnvironment,
    episode_times,
    trade_whole_episodes,
)


@dataclass(frozen=True)
class MarketRollout:
    """What a group of agents did over their slices; an episode is (agent, slice), agents first.

    Attributes:
        rewards: reward of each episode, float64 `[agents, slices]`, on the host.
        summary: counts of each episode.
        episodes: the transitions, only if they were recorded.
    """

    rewards: NDArray[np.float64]
    summary: EpisodeSummary
    episodes: EpisodeBatch | None


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
        self._episode_times = episode_times(config.trading, device)[: self._steps]

    @torch.no_grad()
    def roll_out(
        self, weights: Tensor, starts: NDArray[np.int64], noise: Tensor | None = None, record: bool = False
    ) -> MarketRollout:
        """Play one episode for each agent and slice.

        Args:
            weights: float32 `[agents, parameters]`.
            starts: first day of each episode, `[agents, slices]`.
            noise: what the policy plays with, float32 `[agents, slices, days, assets, values]`; None: none.
            record: keep the transitions.
        """
        first_days = torch.tensor(starts, device=self._device).flatten()
        actor = self._actor(weights)
        prepared = prepared_episodes(self._network, weights, starts, self._episode_times)
        if self._network.portfolio_values:
            return self._step_by_step(actor, prepared, first_days, noise, record)
        return self._at_once(actor, prepared, first_days, noise, record)

    def _actor(self, weights: Tensor) -> Parameters:
        return self._network.actor_layout.views(weights[:, self._network.critic_layout.size :])

    def _step_by_step(
        self, actor: Parameters, prepared: Tensor, first_days: Tensor, noise: Tensor | None, record: bool
    ) -> MarketRollout:
        agents, slices, days, assets, _ = prepared.shape
        episodes = agents * slices
        environment = TradingEnvironment(self.prices, self._trading, held_prices=self._held_prices)
        environment.reset(first_days)
        portfolios = torch.empty(
            (episodes if record else 0, days, assets, self._network.portfolio_values),
            dtype=torch.float16,
            device=self._device,
        )
        stored = torch.empty((episodes if record else 0, days, assets, self._network.box.values), device=self._device)
        for step in range(days):
            portfolio = environment.portfolio()
            seen = portfolio.float().reshape(agents, slices, assets, -1)
            policy = self._network.policy(actor, prepared[:, :, step], seen)
            played = policy.play(None if noise is None else noise[:, :, step])
            if record:
                portfolios[:, step] = portfolio
                stored[:, step] = played.stored.flatten(0, 1)
            environment.step(*played.actions.flatten(0, 1).unbind(-1))
        nothing = torch.zeros((episodes, assets), device=self._device)
        while not environment.done:
            environment.step(nothing, nothing)
        rewards = environment.rewards()
        batch = None
        if record:
            batch = EpisodeBatch(first_days, portfolios, stored, stored_rewards(rewards, days))
        return MarketRollout(_totals(rewards, agents), environment.summary(), batch)

    def _at_once(
        self, actor: Parameters, prepared: Tensor, first_days: Tensor, noise: Tensor | None, record: bool
    ) -> MarketRollout:
        agents, slices, days, assets, _ = prepared.shape
        policy = self._network.policy(actor, prepared.flatten(1, 2), None)
        played = policy.play(None if noise is None else noise.flatten(1, 2))
        taken, stored = (part.reshape(agents * slices, days, assets, -1) for part in played)
        rewards, summary = trade_whole_episodes(self.prices, self._trading, first_days, *taken.unbind(-1))
        batch = None
        if record:
            nothing_seen = torch.empty((len(first_days), days, assets, 0), dtype=torch.float16, device=self._device)
            batch = EpisodeBatch(first_days, nothing_seen, stored, stored_rewards(rewards, days))
        return MarketRollout(_totals(rewards, agents), summary, batch)


def _totals(rewards: Tensor, agents: int) -> NDArray[np.float64]:
    """Sum float64 `[episodes, days]` over the days, on the host, to `[agents, slices]`."""
    totals: NDArray[np.float64] = rewards.cpu().numpy().sum(axis=1).reshape(agents, -1)
    return totals


def prepared_episodes(network: AgentNetwork, weights: Tensor, starts: NDArray[np.int64], times: Tensor) -> Tensor:
    """Return the actor's view of the market over all episodes, float32 `[agents, episodes, days, assets, width]`.

    Args:
        network: forward passes.
        weights: float32 `[agents, parameters]`.
        starts: first day of each episode, int64 `[agents, episodes]`.
        times: time in the episode of each of its days, float32 `[days, values]`.
    """
    shape = (*starts.shape, len(times), network.assets, network.prepared_width)
    prepared = torch.empty(shape, device=weights.device)
    shared = bool((starts == starts[0]).all())
    for first in range(1 if shared else len(starts)):
        agents = slice(0, len(starts)) if shared else slice(first, first + 1)
        critic = network.critic_layout.views(weights[agents, : network.critic_layout.size])
        actor = network.actor_layout.views(weights[agents, network.critic_layout.size :])
        step = network.days_at_once(agents.stop - agents.start, len(times))
        for index, start in enumerate(starts[first]):
            for day in range(0, len(times), step):
                days = slice(day, min(day + step, len(times)))
                market = network.encode_block(critic, int(start) + day, days.stop - day)
                prepared[agents, index, days] = network.prepare_actor(actor, market, times[days])
    return prepared
