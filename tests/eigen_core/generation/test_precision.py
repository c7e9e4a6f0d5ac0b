"""Products in bfloat16 and actions in float16: near float32, and the same bits for any group and resume."""

from typing import Any

import pytest
import torch
from training_cases import advance, content_of, market_of, saved_of, small_state

from eigen_core.config import Config
from eigen_core.generation import restore
from eigen_core.networks.layout import product
from eigen_core.planning.sizes import Sizes
from eigen_core.task import TaskData

SHORT: dict[str, Any] = {"trading_days": 5, "settlement_days": 3, "holding_days": 3}


def trained(precision: str, encoder: str, group_size: int, generations: int = 2) -> dict[str, Any]:
    state = small_state(
        20,
        network={"encoder": encoder, "precision": precision},
        population={"size": 16, "group_size": group_size},
        trading=SHORT,
        learner={"gradient_steps": 2, "accumulation_steps": 1},
    )
    content = content_of(advance(state, generations))
    assert {tensor.dtype for tensor in state.population.tensors().values()} == {torch.float32, torch.int64}
    assert content["history"][-1]["learning"] is not None
    return content


@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
@pytest.mark.thorough
@pytest.mark.cpu
def test_groups_change_no_bit(encoder: str) -> None:
    expected = trained("bfloat16", encoder, 16)
    assert all(trained("bfloat16", encoder, group_size) == expected for group_size in (4, 1))


@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
def test_a_generation_is_near_that_in_float32_and_not_the_same(encoder: str) -> None:
    whole, half = (trained(precision, encoder, 16, 1)["history"][0] for precision in ("float32", "bfloat16"))
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


HALF = {"actions": "float16"}


def test_actions_in_half_precision_are_planned_as_they_are_stored() -> None:
    state = advance(small_state(replay=HALF), 1)
    assert state.replay.tensors()["action"].dtype == torch.float16
    sizes = Sizes.of(state.config, TaskData(market_of(state).panel))
    assert sizes.row_bytes == state.replay.bytes_per_transition


def test_a_run_with_them_goes_on_from_its_snapshot_with_the_same_bits() -> None:
    state = advance(small_state(replay=HALF), 2)
    other = small_state(replay=HALF)
    restore(other, saved_of(state))
    assert content_of(advance(other, 2)) == content_of(advance(state, 2))


def test_without_a_bound_of_actions_they_are_refused() -> None:
    with pytest.raises(ValueError, match=r"replay\.actions float16 .* trading\.max_coefficient is empty"):
        Config(replay=HALF, trading={"max_coefficient": None})
