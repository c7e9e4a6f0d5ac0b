"""One DDPG agent as it is usually written: `torch.nn` modules and `torch.optim`, one agent at a time.

The same networks, losses and update rule as `eigen_core.learners`, so that a loop over such agents is the same work as
the bank. Only what the benchmark uses is here: one critic, an observed portfolio, a bounded coefficient.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from eigen_core.config import Config, DdpgConfig
from eigen_core.learners.settings import learner_settings
from eigen_core.market import Panel
from eigen_core.networks import AgentNetwork
from eigen_core.networks.encoders.convolutions import receptive_dilations
from eigen_core.networks.encoders.filter_bank import FilterBankEncoder
from eigen_core.replay import Replay
from eigen_core.task.market_transitions import TransitionBatch, picked
from eigen_core.trading import EPISODE_TIME_VALUES, PORTFOLIO_VALUES

_MASKED = -1e9
_SHARPNESS = 30.0


class PlainFilterBank(nn.Module):
    """A small network on filters that are computed once over the panel."""

    def __init__(self, panel: Panel, config: Config) -> None:
        super().__init__()
        features = torch.tensor(panel.features)
        self.market = FilterBankEncoder(features, len(panel.splits.train), config.market.window, config.network).bank
        self.hidden = nn.Linear(self.market.shape[2], config.network.channels)
        self.output = nn.Linear(config.network.channels, config.network.embedding)

    def forward(self, days: Tensor, first_day: int, block_days: int) -> Tensor:  # noqa: ARG002 - any day by itself
        """Embeddings `[batch, columns, embedding]` of `days`."""
        embeddings: Tensor = self.output(relu(self.hidden(self.market[days])))
        return embeddings


class PlainTcn(nn.Module):
    """Dilated causal convolutions by `nn.Conv1d`, over a block of days."""

    def __init__(self, panel: Panel, config: Config) -> None:
        super().__init__()
        self.market = torch.tensor(panel.features).permute(1, 2, 0).contiguous()
        self.window = config.market.window
        channels = config.network.channels
        self.input = nn.Conv1d(self.market.shape[1], channels, 1)
        self.layers = nn.ModuleList(
            nn.Conv1d(channels, channels, 2, dilation=dilation) for dilation in receptive_dilations(self.window)
        )
        self.output = nn.Conv1d(channels, config.network.embedding, 1)

    def forward(self, days: Tensor, first_day: int, block_days: int) -> Tensor:
        """Embeddings `[batch, columns, embedding]` of `days` inside the block."""
        start = first_day - (self.window - 1)
        hidden = self.market[:, :, max(start, 0) : first_day + block_days]
        hidden = relu(self.input(nn.functional.pad(hidden, (max(-start, 0), 0))))
        for layer in self.layers:
            seen = relu(layer(hidden))
            hidden = hidden[:, :, -seen.shape[2] :] + seen
        embeddings: Tensor = self.output(hidden)[:, :, days - first_day].permute(2, 0, 1)
        return embeddings


class PlainAgent(nn.Module):
    """Encoder, pooling, critic and actor of one agent."""

    def __init__(self, panel: Panel, config: Config) -> None:
        super().__init__()
        network, values = config.network, PORTFOLIO_VALUES
        self.trading = config.trading
        self.encoder = (PlainTcn if network.encoder == "tcn" else PlainFilterBank)(panel, config)
        self.valid = torch.tensor(panel.valid)
        self.assets = panel.assets
        self.pool = nn.ParameterDict({"queries": nn.Parameter(torch.empty(network.embedding, network.queries))})
        width, context = network.head_width, network.embedding * network.queries + EPISODE_TIME_VALUES
        self.critic0 = nn.ModuleDict(
            {
                "asset": nn.Linear(network.embedding + values + 2, width),
                "context": nn.Linear(context, width),
                "hidden": nn.Linear(width, width),
                "pooled": nn.Linear(2 * width, width),
                "value": nn.Linear(width, 1),
            }
        )
        self.actor = nn.ModuleDict(
            {
                "asset": nn.Linear(network.embedding, width),
                "context": nn.Linear(context, width),
                "portfolio": nn.Linear(values, width, bias=False),
                "hidden": nn.Linear(width, width),
                "action": nn.Linear(width, 2),
            }
        )

    def critic_parameters(self) -> list[nn.Parameter]:
        """What the critic's loss trains."""
        return [*self.encoder.parameters(), *self.pool.parameters(), *self.critic0.parameters()]

    def see(self, days: Tensor, first_day: int, block_days: int) -> tuple[Tensor, Tensor, Tensor]:
        """Assets' embeddings, pooled context and which assets can be traded, on each of `days`."""
        embeddings = self.encoder(days, first_day, block_days)
        valid = self.valid[days]
        scores = (embeddings @ self.pool["queries"]).transpose(1, 2).masked_fill(~valid[:, None], _MASKED)
        context = (torch.softmax(scores, -1) @ embeddings).flatten(1)
        return embeddings[:, : self.assets], context, valid[:, : self.assets]

    def act(self, market: tuple[Tensor, Tensor, Tensor], portfolio: Tensor, episode_time: Tensor) -> Tensor:
        """Actions `[batch, assets, 2]`."""
        assets, context, _ = market
        shared = self.actor["context"](torch.cat([context, episode_time], -1))
        hidden = relu(self.actor["asset"](assets) + shared[:, None] + self.actor["portfolio"](portfolio))
        raw = torch.sigmoid(self.actor["action"](relu(self.actor["hidden"](hidden))))
        trading = self.trading
        low = raw.new_tensor([0.0, trading.min_target])
        return low + raw * raw.new_tensor([trading.max_coefficient or 1.0, trading.max_target - trading.min_target])

    def value(
        self, market: tuple[Tensor, Tensor, Tensor], portfolio: Tensor, episode_time: Tensor, actions: Tensor
    ) -> Tensor:
        """Values of actions: `[batch]`."""
        assets, context, tradable = market
        trading = self.trading
        coefficient = actions[..., :1] / (trading.max_coefficient or 1.0)
        target = (actions[..., 1:] - trading.min_target) / (trading.max_target - trading.min_target)
        shared = self.critic0["context"](torch.cat([context, episode_time], -1))
        hidden = self.critic0["asset"](torch.cat([assets, coefficient, target, portfolio], -1)) + shared[:, None]
        hidden = relu(self.critic0["hidden"](relu(hidden)))
        selection = torch.softmax((_SHARPNESS * coefficient[..., 0]).masked_fill(~tradable, _MASKED), -1)
        even = tradable.float() / tradable.float().sum(-1, keepdim=True).clamp_min(1.0)
        pooled = (torch.stack([selection, even], 1) @ hidden).flatten(1)
        values: Tensor = self.critic0["value"](relu(self.critic0["pooled"](pooled)))[:, 0]
        return values

    def load(self, network: AgentNetwork, row: Tensor) -> None:
        """Take the weights of one row of the bank."""
        own = dict(self.named_parameters())
        for name, values in _named(network, row).items():
            parameter = own[name]
            # Layers of the bank are [in, out], or [2 in, out] where a convolution looks at two days.
            if parameter.dim() == 3:
                taps = values.reshape(parameter.shape[2], parameter.shape[1], parameter.shape[0]).permute(2, 1, 0)
                parameter.data.copy_(taps)
            elif name == "pool.queries":
                parameter.data.copy_(values)
            else:
                parameter.data.copy_(values.T if values.dim() == 2 else values)

    def copy(self) -> "PlainAgent":
        """Return a copy with parameters of its own; what is known of the market is shared."""
        return copy.deepcopy(self, {id(shared): shared for shared in (self.encoder.market, self.valid)})

    def largest_difference(self, network: AgentNetwork, row: Tensor) -> float:
        """Largest difference between these weights and a row of the bank."""
        other = self.copy()
        other.load(network, row)
        mine, its = (torch.cat([p.detach().flatten() for p in agent.parameters()]) for agent in (self, other))
        return float((mine - its).abs().max())


