"""The encoder `tcn`: dilated causal convolutions of width 2 with residual connections.

The backward pass is written by hand: it computes the forward pass again, reuses its memory, and adds up products in
place. Columns are the symbols of the panel; a block is a number of consecutive days.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from eigen_core.common.text import FLOAT32_BYTES
from eigen_core.config import NetworkConfig
from eigen_core.machine.performance import columns_at_once
from eigen_core.market.panel import RowIndex
from eigen_core.networks.encoders import Features, FirstDay
from eigen_core.networks.layout import (
    FEWEST_ROWS,
    Parameters,
    ParameterShape,
    add_product,
    join_product,
    linear_shapes,
    padded_inputs,
    padded_outputs,
    product,
    split_product,
)


def receptive_dilations(window: int) -> tuple[int, ...]:
    """Return dilations of convolutions of width 2 that see exactly `window` days: powers of two, then the rest."""
    dilations, left, power = [], window - 1, 1
    while left > 0:
        dilation = min(power, left)
        dilations.append(dilation)
        left -= dilation
        power *= 2
    return tuple(dilations)


@dataclass(frozen=True)
class Schedule:
    """Which days each layer computes, to encode some days (the wanted days) of a block.

    The last layers compute only what the wanted days depend on, each layer twice as many days as the one above it. The
    first layers compute the whole block, where this is less work.

    Attributes:
        window: number of days that an embedding depends on, its own day and those before.
        days: number of days of the block.
        wanted: number of wanted days of each agent; None: all days of the block.
    """

    window: int
    days: int
    wanted: int | None = None

    @cached_property
    def dilations(self) -> tuple[int, ...]:
        return receptive_dilations(self.window)

    @cached_property
    def full(self) -> tuple[int, ...]:
        """Number of days of each layer's output if it computes the whole block, from the input layer on."""
        lengths = [self.days + self.window - 1]
        for dilation in self.dilations:
            lengths.append(lengths[-1] - dilation)
        return tuple(lengths)

    @cached_property
    def whole(self) -> int:
        """Number of layers after the input layer that compute the whole block, for the least work."""
        layers = len(self.dilations)
        if self.wanted is None:
            return layers
        sparse = [self.wanted << (layers - layer) for layer in range(layers + 1)]
        return min(range(layers + 1), key=lambda last: (sum(self.full[: last + 1]) + sum(sparse[last:]), last))

    def gathered(self, wanted: Tensor) -> Tensor:
        """Return on which days of the output of the last layer that computes the whole block the wanted days depend.

        Args:
            wanted: int64 `[agents, days]`, counted from the block's first day; an agent's days all differ.

        Returns:
            int64 `[sets, agents, days]`; an agent's days in a set all differ. Of the two days that the next layer reads
            for each of its outputs, the first half of the sets holds the earlier, the second half the later ones.
        """
        places = wanted[None]
        # The second half holds the later days that the layer reads.
        for dilation in reversed(self.dilations[self.whole :]):
            places = torch.cat([places, places + dilation])
        return places

    def padded_columns(self, columns: int) -> int:
        """Return how many columns to compute for `columns`: as many or more, so that products have `FEWEST_ROWS`."""
        return max(columns, -(-FEWEST_ROWS // min(self.days, self.wanted or self.days)))

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """For each layer the distance between the two days that it reads, in indices of the layer's input."""
        above = range(len(self.dilations) - self.whole)
        # A gathered layer reads twice the days that it computes: its earlier inputs come first.
        return (*self.dilations[: self.whole], *((self.wanted or 0) << left for left in reversed(above)))


@dataclass(frozen=True)
class Block:
    """Consecutive days that are encoded as a whole, in chunks of columns.

    Attributes:
        features: float32 `[days, columns, features]`, of all days of the panel; days before the first count as zeros.
        first_day: index of the block's first day.
        schedule: the days that each layer computes.
        chunk: number of columns of a chunk.
    """

    features: Tensor
    first_day: FirstDay
    schedule: Schedule
    chunk: int

    @property
    def chunks(self) -> list[slice]:
        columns = self.features.shape[1]
        return [slice(start, min(start + self.chunk, columns)) for start in range(0, columns, self.chunk)]

    def history(self, columns: slice, inputs: int) -> Tensor:
        """Return some columns' features in the block and the window before it, with zeros up to `inputs` features."""
        schedule, features = self.schedule, self.features[:, columns]
        start, shape = self.first_day - (schedule.window - 1), features.shape[1:]
        history = features.new_zeros((schedule.full[0], schedule.padded_columns(shape[0]), inputs))
        if isinstance(start, Tensor):
            days = start + torch.arange(len(history), device=features.device)
            held = features.index_select(0, days.clamp_min(0)).masked_fill_((days < 0)[:, None, None], 0.0)
            history[:, : shape[0], : shape[1]] = held
        else:
            held = features[max(start, 0) : start + len(history)]
            history[max(-start, 0) :, : shape[0], : shape[1]] = held
        return history


class Layer(NamedTuple):
    """Weight `[agents, days read, inputs, outputs]` and bias `[agents, outputs]` of a layer, or their gradients."""

    weight: Tensor
    bias: Tensor


class Convolutions(torch.autograd.Function):
    """The network of the encoder on a block of days, with its backward pass; only the weights have a gradient."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context
        block: Block,
        places: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        """Return float32 `[agents, days, columns, embedding]`.

        Args:
            block: the days to encode.
            places: result of `Schedule.gathered`; None: all days of the block are encoded.
            weights: weight and bias of the input layer, of each convolution and of the output layer.
        """
        ctx.save_for_backward(places, *weights)
        ctx.block = block
        layers = _layers(weights)
        agents, width = weights[-1].shape
        days = block.schedule.days if places is None else places.shape[2]
        embeddings = weights[-1].new_empty((agents, days, block.features.shape[1], width))
        for columns in block.chunks:
            found = _products(layers[-1], _hidden(block, columns, places, layers))
            embeddings[:, :, columns] = found[:, :, : columns.stop - columns.start, :width]
            # Its memory must be free while the next chunk is computed.
            del found
        return embeddings

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - torch's context
        """Compute the forward pass again, chunk by chunk; return the gradients of the weights."""
        places, *weights = ctx.saved_tensors
        block: Block = ctx.block
        layers = _layers(weights)
        sums = [_zeros(layer) for layer in layers]
        for columns in block.chunks:
            above = gradient[:, :, columns]
            more = (
                layers[-1].bias.shape[1] - above.shape[3],
                block.schedule.padded_columns(above.shape[2]) - above.shape[2],
            )
            above = pad(above, (0, more[0], 0, more[1])) if any(more) else above.contiguous()
            _add_gradients(sums, block, columns, places, layers, above)
        given = [
            _cut(part, weight) for part, weight in zip((one for pair in sums for one in pair), weights, strict=True)
        ]
        return None, None, *given


def _layers(weights: Sequence[Tensor]) -> list[Layer]:
    """Return weights as layers, padded with zeros to widths at which a row's rounding does not depend on other rows."""
    layers, last = [], len(weights) // 2 - 1
    for index, (weight, bias) in enumerate(zip(weights[::2], weights[1::2], strict=True)):
        agents, inputs, outputs = weight.shape
        read = 1 if index in (0, last) else 2
        inputs //= read
        more_inputs = (padded_outputs(inputs) if index else padded_inputs(inputs)) - inputs
        more_outputs = padded_outputs(outputs) - outputs
        weight = weight.reshape(agents, read, inputs, outputs)
        if more_inputs or more_outputs:
            weight, bias = pad(weight, (0, more_outputs, 0, more_inputs)), pad(bias, (0, more_outputs))
        layers.append(Layer(weight, bias))
    return layers


def _zeros(layer: Layer) -> Layer:
    """Return zeros to add a layer's gradients to; for each of the days read, those of all agents are contiguous.

    Otherwise each agent's product would be computed alone, and its bits would depend on threads (`split_product`).
    """
    agents, read, *matrix = layer.weight.shape
    weight = torch.zeros((read, agents, *matrix), device=layer.bias.device)
    return Layer(weight.transpose(0, 1), torch.zeros_like(layer.bias))


def _cut(gradient: Tensor, weight: Tensor) -> Tensor:
    outputs = weight.shape[-1]
    if gradient.dim() == weight.dim():
        return gradient[:, :outputs]
    inputs = weight.shape[1] // gradient.shape[1]
    return gradient[:, :, :inputs, :outputs].reshape(weight.shape)


def _products(layer: Layer, *inputs: Tensor) -> Tensor:
    """Return a layer's bias plus the products of its weight with each input, `[agents, days, columns, inputs]`."""
    bias, weight, first = layer.bias[:, None], layer.weight, inputs[0].flatten(1, 2)
    if weight.dtype == torch.float32:
        found = torch.baddbmm(bias, *split_product(first, weight[:, 0]))
        for index, more in enumerate(inputs[1:], start=1):
            found.baddbmm_(*split_product(more.flatten(1, 2), weight[:, index]))
        found = join_product(found, *first.shape[:2])
    else:
        found = bias + product(first, weight[:, 0])
        for index, more in enumerate(inputs[1:], start=1):
            found.add_(product(more.flatten(1, 2), weight[:, index]))
    return found.view(*inputs[0].shape[:-1], -1)


def _add_product(total: Tensor, left: Tensor, right: Tensor, precision: torch.dtype) -> None:
    if precision == torch.float32:
        add_product(total, left, right)
    else:
        total.add_(product(left, right.to(precision)))


_Kept = list[tuple[Tensor, Tensor]]


def _hidden(
    block: Block, columns: slice, places: Tensor | None, layers: list[Layer], kept: _Kept | None = None
) -> Tensor:
    """Return the input of the output layer; append input and output of each layer before it to `kept`, unless None."""
    schedule = block.schedule
    history = block.history(columns, layers[0].weight.shape[2])
    shared = history.expand(len(layers[0].bias), *history.shape)
    hidden = _products(layers[0], shared).relu_()
    if kept is not None:
        kept.append((shared, hidden))
    for index, (layer, step) in enumerate(zip(layers[1:-1], schedule.steps, strict=True)):
        if places is not None and index == schedule.whole:
            hidden = _gathered(hidden, places)
        # With no variable for it, the input of a layer is freed before the next one computes.
        if kept is None:
            hidden = _products(layer, hidden[:, :-step], hidden[:, step:]).relu_().add_(hidden[:, step:])
        else:
            kept.append((hidden, _products(layer, hidden[:, :-step], hidden[:, step:]).relu_()))
            hidden = kept[-1][1] + hidden[:, step:]
    return _gathered(hidden, places) if places is not None and schedule.whole == len(schedule.steps) else hidden


def _add_gradients(
    sums: list[Layer], block: Block, columns: slice, places: Tensor | None, layers: list[Layer], above: Tensor
) -> None:
    schedule, kept = block.schedule, list[tuple[Tensor, Tensor]]()
    hidden = _hidden(block, columns, places, layers, kept)
    first = kept[0][1]
    precision = layers[-1].weight.dtype
    _add_products(sums[-1], precision, above, hidden)
    above = product(above.flatten(1, 2), layers[-1].weight[:, 0].transpose(1, 2)).view(hidden.shape)
    del hidden
    whole = len(schedule.steps) if places is None else schedule.whole
    if places is not None and whole == len(schedule.steps):
        above = _scattered(above, places, schedule.full[whole])
    for index in reversed(range(len(schedule.steps))):
        layer, step = layers[index + 1], schedule.steps[index]
        read, added = kept.pop()
        inner = _through_relu(above, added)
        _add_products(sums[index + 1], precision, inner, read[:, :-step], read[:, step:])
        # The input is no longer needed, except by the ReLU of the input layer.
        below = torch.empty_like(read) if read is first else read
        below[:, :step].zero_()
        below[:, step:] = above
        for place, part in enumerate((below[:, :-step], below[:, step:])):
            _add_product(part.flatten(1, 2), inner.flatten(1, 2), layer.weight[:, place].transpose(1, 2), precision)
        above = below
        del read, added, inner, below
        if places is not None and index == whole:
            above = _scattered(above, places, schedule.full[whole])
    shared, added = kept.pop()
    _add_products(sums[0], precision, _through_relu(above, added), shared)


def _through_relu(gradient: Tensor, result: Tensor) -> Tensor:
    """Return the gradient of a ReLU's input, given that of its output `result`, whose memory it overwrites."""
    through: Tensor = torch.ops.aten.threshold_backward.grad_input(gradient, result, 0.0, grad_input=result)
    return through


def _add_products(total: Layer, precision: torch.dtype, gradient: Tensor, *inputs: Tensor) -> None:
    rows = gradient.flatten(1, 2)
    for index, read in enumerate(inputs):
        _add_product(total.weight[:, index], read.flatten(1, 2).transpose(1, 2), rows, precision)
    total.bias.add_(rows.sum(1))


def _gathered(hidden: Tensor, places: Tensor) -> Tensor:
    """Pick each agent's days `places` (`Schedule.gathered`), set by set, from `[agents, days, columns, values]`."""
    agents, days, *shape = hidden.shape
    first_rows = torch.arange(0, agents * days, days, device=places.device)[:, None]
    rows = (places.transpose(0, 1).flatten(1) + first_rows).flatten()
    return hidden.view(agents * days, -1).index_select(0, rows).view(agents, -1, *shape)


def _scattered(gradient: Tensor, places: Tensor, days: int) -> Tensor:
    """Return the gradient of the input of `_gathered`, given the gradient of its result.

    The days of a set differ, and sets are added one after the other, so the order of additions is fixed.
    """
    agents, shape = len(gradient), gradient.shape[2:]
    whole = gradient.new_zeros((agents * days, shape.numel()))
    first_rows = torch.arange(0, agents * days, days, device=places.device)[:, None]
    for rows, part in zip(
        places + first_rows, gradient.view(agents, len(places), -1, shape.numel()).unbind(1), strict=True
    ):
        whole.index_add_(0, rows.flatten(), part.flatten(0, 1))
    return whole.view(agents, days, *shape)


class TcnEncoder:
    """Implements `Encoder`: learned dilated causal convolutions (Bai et al. 2018, arXiv:1803.01271).

    The receptive field is exactly `market.window` days; only days before the first of the panel are padded with zeros.
    """

    block_bound: ClassVar[bool] = True

    def __init__(
        self,
        features: Features,
        device: torch.device,
        trained: RowIndex,  # noqa: ARG002 - nothing is normalised
        window: int,
        config: NetworkConfig,
        kept: Tensor | None,  # noqa: ARG002 - it encodes blocks of consecutive days
    ) -> None:
        self._features = torch.tensor(features, device=device)
        self._window = window
        self._config = config
        self._dilations = receptive_dilations(window)

    @property
    def shapes(self) -> list[ParameterShape]:
        config = self._config
        shapes = linear_shapes("encoder.input", self._features.shape[2], config.channels)
        for index in range(len(self._dilations)):
            shapes += linear_shapes(f"encoder.layer{index}", 2 * config.channels, config.channels)
        return shapes + linear_shapes("encoder.output", config.channels, config.embedding)

    def _convolve(
        self, parameters: Parameters, first_day: FirstDay, schedule: Schedule, places: Tensor | None
    ) -> Tensor:
        columns, network = self._features.shape[1], self._config
        column_bytes = FLOAT32_BYTES * schedule.full[0] * padded_outputs(network.channels)
        chunk = columns_at_once(network.column_chunk, columns, column_bytes, self._features.device.type)
        block = Block(self._features, first_day, schedule, chunk)
        embeddings: Tensor = Convolutions.apply(block, places, *(parameters[shape.name] for shape in self.shapes))  # type: ignore[no-untyped-call] # torch has no annotation here
        return embeddings

    def encode_block(self, parameters: Parameters, first_day: int, days: int) -> Tensor:
        return self._convolve(parameters, first_day, Schedule(self._window, days), None)

    def encode_days(self, parameters: Parameters, days: Tensor, first_day: FirstDay, block_bars: int) -> Tensor:
        # The days of an agent differ, so that no gradient is a sum in unknown order.
        schedule = Schedule(self._window, block_bars, days.shape[1])
        return self._convolve(parameters, first_day, schedule, schedule.gathered(days - first_day))
