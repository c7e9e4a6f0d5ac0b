"""DDPG once more: one agent, one transition and one window at a time, in double precision, written from the layout."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eigen_core.config import Config, DdpgConfig
from eigen_core.learning.interface import learner_settings
from eigen_core.market import Panel
from eigen_core.networks import AgentNetwork, ParameterLayout

Named = dict[str, Tensor]


def named(layout: ParameterLayout, row: Tensor) -> Named:
    parameters, start = {}, 0
    for shape in layout.shapes:
        parameters[shape.name] = row[start : start + shape.size].reshape(shape.shape)
        start += shape.size
    assert start == len(row)
    return parameters


def layer(parameters: Named, name: str, inputs: Tensor) -> Tensor:
    return inputs @ parameters[f"{name}.weight"] + parameters[f"{name}.bias"]


@dataclass
class PlainTransition:
    day: int
    step: int
    portfolio: Tensor
    next_portfolio: Tensor
    action: Tensor
    rewards: list[float]
    """Of all steps that it spans."""
    terminal: bool


class PlainDdpg:
    def __init__(self, config: Config, panel: Panel, network: AgentNetwork) -> None:
        self.config = config
        self.panel = panel
        self.critic_layout, self.actor_layout = network.critic_layout, network.actor_layout
        self.filtered = self.filter_features()

    def filter_features(self) -> Tensor:
        features = self.panel.features.astype(np.float64)
        parts = []
        for scale in self.config.network.scales:
            means = np.zeros_like(features)
            for day in range(len(features)):
                means[day] = features[max(day - scale + 1, 0) : day + 1].sum(axis=0) / scale
            size = np.sqrt((means[: len(self.panel.splits.train)] ** 2).mean(axis=(0, 1)))
            parts.append(means / np.maximum(size, 1e-3))
        return torch.tensor(np.concatenate(parts, axis=-1))

    def embed(self, critic: Named, day: int) -> Tensor:
        if self.config.network.encoder == "filter_bank":
            return layer(critic, "encoder.output", torch.relu(layer(critic, "encoder.hidden", self.filtered[day])))
        window = self.config.market.window
        history = torch.zeros((window, self.panel.columns, self.panel.features.shape[2]), dtype=torch.float64)
        known = self.panel.features[max(day - window + 1, 0) : day + 1]
        history[window - len(known) :] = torch.tensor(known)
        hidden = torch.relu(layer(critic, "encoder.input", history))
        number, dilation = 0, 1
        while len(hidden) > 1:
            dilation = min(2**number, len(hidden) - 1)
            earlier, now = hidden[:-dilation], hidden[dilation:]
            joined = torch.cat([earlier, now], dim=-1)
            hidden = now + torch.relu(layer(critic, f"encoder.layer{number}", joined))
            number += 1
        return layer(critic, "encoder.output", hidden[0])

    def see(self, critic: Named, day: int) -> tuple[Tensor, Tensor]:
        """Embeddings of the assets, and the context that the queries pool over columns with a price."""
        embeddings = self.embed(critic, day)
        there = torch.tensor(self.panel.valid[day])
        pooled = []
        for query in critic["pool.queries"].T:
            share = torch.softmax(embeddings[there] @ query, dim=0)
            pooled.append(share @ embeddings[there])
        return embeddings[: self.panel.assets], torch.cat(pooled)

    def with_place(self, context: Tensor, step: int) -> Tensor:
        trading = self.config.trading
        if not trading.observe_portfolio:
            return context
        place = [step / (trading.trading_days + trading.settlement_days), float(step < trading.trading_days)]
        return torch.cat([context, torch.tensor(place, dtype=torch.float64)])

    def act(self, actor: Named, sight: tuple[Tensor, Tensor], portfolio: Tensor, step: int) -> Tensor:
        trading = self.config.trading
        hidden = layer(actor, "actor.asset", sight[0]) + layer(actor, "actor.context", self.with_place(sight[1], step))
        if trading.observe_portfolio:
            hidden = hidden + portfolio @ actor["actor.portfolio"]
        hidden = torch.relu(layer(actor, "actor.hidden", torch.relu(hidden)))
        raw = layer(actor, "actor.action", hidden)
        coefficient = (
            torch.nn.functional.softplus(raw[:, 0])
            if trading.max_coefficient is None
            else trading.max_coefficient * torch.sigmoid(raw[:, 0])
        )
        target = trading.min_target + (trading.max_target - trading.min_target) * torch.sigmoid(raw[:, 1])
        return torch.stack([coefficient, target], dim=1)

    def values(
        self, critic: Named, sight: tuple[Tensor, Tensor], portfolio: Tensor, step: int, action: Tensor, day: int
    ) -> list[Tensor]:
        trading = self.config.trading
        there = torch.tensor(self.panel.valid[day, : self.panel.assets])
        coefficient = action[:, 0] / (trading.max_coefficient or 1.0)
        target = (action[:, 1] - trading.min_target) / (trading.max_target - trading.min_target)
        parts = [sight[0], coefficient[:, None], target[:, None]]
        if trading.observe_portfolio:
            parts.append(portfolio)
        assets, context = torch.cat(parts, dim=1), self.with_place(sight[1], step)
        chosen = torch.softmax(30.0 * coefficient[there], dim=0)
        values = []
        for critic_name in ["critic0", "critic1"][: 2 if learner_settings(self.config, DdpgConfig).twin_critics else 1]:
            hidden = torch.relu(
                layer(critic, f"{critic_name}.asset", assets) + layer(critic, f"{critic_name}.context", context)
            )
            hidden = torch.relu(layer(critic, f"{critic_name}.hidden", hidden))[there]
            pooled = torch.relu(
                layer(critic, f"{critic_name}.pooled", torch.cat([chosen @ hidden, hidden.mean(dim=0)]))
            )
            values.append(layer(critic, f"{critic_name}.value", pooled)[0])
        return values

    def goal(self, target: Tensor, transition: PlainTransition) -> float:
        """The rewards, and the discounted value of what the target actor does on the day after them."""
        learner, steps = learner_settings(self.config, DdpgConfig), len(transition.rewards)
        clip = learner.reward_clip or float("inf")
        rewards = [min(max(reward * learner.reward_scale, -clip), clip) for reward in transition.rewards]
        total = sum(learner.gamma**step * reward for step, reward in enumerate(rewards))
        if transition.terminal:
            return total
        critic, actor = self.split(target)
        day, step = transition.day + steps, transition.step + steps
        sight = self.see(critic, day)
        action = self.act(actor, sight, transition.next_portfolio, step)
        values = self.values(critic, sight, transition.next_portfolio, step, action, day)
        return total + learner.gamma**steps * min(value.item() for value in values)

    def split(self, row: Tensor) -> tuple[Named, Named]:
        size = self.critic_layout.size
        return named(self.critic_layout, row[:size]), named(self.actor_layout, row[size:])

    def learn(
        self, weights: Tensor, targets: Tensor, plan: list[list[list[PlainTransition]]]
    ) -> tuple[Tensor, Tensor, Named, dict[str, list[float]]]:
        """Learn from `plan[step][batch]`; return weights, targets, Adam's moments and the curves."""
        learner, size = learner_settings(self.config, DdpgConfig), self.critic_layout.size
        critic_row = weights[:size].double().clone().requires_grad_()
        actor_row = weights[size:].double().clone().requires_grad_()
        targets = targets.double().clone()
        critic_adam = torch.optim.AdamW(
            [critic_row], lr=learner.critic_learning_rate, weight_decay=learner.weight_decay
        )
        actor_adam = torch.optim.AdamW([actor_row], lr=learner.actor_learning_rate, weight_decay=learner.weight_decay)
        curves: dict[str, list[float]] = defaultdict(list)
        for number, batches in enumerate(plan, start=1):
            critic_loss, value = torch.zeros((), dtype=torch.float64), 0.0
            seen = critic_row.detach().clone()
            for batch in batches:
                critic = named(self.critic_layout, critic_row)
                for transition in batch:
                    goal = self.goal(targets, transition)
                    sight = self.see(critic, transition.day)
                    values = self.values(
                        critic, sight, transition.portfolio, transition.step, transition.action, transition.day
                    )
                    critic_loss = critic_loss + sum((v - goal) ** 2 for v in values) / len(batch) / len(batches)
                    value += values[0].item() / len(batch) / len(batches)
            curves["critic_loss"].append(critic_loss.item())
            curves["value"].append(value)
            curves["critic_gradient_norm"].append(self.descend(critic_loss, critic_row, critic_adam))
            if number % (learner.policy_delay or 1):
                curves["actor_loss"].append(np.nan)
                curves["actor_gradient_norm"].append(np.nan)
                continue
            actor_loss = torch.zeros((), dtype=torch.float64)
            for batch in batches:
                critic, actor = named(self.critic_layout, critic_row.detach()), named(self.actor_layout, actor_row)
                for transition in batch:
                    sight = self.see(named(self.critic_layout, seen), transition.day)
                    action = self.act(actor, sight, transition.portfolio, transition.step)
                    first = self.values(critic, sight, transition.portfolio, transition.step, action, transition.day)[0]
                    actor_loss = actor_loss - first / len(batch) / len(batches)
            curves["actor_loss"].append(actor_loss.item())
            curves["actor_gradient_norm"].append(self.descend(actor_loss, actor_row, actor_adam))
            now = torch.cat([critic_row.detach(), actor_row.detach()])
            targets = (1.0 - learner.tau) * targets + learner.tau * now
        moments = {}
        for name, key in (("first_moment", "exp_avg"), ("second_moment", "exp_avg_sq")):
            moments[name] = torch.cat(
                [
                    adam.state[row][key] if row in adam.state else torch.zeros_like(row)
                    for adam, row in ((critic_adam, critic_row), (actor_adam, actor_row))
                ]
            )
        return torch.cat([critic_row.detach(), actor_row.detach()]), targets, moments, curves

    def descend(self, loss: Tensor, row: Tensor, adam: torch.optim.Optimizer) -> float:
        adam.zero_grad()
        torch.autograd.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_([row], learner_settings(self.config, DdpgConfig).gradient_clip)
        adam.step()
        return norm.item()
