"""What every encoder does, and says of its memory."""

from collections.abc import Iterator
from typing import ClassVar, Protocol

from torch import Tensor

from eigen_core.config import Config, NetworkConfig
from eigen_core.market.panel import PanelFacts
from eigen_core.needs import Change, Kept, Operation, Piece
from eigen_core.networks.layout import Parameters, ParameterShape

FirstDay = int | Tensor
"""First day of a block: a number, or int64 `[]` on a device that finds the days itself, without the host."""


class EncoderNeeds(Protocol):
    """What an encoder needs of memory in a run, and how much it computes."""

    @property
    def kept(self) -> list[Kept]:
        """What it keeps of the panel's features."""

    @property
    def days_before(self) -> int:
        """Days before those that are encoded that are computed too."""

    def block(self, agents: int, days: int) -> Operation:
        """`Encoder.encode_block`, without a gradient."""

    def days(self, agents: int, batch: int, block_days: int) -> Operation:
        """`Encoder.encode_days`."""

    def piece(self, batch: int, block_days: int) -> Piece:
        """What `Encoder.encode_days` computes at a time."""

    def changes(self) -> Iterator[Change]:
        """Yield settings of the encoder that lower its needs, those that change the run least first."""


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

    @staticmethod
    def needs(config: Config, panel: PanelFacts) -> EncoderNeeds:
        """Return what a run with this encoder needs, on a panel of this size."""
