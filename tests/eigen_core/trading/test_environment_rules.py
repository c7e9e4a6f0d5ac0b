"""The environment in batches, its errors and its memory."""

import dataclasses
import gc
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from trading_cases import prices_of, random_panel

from eigen_core.common.errors import InputError
from eigen_core.config import TradingConfig
from eigen_core.trading import prices as prices_module
from eigen_core.trading.environment import TradingEnvironment, trade_whole_episodes

Credit = Literal["decision", "realized", "marked"]
SMALL: dict[str, Any] = {"trading_days": 25, "settlement_days": 8, "holding_days": 6, "min_target": 0.02}


def random_actions(seed: int, *shape: int) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(seed)
    return torch.tensor(random.uniform(0.0, 2.0, shape)), torch.tensor(random.uniform(0.0, 0.2, shape))


def play(environment: TradingEnvironment, first_days: Tensor, *actions: Tensor) -> Tensor:
    environment.reset(first_days)
    while not environment.done:
        environment.step(*(values[:, environment.step_index] for values in actions))
    return environment.rewards()


@pytest.mark.parametrize("purchases", [1, 5])
@pytest.mark.parametrize("credit", ["decision", "realized", "marked"])
def test_an_episode_does_not_depend_on_its_neighbours(credit: Credit, purchases: int) -> None:
    trading = TradingConfig(credit=credit, purchases_per_day=purchases, **SMALL)
    prices = prices_of(random_panel(5, 200, 33))
    first_days = torch.arange(0, 160, 7)
    coefficients, targets = random_actions(5, len(first_days), 33, 33)
    environment = TradingEnvironment(prices, trading)
    together = play(environment, first_days, coefficients, targets)
    account = vars(environment.summary())
    whole, _ = trade_whole_episodes(prices, trading, first_days, coefficients, targets)
    for group in (1, 5):
        rewards, accounts, at_once = [], [], []
        for at in range(0, len(first_days), group):
            part = slice(at, at + group)
            arguments = (first_days[part], coefficients[part], targets[part])
            at_once.append(trade_whole_episodes(prices, trading, *arguments)[0])
            rewards.append(play(environment, first_days[part], coefficients[part], targets[part]))
            accounts.append(vars(environment.summary()))
        assert torch.equal(together, torch.cat(rewards))
        assert torch.equal(whole, torch.cat(at_once))
        for name, values in account.items():
            assert torch.equal(values, torch.cat([part[name] for part in accounts])), name


def test_episodes_must_stay_inside_the_prices() -> None:
    prices = prices_of(random_panel(1, 60, 3))
    environment = TradingEnvironment(prices, TradingConfig(**SMALL))
    environment.reset(torch.tensor([0, 27]))
    for first_days in ([0, 28], [-1, 5]):
        with pytest.raises(InputError, match=r"from 0 to 27"):
            environment.reset(torch.tensor(first_days))
        actions = torch.zeros(2, 33, 3)
        with pytest.raises(InputError, match=r"from 0 to 27"):
            trade_whole_episodes(prices, TradingConfig(**SMALL), torch.tensor(first_days), actions, actions)
    for wrong in (torch.zeros(2), torch.zeros(0, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64)):
        with pytest.raises(ValueError, match="integer vector"):
            environment.reset(wrong)


def test_misuse_is_refused() -> None:
    prices = prices_of(random_panel(1, 60, 3))
    environment = TradingEnvironment(prices, TradingConfig(**SMALL))
    recording = TradingEnvironment(prices, TradingConfig(**SMALL), record_trades=True)
    with pytest.raises(RuntimeError, match="reset"):
        environment.step(torch.zeros(1, 3), torch.zeros(1, 3))
    environment.reset(torch.tensor([0]))
    with pytest.raises(ValueError, match=r"\[1, 3\]"):
        environment.step(torch.zeros(1, 4), torch.zeros(1, 3))
    for early in (environment.rewards, environment.summary, recording.trades):
        with pytest.raises(RuntimeError, match="not over"):
            early()
    with pytest.raises(RuntimeError, match="record_trades"):
        environment.trades()


@pytest.mark.parametrize("broken", ["coefficient", "target", "rank", "infinite coefficient", "price"])
def test_what_is_not_finite_is_an_error(broken: str) -> None:
    trading = TradingConfig(**SMALL, max_coefficient=None if broken == "infinite coefficient" else 3.0)
    prices = prices_of(random_panel(2, 60, 3))
    if broken == "price":
        prices = dataclasses.replace(prices, last_close=torch.full_like(prices.last_close, torch.inf))
    actions = [*random_actions(2, 2, 33, 3), torch.full((2, 33, 3), 0.5)][: 3 if broken == "rank" else 2]
    if broken != "price":
        values = actions[{"target": 1, "rank": 2}.get(broken, 0)]
        values[1, 4] = torch.inf if broken == "infinite coefficient" else torch.nan
    with pytest.raises(FloatingPointError, match="not a finite number"):
        play(TradingEnvironment(prices, trading), torch.tensor([3, 9]), *actions)
    with pytest.raises(FloatingPointError, match="not a finite number"):
        trade_whole_episodes(prices, trading, torch.tensor([3, 9]), *actions)


def test_nothing_is_kept_of_past_episodes() -> None:
    prices, weights = prices_of(random_panel(3, 100, 4)), torch.ones(4, requires_grad=True)
    environments = [
        TradingEnvironment(prices, TradingConfig(**SMALL), record_trades=True),
        TradingEnvironment(prices, TradingConfig(credit="marked", **SMALL)),
    ]
    kept = []
    for episode in range(4):
        for environment in environments:
            coefficients, targets = random_actions(episode, 3, 33, 4)
            rewards = play(environment, torch.arange(3), coefficients * weights, targets * weights)
            assert not rewards.requires_grad
            del rewards, coefficients, targets
        gc.collect()
        kept.append(sum(type(thing) is Tensor for thing in gc.get_objects()))
    assert kept[1] == kept[2] == kept[3]


def test_more_assets_than_can_be_put_in_an_order_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices_module, "MAX_ASSETS", 4)
    with pytest.raises(InputError, match="5 columns are tradable, and at most 4 can be"):
        prices_of(random_panel(1, 60, 5))
