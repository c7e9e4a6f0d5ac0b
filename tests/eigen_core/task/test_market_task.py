"""The task market: its counts trade by trade, and its table of outcomes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from science_cases import random_panel, small_config
from trading_cases import SlowEpisode, slow_market_gain

from eigen_core.learning.counterfactual import CounterfactualLearner
from eigen_core.market import Panel
from eigen_core.networks import Heads
from eigen_core.networks.population import initial_weights
from eigen_core.task.market import MarketTask
from eigen_core.trading import Prices, TradingEnvironment

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


CPU = torch.device("cpu")


def task_of(panel: Panel | None = None, **sections: Any) -> MarketTask:
    config = small_config(learner={"algorithm": "counterfactual", "target_bins": 3, "batch_size": 7}, **sections)
    return MarketTask(config, panel or random_panel(config), CPU, CounterfactualLearner.heads(config))


@pytest.mark.parametrize(
    "trading", [{"loss_multiplier": 3.0}, {"fill": "next_close"}, {"fill": "same_close", "bookkeeping": "classic"}]
)
def test_the_table_equals_trades_that_are_played_one_by_one(trading: dict[str, Any]) -> None:
    rules = {"max_target": 0.15, "min_target": 0.01, "idle_penalty": 0.0, "no_trade_penalty": 0.0, **trading}
    task = task_of(trading=rules)
    table = task._outcomes
    assert table is not None
    days, assets, targets = table.rewards.shape
    environment = TradingEnvironment(Prices.of_panel(task.panel, CPU), task._config.trading)
    cells = [cell for cell in np.ndindex(days, assets, targets) if cell[0] % 4 == 0]
    row, asset, level = (torch.tensor(index) for index in zip(*cells, strict=True))
    environment.reset(row + table.first_day)
    coefficients = torch.zeros(len(cells), assets).scatter_(1, asset[:, None], 1.0)
    wanted = torch.linspace(0.01, 0.15, targets, dtype=torch.float64)[level][:, None].expand(-1, assets)
    environment.step(coefficients, wanted)
    while not environment.done:
        environment.step(torch.zeros(len(cells), assets), wanted)
    rewards = environment.rewards()[:, 0]
    summary = environment.summary()
    bought = summary.trades == 1
    known = ~table.rewards[row, asset, level].isnan()
    assert torch.equal(known, bought)
    assert 0 < int(bought.sum()) < len(cells)
    torch.testing.assert_close(table.rewards[row, asset, level][bought].double(), rewards[bought], rtol=1e-6, atol=1e-6)
    blocked = summary.exit_offset[:, 0, 0][bought] / task._config.trading.holding_days
    torch.testing.assert_close(table.shares[row, asset, level][bought].double(), blocked.double(), rtol=1e-3, atol=0.0)


def test_nothing_after_the_training_days_is_known() -> None:
    task = task_of()
    panel, stop = task.panel, task.panel.splits.train.stop
    later = {name: getattr(panel, name).copy() for name in ("open", "high", "low", "close")}
    for prices in later.values():
        prices[stop:] *= 2.0
    other = task_of(replace(panel, **later))
    assert task._outcomes is not None
    assert other._outcomes is not None
    assert torch.equal(task._outcomes.rewards.nan_to_num(), other._outcomes.rewards.nan_to_num())
    assert torch.equal(task._outcomes.shares, other._outcomes.shares)
    assert task._outcomes.days.stop + task._config.trading.holding_days == stop
    assert task._outcomes.days.start == task.training_starts.start


def test_a_batch_has_what_is_observed_on_different_days_and_what_would_have_come() -> None:
    task = task_of()
    table, sampler = task._outcomes, task.outcome_sampler(7)
    assert table is not None
    assert sampler is not None
    generator = np.random.default_rng(1)
    block = int(sampler.draw_blocks(generator, (1,))[0])
    rows = torch.tensor(np.stack([sampler.draw(generator, block) for _ in range(2)]))
    observed, outcomes = task.outcomes(rows, block)
    assert all(len(set(days)) == 7 for days in observed.days.tolist())
    for agent, moment in np.ndindex(2, 7):
        day = int(observed.days[agent, moment])
        expected = table.rewards[table.days.index(day)]
        known = ~expected[:, 0].isnan()
        assert torch.equal(outcomes.known[agent, moment], known)
        assert torch.equal(outcomes.rewards[agent, moment][known], expected[known])
