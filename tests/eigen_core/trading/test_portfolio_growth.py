"""The growth of portfolios of weights, beside accounts that are kept in money, day by day and asset by asset."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from trading_cases import SlowEpisode, panel_of, prices_of, random_panel

from eigen_core.config import TradingConfig
from eigen_core.trading.portfolio import Rebalancing, move_scores, smooth_scores, target_weights

FILLS = ("next_open", "next_close", "same_close")


def slow_growth(panel: Any, trading: TradingConfig, first_day: int, targets: Any) -> list[float]:
    """Log growth in percent from fill to fill of an account that keeps money and shares."""
    offset = 0 if trading.fill == "same_close" else 1
    close, assets = np.asarray(panel.close), panel.assets

    rules = SlowEpisode(panel, trading, 0)

    def worth(day: int, asset: int) -> float:
        if has_ended(day, asset):
            return rules.close_known(day, asset) * (1 - (trading.delisting_loss or 0.0))
        price, _ = rules.fill_price(day + offset, asset)
        if not math.isnan(price):
            return price
        known = [value for value in close[: day + offset + 1, asset] if not math.isnan(value)]
        return float(known[-1]) if known else 1.0

    def has_ended(day: int, asset: int) -> bool:
        begun = any(not math.isnan(rules.fill_price(known, asset)[0]) for known in range(day + 1))
        return begun and rules.has_ended(day, asset)

    slippage, cost = trading.slippage_bps / 1e4, trading.cost_bps / 1e4
    cash, shares, growth = 100.0, [0.0] * assets, []
    for day in range(first_day, first_day + len(targets)):
        wanted = targets[day - first_day]
        before = cash + sum(shares[asset] * worth(day, asset) for asset in range(assets))
        held = {asset: shares[asset] * worth(day, asset) for asset in range(assets)}
        values, stays = {}, set()
        for asset in range(assets):
            decided = not math.isnan(close[day, asset])
            if has_ended(day, asset):
                values[asset] = 0.0
            elif decided and not math.isnan(rules.fill_price(day + offset, asset)[0]):
                values[asset] = wanted[asset] * before
            else:
                values[asset] = held[asset]
                stays.add(asset)
        asked = sum(max(value - held[asset], 0.0) for asset, value in values.items())
        left = before - sum(min(value, held[asset]) for asset, value in values.items())
        left += max(sum(wanted) - 1.0, 0.0) * before
        if asked > left + 1e-9:
            left = max(left, 0.0)
            values = {a: held[a] + (v - held[a]) * left / asked if v > held[a] else v for a, v in values.items()}
        paid = 0.0
        for asset, value in values.items():
            change = value - held[asset]
            bought = change * (1 + slippage) * (1 + cost) - change
            sold = -change - -change * (1 - slippage) * (1 - cost)
            paid += bought if change > 0 else sold
        cash = before - sum(values.values())
        # Cash and what is filled pay; what stays keeps its shares.
        pays = before - sum(values[asset] for asset in stays)
        share = paid / pays if pays > 2.0 * paid else 0.0
        for asset in values:
            if asset not in stays:
                shares[asset] = values[asset] * (1.0 - share) / worth(day, asset)
        cash -= paid - share * (pays - cash)
        later_worth = cash + sum(shares[asset] * worth(day + 1, asset) for asset in range(assets))
        growth.append(100.0 * math.log(later_worth / before))
    return growth


def random_targets(seed: int, panel: Any, days: range, short: float) -> torch.Tensor:
    scores = torch.tensor(np.random.default_rng(seed).normal(size=(len(days), panel.assets)))
    return target_weights(scores, prices_of(panel).tradable[days.start : days.stop], short)


@pytest.mark.parametrize("short", [0.0, 0.5])
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("seed", [0, 1, 2, "without gaps"])
def test_growth_is_that_of_an_account_that_keeps_money_and_shares(seed: Any, fill: Any, short: float) -> None:
    if seed == "without gaps":
        close = 50.0 * np.exp(np.cumsum(np.random.default_rng(7).normal(0.0, 0.03, (70, 6)), axis=0))
        seed, panel = 7, panel_of(close * 1.01, close * 1.02, close)
    else:
        panel = random_panel(seed, 70, 6)
    trading = TradingConfig(fill=fill, cost_bps=20.0, slippage_bps=10.0, delisting_days=4 + 4 * seed)
    days = range(5, 65)
    targets = random_targets(seed, panel, days, short)
    table = Rebalancing.of(prices_of(panel), trading)
    expected = slow_growth(panel, trading, days.start, targets.tolist())
    growth, turnover = table.on(slice(days.start, days.stop)).growth(targets)
    np.testing.assert_allclose(growth, expected, atol=1e-9)
    assert float(turnover.min()) >= 0.0
    # Several episodes at once, each with its own days.
    rows = torch.arange(days.start, days.stop).reshape(2, -1)
    episodes, _ = table.on(rows).growth(targets.reshape(2, -1, panel.assets)[None].expand(3, -1, -1, -1))
    for episode, first in enumerate(rows[:, 0].tolist()):
        own = targets[first - days.start :][: rows.shape[1]].tolist()
        np.testing.assert_allclose(episodes[1, episode], slow_growth(panel, trading, first, own), atol=1e-9)


@pytest.mark.parametrize("days", [1, 2, 3, 17, 64])
def test_smoothing_all_days_is_moving_scores_day_by_day(days: int) -> None:
    random = np.random.default_rng(days)
    wanted, speeds = (
        torch.tensor(values) for values in (random.normal(size=(2, days, 3)), random.random((2, days, 3)))
    )
    scores, expected = wanted[:, 0], [wanted[:, 0]]
    for day in range(1, days):
        scores = move_scores(scores, wanted[:, day], speeds[:, day])
        expected.append(scores)
    np.testing.assert_allclose(smooth_scores(wanted, speeds), torch.stack(expected, dim=1), atol=1e-12)


def test_weights_of_equal_scores_are_equal_with_cash_and_none_of_what_cannot_be_traded() -> None:
    tradable = torch.tensor([True, True, False, True])
    assert target_weights(torch.zeros(4), tradable).tolist() == pytest.approx([0.25, 0.25, 0.0, 0.25])
    assert target_weights(torch.zeros(4), torch.zeros(4, dtype=torch.bool)).tolist() == [0.0] * 4


@pytest.mark.parametrize("short", [0.2, 1.0])
def test_what_is_sold_short_is_at_most_its_bound(short: float) -> None:
    scores = torch.tensor(np.random.default_rng(0).normal(size=(200, 5)) * 5.0)
    weights = target_weights(scores, torch.ones_like(scores, dtype=torch.bool), short)
    assert float(weights.min()) < -0.5 * short
    assert float(weights.clamp_max(0.0).sum(-1).min()) >= -short - 1e-12
    assert float(weights.clamp_min(0.0).sum(-1).max()) <= 1.0 + short + 1e-12


def test_the_gradient_of_a_stretch_is_that_of_finite_differences() -> None:
    panel = random_panel(4, 40, 4)
    table = Rebalancing.of(prices_of(panel), TradingConfig(cost_bps=20.0)).on(slice(4, 16))
    tradable = prices_of(panel).tradable[4:16]
    random = np.random.default_rng(0)
    wanted, speeds = (torch.tensor(random.random((12, 4)), requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(
        lambda wanted, speeds: table.growth(target_weights(smooth_scores(wanted, speeds), tradable))[0],
        (wanted, speeds),
    )
