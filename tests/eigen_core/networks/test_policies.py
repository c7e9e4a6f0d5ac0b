"""Policies equal torch's distributions; outcomes take the free asset that exceeds the reserve by most."""

import math
from typing import Any

import pytest
import torch
from science_cases import small_config
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    ComposeTransform,
    Normal,
    SigmoidTransform,
    SoftplusTransform,
    TanhTransform,
    Transform,
    TransformedDistribution,
)

from eigen_core.common.randomness import keyed_generator
from eigen_core.networks.actions import ExpectedOutcomes, margins, market_actions, update_reserve
from eigen_core.networks.policies import Box, Categorical, SquashedGaussian

CPU = torch.device("cpu")
SHAPE = (3, 7, 4, 2)


def draw(key: str, scale: float = 1.0, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.tensor(scale * keyed_generator(1, key).standard_normal(shape), dtype=torch.float32)


def gaussian(box: Box, agents: slice = slice(None)) -> SquashedGaussian:
    return SquashedGaussian(draw("mean", 2.0)[agents], draw("log std", 0.5)[agents], box)


BOXES: list[tuple[Box, list[Transform], list[Transform]]] = [
    # A box, and for each value of an action: to [-1, 1], and from there to natural units.
    (
        Box([0.0, 0.1], [3.0, 0.5], CPU),
        [ComposeTransform([SigmoidTransform(), AffineTransform(-1.0, 2.0)])] * 2,
        [AffineTransform(1.5, 1.5), AffineTransform(0.3, 0.2)],
    ),
    (
        Box([-1.0, -2.0], [1.0, 2.0], CPU, steepness=1.0),
        [TanhTransform()] * 2,
        [AffineTransform(0.0, 1.0), AffineTransform(0.0, 2.0)],
    ),
    (
        Box([0.0, 0.1], [math.inf, 0.5], CPU),
        [SoftplusTransform(), ComposeTransform([SigmoidTransform(), AffineTransform(-1.0, 2.0)])],
        [AffineTransform(0.0, 1.0), AffineTransform(0.3, 0.2)],
    ),
]


@pytest.mark.parametrize(("box", "scaled", "natural"), BOXES)
def test_actions_and_densities_equal_torchs_distributions(
    box: Box, scaled: list[Transform], natural: list[Transform]
) -> None:
    policy, noise = gaussian(box), draw("noise")
    assert policy.log_std is not None
    raw = policy.sample(noise)
    log_probs, entropy = torch.zeros(SHAPE[:2], dtype=torch.float64), torch.zeros(SHAPE[:2], dtype=torch.float64)
    for value in range(2):
        normal: Any = Normal(policy.mean[..., value].double(), policy.log_std[..., value].double().exp())
        in_units = scaled[value](raw[..., value].double())
        expected = natural[value](in_units)
        torch.testing.assert_close(policy.play(noise).actions[..., value].double(), expected, rtol=1e-5, atol=1e-6)
        inside: Any = TransformedDistribution(normal, [scaled[value]])
        log_probs += inside.log_prob(in_units.clamp(-1 + 1e-12, None)).sum(-1)
        entropy += normal.entropy().sum(-1)
    torch.testing.assert_close(policy.log_prob(raw).double(), log_probs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(policy.entropy.double(), entropy, rtol=1e-5, atol=1e-5)


def test_densities_are_finite_where_actions_reach_their_bounds() -> None:
    for box in (Box([-1.0], [1.0], CPU, steepness=1.0), Box([0.0], [math.inf], CPU)):
        raw = torch.tensor([-80.0, -30.0, 0.0, 30.0, 80.0]).reshape(1, 5, 1).requires_grad_()
        policy = SquashedGaussian(torch.zeros(1, 5, 1), torch.zeros(1, 5, 1), box)
        log_prob = policy.log_prob(raw)
        torch.autograd.backward(log_prob.sum())
        assert log_prob.isfinite().all()
        assert raw.grad is not None
        assert raw.grad.isfinite().all()


def test_a_deterministic_policy_explores_within_the_bounds_and_has_no_density() -> None:
    policy = SquashedGaussian(draw("mean"), None, Box([0.0, 0.1], [3.0, 0.5], CPU))
    quiet, noisy = policy.play(None), policy.play(draw("noise"))
    assert torch.equal(quiet.actions, policy.mode)
    assert torch.equal(quiet.stored, quiet.actions)
    assert torch.equal(noisy.stored, noisy.actions)
    expected = (policy.mode + draw("noise") * torch.tensor([3.0, 0.4])).clamp(
        torch.tensor([0.0, 0.1]), torch.tensor([3.0, 0.5])
    )
    torch.testing.assert_close(noisy.actions, expected)
    with pytest.raises(ValueError, match="has no log_prob"):
        policy.log_prob(noisy.stored)


def test_a_choices_density_and_entropy_equal_torchs() -> None:
    policy, noise = Categorical(draw("logits", 2.0, (3, 7, 5))), draw("noise", shape=(3, 7, 5))
    distribution: Any = torch.distributions.Categorical(logits=policy.logits.double())
    chosen = policy.sample(noise)
    assert torch.equal(chosen.sum(-1), torch.ones(3, 7))
    torch.testing.assert_close(policy.log_prob(chosen).double(), distribution.log_prob(chosen.argmax(-1)))
    torch.testing.assert_close(policy.entropy.double(), distribution.entropy())
    assert torch.equal(policy.mode.argmax(-1), policy.logits.argmax(-1))
    played = policy.play(noise)
    assert torch.equal(played.actions, chosen)
    assert torch.equal(played.stored, chosen)


def test_choices_are_drawn_by_their_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5]).expand(1, 40_000, 4)
    policy = Categorical(logits)
    shares = policy.sample(draw("many", shape=(1, 40_000, 4)))[0].mean(0)
    # Three standard deviations of a share are 0.0075.
    torch.testing.assert_close(shares, torch.softmax(logits[0, 0], 0), rtol=0.0, atol=0.01)


