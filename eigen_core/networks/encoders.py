"""Encoders turn the window of days that ends on a day into one embedding of each symbol (column of the panel).

All days of a block (consecutive days) are encoded in one pass, with the bits of encoding each window by itself.
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol, cast

import torch
from torch import Tensor

from eigen_core.config import NetworkConfig
from eigen_core.config.registry import ENCODERS, load_class
from eigen_core.market.panel import RowIndex
from eigen_core.networks.layout import Parameters, ParameterShape, linear, linear_shapes

FirstDay = int | Tensor
"""Index of the first day of a block: an int, or an int64 scalar tensor, so that one CUDA graph serves all blocks."""


class Encoder(Protocol):
    """Turns days of the market into embeddings of its symbols.

    Args:
        features: float32 `[days, symbols, features]` on the device.
        trained: the training days, as an index of rows; normalisation may use no others.
        window: number of days that an embedding may depend on, its own day and those before.
    """

    block_bound: ClassVar[bool]
    """Whether the days of a batch must come from one block of days, which the encoder computes as a whole."""

    def __init__(self, features: Tensor, trained: RowIndex, window: int, config: NetworkConfig) -> None: ...

    @property
    def shapes(self) -> list[ParameterShape]:
        """Names and shapes of the parameters of one agent's encoder."""

    def encode_block(self, parameters: Parameters, first_day: int, days: int) -> Tensor:
        """Return the embeddings of consecutive days: float32 `[agents, days, symbols, embedding]`."""

    def encode_days(self, parameters: Parameters, days: Tensor, first_day: FirstDay, block_bars: int) -> Tensor:
        """Return `[agents, batch, symbols, embedding]` of days `[agents, batch]` in the block from `first_day` on."""


def encoder_class(config: NetworkConfig) -> type[Encoder]:
    return cast("type[Encoder]", load_class(ENCODERS, config.encoder))


def _moving_means(features: Tensor, length: int) -> Tensor:
    """Return for each day the mean of the `length` days that end with it; days before the first count as zero.

    Sums of 1, 2, 4, ... days are joined by the binary digits of `length`, so that each mean adds the same days in the
    same order wherever its window lies.
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


def filter_bank(features: Tensor, trained: RowIndex, scales: Sequence[int]) -> Tensor:
    """Return moving averages of features, `[days, symbols, features]`, over `scales` days, one scale after another.

    Each scale is divided by its root mean square over the days `trained`.
    """
    bank = torch.empty((*features.shape[:2], features.shape[2] * len(scales)), device=features.device)
    for index, scale in enumerate(scales):
        filtered = _moving_means(features, scale)
        spread = filtered[trained].double().square().mean(dim=(0, 1)).sqrt().clamp_min(1e-3)
        width = features.shape[2]
        bank[..., index * width : (index + 1) * width] = filtered / spread.float()
    return bank


MOST_MULTIPLIED = 40
"""Most features whose products `linear_inputs` returns: with more, these would take much memory and time."""


def linear_inputs(features: Tensor, trained: RowIndex, network: NetworkConfig) -> tuple[Tensor, list[slice]]:
    """Return the inputs of actors' linear part, float32 `[days, symbols, inputs]`, and its groups of further inputs.

    First come averages over the first of `network.linear_scales`. Further groups: with `network.linear_degree` 2
    products of each two of these, squares included, of at most `MOST_MULTIPLIED` features; averages over the other
    scales.
    """
    bank, size = filter_bank(features, trained, network.linear_scales), features.shape[2]
    products: list[Tensor] = []
    if network.linear_degree > 1 and size <= MOST_MULTIPLIED:
        one, other = torch.triu_indices(size, size, device=features.device)
        products = [bank[..., one] * bank[..., other]]
    inputs = torch.cat([bank[..., :size], *products, bank[..., size:]], dim=-1)
    averages = inputs.shape[2] - bank.shape[2] + size
    groups = [slice(size, averages), slice(averages, inputs.shape[2])]
    return inputs, [group for group in groups if group.start < group.stop]


class FilterBankEncoder:
    """Implements `Encoder`: moving means of past days, computed once over the panel, then an MLP for each symbol."""

    block_bound: ClassVar[bool] = False

    def __init__(self, features: Tensor, trained: RowIndex, window: int, config: NetworkConfig) -> None:  # noqa: ARG002 - the window limits network.scales
        self._config = config
        self.bank = filter_bank(features, trained, config.scales)

    @property
    def shapes(self) -> list[ParameterShape]:
        config = self._config
        return [
            *linear_shapes("encoder.hidden", self.bank.shape[2], config.channels),
            *linear_shapes("encoder.output", config.channels, config.embedding),
        ]

    def _embed(self, parameters: Parameters, filtered: Tensor) -> Tensor:
        return linear(parameters, "encoder.output", linear(parameters, "encoder.hidden", filtered, rectified=True))

    def encode_block(self, parameters: Parameters, first_day: int, days: int) -> Tensor:
        agents = parameters["encoder.hidden.bias"].shape[0]
        filtered = self.bank[first_day : first_day + days]
        return self._embed(parameters, filtered.expand(agents, *filtered.shape))

    def encode_days(self, parameters: Parameters, days: Tensor, first_day: FirstDay, block_bars: int) -> Tensor:  # noqa: ARG002 - any day can be encoded by itself
        # Copies whole days; indexing by a tensor of several dimensions would copy value by value.
        rows = self.bank.index_select(0, days.flatten())
        return self._embed(parameters, rows.view(*days.shape, *self.bank.shape[1:]))
