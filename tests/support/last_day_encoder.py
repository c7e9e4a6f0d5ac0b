"""The encoder `last_day`: a linear layer on the features of the window's last day."""

from typing import ClassVar

from torch import Tensor

from eigen_core.config import NetworkConfig
from eigen_core.networks.layout import Parameters, ParameterShape, linear, linear_shapes


class LastDayEncoder:
    block_bound: ClassVar[bool] = False

    def __init__(self, features: Tensor, training_days: int, window: int, config: NetworkConfig) -> None:  # noqa: ARG002
        self._features, self._config = features, config

    @property
    def shapes(self) -> list[ParameterShape]:
        return linear_shapes("encoder.output", self._features.shape[2], self._config.embedding)

    def encode_block(self, parameters: Parameters, first_day: int, days: int) -> Tensor:
        agents = parameters["encoder.output.bias"].shape[0]
        block = self._features[first_day : first_day + days]
        return linear(parameters, "encoder.output", block.expand(agents, *block.shape))

    def encode_days(self, parameters: Parameters, days: Tensor, first_day: int, block_bars: int) -> Tensor:  # noqa: ARG002
        return linear(parameters, "encoder.output", self._features[days])
