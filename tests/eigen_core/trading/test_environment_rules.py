"""Single rules of the environment: an example by hand, batches, errors, memory."""

import dataclasses
import gc
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from trading_cases import panel_of, prices_of, random_panel

from eigen_core.common.errors import InputError
from eigen_core.config import Config, TradingConfig
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


def classic_rules(bookkeeping: str = "classic") -> TradingConfig:
    trading = Config(preset="eigen2-classic").trading
    week = {"trading_days": 4, "settlement_days": 3, "holding_days": 3, "delisting_days": 3, "delisting_loss": 0.3}
    return trading.model_copy(update={**week, "bookkeeping": bookkeeping})


@pytest.mark.parametrize("bookkeeping", ["classic", "exact"])
def test_classic_rules_by_hand(bookkeeping: str) -> None:
    """Two assets, seven days; every number below is worked out by hand from the rules.

    Day 0: asset 0 has the coefficient 2 and is bought at the close, 100, target 25 %: sold at 125 on day 2, whose
    high is exactly that (day 0's own high of 150 came before the purchase): +25 % x 2 = 50, booked on day 2.
    Day 1: asset 0 is wanted again, is held, and there is no second choice: no order.
    Day 2: asset 0 closed today, so it is bought again, at 108, target 50 % (asked: 70 %), coefficient 1. The highs
    after day 2 do not reach 162, and the series ends on day 3. By exact bookkeeping its sale, due on day 5, waits until
    day 6, the third without a price, on which the series counts as ended: at 54 less 30 %, 37.8: -65 %, times the loss
    multiplier of 10: -650. Classic bookkeeping closes it on day 4, the first without a price, at 108: 0 %, a win.
    Day 3: asset 1 has 5 and is bought at 40, target 10 % (asked: 1 %): the high of day 4 is above 44: sold at 44,
    +10 % x 5 = 50, booked on day 4.
    Days 0 and 1 end with asset 0, as days 2 and 3 do. On day 4 a position closes, which counts by classic bookkeeping;
    by the exact one it ends with asset 0, as day 5 does. The days after it are idle: -2 each.
    """
    classic = bookkeeping == "classic"
    nan = np.nan
    close = np.array([[100, 40], [101, 40], [108, 40], [54, 40], [nan, 41], [nan, 41], [nan, 41]], dtype=float)
    high = np.array([[150, 90], [124.99, 90], [125, 90], [130, 90], [nan, 47], [nan, 90], [nan, 90]], dtype=float)
    prices = prices_of(panel_of(close, high, close))
    coefficients = torch.zeros(1, 7, 2)
    coefficients[0, :4] = torch.tensor([[2.0, 1.0], [3.0, 2.0], [1.0, 0.99], [0.0, 5.0]])
    targets = torch.full((1, 7, 2), 0.25)
    targets[0, 2, 0] = 0.7
    targets[0, 3, 1] = 0.01

    environment = TradingEnvironment(prices, classic_rules(bookkeeping), record_trades=True)
    rewards = play(environment, torch.tensor([0]), coefficients, targets)
    last = [-2.0, -2.0] if classic else [0.0, -652.0]
    expected = torch.tensor([[0.0, 0.0, 50.0, 0.0, 50.0, *last]], dtype=torch.float64)
    torch.testing.assert_close(rewards, expected, rtol=0.0, atol=1e-9)
    account = environment.summary()
    wins = 3 if classic else 2
    assert (int(account.trades), int(account.wins)) == (3, wins)
    assert int(account.idle_days) == (2 if classic else 1)
    assert float(account.fees) == 0.0
    table = environment.trades()
    assert table["reason"].tolist() == ["target", "time" if classic else "delisted", "target"]
    assert table["exit_day"].tolist() == [2, 4 if classic else 6, 4]
    assert table["entry"].tolist() == [100.0, 108.0, 40.0]


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


def test_an_episode_without_trades_has_an_empty_list() -> None:
    environment = TradingEnvironment(prices_of(random_panel(1, 60, 3)), TradingConfig(**SMALL), record_trades=True)
    play(environment, torch.tensor([0, 3]), torch.zeros(2, 33, 3), torch.zeros(2, 33, 3))
    assert environment.trades().empty


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
