"""Parameters of agents as rows of one tensor (a bank), `[agents, parameters]`, and products of stacked matrices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import NetworkConfig

Parameters = Mapping[str, Tensor]
"""The parameters of some agents by name, each `[agents, *shape]` (`ParameterLayout.views`)."""


@dataclass(frozen=True)
class ParameterShape:
    """Name, shape and initial values of one parameter (a weight or bias of a layer) of an agent.

    Attributes:
        name: unique in a layout.
        shape: shape for a single agent.
        fan_in: inputs of a unit; initial values are uniform in +-1/sqrt(fan_in) around `start`. 0: all are `start`.
        start: middle of the initial values: one for all, or float64 of `shape`.
        learned: whether gradient steps change the values; only the last shapes of a layout may be without.
        gene: lowest and highest value, if it is a number by which evolution tells agents apart; None: it is a weight.
    """

    name: str
    shape: tuple[int, ...]
    fan_in: int
    start: float | NDArray[np.float64] = 0.0
    learned: bool = True
    gene: tuple[float, float] | None = None

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether it enters matrix products; a bias does not, nor does the weight of a single output (see `linear`)."""
        return len(self.shape) == 2 and self.shape[1] > 1

    def initial_values(self, generator: np.random.Generator) -> NDArray[np.float64]:
        bound = 1.0 / sqrt(self.fan_in) if self.fan_in else 0.0
        values = generator.uniform(-1.0, 1.0, self.size) * bound
        return values + np.ravel(self.start) if np.any(self.start) else values


class Gene(NamedTuple):
    """The name of a gene, its index in an agent's row of weights, and its bounds."""

    name: str
    column: int
    low: float
    high: float


def linear_shapes(name: str, inputs: int, outputs: int) -> list[ParameterShape]:
    """Return the shapes of the weight `[inputs, outputs]` and the bias `[outputs]` of the linear layer `name`."""
    return [
        ParameterShape(f"{name}.weight", (inputs, outputs), inputs),
        ParameterShape(f"{name}.bias", (outputs,), inputs),
    ]


@dataclass(frozen=True)
class ParameterLayout:
    """The order of an agent's parameters in its row of weights.

    Attributes:
        shapes: the parameters, in this order.
        precision: dtype of the matrices in `views`, and of products with them; None: the dtype of the rows.
    """

    shapes: tuple[ParameterShape, ...]
    precision: torch.dtype | None = None

    @classmethod
    def of(cls, shapes: Sequence[ParameterShape], network: NetworkConfig) -> "ParameterLayout":
        return cls(tuple(shapes), torch.bfloat16 if network.precision == "bfloat16" else None)

    @property
    def size(self) -> int:
        return sum(shape.size for shape in self.shapes)

    @property
    def learned(self) -> int:
        """Number of values that gradient steps change, which come first."""
        return sum(shape.size for shape in self.shapes if shape.learned)

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Split rows `[agents, size]` into named parameters; it is one split, so its backward pass is one `cat`."""
        parts = torch.split(rows, [shape.size for shape in self.shapes], dim=1)
        precision = self.precision or rows.dtype
        return {
            shape.name: part.reshape(-1, *shape.shape).to(precision if shape.is_matrix else rows.dtype)
            for shape, part in zip(self.shapes, parts, strict=True)
        }

    def initial_row(self, generator: np.random.Generator) -> NDArray[np.float32]:
        """Draw one agent's initial row, `[size]` (LeCun et al. 1998, "Efficient BackProp"; see `ParameterShape`)."""
        return np.concatenate([shape.initial_values(generator) for shape in self.shapes]).astype(np.float32)


def genes_of(layouts: Sequence[ParameterLayout]) -> list[Gene]:
    """Return the genes of agents whose rows of weights have these layouts one after another."""
    shapes = [shape for layout in layouts for shape in layout.shapes]
    ends = accumulate(shape.size for shape in shapes)
    return [
        Gene(shape.name.rpartition(".")[2], end - 1, *shape.gene)
        for shape, end in zip(shapes, ends, strict=True)
        if shape.gene is not None
    ]


