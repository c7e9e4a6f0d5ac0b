"""Actor and critics over vectors of observations: multilayer perceptrons, apart from each other."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eigen_core.config import NetworkConfig
from eigen_core.networks.heads import Heads
from eigen_core.networks.layout import ParameterLayout, Parameters, ParameterShape, linear, linear_shapes
from eigen_core.networks.policies import Box, SquashedGaussian, action_shapes, policy_of


class MlpNetwork:
    """Forward passes for a group of agents whose weights are rows of the bank.

    Args:
        observation_values: length of an observation.
        low, high: bounds of each value of an action.
        network: width and number of the hidden layers, each of which is followed by a ReLU.
        device: where everything is computed.
        heads: critics and spread.
    """

    def __init__(
        self,
        observation_values: int,
        low: Sequence[float],
        high: Sequence[float],
        network: NetworkConfig,
        device: torch.device,
        heads: Heads,
    ) -> None:
        self._layers, width = network.head_layers, network.head_width
        self._heads = heads
        self.box = Box(low, high, device, steepness=1.0)
        lowest, highest = torch.tensor(low, device=device), torch.tensor(high, device=device)
        self._middle, self._per_half_range = (lowest + highest) / 2.0, 2.0 / (highest - lowest)
        critic = []
        for index in range(heads.critics):
            inputs = observation_values + (self.box.values if heads.action_values else 0)
            critic += self._hidden_shapes(f"critic{index}", inputs, width)
            critic += linear_shapes(f"critic{index}.value", width, 1)
        self.critic_layout = ParameterLayout(tuple(critic))
        actor = self._hidden_shapes("actor", observation_values, width)
        self.actor_layout = ParameterLayout((*actor, *action_shapes("actor.action", width, self.box, heads)))

    def policy(self, parameters: Parameters, observations: Tensor) -> SquashedGaussian:
        """Return the policy for observations, float32 `[agents, ..., values]`."""
        hidden = self._hidden(parameters, "actor", observations)
        return policy_of(parameters, "actor.action", hidden, self.box, self._heads)

    def values(self, parameters: Parameters, observations: Tensor, actions: Tensor | None) -> Tensor:
        """Values of actions in natural units, or of observations alone, by each critic: `[critics, agents, batch]`."""
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
            hidden = torch.relu(linear(parameters, f"{name}.{index}", hidden))
        return hidden
