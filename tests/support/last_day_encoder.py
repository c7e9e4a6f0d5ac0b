"""The encoder `last_day`: a linear layer on the features of the window's last day."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from eigen_core.config import Config, NetworkConfig
from eigen_core.market import PanelFacts
from eigen_core.needs import SINGLE, Change, Kept, Operation, Piece
from eigen_core.networks.layout import Parameters, ParameterShape, linear, linear_shapes, product_bytes


class LastDayEncoder:
    """Implements `Encoder`."""

    block_bound: ClassVar[bool] = False

    def __init__(self, features: Tensor, training_days: int, window: int, config: NetworkConfig) -> None:  # noqa: ARG002
        self._features, self._config = features, config

    @property
    def shapes(self) -> list[ParameterShape]:
        """Parameters of one agent's encoder."""
        return linear_shapes("encoder.output", self._features.shape[2], self._config.embedding)

    def encode_block(self, parameters: Parameters, first_day: int, days: int) -> Tensor:
        """Embeddings of consecutive days."""
        agents = parameters["encoder.output.bias"].shape[0]
        block = self._features[first_day : first_day + days]
        return linear(parameters, "encoder.output", block.expand(agents, *block.shape))

    def encode_days(self, parameters: Parameters, days: Tensor, first_day: int, block_days: int) -> Tensor:  # noqa: ARG002
        """Embeddings of each agent's days."""
        return linear(parameters, "encoder.output", self._features[days])

    @staticmethod
    def needs(config: Config, panel: PanelFacts) -> "LastDayNeeds":
        """What a run with this encoder needs."""
        return LastDayNeeds(config, panel)


@dataclass(frozen=True)
class LastDayNeeds:
    """Implements `EncoderNeeds`."""

    config: Config
    panel: PanelFacts
    days_before: ClassVar[int] = 0

    @property
    def kept(self) -> list[Kept]:
        """The features."""
        features = SINGLE * self.panel.days * self.panel.columns * self.panel.features
        return [Kept("features", "The panel's features of 4 bytes.", features)]

    def block(self, agents: int, days: int) -> Operation:
        """Days that lie side by side."""
        return self._embed(agents * days * self.panel.columns, 0)

    def days(self, agents: int, batch: int, block_days: int) -> Operation:  # noqa: ARG002
        """The days of a batch, copied."""
        rows = agents * batch * self.panel.columns
        return self._embed(rows, SINGLE * rows * self.panel.features)

    def _embed(self, rows: int, read: int) -> Operation:
        product, embeddings = product_bytes(rows, self.config.network.embedding)
        peak = read + product + embeddings
        return Operation(embeddings, plain=peak, forward=peak, remembered=read, backward=peak + embeddings)

    def piece(self, batch: int, block_days: int) -> Piece:  # noqa: ARG002 - any day can be encoded by itself
        """All columns of the days of a batch."""
        columns = self.panel.columns
        return Piece(columns, product_bytes(batch * columns, self.config.network.embedding)[1])

    def changes(self) -> Iterator[Change]:
        """None."""
        yield from ()
