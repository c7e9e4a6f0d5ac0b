"""One rule for portfolios of weights: the rewards of training are the growth of the account that a backtest keeps."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from trading_cases import CPU, SlowEpisode, panel_of, random_panel

from eigen_core.config import Config, TradingConfig
from eigen_core.judging.portfolio import PortfolioBacktest
from eigen_core.market import Panel
from eigen_core.trading import Prices
from eigen_core.trading.fills import fill_offset
from eigen_core.trading.portfolio import Rebalancing, target_weights

ASSETS, DAYS = 6, range(30, 100)
FILLS = ("next_open", "next_close", "same_close")
COSTS = ((0.0, 0.0), (5.0, 2.0), (80.0, 40.0))


def clean_panel(seed: int) -> Panel:
    random = np.random.default_rng(seed)
    close = 50.0 * np.exp(np.cumsum(random.normal(0.0, 0.02, (140, ASSETS)), axis=0))
    return panel_of(close * np.exp(random.normal(0.0, 0.01, close.shape)), close * 1.03, close)


def panel_with(what: str, seed: int) -> Panel:
    """Prices that are clean but for one thing; or random prices with all of them."""
    if what == "everything":
        return random_panel(seed, 140, ASSETS)
    panel, random = clean_panel(seed), np.random.default_rng(seed)
    shape = panel.close.shape
    missing = np.zeros(shape, dtype=np.bool_)
    if what == "gaps":
        missing = random.random(shape) < 0.02
    if what == "halts":
        for asset in range(ASSETS):
            first = random.integers(DAYS.start, DAYS.stop - 10)
            missing[first : first + random.integers(3, 40), asset] = True
    if what == "ends":
        for asset in range(0, ASSETS, 2):
            missing[random.integers(DAYS.start, DAYS.stop) :, asset] = True
    if what == "late starts":
        missing[:60, 0] = missing[:80, 1] = True
    no_open = random.random(shape) < 0.1 if what == "no open" else np.zeros(shape, dtype=np.bool_)
    close = np.where(missing, np.nan, panel.close)
    opened, high = np.where(missing | no_open, np.nan, panel.open), np.where(missing, np.nan, panel.high)
    return replace(panel, open=opened, high=high, low=close, close=close, valid=~missing)


def worth_at_fill(panel: Panel, trading: TradingConfig, day: int, asset: int) -> float:
    """What a share is worth at the fill of a day's decision."""
    rules = SlowEpisode(panel, trading, 0)
    if not (panel.close[: day + 1, asset] > 0.0).any():
        return 0.0
    if rules.has_ended(day, asset):
        return rules.close_known(day, asset) * (1.0 - (trading.delisting_loss or 0.0))
    fill_day = day + fill_offset(trading)
    price, _ = rules.fill_price(fill_day, asset)
    return rules.close_known(fill_day, asset) if math.isnan(price) else price


def growth_in_money(panel: Panel, config: Config, targets: torch.Tensor, *, halted: bool = False) -> np.ndarray:
    """Log growth in percent of the account of a backtest, from before each fill to before the next."""
    offset, trading = fill_offset(config.trading), config.trading
    decisions = range(DAYS.start, DAYS.stop + 1)
    # Nothing is decided on the last day, whose fill ends the last reward.
    weights = np.vstack([targets.numpy(), np.full((1 + offset, ASSETS), np.nan)])
    accounts = PortfolioBacktest(config, panel, CPU).accounts(weights[None], range(DAYS.start, DAYS.stop + 1 + offset))
    cash = accounts.equity[0] * (1.0 - accounts.exposure[0])
    worth = [accounts.capital]
    for day in decisions[1:]:
        before = day - DAYS.start + offset - 1
        held = accounts.shares[0, before]
        prices = [worth_at_fill(panel, trading, day, asset) for asset in range(ASSETS)]
        worth.append(cash[before] + float(held @ np.array(prices)))
        # Never borrows, and a position that is not filled keeps its shares.
        assert cash[before] > -1e-9 * accounts.equity[0, before] or config.portfolio.short > 0.0
    if halted:
        assert (accounts.shares[0] != 0.0)[np.isnan(panel.close[DAYS.start : DAYS.stop + 1 + offset])].any()
    changes = np.diff(accounts.shares[0], axis=0)
    for row, asset in np.argwhere(changes):
        day = DAYS.start + int(row) + 1
        filled = not math.isnan(SlowEpisode(panel, trading, 0).fill_price(day, int(asset))[0])
        ended = accounts.shares[0, row + 1, asset] == 0.0
        assert filled or ended
    return 100.0 * np.diff(np.log(worth))


@pytest.mark.parametrize("short", [0.0, 0.6])
@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("what", ["nothing", "gaps", "halts", "ends", "late starts", "no open", "everything"])
def test_rewards_are_the_growth_of_the_account(what: str, fill: Any, costs: tuple[float, float], short: float) -> None:
    seed = len(what)
    trading = {"fill": fill, "cost_bps": costs[0], "slippage_bps": costs[1], "delisting_days": 12}
    config = Config.model_validate({"trading": trading, "portfolio": {"short": short}})
    panel = panel_with(what, seed)
    prices = Prices.of_panel(panel, CPU)
    random = np.random.default_rng(seed)
    scores = torch.tensor(random.normal(size=(len(DAYS), ASSETS)))
    # On most days next to nothing is left in cash.
    scores = scores + torch.tensor(random.choice([0.0, 40.0], (len(DAYS), 1), p=[0.3, 0.7]))
    stretch = slice(DAYS.start, DAYS.stop)
    targets = target_weights(scores, prices.tradable[stretch], short)
    rewards = Rebalancing.of(prices, config.trading).on(stretch).growth(targets)[0].numpy()
    found = growth_in_money(panel, config, targets, halted=what in ("gaps", "halts", "ends", "everything"))
    np.testing.assert_allclose(found, rewards, atol=1e-9, rtol=0.0)
    assert found.sum() == pytest.approx(rewards.sum(), abs=1e-9)
    assert np.abs(rewards).max() > 1.0
