"""The encoder `last_day`: a linear layer on the features of the window's last day."""

from typing import ClassVar

import torch
from torch import Tensor

from eigen_core.config import NetworkConfig
from eigen_core.market.panel import RowIndex
from eigen_core.networks.encoders import Features
from eigen_core.networks.layout import Parameters, ParameterShape, linear, linear_shapes


class LastDayEncoder:
    block_bound: ClassVar[bool] = False

    def __init__(
        self,
        features: Features,
        device: torch.device,
        trained: RowIndex,  # noqa: ARG002
        window: int,  # noqa: ARG002
        config: NetworkConfig,
        kept: Tensor | None,
    ) -> None:
        every_day = torch.tensor(features, device=device)
        self._features, self._config = every_day if kept is None else every_day[kept], config

    @property
    def shapes(self) -> list[ParameterShape]:
        return linear_shapes("encoder.output", self._features.shape[2], self._config.embedding)

    def encode_block(self, parameters: Parameters, first_day: int, days: int) -> Tensor:
        agents = parameters["encoder.output.bias"].shape[0]
        block = self._features[first_day : first_day + days]
        return linear(parameters, "encoder.output", block.expand(agents, *block.shape))

    def encode_days(self, parameters: Parameters, days: Tensor, first_day: int, block_bars: int) -> Tensor:  # noqa: ARG002
        return linear(parameters, "encoder.output", self._features[days])
