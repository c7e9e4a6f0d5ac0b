"""The tasks of the market: counts, table of outcomes, weights of portfolios, warnings, encoded days."""

from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from science_cases import random_panel, small_config
from trading_cases import SlowEpisode, panel_of, slow_market_gain, with_instruments
from training_cases import market_of, small_state

from eigen_core.common.errors import InputError
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.judging.backtest import decide_trades, decide_weights
from eigen_core.learning.counterfactual import CounterfactualLearner
from eigen_core.market import Panel
from eigen_core.networks.agent import AgentNetwork, MarketEmbedding
from eigen_core.networks.policies import Heads
from eigen_core.networks.population import initial_weights
from eigen_core.task import open_data
from eigen_core.task.market import MarketTask
from eigen_core.task.panel import EncodedEpisodes, day_runs
from eigen_core.task.portfolio import PortfolioTask
from eigen_core.trading.environment import TradingEnvironment, episode_times
from eigen_core.trading.equity import periods_per_year
from eigen_core.trading.portfolio import Rebalancing
from eigen_core.trading.prices import Prices, prices_of_span

CPU = torch.device("cpu")


@pytest.mark.parametrize("observe", [True, False])
def test_the_excess_is_that_of_all_trades(observe: bool) -> None:
    config = small_config(trading={"purchases_per_bar": 3, "observe_portfolio": observe})
    panel = with_instruments(random_panel(config), 1)
    task = MarketTask(config, panel, CPU, Heads())
    weights = initial_weights((task.critic_layout, task.actor_layout), 4, 1, CPU)
    starts = np.tile(np.array([20, 41]), (4, 1))
    rollout, summary = task.play(weights, starts)
    counts = rollout.counts
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


def counterfactual_config(**sections: Any) -> Config:
    return small_config(learner={"algorithm": "counterfactual", "target_bins": 3, "batch_size": 7}, **sections)


def task_of(panel: Panel | None = None, **sections: Any) -> MarketTask:
    config = counterfactual_config(**sections)
    return MarketTask(config, panel or random_panel(config), CPU, CounterfactualLearner.heads(config))


@pytest.mark.parametrize(
    "trading",
    [
        {"loss_multiplier": 3.0, "decide_every": "2d"},
        {"fill": "next_close"},
        {"fill": "same_close", "bookkeeping": "classic"},
    ],
)
def test_the_table_equals_trades_that_are_played_one_by_one(trading: dict[str, Any]) -> None:
    rules = {"max_target": 0.15, "min_target": 0.01, "idle_penalty": 0.0, "no_trade_penalty": 0.0, **trading}
    panel = with_instruments(task_of(trading=rules).panel, 2)
    task = task_of(panel, trading=rules)
    table = task._outcomes
    assert table is not None
    days, assets, targets = table.rewards.shape
    environment = TradingEnvironment(Prices.of_panel(task.panel, CPU), task._config.trading)
    cells = [cell for cell in np.ndindex(days, assets, targets) if cell[0] % 4 == 0]
    row, asset, level = (torch.tensor(index) for index in zip(*cells, strict=True))
    environment.reset(table.days[row])
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
    blocked = summary.exit_offset[:, 0, 0][bought] / task._config.trading.holding_bars
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
    assert int(task._outcomes.days[-1]) + 1 + task._config.trading.holding_bars == stop
    assert int(task._outcomes.days[0]) == task.training_starts[0]


@pytest.mark.parametrize("every", [1, 3])
def test_a_batch_has_what_is_observed_on_different_days_and_what_would_have_come(every: int) -> None:
    task = task_of(trading={"decide_every": f"{every}d"})
    table, sampler = task._outcomes, task.outcome_sampler(7)
    assert table is not None
    assert sampler is not None
    generator = np.random.default_rng(1)
    block = int(sampler.draw_blocks(generator, (1,))[0])
    rows = torch.tensor(np.stack([sampler.draw(generator, block) for _ in range(2)]))
    observed, outcomes = task.outcomes(rows, block)
    assert all(len(set(days)) == 7 for days in observed.days.tolist())
    assert not (task.panel.dates[observed.days].astype("datetime64[D]").astype(int) % every).any()
    for agent, moment in np.ndindex(2, 7):
        day = int(observed.days[agent, moment])
        expected = table.rewards[table.days.tolist().index(day)]
        known = ~expected[:, 0].isnan()
        assert torch.equal(outcomes.known[agent, moment], known)
        assert torch.equal(outcomes.rewards[agent, moment][known], expected[known])


def portfolio_config(**sections: Any) -> Config:
    return small_config(task="portfolio", **sections)


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
        with pytest.raises(InputError, match=r"sell short.*does not trade.*new run") if refused else nullcontext():
            PortfolioTask(config, panel, CPU, Heads())


def test_an_episode_needs_the_fills_after_its_last_decision() -> None:
    with pytest.raises(InputError, match="use 2"):
        load_config("quickstart", ["task=portfolio", "trading.settlement_bars=1", "trading.holding_bars=1"])


def test_the_excess_of_an_episode_is_a_year_of_its_days_over_equal_weight_of_the_same_exposure() -> None:
    config = portfolio_config()
    panel, start = random_panel(config), 40
    task = PortfolioTask(config, panel, CPU, Heads())
    row = initial_weights(task.network.layouts, 1, config.seed, CPU)
    excess = task.excess(task.roll_out(row, np.array([[start]])))
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


