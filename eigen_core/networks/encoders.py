"""Encoders turn the window of days that ends on a day into one embedding of each symbol (column of the panel).

All days of a block (consecutive days) are encoded in one pass, with the bits of encoding each window by itself.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
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


_DAYS_AT_ONCE = 1 << 11
"""Days whose averages are computed at a time: in the cache this takes a fourth of the time, and little memory."""


def filter_bank(features: Tensor, trained: RowIndex, scales: Sequence[int]) -> Tensor:
    """Return moving averages of features, `[days, symbols, features]`, over `scales` days, one scale after another.

    Each scale is divided by its root mean square over the days `trained`.
    """
    days, symbols, width = features.shape
    bank = torch.empty((days, symbols, width * len(scales)), device=features.device)
    parts = bank.view(days, symbols, len(scales), width).unbind(2)
    for first in range(0, days, _DAYS_AT_ONCE):
        before = features[max(first - max(scales) + 1, 0) : first + _DAYS_AT_ONCE]
        for part, scale in zip(parts, scales, strict=True):
            of_days = part[first : first + _DAYS_AT_ONCE]
            of_days.copy_(_moving_means(before, scale)[-len(of_days) :])
    for part in parts:
        part /= part[trained].double().square_().mean(dim=(0, 1)).sqrt().clamp_min(1e-3).float()
    return bank


MOST_MULTIPLIED = 40
"""Most features whose products `LinearInputs` has: with more, these would take much memory and time."""
_MOST_KEPT = 1 << 25
"""Most inputs that are kept: it takes a fourth off the time of a generation, and at most 128 MiB."""


class LinearInputs:
    """The inputs of actors' linear part, float32 `[days, symbols, inputs]`, as an array that is indexed by days.

    First come averages over the first of `network.linear_scales`. Further groups: with `network.linear_degree` 2
    products of each two of these, squares included, of at most `MOST_MULTIPLIED` features; averages over the other
    scales. In a long market the products are computed when they are read.

    Attributes:
        shape: numbers of days, symbols and inputs.
        groups: the inputs of each further group.
    """

    def __init__(self, features: Tensor, trained: RowIndex, network: NetworkConfig) -> None:
        self._bank = filter_bank(features, trained, network.linear_scales)
        days, symbols, self._size = features.shape
        self._multiplied = range(self._size if network.linear_degree > 1 and self._size <= MOST_MULTIPLIED else 0)
        products = sum(self._size - one for one in self._multiplied)
        self.shape = days, symbols, products + self._bank.shape[2]
        if math.prod(self.shape) <= _MOST_KEPT:
            self._bank, self._multiplied = self[:], range(0)
        edges = self._size, self._size + products, self.shape[2]
        self.groups = [slice(*pair) for pair in pairwise(edges) if pair[0] < pair[1]]

    def __getitem__(self, days: slice | Tensor) -> Tensor:
        bank = self._bank[days] if isinstance(days, slice) else self._bank.index_select(0, days)
        if not self._multiplied:
            return bank
        plain, others = bank[..., : self._size], bank[..., self._size :]
        products = (plain[..., one : one + 1] * plain[..., one:] for one in self._multiplied)
        return torch.cat([plain, *products, others], dim=-1)


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
