"""The task `portfolio`: every learner plays it, with the same bits in any grouping and after a resume."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from science_cases import LEARNERS_OF_ANY_TASK, random_panel, small_config
from trading_cases import panel_of
from training_cases import advance, content_of

from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.generation import TrainingState, hold_out, restore, snapshot, snapshot_form, start_training
from eigen_core.judging.portfolio import decide_weights
from eigen_core.networks import Heads
from eigen_core.networks.population import initial_weights
from eigen_core.task.portfolio import PortfolioTask
from eigen_core.trading import Prices
from eigen_core.trading.equity import periods_per_year
from eigen_core.trading.portfolio import Rebalancing

CPU = torch.device("cpu")
QUICK = ("ddpg", "ppo")
LEARNERS = [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.thorough)
    for name in (*LEARNERS_OF_ANY_TASK, "direct")
]


def portfolio_config(**sections: Any) -> Config:
    return small_config(task="portfolio", **sections)


def begin(config: Config) -> TrainingState:
    return start_training(config, random_panel(config))


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.cpu
def test_groups_and_a_resume_change_no_bit(learner: str, tmp_path: Path) -> None:
    sections: dict[str, Any] = {"learner": {"algorithm": learner}, "portfolio": {"short": 0.3, "initial_speed": 0.2}}
    # The last of three is a group of its own.
    populations = [{"size": 3, "group_size": size} for size in (0, 1, 2)]
    states = [advance(begin(portfolio_config(population=population, **sections)), 2) for population in populations]
    contents = [content_of(state) for state in states]
    assert contents[0] == contents[1] == contents[2]
    assert states[0].history[-1].learning is not None
    directory = RunDirectory.create(tmp_path, "run", {})
    directory.save(snapshot(states[0]))
    resumed = begin(portfolio_config(population=populations[0], **sections))
    loaded = directory.load_newest(snapshot_form(resumed))
    assert loaded is not None
    restore(resumed, loaded.snapshot)
    assert content_of(advance(resumed, 1)) == content_of(advance(states[0], 1))
    assert hold_out(resumed) is not None
    assert resumed.history[-1].trading.keys() == {"turnover", "exposure", "largest_weight"}


@pytest.mark.parametrize("observe", [True, False])
def test_rewards_are_those_of_the_weights_that_agents_decide_on(observe: bool) -> None:
    config = portfolio_config(trading={"observe_portfolio": observe}, portfolio={"short": 0.5})
    panel, starts = random_panel(config), np.array([[30, 70]] * 3)
    task = PortfolioTask(config, panel, CPU, Heads())
    rows = initial_weights(task.network.layouts, 3, config.seed, CPU)
    rollout = task.roll_out(rows, starts)
    table = Rebalancing.of(Prices.of_panel(panel, CPU), config.trading)
    for episode, start in enumerate(starts[0]):
        days = range(start, start + task.episode_steps)
        targets = decide_weights(task.network, panel, config, rows, days)
        growth, turnover = table.on(slice(days.start, days.stop)).growth(torch.tensor(targets))
        np.testing.assert_allclose(rollout.rewards[:, episode], growth.sum(-1), atol=1e-4)
        np.testing.assert_allclose(rollout.counts["turnover"].reshape(3, 2)[:, episode], turnover.sum(-1), atol=1e-4)
        np.testing.assert_allclose(task.growth(rows, start, len(days))[0].detach(), growth, atol=1e-3)


@pytest.mark.parametrize("heads", [Heads(), Heads(spread="free"), Heads(spread="observed")])
def test_agents_without_weights_play_the_initial_speed(heads: Heads) -> None:
    config = portfolio_config(portfolio={"initial_speed": 0.1})
    network = PortfolioTask(config, random_panel(config), CPU, heads).network
    critic, actor = (layout.views(torch.zeros(2, layout.size)) for layout in network.layouts)
    prepared = network.prepare_actor(actor, network.encode_block(critic, 30, 5), torch.zeros(1, 0))
    played = network.policy(actor, prepared, torch.zeros(*prepared.shape[:-1], 1)).mode
    np.testing.assert_allclose(played[..., 0], 0.0, atol=1e-5)
    np.testing.assert_allclose(played[..., 1], 0.1, rtol=1e-5)


def test_a_run_from_before_that_sells_short_is_refused_where_a_symbol_begins_late() -> None:
    """Its purchases were limited to the cash there, and elsewhere weights above 1 borrowed."""
    closes = np.full((160, 3), 10.0)
    closes[:40, 0] = np.nan
    for shorts, refused in ((0.3, True), (0.0, False)):
        config = portfolio_config(trading={"delisting_loss": None}, portfolio={"short": shorts})
        panel = panel_of(closes, closes, closes, window=config.market.window)
        with pytest.raises(InputError, match=r"sell short.*Train a new run") if refused else nullcontext():
            PortfolioTask(config, panel, CPU, Heads())


def test_an_episode_needs_the_fills_after_its_last_decision() -> None:
    with pytest.raises(InputError, match="use 2"):
        load_config("quickstart", ["task=portfolio", "trading.settlement_days=1", "trading.holding_days=1"])


def test_the_excess_of_an_episode_is_a_year_of_its_days_over_equal_weight_of_the_same_exposure() -> None:
    config = portfolio_config()
    panel, start = random_panel(config), 40
    task = PortfolioTask(config, panel, CPU, Heads())
    row = initial_weights(task.network.layouts, 1, config.seed, CPU)
    excess = task.excess([task.roll_out(row, np.array([[start]]))])
    span = range(start, start + task.episode_steps)
    targets = decide_weights(task.network, panel, config, row, span)[0]
    prices = Prices.of_panel(panel, CPU)
    tradable = prices.tradable[start : span.stop].numpy()
    equal = targets.sum(axis=1, keepdims=True) * tradable / tradable.sum(axis=1, keepdims=True)
    table = Rebalancing.of(prices, config.trading).on(slice(start, span.stop))
    returns, market = (np.exp(table.growth(torch.tensor(weights))[0].numpy() / 100.0) for weights in (targets, equal))
    assert excess is not None
    year = periods_per_year(panel.dates, config.account)
    assert excess.mean == pytest.approx(100.0 * year * (returns - market).mean(), rel=1e-6)
    assert (excess.per, excess.trades) == ("year", task.episode_steps)
