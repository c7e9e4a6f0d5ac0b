"""Products in bfloat16: which numbers are rounded, and how near a generation stays."""

from typing import Any

import pytest
import torch
from training_cases import advance, small_state

from eigen_core.networks.layout import product


def trained(precision: str, encoder: str) -> dict[str, Any]:
    state = advance(small_state(20, network={"encoder": encoder, "precision": precision}, replay={"minimum": 1}), 1)
    assert {tensor.dtype for tensor in state.population.tensors().values()} == {torch.float32, torch.int64}
    return state.history[0].model_dump()


@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
def test_a_generation_is_near_that_in_float32_and_not_the_same(encoder: str) -> None:
    whole, half = (trained(precision, encoder) for precision in ("float32", "bfloat16"))
    assert half["weights_sha256"] != whole["weights_sha256"]
    assert half["learning"]["value"] == pytest.approx(whole["learning"]["value"], rel=0.1, abs=0.01)
    assert half["learning"]["critic_gradient_norm"] == pytest.approx(whole["learning"]["critic_gradient_norm"], rel=0.1)


def test_factors_are_rounded_and_sums_are_not() -> None:
    """1 + 2^-9 becomes 1; 512 times 1 / 3 in bfloat16 would stop growing long before its sum."""
    left, right = torch.full((1, 1, 512), 1.0 + 2.0**-9), torch.full((1, 512, 8), 0.333984375)
    found = product(left, right.bfloat16())
    assert found.dtype == torch.float32
    assert found.flatten().tolist() == [171.0] * 8
    assert product(left, right)[0, 0, 0].item() == pytest.approx(512 * (1.0 + 2.0**-9) * 0.333984375, rel=1e-5)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_gradient_of_weights_is_float32_and_that_of_the_rounded_factors(precision: torch.dtype) -> None:
    rows = torch.linspace(-1.0, 1.0, 24).reshape(1, 6, 4)
    weights = torch.linspace(0.0, 1.0, 32).reshape(1, 4, 8).requires_grad_()
    torch.autograd.backward(product(rows, weights.to(precision)).sum())
    assert weights.grad is not None
    assert weights.grad.dtype == torch.float32
    expected = rows.to(precision).float().sum(1)[:, :, None].expand(1, 4, 8)
    assert torch.allclose(weights.grad, expected, rtol=0.01 if precision == torch.bfloat16 else 1e-6, atol=1e-6)
