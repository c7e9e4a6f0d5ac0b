"""What is counted in episodes in which several assets are bought a day, trade by trade."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from science_cases import random_panel, small_config
from trading_cases import SlowEpisode, slow_market_gain

from eigen_core.networks import Heads
from eigen_core.networks.population import initial_weights
from eigen_core.task.market import MarketTask

CPU = torch.device("cpu")


@pytest.mark.parametrize("observe", [True, False])
def test_the_excess_is_that_of_all_trades(observe: bool) -> None:
    config = small_config(trading={"purchases_per_day": 3, "observe_portfolio": observe})
    panel = random_panel(config)
    task = MarketTask(config, panel, CPU, Heads())
    weights = initial_weights((task.critic_layout, task.actor_layout), 4, 1, CPU)
    starts = np.tile(np.array([20, 41]), (4, 1))
    summary = task.evaluator.roll_out(weights, starts).summary
    counts = task.counts(starts, summary)
    # Sessions are those of the tradable columns.
    rules = SlowEpisode(replace(panel, valid=panel.valid[:, : panel.assets]), config.trading, 0)
    expected, number = np.zeros((8, 12)), np.zeros((8, 12))
    for episode, start in enumerate(starts.flatten().tolist()):
        for day, place in np.argwhere(summary.bought[episode].numpy()).tolist():
            at, decision = (episode, day, place), start + day
            due = rules.due_day(decision, int(summary.asset[at]), decision + int(summary.exit_offset[at]))
            market = slow_market_gain(rules, decision, due - decision)
            expected[episode, day] += float(summary.gain[episode, day, place] - market)
            number[episode, day] += 1.0
    assert (counts["trades"] == summary.bought.sum(dim=(1, 2)).numpy()).all()
    assert summary.bought.sum(dim=2).max() > 1
    np.testing.assert_allclose(counts["excess_of_days"], expected, rtol=1e-9, atol=1e-11)
    assert (counts["trades_of_days"] == number).all()
    assert (counts["first_day"] == starts.flatten()).all()
    shares, _ = task.decisions(weights, starts)
    np.testing.assert_allclose(shares.sum(dim=(1, 2)).numpy(), counts["trades"] / 3.0)


@pytest.mark.parametrize("fill", ["next_open", "next_close", "same_close"])
def test_of_one_asset_the_excess_is_zero_also_where_its_sales_wait(fill: str) -> None:
    config = small_config(trading={"fill": fill, "min_target": 5.0, "max_target": 6.0, "buy_threshold": 0.0})
    panel = random_panel(config, assets=1, context=0)
    for prices in (panel.open, panel.close):
        prices[20:80:3] = np.nan
    # The market is open on all days: the asset is suspended on some.
    panel = replace(panel, valid=np.ones_like(panel.valid))
    task = MarketTask(config, panel, CPU, Heads())
    weights = initial_weights((task.critic_layout, task.actor_layout), 4, 1, CPU)
    starts = np.tile(np.array([20, 41]), (4, 1))
    summary = task.evaluator.roll_out(weights, starts).summary
    assert int((summary.exit_offset > config.trading.holding_days).sum()) > 5
    assert (task.counts(starts, summary)["excess_of_days"] == 0.0).all()
