"""Multilayer perceptrons for a group of agents: hidden layers of one width, each followed by a ReLU."""

import torch
from torch import Tensor

from eigen_core.networks.layout import Parameters, ParameterShape, linear, linear_shapes


def hidden_shapes(name: str, inputs: int, width: int, layers: int) -> list[ParameterShape]:
    """Return the parameters of hidden layers `name.0`, `name.1`, ..."""
    sizes = [inputs, *[width] * (layers - 1)]
    return [shape for index, size in enumerate(sizes) for shape in linear_shapes(f"{name}.{index}", size, width)]


def hidden_layers(parameters: Parameters, name: str, layers: int, inputs: Tensor) -> Tensor:
    """Apply each agent's hidden layers to its inputs `[agents, ..., in]` -> `[agents, ..., width]`."""
    hidden = inputs
    for index in range(layers):
        hidden = torch.relu(linear(parameters, f"{name}.{index}", hidden))
    return hidden
