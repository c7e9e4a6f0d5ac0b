"""What is taken: the free asset that exceeds the reserve price by most, at the setting by which it does."""

import math

import pytest
import torch
from science_cases import small_config

from eigen_core.networks import market_actions
from eigen_core.networks.outcomes import ExpectedOutcomes, follow_expected, margins

CPU = torch.device("cpu")


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
        follow_expected(parameters, ExpectedOutcomes(rewards, torch.ones_like(rewards)), known)
    for agent in range(2):
        best = rewards[agent].amax(-1)[known[agent]]
        spread = best.std(correction=0)
        torch.testing.assert_close(parameters["actor.log_spread"][agent, 0].exp(), spread, rtol=1e-4, atol=0.0)
        torch.testing.assert_close(parameters["actor.mean"][agent, 0], best.mean() / spread, rtol=1e-4, atol=0.0)
    assert (parameters["actor.selectivity"] == 0.5).all()


def test_the_rank_of_what_is_taken_is_its_margin() -> None:
    actions = market_actions(small_config(trading={"rank": "separate"}), CPU)
    assert actions.taken is not None
    margin, share = torch.tensor([-2.0, 0.4, 0.01, 1.5]), torch.zeros(4)
    held = torch.zeros(4, 4)
    held[3, 0] = 1.0
    ranks = actions.box.actions(actions.taken(margin, share, held))[:, 2]
    assert ranks.argsort(descending=True).tolist() == [1, 2, 0, 3]


@pytest.mark.parametrize("highest", [3.0, None])
def test_what_has_a_margin_reaches_the_threshold_and_is_ranked_by_it(highest: float | None) -> None:
    config = small_config(trading={"max_coefficient": highest})
    actions = market_actions(config, CPU)
    assert actions.taken is not None
    margin, share = torch.tensor([-2.0, -0.5, 0.01, 0.4, 1.5]), torch.tensor([0.0, 0.5, 1.0, 0.5, 0.0])
    coefficient, target = actions.box.actions(actions.taken(margin, share, None)).unbind(-1)
    assert (coefficient >= config.trading.buy_threshold).tolist() == (margin > 0.0).tolist()
    assert (coefficient.diff() > 0.0).all()
    low, high = config.trading.min_target, config.trading.max_target
    torch.testing.assert_close(target, low + share * (high - low), rtol=0.0, atol=0.001)
    held = torch.zeros(5, 4)
    held[4, 0] = 1.0
    again = actions.box.actions(actions.taken(margin, share, held))[:, 0]
    assert again.argsort(descending=True)[:2].tolist() == [3, 2]