def lines(folder: Path, symbols: int, holdout_days: int, **settings: Any) -> str:
    path = folder / f"{symbols}.csv"
    walk = np.exp(np.cumsum(np.random.default_rng(0).normal(0.0, 0.01, (900, symbols)), axis=0))
    names = [f"S{index}" for index in range(symbols)]
    pd.DataFrame(walk, index=pd.bdate_range("2018-01-01", periods=900), columns=names).to_csv(path, index_label="date")
    market = {"data": str(path), "layout": "wide", "holdout": holdout_days}
    return " ".join(open_data(Config.model_validate({"market": market, **settings})).lines)


@pytest.mark.parametrize("task", ["market", "portfolio"])
def test_one_asset_needs_enough_days_to_judge_its_timing(tmp_path: Path, task: str) -> None:
    given: dict[str, Any] = {"task": task, "trading": {"trading_bars": 10, "holding_bars": 20, "settlement_bars": 20}}
    assert "no verdict will be possible" in lines(tmp_path, 1, 59, **given)
    enough = lines(tmp_path, 1, 60, **given)
    assert "no verdict" not in enough
    assert "timing is all that the verdict of a backtest can judge" in enough
    assert "timing" not in lines(tmp_path, 2, 59, **given)


_SHARED = np.array([[30, 9, 33, 30, 70]] * 3)
_OWN = _SHARED + np.array([[0], [4], [1]])


@pytest.mark.parametrize("encoder", ["filter_bank", "tcn"])
@pytest.mark.parametrize("starts", [_SHARED, _OWN], ids=["shared", "own"])
@pytest.mark.cpu
def test_what_agents_see_is_what_is_encoded_for_each_day_alone(
    monkeypatch: pytest.MonkeyPatch, encoder: str, starts: NDArray[np.int64]
) -> None:
    state = small_state(network={"encoder": encoder})
    network = market_of(state).network
    times = episode_times(state.config.trading, torch.device("cpu"))[:12]
    weights = state.population.weights[:3]
    critic = network.critic_layout.views(weights[:, : network.critic_layout.size])
    actor = network.actor_layout.views(weights[:, network.critic_layout.size :])
    calls: list[int] = []
    encode = AgentNetwork.encode_block

    def counted(*given: Any) -> MarketEmbedding:
        calls.append(given[3])
        return encode(*given)

    monkeypatch.setattr(AgentNetwork, "encode_block", counted)
    with torch.no_grad():
        for sizes in ((3, 1), (1, 5), (2, 12), (3, 100)):
            monkeypatch.setattr(AgentNetwork, "encoded_at_once", lambda *_, sizes=sizes: sizes)
            calls.clear()
            encoded = EncodedEpisodes(network, weights, starts, times)
            days = sum(map(len, day_runs(starts[0][:, None] + np.arange(12), network.days_before)))
            groups = 3 if starts is _OWN else -(-3 // sizes[0])
            assert sum(calls) == groups * days
            at_once = encoded.of_all_steps()
            for step in range(12):
                of_step = encoded.prepared(*encoded.of_step(step))
                assert torch.equal(of_step, at_once[:, :, step])
                for agent, episode in np.ndindex(starts.shape):
                    market = encode(network, critic, int(starts[agent, episode]) + step, 1)
                    alone = network.prepare_actor(actor, market, times[step])[agent, 0]
                    assert torch.equal(of_step[agent, episode], alone)


@pytest.mark.parametrize("observe", [True, False])
def test_agents_that_observe_days_of_decisions_alone_decide_the_same(observe: bool) -> None:
    trading, network = {"decide_every": "3d", "observe_portfolio": observe}, {"linear_scales": [1, 5]}
    config = counterfactual_config(trading=trading, network=network)
    heads, panel = CounterfactualLearner.heads(config), random_panel(config)
    task = MarketTask(config, panel, CPU, heads)
    always = config.model_copy(update={"trading": config.trading.model_copy(update={"decide_every": None})})
    every_day = copy(task)
    every_day.network = AgentNetwork(panel, always, CPU, heads, task.network.actions)
    assert every_day.network.observes_all > task.network.observes_all
    weights = initial_weights((task.critic_layout, task.actor_layout), 3, 1, CPU)
    starts, span = np.array([[30, 9, 33], [34, 13, 37], [31, 10, 34]]), range(40, 90)
    known = prices_of_span(Prices.of_panel(panel, CPU), span, config.trading.holding_bars)
    critic, days = (
        task.critic_layout.views(weights[:, : task.critic_layout.size]),
        torch.tensor([[0, 5], [2, 9], [4, 1]]),
    )
    found, expected = (
        [
            *vars(one.play(weights, starts)[1]).values(),
            *vars(decide_trades(one.network, known, config, weights, span)).values(),
            *one.encode(critic, one.outcomes(days, 0)[0]).market[:3],
        ]
        for one in (task, every_day)
    )
    assert found[5].any()
    for values, others in zip(found, expected, strict=True):
        np.testing.assert_array_equal(values, others)


def test_a_time_between_decisions_that_no_bar_meets_is_refused() -> None:
    with pytest.raises(InputError, match=r"No training day ends at a multiple of trading\.decide_every 900d"):
        task_of(trading={"decide_every": "900d"})
    with pytest.raises(InputError, match=r"of those with decisions .*lower learner\.batch_size"):
        task_of(trading={"decide_every": "20d"})
    with pytest.raises(ValueError, match=r"trading\.decide_every is a rule of task market"):
        portfolio_config(trading={"decide_every": "2d"})
