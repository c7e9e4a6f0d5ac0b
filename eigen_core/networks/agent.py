"""Networks of a group of agents: over the symbols of a panel (its columns, assets first), and over observed vectors."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from eigen_core.common.text import FLOAT32_BYTES
from eigen_core.config import Config, NetworkConfig
from eigen_core.config.learning import known_return_weight
from eigen_core.machine.performance import encoded_at_once
from eigen_core.machine.reproducibility import compute_reproducibly
from eigen_core.market.panel import Panel
from eigen_core.networks.actions import (
    AssetActions,
    ExpectedOutcomes,
    LinearStart,
    expected_outcomes,
    margins,
    market_actions,
    outcome_shapes,
)
from eigen_core.networks.encoders import FirstDay, LinearInputs, encoder_class
from eigen_core.networks.layout import (
    ParameterLayout,
    Parameters,
    ParameterShape,
    linear,
    linear_shapes,
    pooled,
    product,
    project,
)
from eigen_core.networks.policies import (
    Box,
    Categorical,
    Choices,
    Heads,
    Policy,
    SquashedGaussian,
    action_shapes,
    policy_of,
)

_MASKED = -1e9


class MarketEmbedding(NamedTuple):
    """Embeddings of the market on some days.

    Attributes:
        assets: embedding of each asset, float32 `[agents, days, assets, embedding]`.
        context: embeddings of all symbols pooled by learned queries, float32 `[agents, days, queries * embedding]`.
        tradable: bool `[agents or 1, days, assets]`, whether the asset has a price on the day.
        days: the days, int64 `[agents, days]`.
    """

    assets: Tensor
    context: Tensor
    tradable: Tensor
    days: Tensor

    def detach(self) -> "MarketEmbedding":
        return self._replace(assets=self.assets.detach(), context=self.context.detach())

    def split(self, rows: slice, agents: int) -> "MarketEmbedding":
        """Divide the days `rows` of this embedding, of one agent, evenly among `agents` agents, as a view."""
        days = (rows.stop - rows.start) // agents
        return MarketEmbedding(*(part[0, rows].view(agents, days, *part.shape[2:]) for part in self))

    def put(self, agents: slice, first: int, days: "MarketEmbedding") -> None:
        """Overwrite the days from index `first` on of the slice `agents` with `days`."""
        for part, new in zip(self, days, strict=True):
            part[agents, first : first + new.shape[1]] = new

    def picked(self, days: Tensor) -> "MarketEmbedding":
        """Return for each agent the days of this embedding, of one agent, at its indices, int64 `[agents, days]`."""
        return MarketEmbedding(
            *(part[0].index_select(0, days.flatten()).view(*days.shape, *part.shape[2:]) for part in self)
        )


class AgentNetwork:
    """Encoder, pooling over symbols, actor and critics of a group of agents; methods get named views of their weights.

    Actor and critics share the encoder; the critics' loss trains it, and the actor reads its embeddings without a
    gradient (as in Yarats et al. 2021, "Improving sample efficiency in model-free RL from images", section 5). Weights
    are shared across assets, so the number of parameters does not depend on the number of assets.

    Methods count days from 0 among those that agents observe. These are all days of the panel; where agents learn the
    outcomes of decisions, with `trading.decide_every` only days of decisions (`observed_rows`).

    `actions`: None: those of the task `market`. `start`: where the linear part of `network.linear_scales` begins;
    None: its weights do not matter, since stored ones replace them.
    """

    def __init__(
        self,
        panel: Panel,
        config: Config,
        device: torch.device,
        heads: Heads,
        actions: AssetActions | None = None,
        start: LinearStart | None = None,
    ) -> None:
        # Must precede the first computation, in the encoder.
        compute_reproducibly(config.instructions, device)
        features, valid = panel.features, torch.tensor(panel.valid, device=device)
        trained, encoder = panel.splits.training_rows, encoder_class(config.network)
        every, kept = config.trading.seconds_between_decisions, None
        self._row_of_day: Tensor | None = None
        if every is not None and heads.outcomes and not encoder.block_bound:
            decided = torch.tensor(panel.time % every == 0)
            kept = decided.nonzero().flatten().to(device)
            self._row_of_day = (decided.cumsum(0) - 1).clamp_(min=0).to(device)
        self._encoder = encoder(features, device, trained, config.market.window, config.network, kept)
        self._valid = valid if kept is None else valid[kept]
        self.assets = panel.assets
        self._network = config.network
        self.block_bound = encoder.block_bound
        self.days_before = config.market.window - 1 if self.block_bound else 0
        self.actions = market_actions(config, device) if actions is None else actions
        self.portfolio_values, self.prepared_width = self.actions.portfolio_values, config.network.head_width
        self._start: LinearStart | None = None
        if config.network.linear_scales:
            outputs = heads.outcomes or 1
            self._linear_inputs = LinearInputs(features[:, : panel.assets], device, trained, config.network, kept)
            self._start = start or LinearStart.unknown(self._linear_inputs.shape[2], outputs)
            self.prepared_width += outputs
        self.box = self.actions.box
        # The outcome of an alternative does not depend on the time in the episode.
        self._time_values = 0 if heads.outcomes else self.actions.time_values
        self._heads = heads
        embedding, queries = config.network.embedding, config.network.queries
        critic = [*self._encoder.shapes, ParameterShape("pool.queries", (embedding, queries), embedding)]
        for index in range(heads.critics):
            critic += self._critic_shapes(f"critic{index}")
        if known_return_weight(config.learner):
            critic += linear_shapes("known_return", embedding, 1)
        self.critic_layout = ParameterLayout.of(critic, config.network)
        self.actor_layout = ParameterLayout.of(self._actor_shapes(), config.network)

    @property
    def observes_all(self) -> bool:
        """Whether agents observe all days of the panel."""
        return self._row_of_day is None

    def observed_rows(self, days: Tensor) -> Tensor:
        """Return the numbers of days, int64, among those that agents observe: of the last one up to each of `days`.

        They are on the device of `days`: for days on the host, the host waits for no GPU if agents observe all days.
        """
        return days if self._row_of_day is None else self._row_of_day.to(days.device).take(days)

    @property
    def layouts(self) -> tuple[ParameterLayout, ParameterLayout]:
        """Layouts of critic and actor, in their order in an agent's row of weights."""
        return self.critic_layout, self.actor_layout

    @property
    def _context_values(self) -> int:
        return self._network.embedding * self._network.queries + self._time_values

    def _critic_shapes(self, name: str) -> list[ParameterShape]:
        width = self._network.head_width
        action, pools = (self.actions.values, 2) if self._heads.action_values else (0, 1)
        asset = self._network.embedding + self.portfolio_values + action
        return [
            *linear_shapes(f"{name}.asset", asset, width),
            *linear_shapes(f"{name}.context", self._context_values, width),
            *linear_shapes(f"{name}.hidden", width, width),
            *linear_shapes(f"{name}.pooled", pools * width, width),
            *linear_shapes(f"{name}.value", width, 1),
        ]

    def _actor_shapes(self) -> list[ParameterShape]:
        width = self._network.head_width
        shapes = [
            *linear_shapes("actor.asset", self._network.embedding, width),
            *linear_shapes("actor.context", self._context_values, width),
        ]
        if self._heads.outcomes:
            last = outcome_shapes(width, self._heads.outcomes, self._start)
            return [*shapes, *linear_shapes("actor.hidden", width, width), *last]
        if self.portfolio_values:
            shapes.append(ParameterShape("actor.portfolio", (self.portfolio_values, width), self._network.embedding))
        last = action_shapes("actor.action", width, self.box, self._heads)
        if self._start is not None:
            # Agents begin with the linear part alone.
            last = [*(replace(shape, fan_in=0) for shape in last), *self._start.shapes, *self.actions.genes]
        return [*shapes, *linear_shapes("actor.hidden", width, width), *last]

    def _embedding(self, parameters: Parameters, embeddings: Tensor, valid: Tensor, days: Tensor) -> MarketEmbedding:
        agents, count, columns, _ = embeddings.shape
        queries = parameters["pool.queries"].transpose(1, 2)[:, None].expand(-1, count, -1, -1).flatten(0, 1)
        # The scores of a day are contiguous, as the softmax reads them.
        scores = product(queries, embeddings.flatten(0, 1).transpose(1, 2).to(queries.dtype))
        missing = ~valid.expand(agents, -1, -1).flatten(0, 1)
        attention = _softmax(scores.masked_fill_(missing[:, None], _MASKED)).view(agents, count, -1, columns)
        context = pooled(attention, embeddings).flatten(2)
        return MarketEmbedding(embeddings[:, :, : self.assets], context, valid[..., : self.assets], days)

    def encode_block(self, parameters: Parameters, first_day: int, days: int) -> MarketEmbedding:
        embeddings = self._encoder.encode_block(parameters, first_day, days)
        rows = torch.arange(first_day, first_day + days, device=embeddings.device).expand(len(embeddings), -1)
        return self._embedding(parameters, embeddings, self._valid[first_day : first_day + days][None], rows)

    def empty_embedding(self, days: int) -> MarketEmbedding:
        """Return an uninitialised embedding of one agent and `days` days."""
        network, device = self._network, self._valid.device
        return MarketEmbedding(
            torch.empty((1, days, self.assets, network.embedding), device=device),
            torch.empty((1, days, network.embedding * network.queries), device=device),
            torch.empty((1, days, self.assets), dtype=torch.bool, device=device),
            torch.empty((1, days), dtype=torch.int64, device=device),
        )

    def encoded_at_once(self, agents: int, days: int, steps: int) -> tuple[int, int]:
        """Return how many of `agents` agents and of `days` days to encode at a time, for episodes of `steps` steps."""
        day_bytes = FLOAT32_BYTES * self._valid.shape[1] * self._network.channels
        return encoded_at_once(agents, days, day_bytes, self._valid.device.type, steps, self.days_before)

    def encode_days(
        self, parameters: Parameters, days: Tensor, first_day: FirstDay, block_bars: int
    ) -> MarketEmbedding:
        """Encode days, int64 `[agents, batch]`, different ones for an agent, among `block_bars` from `first_day` on."""
        embeddings = self._encoder.encode_days(parameters, days, first_day, block_bars)
        return self._embedding(parameters, embeddings, self._valid[days], days)

    def predicted_returns(self, parameters: Parameters, market: MarketEmbedding) -> Tensor:
        """Return the returns that the embeddings of assets predict, float32 `[agents, days, assets]`."""
        return linear(parameters, "known_return", market.assets)[..., 0]

    def _with_time(self, context: Tensor, episode_time: Tensor) -> Tensor:
        if not self._time_values:
            return context
        return torch.cat([context, episode_time.expand(*context.shape[:-1], self._time_values)], dim=-1)

    def prepare_actor(self, parameters: Parameters, market: MarketEmbedding, episode_time: Tensor) -> Tensor:
        """Compute the part of the actor that does not depend on the portfolio, for all days of an episode at once.

        `episode_time` is float32 `[..., days, time values]`, the result float32 `[agents, days, assets, width]`. The
        last values of the width are the outputs of the linear part, if there is one.
        """
        shared = linear(parameters, "actor.context", self._with_time(market.context, episode_time))
        hidden = linear(parameters, "actor.asset", market.assets) + shared[:, :, None]
        if self._start is None:
            return hidden
        inputs = self._linear_inputs[market.days.flatten()].view(*market.days.shape, *self._linear_inputs.shape[1:])
        return torch.cat([hidden, linear(parameters, "actor.linear", inputs)], dim=-1)

    def policy(self, parameters: Parameters, prepared: Tensor, portfolio: Tensor | None) -> SquashedGaussian:
        """Return the policy, given `prepare_actor`'s result; actions are float32 `[agents, days, assets, values]`.

        `portfolio` is float32 `[agents, days, assets, portfolio values]`; None: agents do not observe it.
        """
        if self._heads.outcomes:
            margin, setting = margins(parameters, self.expected(parameters, prepared)).max(dim=-1)
            assert self.actions.buy is not None
            share = setting / max(self._heads.outcomes - 1, 1)
            return SquashedGaussian(self.actions.buy(margin, share, portfolio), None, self.box)
        width = self._network.head_width
        hidden = prepared[..., :width]
        if portfolio is not None:
            hidden = hidden + project(parameters["actor.portfolio"], portfolio)
        hidden = linear(parameters, "actor.hidden", torch.relu(hidden), rectified=True)
        policy = policy_of(parameters, "actor.action", hidden, self.box, self._heads)
        if self._start is None:
            return policy
        return replace(policy, mean=policy.mean + self.actions.follow(parameters, prepared[..., width], portfolio))

    def expected(self, parameters: Parameters, prepared: Tensor) -> ExpectedOutcomes:
        width = self._network.head_width
        hidden = linear(parameters, "actor.hidden", torch.relu(prepared[..., :width]), rectified=True)
        return expected_outcomes(parameters, hidden, prepared[..., width:] if self._start is not None else None)

    def values(
        self,
        parameters: Parameters,
        market: MarketEmbedding,
        portfolio: Tensor | None,
        episode_time: Tensor,
        actions: Tensor | None,
    ) -> Tensor:
        """Return each critic's value, `[critics, agents, batch]`, of actions `[agents, batch, assets, values]`.

        The assets are pooled twice: by their mean, and by a softmax of `AssetActions.preference`, which selects those
        that the actions would buy. Without actions they are pooled by their mean alone.
        """
        parts, tradable = [market.assets], market.tradable
        even = tradable.to(market.assets.dtype).expand(*market.assets.shape[:-1])
        pools = [even / even.sum(-1, keepdim=True).clamp_min(1.0)]
        if actions is not None:
            scaled = self.actions.scaled(actions)
            parts.append(scaled)
            sharp = self.actions.preference(scaled, portfolio).masked_fill(~tradable, _MASKED)
            pools.insert(0, _softmax(sharp))
        if portfolio is not None:
            parts.append(portfolio)
        assets, pooling = torch.cat(parts, dim=-1), torch.stack(pools, dim=2)
        context = self._with_time(market.context, episode_time)
        critics = range(self._heads.critics)
        return torch.stack([self._value(parameters, f"critic{index}", assets, context, pooling) for index in critics])

    def _value(self, parameters: Parameters, name: str, assets: Tensor, context: Tensor, pooling: Tensor) -> Tensor:
        shared = linear(parameters, f"{name}.context", context)
        hidden = (linear(parameters, f"{name}.asset", assets) + shared[:, :, None]).relu_()
        hidden = linear(parameters, f"{name}.hidden", hidden, rectified=True)
        pools = pooled(pooling, hidden).flatten(2)
        return linear(parameters, f"{name}.value", linear(parameters, f"{name}.pooled", pools, rectified=True))[..., 0]