def linear(parameters: Parameters, name: str, inputs: Tensor, *, rectified: bool = False) -> Tensor:
    """Apply each agent's linear layer `name` to its inputs `[agents, ..., in]` -> `[agents, ..., out]`.

    With `rectified` negative outputs become 0 (ReLU).

    A layer with a single output is an elementwise product and a sum, not a matrix product: in kernels for matrices of
    width one, the order of sums depends on the number of agents.
    """
    weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
    rows = inputs.flatten(1, -2)
    if weight.shape[2] == 1:
        outputs = (rows * weight.transpose(1, 2)).sum(-1, keepdim=True)
    else:
        outputs = _stacked_product(rows, weight)
    # In place: a new tensor would have to be fetched into the cache.
    outputs = outputs + bias[:, None] if outputs._is_view() else outputs.add_(bias[:, None])
    if rectified:
        outputs = outputs.relu_()
    return outputs.reshape(*inputs.shape[:-1], weight.shape[2])


def project(weight: Tensor, inputs: Tensor) -> Tensor:
    """Apply each agent's matrix `[agents, in, out]` to its inputs `[agents, ..., in]` -> `[agents, ..., out]`."""
    return _stacked_product(inputs.flatten(1, -2), weight).reshape(*inputs.shape[:-1], weight.shape[2])


FEWEST_ROWS = 16
"""Fewest rows that a product computes for an agent; fewer are padded with zeros."""
_FEW_ROWS, _MANY_ROWS = 64, 256
# Eight outputs take more than twice the time of sixteen.
_FEWEST_OUTPUTS, _OUTPUTS_AT_A_TIME = 16, 8
_INPUTS_OF_ONE = 4
# For the gradient of a weight on a GPU; more matrices than this occupy the GPU without pieces.
_ROWS_OF_A_PIECE, _MATRICES_IN_PIECES = 256, 64


def padded_outputs(outputs: int) -> int:
    """Return how many outputs a matrix product computes for a layer's `outputs`, padding with zeros included."""
    return max(outputs + -outputs % _OUTPUTS_AT_A_TIME, _FEWEST_OUTPUTS)


def padded_inputs(inputs: int) -> int:
    """Return how many inputs a matrix product reads for a layer's `inputs`, padding with zeros included."""
    return _INPUTS_OF_ONE if inputs == 1 else inputs


def _stacked_product(rows: Tensor, weight: Tensor) -> Tensor:
    """Multiply each agent's rows `[agents, rows, in]` by its matrix `[agents, in, out]` in the dtype of the matrix.

    The bits of a row must not depend on other rows or agents, or on the number of threads. With fewer than a dozen
    rows, or with outputs that do not fill a vector of eight, the rounding of torch's kernels depends on their number,
    so both are padded with zeros. So is a single input: the gradient of its weights is a product with a single row.
    """
    count, inputs, outputs = rows.shape[1], rows.shape[2], weight.shape[2]
    if more := padded_inputs(inputs) - inputs:
        rows, weight = torch.nn.functional.pad(rows, (0, more)), torch.nn.functional.pad(weight, (0, 0, 0, more))
    if more := padded_outputs(outputs) - outputs:
        weight = torch.nn.functional.pad(weight, (0, more))
    if count < FEWEST_ROWS:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, FEWEST_ROWS - count))
    found = product(rows, weight)
    return found if found.shape[1:] == (count, outputs) else found[:, :count, :outputs]


def pooled(shares: Tensor, values: Tensor) -> Tensor:
    """Sum values `[agents, days, rows, width]`, weighted by shares `[agents, days, pools, rows]`, over the rows."""
    sums = product(shares.flatten(0, 1), values.flatten(0, 1))
    return sums.view(*shares.shape[:-1], values.shape[-1])


