"""The encoder `tcn`."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from torch import Tensor

from eigen_core.config import Config, NetworkConfig
from eigen_core.market.panel import PanelFacts
from eigen_core.needs import DOUBLE, SINGLE, Change, Harm, Kept, Operation, Piece, powers_below
from eigen_core.networks.encoders.convolutions import Block, Convolutions, Schedule, receptive_dilations
from eigen_core.networks.encoders.interface import FirstDay
from eigen_core.networks.layout import (
    Parameters,
    ParameterShape,
    filled_inputs,
    filled_outputs,
    linear_shapes,
)
from eigen_core.pieces import device_kind

_FEWEST_COLUMNS = 8
"""Columns of a chunk below which a plan suggests none."""


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

    @staticmethod
    def needs(config: Config, panel: PanelFacts) -> "TcnNeeds":
        """Return what a run with this encoder needs, on a panel of this size."""
        return TcnNeeds(config, panel)


@dataclass(frozen=True)
class _ChunkNeeds:
    """Blocks of some columns (bytes).

    Attributes:
        history: what is read.
        full: the results of the input layer and of the layers above it that compute all days.
        sparse: the days gathered from the last of these, and the results of the layers above; empty: none are.
        embeddings: what is returned.
    """

    history: int
    full: tuple[int, ...]
    sparse: tuple[int, ...]
    embeddings: int

    @property
    def plain(self) -> int:
        """The most at once without a gradient."""
        blocks = [*self.full, *self.sparse, self.embeddings]
        return self.history + max(before + after for before, after in pairwise(blocks))

    @property
    def backward(self) -> int:
        """The most at once in the backward pass, given the gradient of the embeddings as they lie."""
        first, *layers = self.full
        # Of each layer what its ReLU gave, and what the next one read.
        below = self.history + first + 2 * sum(layers)
        # What they are gathered from is not remembered, but there while they are and while their gradient is put back.
        above = self.sparse[0] + 2 * sum(self.sparse[1:]) if self.sparse else 0
        last = self.sparse[-1] if self.sparse else self.full[-1]
        gathered = self.full[-1] if self.sparse and layers else 0
        # Put back a set of days after the other, each copied.
        scattered = self.sparse[0] + self.sparse[-1] + (0 if layers else first) if self.sparse else 0
        return max(below - gathered + above + last, below + scattered, self.history + 2 * (first + sum(layers[:1])))


@dataclass(frozen=True)
class TcnNeeds:
    """Implements `EncoderNeeds`: each block of values that `_convolve` holds, chunk of columns after chunk."""

    config: Config
    panel: PanelFacts

    @property
    def kept(self) -> list[Kept]:
        """The features."""
        panel = self.panel
        shape = f"[{panel.days:,}, {panel.columns:,}, {panel.features}]"
        features = SINGLE * panel.days * panel.columns * panel.features
        return [Kept("features", f"The panel's features {shape} as the encoder reads them.", features)]

    @property
    def days_before(self) -> int:
        """The window before the first day."""
        return self.config.market.window - 1

    def _widths(self, schedule: Schedule) -> tuple[int, ...]:
        """The different numbers of columns of chunks."""
        columns, network = self.panel.columns, self.config.network
        kind = device_kind(self.config.device)
        step = schedule.columns_at_once(network.column_chunk, columns, network.channels, kind)
        return (step, columns % step) if columns % step else (step,)

    def _chunk(self, agents: int, schedule: Schedule, columns: int) -> _ChunkNeeds:
        network, filled = self.config.network, schedule.filled(columns)

        def block(days: int, values: int) -> int:
            return SINGLE * agents * days * filled * filled_outputs(values)

        return _ChunkNeeds(
            history=SINGLE * schedule.full[0] * filled * filled_inputs(self.panel.features),
            full=tuple(block(days, network.channels) for days in schedule.full[: schedule.whole + 1]),
            sparse=tuple(block(days, network.channels) for days in schedule.sparse),
            embeddings=block(schedule.wanted or schedule.days, network.embedding),
        )

    def _operation(self, agents: int, schedule: Schedule) -> Operation:
        """What is encoded chunk after chunk; nothing is remembered but which days are wanted."""
        widths = self._widths(schedule)
        chunks = [self._chunk(agents, schedule, columns) for columns in widths]
        result = SINGLE * agents * self.panel.columns * self.config.network.embedding
        result *= schedule.wanted or schedule.days
        places = DOUBLE * agents * schedule.sparse[0] if schedule.sparse else 0
        most = result + places + max(chunk.plain for chunk in chunks)
        return Operation(
            result,
            plain=most,
            forward=most,
            remembered=places,
            # Of some columns the gradient is copied, so that it lies in one piece.
            backward=2 * result
            + places
            + max(chunk.backward + (chunk.embeddings if widths[0] < self.panel.columns else 0) for chunk in chunks),
        )

    def block(self, agents: int, days: int) -> Operation:
        """All days of a block."""
        return self._operation(agents, Schedule(self.config.market.window, days))

    def days(self, agents: int, batch: int, block_days: int) -> Operation:
        """A block is encoded as far as each agent's days depend on it."""
        return self._operation(agents, Schedule(self.config.market.window, block_days, batch))

    def piece(self, batch: int, block_days: int) -> Piece:
        """A chunk of columns of a block."""
        schedule = Schedule(self.config.market.window, block_days, batch)
        columns, *_ = self._widths(schedule)
        return Piece(columns, max(self._chunk(1, schedule, columns).full))

    def changes(self) -> Iterator[Change]:
        """Yield narrower chunks, then the cheaper encoder."""
        columns = self.piece(self.config.learner.batch_size, self.panel.block_days(self.config)).columns
        for value in powers_below(columns, _FEWEST_COLUMNS):
            yield Change({"network.column_chunk": value}, Harm.ROUNDING)
        yield Change({"network.encoder": "filter_bank"})
