"""The encoder `tcn`."""

from typing import ClassVar

from torch import Tensor

from eigen_core.config import NetworkConfig
from eigen_core.networks.encoders.convolutions import Block, Convolutions, Schedule, receptive_dilations
from eigen_core.networks.encoders.interface import FirstDay
from eigen_core.networks.layout import Parameters, ParameterShape, linear_shapes


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

    def _convolve(
        self, parameters: Parameters, first_day: FirstDay, schedule: Schedule, places: Tensor | None
    ) -> Tensor:
        columns, network = self._features.shape[1], self._config
        kind = self._features.device.type
        chunk = schedule.columns_at_once(network.column_chunk, columns, network.channels, kind)
        block = Block(self._features, first_day, schedule, chunk)
        embeddings: Tensor = Convolutions.apply(block, places, *(parameters[shape.name] for shape in self.shapes))  # type: ignore[no-untyped-call] # torch has no annotation here
        return embeddings

    def encode_block(self, parameters: Parameters, first_day: int, days: int) -> Tensor:
        """Embeddings of consecutive days: float32 `[agents, days, columns, embedding]`."""
        return self._convolve(parameters, first_day, Schedule(self._window, days), None)

    def encode_days(self, parameters: Parameters, days: Tensor, first_day: FirstDay, block_days: int) -> Tensor:
        """Embeddings of each agent's days: float32 `[agents, batch, columns, embedding]`.

        The days of an agent must differ from one another, so that no gradient is a sum in unknown order.
        """
        schedule = Schedule(self._window, block_days, days.shape[1])
        return self._convolve(parameters, first_day, schedule, schedule.gathered(days - first_day))
