"""The encoder `filter_bank`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from eigen_core.config import Config, NetworkConfig
from eigen_core.market.panel import PanelFacts
from eigen_core.needs import SINGLE, Change, Kept, Operation, Piece
from eigen_core.networks.encoders.interface import FirstDay
from eigen_core.networks.layout import Parameters, ParameterShape, linear, linear_shapes, product_bytes


def _moving_means(features: Tensor, length: int) -> Tensor:
    """Mean of the last `length` days for each day; days before the first count as zero.

    Sums of 1, 2, 4, ... days are built from one another and joined by the binary digits of `length`: each mean adds
    the same days in the same order wherever its window lies.
    """

    def delayed(values: Tensor, days: int) -> Tensor:
        shifted = torch.zeros_like(values)
        if days < len(values):
            shifted[days:] = values[: len(values) - days]
        return shifted

    total: Tensor | None = None
    covered, power, block = 0, 1, features
    while power <= length:
        if length & power:
            part = delayed(block, covered)
            total = part if total is None else total + part
            covered += power
        if power * 2 <= length:
            block = block + delayed(block, power)
        power *= 2
    assert total is not None
    return total / length


class FilterBankEncoder:
    """A fixed bank of causal moving means, computed once over the panel, then a small network per column.

    Args:
        features: float32 `[days, columns, features]` on the device.
        training_days: the first so many days, which alone scale the filters.
        window: at least the longest scale (days).
        config: scales (days), channels, embedding.
    """

    block_bound: ClassVar[bool] = False

    def __init__(self, features: Tensor, training_days: int, window: int, config: NetworkConfig) -> None:  # noqa: ARG002 - the configuration bounds its scales
        self._config = config
        self.bank = torch.empty((*features.shape[:2], features.shape[2] * len(config.scales)), device=features.device)
        for index, scale in enumerate(config.scales):
            filtered = _moving_means(features, scale)
            spread = filtered[:training_days].double().square().mean(dim=(0, 1)).sqrt().clamp_min(1e-3)
            width = features.shape[2]
            self.bank[..., index * width : (index + 1) * width] = filtered / spread.float()

    @property
    def shapes(self) -> list[ParameterShape]:
        """Parameters of one agent's encoder."""
        config = self._config
        return [
            *linear_shapes("encoder.hidden", self.bank.shape[2], config.channels),
            *linear_shapes("encoder.output", config.channels, config.embedding),
        ]

    def _embed(self, parameters: Parameters, filtered: Tensor) -> Tensor:
        return linear(parameters, "encoder.output", linear(parameters, "encoder.hidden", filtered, rectified=True))

    def encode_block(self, parameters: Parameters, first_day: int, days: int) -> Tensor:
        """Embeddings of consecutive days: float32 `[agents, days, columns, embedding]`."""
        agents = parameters["encoder.hidden.bias"].shape[0]
        filtered = self.bank[first_day : first_day + days]
        return self._embed(parameters, filtered.expand(agents, *filtered.shape))

    def encode_days(self, parameters: Parameters, days: Tensor, first_day: FirstDay, block_days: int) -> Tensor:  # noqa: ARG002 - any day can be encoded by itself
        """Embeddings of each agent's days: float32 `[agents, batch, columns, embedding]`."""
        # Copies whole days, which an index by a tensor of several dimensions does value by value.
        rows = self.bank.index_select(0, days.flatten())
        return self._embed(parameters, rows.view(*days.shape, *self.bank.shape[1:]))

    @staticmethod
    def needs(config: Config, panel: PanelFacts) -> "FilterBankNeeds":
        """Return what a run with this encoder needs, on a panel of this size."""
        return FilterBankNeeds(config, panel)


@dataclass(frozen=True)
class FilterBankNeeds:
    """Implements `EncoderNeeds`: each block of values that `_embed` holds, moment after moment."""

    config: Config
    panel: PanelFacts
    days_before: ClassVar[int] = 0

    @property
    def kept(self) -> list[Kept]:
        """The bank, and the partial sums while it is computed."""
        panel, scales = self.panel, self.config.network.scales
        features = SINGLE * panel.days * panel.columns * panel.features
        wide = f"[{panel.days:,}, {panel.columns:,}, {panel.features} x {len(scales)}]"
        # The means of the former length, the sum so far, its last part, the block of twice the days and its parts.
        summing = (6 if max(scales) > 1 else 2) * features
        # Twice in 8 bytes: as they are, and squared.
        spreading = features + int(4 * features * panel.train_days(self.config) / panel.days)
        building = features + max(summing, spreading)
        how = "Features and partial sums while the filter bank is computed, or the squares that scale it in 8 bytes."
        return [
            Kept("filter bank", f"Moving means over the panel, {wide} of 4 bytes.", len(scales) * features),
            Kept("building the filter bank", how, building, starting=True),
        ]

    def block(self, agents: int, days: int) -> Operation:
        """Days that lie side by side are read where they are."""
        return self._embed(agents * days * self.panel.columns, read=0)

    def days(self, agents: int, batch: int, block_days: int) -> Operation:  # noqa: ARG002 - any day can be encoded by itself
        """The days of a batch are copied from the bank."""
        rows = agents * batch * self.panel.columns
        return self._embed(rows, SINGLE * rows * self.panel.features * len(self.config.network.scales))

    def _embed(self, rows: int, read: int) -> Operation:
        product, hidden = product_bytes(rows, self.config.network.channels)
        output, embeddings = product_bytes(rows, self.config.network.embedding)
        peak = read + max(product + hidden, hidden + output + embeddings)
        backward = embeddings + read + 2 * hidden + max(hidden, embeddings)
        return Operation(embeddings, plain=peak, forward=peak, remembered=read + hidden, backward=backward)

    def piece(self, batch: int, block_days: int) -> Piece:  # noqa: ARG002 - any day can be encoded by itself
        """All columns of the days of a batch."""
        columns = self.panel.columns
        return Piece(columns, product_bytes(batch * columns, self.config.network.channels)[1])

    def changes(self) -> Iterator[Change]:
        """Yield fewer scales."""
        scales = self.config.network.scales
        if len(scales) > 1:
            yield Change({"network.scales": scales[:-1]})