class MlpNetwork:
    """Multilayer perceptrons over vectors of observations, for a group of agents: actor and critics share no layers."""

    def __init__(self, observation_values: int, box: Box, network: NetworkConfig, heads: Heads) -> None:
        self._layers, width = network.head_layers, network.head_width
        self._heads = heads
        self.box = box
        self._middle, self._per_half_range = (box.low + box.high) / 2.0, 2.0 / (box.high - box.low)
        critic = []
        for index in range(heads.critics):
            inputs = observation_values + (self.box.values if heads.action_values else 0)
            critic += self._hidden_shapes(f"critic{index}", inputs, width)
            critic += linear_shapes(f"critic{index}.value", width, 1)
        self.critic_layout = ParameterLayout.of(critic, network)
        actor = self._hidden_shapes("actor", observation_values, width)
        if isinstance(box, Choices):
            last = linear_shapes("actor.action", width, box.values)
        else:
            last = action_shapes("actor.action", width, box, heads)
        self.actor_layout = ParameterLayout.of([*actor, *last], network)

    def policy(self, parameters: Parameters, observations: Tensor) -> Policy:
        """Return the policy for observations, float32 `[agents, ..., observation values]`."""
        hidden = self._hidden(parameters, "actor", observations)
        if isinstance(self.box, Choices):
            return Categorical(linear(parameters, "actor.action", hidden))
        return policy_of(parameters, "actor.action", hidden, self.box, self._heads)

    def values(self, parameters: Parameters, observations: Tensor, actions: Tensor | None) -> Tensor:
        """Return the critics' values, `[critics, agents, batch]`, of actions (in the task's units) or observations."""
        inputs = observations
        if actions is not None:
            inputs = torch.cat([observations, (actions - self._middle) * self._per_half_range], dim=-1)
        values = []
        for index in range(self._heads.critics):
            hidden = self._hidden(parameters, f"critic{index}", inputs)
            values.append(linear(parameters, f"critic{index}.value", hidden)[..., 0])
        return torch.stack(values)

    def _hidden_shapes(self, name: str, inputs: int, width: int) -> list[ParameterShape]:
        sizes = [inputs, *[width] * (self._layers - 1)]
        return [shape for index, size in enumerate(sizes) for shape in linear_shapes(f"{name}.{index}", size, width)]

    def _hidden(self, parameters: Parameters, name: str, inputs: Tensor) -> Tensor:
        hidden = inputs
        for index in range(self._layers):
            hidden = linear(parameters, f"{name}.{index}", hidden, rectified=True)
        return hidden


def _softmax(scores: Tensor) -> Tensor:
    """Softmax over the last dimension, by hand: rounding in torch's backward pass depends on the number of threads."""
    powers = (scores - scores.detach().amax(-1, keepdim=True)).exp_()
    return powers / powers.sum(-1, keepdim=True)