def split_product(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return factors for `torch.bmm` with bits that do not depend on the number of threads; see `join_product`.

    MKL divides the rows of a single product among threads, and rounds differently where a thread has few rows: 31 rows
    from three threads on, 63 from 16, 127 from 32. It does not divide the products of a batch, unless there are three
    threads for each product, and a row or two more than 96 or 256. Few rows are therefore computed in two halves, or,
    where a half has less than 16, twice. All factors are views: the rounding depends on the place in memory too, which
    a copy may change.
    """
    rows = left.shape[1]
    if len(left) > 1 or rows >= _MANY_ROWS:
        return left, right
    if rows >= 2 * FEWEST_ROWS and rows % (2 if rows < _FEW_ROWS else 8) == 0:
        return left[0].view(2, rows // 2, -1), right.expand(2, *right.shape[1:])
    if rows < _FEW_ROWS:
        return left.expand(2, *left.shape[1:]), right.expand(2, *right.shape[1:])
    return left, right


def join_product(found: Tensor, agents: int, rows: int) -> Tensor:
    """Return the product `[agents, rows, out]`, given `found`, the `torch.bmm` of the factors from `split_product`."""
    if found.shape[1] != rows:
        return found.view(1, rows, -1)
    return found[:1] if len(found) > agents else found


class _SingleProduct(torch.autograd.Function):
    """The product of a single pair of matrices by `split_product`, which also computes its gradients."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:  # noqa: ANN401 - torch's context
        ctx.save_for_backward(left, right)
        return _single_product(left, right)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:  # noqa: ANN401 - torch's context
        left, right = ctx.saved_tensors
        of_left, of_right = ctx.needs_input_grad
        return (
            _single_product(gradient, right.transpose(1, 2)) if of_left else None,
            _single_product(left.transpose(1, 2), gradient) if of_right else None,
        )


def _single_product(left: Tensor, right: Tensor) -> Tensor:
    return join_product(torch.bmm(*split_product(left, right)), *left.shape[:2])


def _product(left: Tensor, right: Tensor) -> Tensor:
    if len(left) > 1:
        return torch.bmm(left, right)
    if not (torch.is_grad_enabled() and (left.requires_grad or right.requires_grad)):
        return _single_product(left, right)
    found: Tensor = _SingleProduct.apply(left, right)  # type: ignore[no-untyped-call] # torch has no annotation here
    return found


def product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply stacked matrices in the dtype of `right`, but return float32 where that is bfloat16."""
    if right.dtype != torch.bfloat16:
        return _product(left, right)
    left = left.to(right.dtype)
    if right.device.type == "cpu":
        # Few processors multiply bfloat16, and sums of such products are float32 anyway.
        return _product(left.float(), right.float()).to(right.dtype).float()
    return _product(left, right).float()


def _add_product_in_pieces(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the float32 product `[agents, inputs, rows] x [agents, rows, outputs]` to `total`, in pieces of rows.

    The gradient of a small weight is a sum over very many rows. cuBLAS gives each agent one block of threads for it, so
    with 16 agents only 16 of the 132 multiprocessors of an H200 compute. Pieces occupy all of them. Each agent's pieces
    are one call, since the pieces of all agents form a batch only where they lie together in memory.
    """
    pieces, last = divmod(left.shape[2], _ROWS_OF_A_PIECE)
    whole = pieces * _ROWS_OF_A_PIECE
    lefts = torch.unflatten(left[:, :, :whole], 2, (pieces, _ROWS_OF_A_PIECE)).transpose(1, 2)
    rights = torch.unflatten(right[:, :whole], 1, (pieces, _ROWS_OF_A_PIECE))
    sums = total.new_empty((len(left), pieces, *total.shape[1:]))
    for agent in range(len(left)):
        torch.bmm(lefts[agent], rights[agent], out=sums[agent])
    total.add_(sums.sum(1))
    if last:
        total.baddbmm_(left[:, :, whole:], right[:, whole:])


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the float32 product of stacked matrices to `total` in place, by `split_product` or, on a GPU, in pieces."""
    if left.device.type == "cuda" and left.shape[2] >= 2 * _ROWS_OF_A_PIECE and len(left) <= _MATRICES_IN_PIECES:
        _add_product_in_pieces(total, left, right)
        return
    left, right = split_product(left, right)
    if len(left) > len(total) and left.shape[1] == total.shape[1]:
        total.copy_(torch.baddbmm(total, left, right)[:1])
    else:
        total.view(*left.shape[:2], -1).baddbmm_(left, right)
