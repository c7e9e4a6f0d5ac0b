"""The interface of encoders."""

from typing import ClassVar, Protocol

from torch import Tensor

from eigen_core.config import NetworkConfig
from eigen_core.networks.layout import Parameters, ParameterShape

FirstDay = int | Tensor
"""First day of a block: a number, or int64 `[]` on a device that finds the days itself, without the host."""


class Encoder(Protocol):
    """Turns days into embeddings.

    Args:
        features: float32 `[days, columns, features]` on the device.
        training_days: the first so many days, by which alone anything may be normalised.
        window: days that an embedding may depend on, its own included.
        config: widths of the network, and the encoder's own settings.
    """

    block_bound: ClassVar[bool]
    """A batch of days must come from one block that is encoded as a whole."""

    def __init__(self, features: Tensor, training_days: int, window: int, config: NetworkConfig) -> None: ...

    @property
    def shapes(self) -> list[ParameterShape]:
        """Parameters of one agent's encoder."""

    def encode_block(self, parameters: Parameters, first_day: int, days: int) -> Tensor:
        """Embeddings of consecutive days: float32 `[agents, days, columns, embedding]`."""

    def encode_days(self, parameters: Parameters, days: Tensor, first_day: FirstDay, block_days: int) -> Tensor:
        """Embeddings of each agent's days, int64 `[agents, batch]` inside the block that starts at `first_day`.

        Returns float32 `[agents, batch, columns, embedding]`.
        """
