"""The environment equals independent per-day versions, of all rules and of the replaced system, in batches too."""

import dataclasses
import gc
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode
from trading_cases import Array, SlowEpisode, panel_of, prices_of, random_panel, trades_of, with_instruments

from eigen_core.common.errors import InputError
from eigen_core.config import Config, TradingConfig
from eigen_core.market import Panel
from eigen_core.trading import prices as prices_module
from eigen_core.trading.environment import TradingEnvironment, trade_whole_episodes

EPISODES = 10
ASSETS = 7


def random_actions(seed: int, episodes: int, steps: int, assets: int) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients around the threshold with ties, and targets, both partly outside of their bounds."""
    random = np.random.default_rng(seed)
    coefficients = random.normal(0.5, 1.0, (episodes, steps, assets)).round(1)
    coefficients[random.random((episodes, steps)) < 0.2] = 0.0
    coefficients[random.random(coefficients.shape) < 0.05] = 4.0
    coefficients[0] = 0.0
    return coefficients, random.uniform(-0.1, 0.4, coefficients.shape)


def random_rules(random: np.random.Generator) -> TradingConfig:
    holding = int(random.integers(1, 13))
    choices: dict[str, list[Any]] = {
        "fill": ["next_open", "next_close", "same_close"],
        "credit": ["decision", "realized", "marked"],
        "purchases_per_bar": [1, 1, 2, 3, 9],
        "decide_every": [None, None, "2d"],
        "trading_bars": [3, 15, 40, 70],
        "settlement_bars": [holding, holding + 5],
        "buy_threshold": [0.0, 1.0, 1.7],
        "max_coefficient": [3.0, None],
        "min_target": [0.01, 0.1],
        "delisting_bars": [1, 2, 7, 60],
        "delisting_loss": [0.0, 0.4],
        "cost_bps": [0.0, 5.0, 80.0],
        "slippage_bps": [0.0, 60.0],
        "loss_multiplier": [1.0, 10.0],
        "idle_penalty": [0.0, 3.0],
        "no_trade_penalty": [5.0, 100.0],
        "observe_portfolio": [True, True, False],
    }
    drawn = {name: values[random.integers(len(values))] for name, values in choices.items()}
    return TradingConfig(holding_bars=holding, **drawn)


def assert_both_forms_equal(
    slow: Sequence[SlowEpisode],
    panel: Panel,
    trading: TradingConfig,
    first_days: NDArray[np.int64],
    actions: list[Array],
) -> pd.DataFrame:
    """Compare rewards, results, portfolios and trades of both forms with slow episodes; return the trades."""
    prices, given = prices_of(panel), [torch.tensor(values) for values in actions]
    environment = TradingEnvironment(prices, trading)
    environment.reset(torch.tensor(first_days))
    portfolios = []
    for step in range(trading.episode_bars):
        assert environment.days.tolist() == (first_days + step).tolist()
        portfolios.append(environment.portfolio().numpy())
        environment.step(*(values[:, step] for values in given))
    assert environment.done
    assert not environment.portfolio().any()
    whole_rewards, whole_summary = trade_whole_episodes(prices, trading, torch.tensor(first_days), *given)
    slow_rewards = np.array([episode.rewards for episode in slow])
    tolerance = 1e-9 * np.maximum(1.0, np.abs(slow_rewards))
    for fast in (environment.rewards().numpy(), whole_rewards.numpy()):
        assert (np.abs(fast - slow_rewards) <= tolerance).all()
    least = 0.0 if trading.bookkeeping == "classic" else np.nextafter(0.0, 1.0)
    for summary in (environment.summary(), whole_summary):
        assert summary.trades.tolist() == [len(episode.trades) for episode in slow]
        assert summary.wins.tolist() == [sum(t["gain"] >= least for t in episode.trades) for episode in slow]
        assert summary.idle_days.tolist() == [episode.idle_days for episode in slow]
        np.testing.assert_allclose(summary.fees, [sum(t["fees"] for t in e.trades) for e in slow], rtol=1e-9)
        np.testing.assert_allclose(summary.reward, slow_rewards.sum(axis=1), rtol=1e-9, atol=1e-9)
    if trading.bookkeeping == "exact":
        _assert_portfolios_equal(np.stack(portfolios, axis=1), slow)
    table = trades_of(environment)
    _assert_trades_equal(table, slow)
    return table


@pytest.mark.parametrize(
    "seed", [*range(40), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(40, 100))]
)
def test_both_forms_equal_the_obvious_implementation(seed: int) -> None:
    """On every other market the agent ranks the assets by a value of its own, on every third all have own costs."""
    random = np.random.default_rng(seed)
    trading, days, assets, ranked = random_rules(random), 120, int(random.integers(3, 9)), seed % 2 == 1
    panel, steps = random_panel(seed, days, assets), trading.episode_bars
    panel = with_instruments(panel, seed) if seed % 3 == 0 else panel
    first_days = np.array([days - steps, 0, *random.integers(0, days - steps + 1, EPISODES - 2)])
    actions = list(random_actions(seed, EPISODES, steps, assets))
    if ranked:
        # With equals, and some outside of their bounds.
        actions.append(random.uniform(-0.1, 1.1, actions[0].shape).round(1))
    sessions: dict[tuple[int, int], bool] = {}
    slow = [
        SlowEpisode(panel, trading, int(first), sessions=sessions).run(*(values[index] for values in actions))
        for index, first in enumerate(first_days)
    ]
    table = assert_both_forms_equal(slow, panel, trading, first_days, actions)
    falling = table.groupby(["episode", "decision_day"])["coefficient"].diff().fillna(0.0) <= 0.0
    assert falling.all() or ranked
    assert len(table)


@pytest.mark.parametrize("seed", range(6))
def test_both_forms_wait_through_long_halts(seed: int) -> None:
    """Sales wait up to 50 days, some until the asset has ended."""
    random = np.random.default_rng(seed)
    trading = random_rules(random).model_copy(
        update={"trading_bars": 70, "observe_portfolio": True, "delisting_bars": 30 + seed}
    )
    close = 50.0 * np.exp(np.cumsum(random.normal(0.0, 0.04, (200, 6)), axis=0))
    for asset, start in enumerate(random.integers(20, 90, 6)):
        close[start : start + 15 + 7 * asset, asset] = np.nan
    panel = panel_of(close * 0.99, close * 1.02, close)
    known, first_days = prices_of(panel), np.arange(0, 60, 6)
    assert known.fills(trading).longest > trading.holding_bars + 20
    actions = list(random_actions(seed, EPISODES, trading.episode_bars, 6))
    slow = [
        SlowEpisode(panel, trading, int(first)).run(*(values[index] for values in actions))
        for index, first in enumerate(first_days)
    ]
    table = assert_both_forms_equal(slow, panel, trading, first_days, actions)
    assert (table["exit_day"] - table["decision_day"] > trading.holding_bars + 7).any()


class CountedOperations(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_halts_add_few_operations_to_a_day() -> None:
    counts = []
    for halts in (False, True):
        close = 50.0 * np.exp(np.cumsum(np.random.default_rng(1).normal(0.0, 0.02, (300, 20)), axis=0))
        if halts:
            close[100:140, ::5] = np.nan
        prices, rules = prices_of(panel_of(close, close, close)), TradingConfig(observe_portfolio=True)
        environment = TradingEnvironment(prices, rules)
        assert (prices.fills(rules).longest > rules.holding_bars) == halts
        environment.reset(torch.arange(4))
        wanted = torch.ones(4, prices.assets)
        with CountedOperations() as counted:
            for _ in range(10):
                environment.portfolio()
                environment.step(wanted, wanted)
        counts.append(counted.count)
    assert counts[1] <= 1.1 * counts[0], counts


def _assert_portfolios_equal(portfolios: np.ndarray, slow: Sequence[SlowEpisode]) -> None:
    expected = np.array([episode.portfolios for episode in slow])
    assert portfolios.dtype == np.float16
    assert (portfolios[..., 0] == expected[..., 0]).all()
    # Half a unit of float16 from the rounding; as much again since a double may be rounded to it in two steps.
    np.testing.assert_allclose(portfolios.astype(np.float64), expected, rtol=1e-3, atol=1e-7)


def _assert_trades_equal(table: pd.DataFrame, slow: Sequence[SlowEpisode]) -> None:
    expected = pd.DataFrame(
        [{"episode": index, **trade} for index, episode in enumerate(slow) for trade in episode.trades],
        columns=["fees", *table.columns],
    ).drop(columns="fees")
    expected["reason"] = expected["reason"].replace(["no data", "no last close"], "time")
    # Of equal coefficients of a day, which come in the order of precedence.
    expected = expected.sort_values(["episode", "decision_day", "asset"], ignore_index=True)
    decisions = ["episode", "decision_day"]
    assert table[decisions].to_numpy().tolist() == expected[decisions].to_numpy().tolist()
    table = table.sort_values(["episode", "decision_day", "asset"], ignore_index=True)
    pd.testing.assert_frame_equal(table, expected, check_dtype=False, rtol=1e-12, check_column_type=False)


class ReplacedEpisode(SlowEpisode):
    """One episode by the rules of the replaced system; the reason of a trade is the rule by which it was closed."""

    def run(self, coefficients: Array, targets: Array, ranks: Array | None = None) -> "ReplacedEpisode":
        for step in range(self.trading.episode_bars):
            day, held_before = self.first_day + step, bool(self.held)
            self.rewards.append(0.0)
            self.close_positions(day)
            if step < self.trading.trading_bars:
                self.decide(day, coefficients[step], targets[step], ranks)
            if not held_before and not self.held:
                self.rewards[step] -= self.trading.idle_penalty
                self.idle_days += 1
        if not self.trades:
            self.rewards[-1] -= self.trading.no_trade_penalty
        return self

    def close_positions(self, day: int) -> None:
        for asset, position in list(self.held.items()):
            position.sessions += 1
            high, close = float(self.panel.high[day, asset]), float(self.panel.close[day, asset])
            if all(math.isnan(getattr(self.panel, name)[day, asset]) for name in ("open", "high", "low", "close")):
                self.sell(asset, position.entry, day, "no data")
            elif not math.isnan(high) and high >= position.target:
                self.sell(asset, position.target, day, "target")
            elif position.sessions >= self.trading.holding_bars and math.isnan(close):
                self.sell(asset, position.entry, day, "no last close")
            elif position.sessions >= self.trading.holding_bars:
                self.sell(asset, close, day, "time")

    def decide(self, day: int, coefficients: Array, targets: Array, ranks: Array | None) -> None:  # noqa: ARG002
        asset = int(np.argmax(coefficients))
        close, coefficient = float(self.panel.close[day, asset]), float(coefficients[asset])
        if coefficient < self.trading.buy_threshold or asset in self.held or math.isnan(close) or close <= 0.0:
            return
        target = min(max(float(targets[asset]), self.trading.min_target), self.trading.max_target)
        self.buy(asset, close, day, day, (coefficient, target), at_open=False)


CLASSIC = Config(preset="eigen2-classic").trading
CLASSIC_EPISODES = 320
CLASSIC_DAYS = 600


def panel_without_gaps(seed: int) -> Panel:
    random = np.random.default_rng(seed)
    close = 50.0 * np.exp(np.cumsum(random.normal(0.0, 0.03, (CLASSIC_DAYS, ASSETS)), axis=0))
    # Prices in whole halves stay where they are now and then, so that gains of exactly zero occur.
    close = np.maximum(np.round(2.0 * close) / 2.0, 0.5)
    return panel_of(close.copy(), close * np.exp(np.abs(random.normal(0.0, 0.02, close.shape))), close)


def panel_with_gaps(seed: int) -> Panel:
    panel = random_panel(seed, CLASSIC_DAYS, ASSETS)
    random = np.random.default_rng(seed)
    panel.close[random.random(panel.close.shape) < 0.02] = 0.0
    no_close = random.random(panel.close.shape) < 0.1
    panel.close[no_close] = np.nan
    return panel


@pytest.mark.parametrize(
    ("panel", "reasons"),
    [
        (panel_without_gaps(5), {"target", "time"}),
        (panel_with_gaps(6), {"target", "time", "no data", "no last close"}),
    ],
    ids=["without gaps", "with gaps"],
)
def test_both_forms_equal_the_replaced_system(panel: Panel, reasons: set[str]) -> None:
    first_days = np.random.default_rng(7).integers(0, CLASSIC_DAYS - CLASSIC.episode_bars + 1, CLASSIC_EPISODES)
    coefficients, targets = random_actions(7, CLASSIC_EPISODES, CLASSIC.episode_bars, ASSETS)
    slow = [
        ReplacedEpisode(panel, CLASSIC, int(first_day)).run(coefficients[index], targets[index])
        for index, first_day in enumerate(first_days)
    ]
    assert {trade["reason"] for episode in slow for trade in episode.trades} == reasons
    assert_both_forms_equal(slow, panel, CLASSIC, first_days, [coefficients, targets])


Credit = Literal["decision", "realized", "marked"]
SMALL: dict[str, Any] = {"trading_bars": 25, "settlement_bars": 8, "holding_bars": 6, "min_target": 0.02}


def play(environment: TradingEnvironment, first_days: Tensor, *actions: Tensor) -> Tensor:
    environment.reset(first_days)
    while not environment.done:
        environment.step(*(values[:, environment.step_index] for values in actions))
    return environment.rewards()


@pytest.mark.parametrize("purchases", [1, 5])
@pytest.mark.parametrize("credit", ["decision", "realized", "marked"])
def test_an_episode_does_not_depend_on_its_neighbours(credit: Credit, purchases: int) -> None:
    trading = TradingConfig(credit=credit, purchases_per_bar=purchases, **SMALL)
    prices = prices_of(random_panel(5, 200, 33))
    first_days = torch.arange(0, 160, 7)
    coefficients, targets = map(torch.tensor, random_actions(5, len(first_days), 33, 33))
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
    with pytest.raises(RuntimeError, match="reset"):
        environment.step(torch.zeros(1, 3), torch.zeros(1, 3))
    environment.reset(torch.tensor([0]))
    with pytest.raises(ValueError, match=r"\[1, 3\]"):
        environment.step(torch.zeros(1, 4), torch.zeros(1, 3))
    for early in (environment.rewards, environment.summary, environment.orders):
        with pytest.raises(RuntimeError, match="not over"):
            early()


@pytest.mark.parametrize("broken", ["coefficient", "target", "rank", "infinite coefficient", "price"])
def test_what_is_not_finite_is_an_error(broken: str) -> None:
    trading = TradingConfig(**SMALL, max_coefficient=None if broken == "infinite coefficient" else 3.0)
    prices = prices_of(random_panel(2, 60, 3))
    if broken == "price":
        prices = dataclasses.replace(prices, last_close=torch.full_like(prices.last_close, torch.inf))
    actions = [*map(torch.tensor, random_actions(2, 2, 33, 3)), torch.full((2, 33, 3), 0.5)][
        : 3 if broken == "rank" else 2
    ]
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
        TradingEnvironment(prices, TradingConfig(**SMALL)),
        TradingEnvironment(prices, TradingConfig(credit="marked", **SMALL)),
    ]
    kept = []
    for episode in range(4):
        for environment in environments:
            coefficients, targets = map(torch.tensor, random_actions(episode, 3, 33, 4))
            rewards = play(environment, torch.arange(3), coefficients * weights, targets * weights)
            assert not rewards.requires_grad
            del rewards, coefficients, targets
        gc.collect()
        kept.append(sum(type(thing) is Tensor for thing in gc.get_objects()))
    assert kept[1] == kept[2] == kept[3]


def test_more_assets_than_can_be_put_in_an_order_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices_module, "MAX_ASSETS", 4)
    with pytest.raises(InputError, match="At most 4 symbols can be traded, not 5"):
        prices_of(random_panel(1, 60, 5))
