"""How many days of episodes the environment trades in a second, in both forms and as a plain loop."""

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.measure import Times, take_turns
from benchmarks.results import Section
from eigen_core.config import TradingConfig
from eigen_core.market import Panel
from eigen_core.randomness import keyed_generator
from eigen_core.trading import HeldPrices, Prices, TradingEnvironment, trade_whole_episodes

_EPISODES = (16, 80, 1_024)
_ASSETS = (20, 108)
_PANEL_DAYS = 600
_SLOW_EPISODES = 16
_ROUNDS = 3
_RULES = Path(__file__).resolve().parents[1] / "tests"


def run() -> Section:
    """Trade random decisions over random prices with gaps, at several numbers of episodes and assets."""
    rows: list[list[str]] = []
    for assets in _ASSETS:
        rows += _compare(assets)
    return Section(
        title="Trading environment",
        method="Days of episodes traded in a second with the same random decisions at 145 days an episode, by turns: "
        "step by step (portfolio observed before each decision), whole episodes at once (decisions known, nothing "
        f"observed), and the tests' slow per-day reference in plain Python, {_SLOW_EPISODES} episodes one after the "
        "other, which observes as much as what it is compared with; rewards are checked to be equal to 1e-9.",
        columns=(
            "",
            "step by step",
            "whole episodes",
            "plain loop, observed",
            "steps : plain",
            "plain loop, not observed",
            "whole : plain",
        ),
        rows=rows,
    )


class _Market:
    """Random prices, random decisions, and the three ways to trade them."""

    def __init__(self, assets: int) -> None:
        self.reference = _reference()
        self.trading = TradingConfig()
        self.panel: Panel = self.reference.random_panel(assets, _PANEL_DAYS, assets)
        self.prices: Prices = self.reference.prices_of(self.panel)
        self.held_prices = HeldPrices.of(self.prices, self.trading)
        # Days on which an asset trades are known to both before the time is taken: `_compare` fills them.
        self.sessions: dict[tuple[int, int], bool] = {}
        generator = keyed_generator(1, 0, "benchmarks", "environment", assets)
        shape = (max(_EPISODES), self.trading.episode_days, assets)
        self.coefficients = torch.tensor(2.0 * generator.random(shape, dtype="float32"))
        self.targets = torch.tensor(0.1 + 0.4 * generator.random(shape, dtype="float32"))
        last = _PANEL_DAYS - self.trading.episode_days
        self.first_days = torch.tensor(generator.integers(0, last + 1, max(_EPISODES)))

    def step_by_step(self, episodes: int) -> Tensor:
        environment = TradingEnvironment(self.prices, self.trading, held_prices=self.held_prices)
        environment.reset(self.first_days[:episodes])
        for step in range(self.trading.episode_days):
            environment.portfolio()
            environment.step(self.coefficients[:episodes, step], self.targets[:episodes, step])
        return environment.rewards()

    def whole(self, episodes: int) -> Tensor:
        actions = self.coefficients[:episodes], self.targets[:episodes]
        return trade_whole_episodes(self.prices, self.trading, self.first_days[:episodes], *actions)[0]

    def plain(self, *, observed: bool) -> NDArray[np.float64]:
        """Trade a day at a time; whole episodes know their decisions, and need no portfolio to be observed."""
        coefficients, targets = self.coefficients.numpy(), self.targets.numpy()
        rewards = []
        for index in range(_SLOW_EPISODES):
            episode = self.reference.SlowEpisode(
                self.panel, self.trading, int(self.first_days[index]), sessions=self.sessions
            )
            if not observed:
                episode.observe = _nothing
            rewards.append(episode.run(coefficients[index], targets[index]).rewards)
        return np.array(rewards)


def _compare(assets: int) -> list[list[str]]:
    market = _Market(assets)
    expected = market.plain(observed=True)
    for rewards in (market.step_by_step(_SLOW_EPISODES), market.whole(_SLOW_EPISODES)):
        np.testing.assert_allclose(rewards.numpy(), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(market.plain(observed=False), expected)
    works: dict[str, Callable[[], object]] = {
        "plain": partial(market.plain, observed=True),
        "plain, not observed": partial(market.plain, observed=False),
    }
    for episodes in _EPISODES:
        works[f"steps {episodes}"] = partial(market.step_by_step, episodes)
        works[f"whole {episodes}"] = partial(market.whole, episodes)
    times = take_turns(works, _ROUNDS)

    def row(episodes: int) -> list[str]:
        steps, whole = times[f"steps {episodes}"], times[f"whole {episodes}"]
        plain, unobserved = times["plain"], times["plain, not observed"]
        share = episodes / _SLOW_EPISODES
        return [
            f"{assets} assets, {episodes:,} episodes",
            _speed(steps, episodes),
            _speed(whole, episodes),
            _speed(plain, _SLOW_EPISODES),
            f"{share * plain.over(steps):,.1f}",
            _speed(unobserved, _SLOW_EPISODES),
            f"{share * unobserved.over(whole):,.1f}",
        ]

    return [row(episodes) for episodes in _EPISODES]


def _speed(times: Times, episodes: int) -> str:
    return f"{episodes * TradingConfig().episode_days / times.median:,.0f}"


def _nothing(day: int) -> list[list[float]]:  # noqa: ARG001 - in the place of a method
    return []


def _reference() -> ModuleType:
    """Load the slow rules that the tests compare the environment with."""
    path = next(_RULES.rglob("trading_cases.py"))
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    # Its dataclasses look their module up.
    sys.modules[path.stem] = module
    specification.loader.exec_module(module)
    return module