def reserve(selectivity: float, mean: float, spread: float) -> dict[str, torch.Tensor]:
    values = {"selectivity": selectivity, "mean": mean, "log_spread": math.log(spread)}
    return {f"actor.{name}": torch.full((2, 1), value) for name, value in values.items()}


def test_the_reserve_price_is_for_as_long_as_an_asset_is_blocked() -> None:
    rewards = torch.tensor([0.4, 0.3, 0.1]).expand(2, 1, 1, 3)
    shares = torch.tensor([1.0, 0.5, 0.1]).expand(2, 1, 1, 3)
    found = margins(reserve(1.0, 0.5, 0.2), ExpectedOutcomes(rewards, shares))
    # A whole holding time is worth (0.5 + 1.0) * 0.2 = 0.3: 0.1, 0.15 and 0.07 are left, in units of 0.2.
    torch.testing.assert_close(found[0, 0, 0], torch.tensor([0.5, 0.75, 0.35]))
    # Time is never worth less than nothing.
    torch.testing.assert_close(margins(reserve(1.0, -3.0, 0.2), ExpectedOutcomes(rewards, shares)), rewards / 0.2)


def test_mean_and_spread_follow_the_best_of_what_is_known() -> None:
    parameters = reserve(0.5, 0.0, 0.1)
    generator = torch.Generator().manual_seed(1)
    rewards = torch.randn((2, 50, 6, 3), generator=generator) * 0.3 + 0.2
    known = torch.rand((2, 50, 6), generator=generator) < 0.7
    for _ in range(200):
        update_reserve(parameters, ExpectedOutcomes(rewards, torch.ones_like(rewards)), known)
    for agent in range(2):
        best = rewards[agent].amax(-1)[known[agent]]
        spread = best.std(correction=0)
        torch.testing.assert_close(parameters["actor.log_spread"][agent, 0].exp(), spread, rtol=1e-4, atol=0.0)
        torch.testing.assert_close(parameters["actor.mean"][agent, 0], best.mean() / spread, rtol=1e-4, atol=0.0)
    assert (parameters["actor.selectivity"] == 0.5).all()


@pytest.mark.parametrize(("highest", "rank"), [(3.0, "coefficient"), (None, "coefficient"), (3.0, "separate")])
def test_what_has_a_margin_reaches_the_threshold_and_is_ranked_by_it(highest: float | None, rank: str) -> None:
    config = small_config(trading={"max_coefficient": highest, "rank": rank})
    actions = market_actions(config, CPU)
    assert actions.buy is not None
    margin, share = torch.tensor([-2.0, -0.5, 0.01, 0.4, 1.5]), torch.tensor([0.0, 0.5, 1.0, 0.5, 0.0])
    coefficient, target, *own_rank = actions.box.actions(actions.buy(margin, share, None)).unbind(-1)
    assert (coefficient >= config.trading.buy_threshold).tolist() == (margin > 0.0).tolist()
    assert all((order.diff() > 0.0).all() for order in (coefficient, *own_rank))
    low, high = config.trading.min_target, config.trading.max_target
    torch.testing.assert_close(target, low + share * (high - low), rtol=0.0, atol=0.001)
    held = torch.zeros(5, 4)
    held[4, 0] = 1.0
    again = actions.box.actions(actions.buy(margin, share, held))[:, 2 if own_rank else 0]
    assert again.argsort(descending=True)[:2].tolist() == [3, 2]
