"""Encoders turn the window of days that ends on a day into one embedding of each symbol (column of the panel).

All days of a block (consecutive days) are encoded in one pass, with the bits of encoding each window by itself.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import NetworkConfig
from eigen_core.config.registry import ENCODERS, load_class
from eigen_core.market.panel import RowIndex
from eigen_core.networks.layout import Parameters, ParameterShape, linear, linear_shapes

Features = NDArray[np.float32]
FirstDay = int | Tensor
"""Index of the first day of a block: an int, or an int64 scalar tensor, so that one CUDA graph serves all blocks."""


class Encoder(Protocol):
    """Turns days of the market into embeddings of its symbols.

    Args:
        features: float32 `[days, symbols, features]`.
        device: that of the embeddings.
        trained: the training days, as an index of rows; normalisation may use no others.
        window: number of days that an embedding may depend on, its own day and those before.
        kept: int64, increasing, the only days that are encoded, which the methods count from 0; None: all.
    """

    block_bound: ClassVar[bool]
    """Whether the days of a batch must come from one block of days, which the encoder computes as a whole."""

    def __init__(
        self,
        features: Features,
        device: torch.device,
        trained: RowIndex,
        window: int,
        config: NetworkConfig,
        kept: Tensor | None,
    ) -> None: ...

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


def filter_bank(
    features: Features, device: torch.device, trained: RowIndex, scales: Sequence[int], kept: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Return moving averages of features, `[days, symbols, features]`, over `scales` days, one scale after another.

    Each scale is divided by its root mean square over the days `trained`, `[features]`, which is returned, too. `kept`:
    int64, the only days of the result; None: all.
    """
    days, symbols, width = features.shape
    every_day = torch.arange(days, device=device)
    rows = every_day if kept is None else kept, every_day[trained]
    bank = torch.empty((len(rows[0]), symbols, width * len(scales)), device=device)
    fitted = torch.empty((len(rows[1]), symbols, width), dtype=torch.float64, device=device)
    starts = range(0, days, _DAYS_AT_ONCE)
    edges = torch.tensor([*starts, days], device=device)
    bounds = [list(pairwise(torch.searchsorted(own, edges).tolist())) for own in rows]
    sizes = []
    for part, scale in zip(bank.view(len(bank), symbols, len(scales), width).unbind(2), scales, strict=True):
        for first, *places in zip(starts, *bounds, strict=True):
            before = torch.tensor(features[max(first - scale + 1, 0) : first + _DAYS_AT_ONCE], device=device)
            means = _moving_means(before, scale)[-min(_DAYS_AT_ONCE, days - first) :]
            for result, own, place in zip((part, fitted), rows, places, strict=True):
                whole = place[1] - place[0] == len(means)
                result[slice(*place)] = means if whole else means[own[slice(*place)] - first]
        sizes.append(fitted.square_().mean(dim=(0, 1)).sqrt().clamp_min(1e-3).float())
        part /= sizes[-1]
    return bank, sizes


MOST_MULTIPLIED = 40
"""Most features whose products `LinearInputs` has: with more, these would take much memory and time."""
_MOST_KEPT = 1 << 25
"""Most inputs that are kept: it takes a fourth off the time of a generation, and at most 128 MiB."""


class LinearInputs:
    """The inputs of actors' linear part, float32 `[days, symbols, inputs]`, as an array that is indexed by days.

    First come averages over the first of `network.linear_scales`. Further groups: with `network.linear_degree` 2
    products of each two of these, squares included, of at most `MOST_MULTIPLIED` features; averages over the other
    scales. In a long market the products are computed when they are read.

    Args:
        kept: int64, increasing, the only days that are read, counted from 0; None: all. If it is empty, slices of all
            days are read, and in a long market computed then.

    Attributes:
        shape: numbers of days, symbols and inputs.
        groups: the inputs of each further group.
    """

    def __init__(
        self,
        features: Features,
        device: torch.device,
        trained: RowIndex,
        network: NetworkConfig,
        kept: Tensor | None = None,
    ) -> None:
        days, symbols, self._size = features.shape
        self._multiplied = range(self._size if network.linear_degree > 1 and self._size <= MOST_MULTIPLIED else 0)
        products = sum(self._size - one for one in self._multiplied)
        self.shape = days, symbols, products + self._size * len(network.linear_scales)
        edges = self._size, self._size + products, self.shape[2]
        self.groups = [slice(*pair) for pair in pairwise(edges) if pair[0] < pair[1]]
        few = math.prod(self.shape) <= _MOST_KEPT
        self._scales, self._rows = network.linear_scales, kept if few else None
        self._features = None if few or kept is None or len(kept) else features
        self._bank, self._sizes = filter_bank(features, device, trained, self._scales, None if few else kept)
        if few:
            self._bank, self._multiplied = self[:], range(0)

    def __getitem__(self, days: slice | Tensor) -> Tensor:
        if isinstance(days, Tensor):
            bank = self._bank.index_select(0, days if self._rows is None else self._rows.take(days))
        elif self._features is None:
            bank = self._bank[days]
        else:
            first, stop, _ = days.indices(self.shape[0])
            before = torch.tensor(
                self._features[max(first - max(self._scales) + 1, 0) : stop], device=self._bank.device
            )
            means = (_moving_means(before, scale)[first - stop :] for scale in self._scales)
            bank = torch.cat([mean / size for mean, size in zip(means, self._sizes, strict=True)], dim=-1)
        if not self._multiplied:
            return bank
        plain, others = bank[..., : self._size], bank[..., self._size :]
        products = (plain[..., one : one + 1] * plain[..., one:] for one in self._multiplied)
        return torch.cat([plain, *products, others], dim=-1)


class FilterBankEncoder:
    """Implements `Encoder`: moving means of past days, computed once over the panel, then an MLP for each symbol."""

    block_bound: ClassVar[bool] = False

    def __init__(
        self,
        features: Features,
        device: torch.device,
        trained: RowIndex,
        window: int,  # noqa: ARG002 - it limits network.scales
        config: NetworkConfig,
        kept: Tensor | None,
    ) -> None:
        self._config = config
        self.bank, _ = filter_bank(features, device, trained, config.scales, kept)

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
