"""The encoder `tcn`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.utils.checkpoint
from torch import Tensor

from eigen_core.config import Config, NetworkConfig
from eigen_core.market.facts import PanelFacts
from eigen_core.needs import SINGLE, Change, Harm, Kept, Operation, powers_below
from eigen_core.networks.layout import Parameters, ParameterShape, linear, linear_shapes, product_bytes

_FEWEST_COLUMNS = 8
"""Columns of a chunk below which a plan suggests none."""


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

    @staticmethod
    def needs(config: Config, panel: PanelFacts) -> "TcnNeeds":
        """Return what a run with this encoder needs, on a panel of this size."""
        return TcnNeeds(config, panel)


@dataclass(frozen=True)
class _ChunkNeeds:
    """Blocks of some columns (bytes): what is read, and the hidden layers from the input on."""

    copied: int
    products: tuple[int, ...]
    hidden: tuple[int, ...]
    output: int
    embeddings: int

    @property
    def plain(self) -> int:
        """The most at once without a gradient."""
        moments = [self.copied + self.products[0] + self.hidden[0], 2 * self.hidden[0]]
        for before, product, after in zip(self.hidden[:-1], self.products[1:], self.hidden[1:], strict=True):
            moments.append(before + 2 * after + product + after)
        return max(*moments, self.hidden[-1] + self.output + self.embeddings)

    @property
    def remembered(self) -> int:
        """What the backward pass needs: what is read, each layer's input pairs and result, the last layer."""
        return self.copied + self.hidden[0] + 3 * sum(self.hidden[1:]) + self.hidden[-1]


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

    @property
    def _widths(self) -> list[int]:
        columns = self.panel.columns
        step = self.config.network.column_chunk or columns
        return [min(step, columns - start) for start in range(0, columns, step)]

    def _chunk(self, agents: int, days: int, columns: int) -> _ChunkNeeds:
        network = self.config.network
        lengths = [days + self.days_before]
        for dilation in receptive_dilations(self.config.market.window):
            lengths.append(lengths[-1] - dilation)
        blocks = [product_bytes(agents * length * columns, network.channels) for length in lengths]
        output, embeddings = product_bytes(agents * days * columns, network.embedding)
        read = SINGLE * agents * lengths[0] * columns * self.panel.features
        return _ChunkNeeds(
            # All columns lie side by side as they are; some of them are copied, for each agent.
            copied=0 if columns == self.panel.columns else read,
            products=tuple(product for product, _ in blocks),
            hidden=tuple(hidden for _, hidden in blocks),
            output=output,
            embeddings=embeddings,
        )

    def block(self, agents: int, days: int) -> Operation:
        """Chunk after chunk, then all of them joined."""
        moments, done = [], 0
        for columns in self._widths:
            chunk = self._chunk(agents, days, columns)
            moments.append(done + chunk.plain)
            done += chunk.embeddings
        return Operation(done, plain=max(*moments, 2 * done))

    def days(self, agents: int, batch: int, block_days: int) -> Operation:
        """A block is encoded as a whole, chunk after chunk, and each agent's days are picked from it."""
        # A block that begins before the window's length is filled up with zeros in front.
        filled = SINGLE * (block_days + self.days_before) * self.panel.columns * self.panel.features
        plain, graded, picked, blocks, former = [], [], 0, 0, 0
        for columns in self._widths:
            chunk = self._chunk(agents, block_days, columns)
            plain.append(picked + former + chunk.plain)
            graded.append(picked + blocks + chunk.plain)
            picked += SINGLE * agents * batch * columns * self.config.network.embedding
            former = chunk.embeddings
            # What days are picked from is remembered by the picking.
            blocks += chunk.embeddings
        largest = self._chunk(agents, block_days, max(self._widths))
        remembered = filled + blocks
        if not self.config.network.column_chunk:
            # Without chunks nothing is computed again, so all of it is remembered.
            remembered += largest.remembered
            graded.append(largest.remembered + largest.output + largest.embeddings)
        last = largest.hidden[-1]
        again = largest.remembered + largest.embeddings + max(last, largest.hidden[-2])
        backward = blocks - largest.embeddings + max(again, largest.remembered + 2 * last)
        return Operation(
            picked,
            plain=filled + max(*plain, 2 * picked + former),
            forward=filled + max(*graded, 2 * picked + blocks),
            remembered=remembered,
            backward=picked + filled + picked + backward,
        )

    def changes(self) -> Iterator[Change]:
        """Yield narrower chunks, then the cheaper encoder."""
        columns = min(self.config.network.column_chunk or self.panel.columns, self.panel.columns)
        for value in powers_below(columns, _FEWEST_COLUMNS):
            yield Change({"network.column_chunk": value}, Harm.ROUNDING)
        yield Change({"network.encoder": "filter_bank"})
