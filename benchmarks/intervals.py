"""How often the 95 % interval of the excess holds what a trader may expect, on years of the bundled prices."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.results import Section
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.evaluation import spread_starts
from eigen_core.learners import learner_class
from eigen_core.market import Panel
from eigen_core.market.build import panel_of_clean_prices, read_market
from eigen_core.market.panel import episode_starts
from eigen_core.population import agent_groups, initial_weights
from eigen_core.randomness import keyed_generator
from eigen_core.records import Excess
from eigen_core.task import Task, task_class
from eigen_core.trading.resampled import unpredictable_prices

AnyTask = Task[Any, Any]

_TRADERS, _YEARS = 80, 12
_SEED = 1
_LONG = ("trading.holding_days=20", "trading.settlement_days=20")
_CASES = {
    "trades, held up to 5 days": load_config("quickstart"),
    "trades, held up to 20 days": load_config("quickstart", _LONG),
    "a portfolio's days": load_config("portfolio"),
}
_GROUP = 20


def run() -> Section:
    """Count the intervals that hold what is true, of each kind of trader, on real prices and on made ones."""
    rows = []
    for name, config in _CASES.items():
        prices = read_market(config)
        for market, known in (
            ("bundled", prices),
            ("nothing predictable", unpredictable_prices(prices, _SEED)),
        ):
            panel = panel_of_clean_prices(known, config.market, market)
            held = intervals_that_hold(config, panel, _TRADERS, _YEARS, _SEED)
            rows.append([f"{name}; {market}", *(f"{share:.1%}" for share in held.values())])
    return Section(
        title="How often the 95 % interval of the excess holds it",
        method=(
            f"{_TRADERS} traders of each kind have random weights, as trainings begin with. What one may expect is its "
            f"excess in episodes one after the other over all days. Each plays {_YEARS} years drawn at random as "
            f"validation plays them, and {_YEARS} as the holdout is played. Shown is the share of these "
            f"{_TRADERS * _YEARS:,} intervals that hold the excess of all days, on the bundled prices and on "
            "prices made of them in which nothing can be predicted (`unpredictable_prices`)."
        ),
        columns=("interval of; prices", "validation", "holdout"),
        rows=rows,
    )


def intervals_that_hold(config: Config, panel: Panel, traders: int, years: int, seed: int) -> dict[str, float]:
    """Return the shares of the intervals of validation and of the holdout that hold the excess a trader may expect.

    Args:
        config: what is played.
        panel: the market.
        traders: how many agents with random weights play.
        years: how many validations and how many holdouts each of them plays.
        seed: of the weights and of the years.
    """
    device = torch.device("cpu")
    task: AnyTask = task_class(config)(config, panel, device, learner_class(config.learner).heads(config))
    weights = initial_weights((task.critic_layout, task.actor_layout), traders, seed, device)
    window, days = config.market.window, config.trading.episode_days
    everywhere = np.asarray(episode_starts(range(panel.days), window, days)[:: config.trading.trading_days])
    expected = _excesses(task, weights, np.tile(everywhere, (traders, 1, 1)))
    shares = {}
    for part, length, slices in (
        ("validation", config.market.validation_days, config.evaluation.validation_slices),
        ("holdout", config.market.holdout_days, config.evaluation.holdout_episodes),
    ):
        generator = keyed_generator(seed, 0, "intervals", part)
        first = generator.integers(window - 1, panel.days - length + 1, (traders, years, 1))
        offsets = spread_starts(episode_starts(range(window - 1, window - 1 + length), window, days), slices)
        played = _excesses(task, weights, first + offsets - (window - 1))
        held = [_holds(one, true[0]) for of_trader, true in zip(played, expected, strict=True) for one in of_trader]
        shares[part] = float(np.mean(held))
    return shares


def _excesses(task: AnyTask, weights: torch.Tensor, starts: NDArray[np.int64]) -> list[list[Excess | None]]:
    """Return the excess of each agent in each of its groups of episodes; `starts` is `[agents, groups, episodes]`."""
    found, episodes = [], starts.shape[2]
    for agents in agent_groups(len(weights), _GROUP):
        played = task.roll_out(weights[agents], starts[agents].reshape(len(weights[agents]), -1))
        for agent in range(len(played.rewards)):
            groups = (slice(first, first + episodes) for first in range(0, played.rewards.shape[1], episodes))
            found.append([task.excess([played.part(slice(agent, agent + 1), group)]) for group in groups])
    return found


def _holds(found: Excess | None, true: Excess | None) -> bool:
    """Return whether an interval holds the mean that is true; where there is no interval it does not."""
    if found is None or true is None:
        return False
    low, high = found.interval
    return low <= true.mean <= high