def _named(network: AgentNetwork, row: Tensor) -> dict[str, Tensor]:
    size = network.critic_layout.size
    views = network.critic_layout.views(row[None, :size]) | network.actor_layout.views(row[None, size:])
    names = {name: name.replace("encoder.layer", "encoder.layers.") for name in views}
    names["actor.portfolio"] = "actor.portfolio.weight"
    return {names[name]: values[0] for name, values in views.items()}


class PlainDdpg:
    """Learns with one agent."""

    def __init__(self, agent: PlainAgent, config: Config, replay: Replay) -> None:
        self.agent, self.config, self.replay = agent, config, replay
        self.target = agent.copy()
        self.learner = learner = learner_settings(config, DdpgConfig)

        def adamw(parameters: list[nn.Parameter], rate: float) -> torch.optim.AdamW:
            return torch.optim.AdamW(parameters, lr=rate, weight_decay=learner.weight_decay, fused=True)

        self.critic_parameters = agent.critic_parameters()
        self.actor_parameters = list(agent.actor.parameters())
        self.critic_optimizer = adamw(self.critic_parameters, learner.critic_learning_rate)
        self.actor_optimizer = adamw(self.actor_parameters, learner.actor_learning_rate)

    def learn(self, slots: Tensor, first_days: tuple[tuple[int, ...], ...], block_days: int) -> None:
        """Take an optimizer step for each row of `slots`, int64 `[gradient steps, batch]`."""
        for step, row in enumerate(slots):
            self._step(picked(self.replay, row), first_days[step][0], block_days)

    def _step(self, batch: TransitionBatch, first_day: int, block_days: int) -> None:
        agent, target, learner = self.agent, self.target, self.learner
        episode_time, next_time = self._episode_time(batch.episode_steps), self._episode_time(batch.episode_steps + 1)
        with torch.no_grad():
            next_days = (batch.days + 1).clamp_max(first_day + block_days - 1)
            market = target.see(next_days, first_day, block_days)
            actions = target.act(market, batch.next_portfolios, next_time)
            value = target.value(market, batch.next_portfolios, next_time, actions)
            goal = self._scaled(batch.rewards[..., 0]) + (~batch.terminal).float() * learner.gamma * value

        market = agent.see(batch.days, first_day, block_days)
        loss = (agent.value(market, batch.portfolios, episode_time, batch.actions) - goal).square().mean()
        self.critic_optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.critic_parameters, learner.gradient_clip)
        self.critic_optimizer.step()

        detached = market[0].detach(), market[1].detach(), market[2]
        for parameter in self.critic_parameters:
            parameter.requires_grad_(False)
        value = agent.value(
            detached, batch.portfolios, episode_time, agent.act(detached, batch.portfolios, episode_time)
        )
        self.actor_optimizer.zero_grad()
        torch.autograd.backward(-value.mean())
        nn.utils.clip_grad_norm_(self.actor_parameters, learner.gradient_clip)
        self.actor_optimizer.step()
        for parameter in self.critic_parameters:
            parameter.requires_grad_(True)

        with torch.no_grad():
            for slow, fast in zip(target.parameters(), agent.parameters(), strict=True):
                slow.lerp_(fast, learner.tau)

    def _scaled(self, rewards: Tensor) -> Tensor:
        scaled, clip = rewards * self.learner.reward_scale, self.learner.reward_clip
        return scaled if clip is None else scaled.clamp(-clip, clip)

    def _episode_time(self, steps: Tensor) -> Tensor:
        trading = self.config.trading
        return torch.stack([steps.float() / trading.episode_days, (steps < trading.trading_days).float()], -1)
