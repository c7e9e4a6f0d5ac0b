"""Actor and critics over vectors of observations: multilayer perceptrons without shared layers."""

import torch
from torch import Tensor

from eigen_core.config import NetworkConfig
from eigen_core.networks.layout import ParameterLayout, Parameters, ParameterShape, linear, linear_shapes
from eigen_core.networks.policies import Box, Categorical, Choices, Heads, Policy, action_shapes, policy_of


class MlpNetwork:
    """Forward passes for a group of agents, whose weights are rows; a ReLU follows each hidden layer."""

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
        """Return the policy for observations, float32 `[agents, ..., values]`."""
        hidden = self._hidden(parameters, "actor", observations)
        if isinstance(self.box, Choices):
            return Categorical(linear(parameters, "actor.action", hidden))
        return policy_of(parameters, "actor.action", hidden, self.box, self._heads)

    def values(self, parameters: Parameters, observations: Tensor, actions: Tensor | None) -> Tensor:
        """Return the values of actions in natural units, or of observations alone, `[critics, agents, batch]`."""
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
