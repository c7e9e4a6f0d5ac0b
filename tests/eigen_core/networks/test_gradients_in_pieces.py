"""On a GPU the gradient of a weight, a sum over many rows, is added up in pieces: it is that of one sum."""

import pytest
import torch
from stand_in_gpu import GPU, stand_in_gpu
from torch import Tensor

from eigen_core.common.randomness import keyed_generator
from eigen_core.networks.layout import add_product

AGENTS, INPUTS, OUTPUTS = 3, 24, 16


def normal(name: str, *shape: int) -> Tensor:
    return torch.tensor(keyed_generator(1, 0, "test", name).standard_normal(shape), dtype=torch.float32)


@pytest.mark.cpu
@pytest.mark.parametrize("rows", [511, 512, 700, 5_000])
def test_a_sum_over_rows_that_do_not_lie_together_is_that_of_double_precision(rows: int) -> None:
    read, gradient = normal("read", AGENTS, rows + 40, INPUTS)[:, 40:], normal("gradient", AGENTS, rows, OUTPUTS)
    start = normal("start", AGENTS, INPUTS, OUTPUTS)
    expected = start.double() + read.double().transpose(1, 2) @ gradient.double()
    with stand_in_gpu():
        total = start.to(GPU)
        add_product(total, read.to(GPU).transpose(1, 2), gradient.to(GPU))
        found = total.cpu()
        alone = start[1:2].to(GPU)
        add_product(alone, read[1:2].to(GPU).transpose(1, 2), gradient[1:2].to(GPU))
        assert rows < 512 or torch.equal(alone.cpu(), found[1:2])
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-3)
