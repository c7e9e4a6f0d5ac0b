"""The encoder `tcn`."""

from typing import ClassVar

import torch
import torch.utils.checkpoint
from torch import Tensor

from eigen_core.config import NetworkConfig
from eigen_core.networks.layout import Parameters, ParameterShape, linear, linear_shapes


def receptive_dilations(window: int) -> tuple[int, ...]:
    """Dilations of convolutions of width 2 that see exactly `window` days: powers of two, then the rest."""
    dilations, left, power = [], window - 1, 1
    while left > 0:
        dilation = min(power, left)
        dilations.append(dilation)
        left -= dilation
        power *= 2
    return tuple(dilations)


class TcnEncoder:
    """Learned dilated causal convolutions with residual connections (Bai et al. 2018, arXiv:1803.01271).

    The receptive field is exactly the window; convolutions are "valid" over real history, and only days before the
    first of the panel are padded with zeros.

    Args:
        features: float32 `[days, columns, features]` on the device.
        training_days: not used.
        window: days seen, the last included.
        config: channels, embedding, column_chunk.
    """

    block_bound: ClassVar[bool] = True

    def __init__(self, features: Tensor, training_days: int, window: int, config: NetworkConfig) -> None:  # noqa: ARG002 - nothing is normalised
        self._features = features
        self._window = window
        self._config = config
        self._dilations = receptive_dilations(window)

    @property
    def shapes(self) -> list[ParameterShape]:
        """Parameters of one agent's encoder."""
        config = self._config
        shapes = linear_shapes("encoder.input", self._features.shape[2], config.channels)
        for index in range(len(self._dilations)):
            shapes += linear_shapes(f"encoder.layer{index}", 2 * config.channels, config.channels)
        return shapes + linear_shapes("encoder.output", config.channels, config.embedding)

    def _history(self, first_day: int, days: int) -> Tensor:
        start = first_day - (self._window - 1)
        history = self._features[max(start, 0) : first_day + days]
        if start < 0:
            history = torch.cat([history.new_zeros((-start, *history.shape[1:])), history])
        return history

    def _chunks(self, history: Tensor) -> tuple[Tensor, ...]:
        return torch.split(history, self._config.column_chunk or history.shape[1], dim=1)

    def _convolve(self, history: Tensor, parameters: Parameters) -> Tensor:
        """`[history days, columns, features]` -> `[agents, days, columns, embedding]`."""
        agents = parameters["encoder.input.bias"].shape[0]
        hidden = torch.relu(linear(parameters, "encoder.input", history.expand(agents, *history.shape)))
        for index, dilation in enumerate(self._dilations):
            earlier, now = hidden[:, :-dilation], hidden[:, dilation:]
            hidden = now + torch.relu(linear(parameters, f"encoder.layer{index}", torch.cat([earlier, now], dim=-1)))
        return linear(parameters, "encoder.output", hidden)

    def _convolve_chunk(self, history: Tensor, parameters: Parameters) -> Tensor:
        if not torch.is_grad_enabled() or not self._config.column_chunk:
            return self._convolve(history, parameters)
        # Recomputed in the backward pass, so that only one chunk's activations are in memory at a time.
        embeddings: Tensor = torch.utils.checkpoint.checkpoint(
            self._convolve, history, parameters, use_reentrant=False, preserve_rng_state=False
        )
        return embeddings

    def encode_block(self, parameters: Parameters, first_day: int, days: int) -> Tensor:
        """Embeddings of consecutive days: float32 `[agents, days, columns, embedding]`."""
        history = self._history(first_day, days)
        chunks = self._chunks(history)
        return torch.cat([self._convolve_chunk(chunk, parameters) for chunk in chunks], dim=2)

    def encode_days(self, parameters: Parameters, days: Tensor, first_day: int, block_days: int) -> Tensor:
        """Embeddings of each agent's days: float32 `[agents, batch, columns, embedding]`.

        The days of an agent must differ from one another, so that no gradient is a sum in unknown order.
        """
        history = self._history(first_day, block_days)
        rows = (days - first_day)[:, :, None, None]
        picked = []
        for chunk in self._chunks(history):
            block = self._convolve_chunk(chunk, parameters)
            picked.append(block.gather(1, rows.expand(-1, -1, *block.shape[2:])))
        return torch.cat(picked, dim=2)
