"""How often the 95 % interval of the excess contains the true excess, on years of the bundled prices."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.results import Section
from eigen_core.common.randomness import keyed_generator
from eigen_core.common.records import Excess
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.learning import learner_class
from eigen_core.learning.fitness import spread_starts
from eigen_core.market import Panel
from eigen_core.market.build import panel_of_clean_prices, read_prices
from eigen_core.market.panel import episode_starts
from eigen_core.networks.population import agent_groups, initial_weights
from eigen_core.task import task_class
from eigen_core.task.interface import Rollout, Task
from eigen_core.trading.synthetic import unpredictable_prices

AnyTask = Task[Any, Any]

_TRADERS, _YEARS = 80, 12
_SEED = 1
_LONG = ("trading.holding_bars=20", "trading.settlement_bars=20")
_CASES = {
    "trades, held up to 5 days": load_config("ddpg"),
    "trades, held up to 20 days": load_config("ddpg", _LONG),
    "a portfolio's days": load_config("portfolio"),
}
_GROUP = 20


def run() -> Section:
    rows = []
    for name, config in _CASES.items():
        prices = read_prices(config)
        for market, known in (
            ("bundled", prices),
            ("nothing predictable", unpredictable_prices(prices, _SEED)),
        ):
            panel = panel_of_clean_prices(known, config.market, market)
            held = intervals_that_hold(config, panel, _TRADERS, _YEARS, _SEED)
            rows.append([f"{name}; {market}", *map(str, held.values())])
    return Section(
        title="How often the 95 % interval of the excess holds it",
        method=(
            f"{_TRADERS} traders of each kind have random weights, as trainings begin with. Each plays {_YEARS} years "
            f"drawn at random as validation plays them, {_YEARS} as the holdout is played, and episodes one after the "
            f"other on all other days. Shown is the share of these {_TRADERS * _YEARS:,} intervals that hold the "
            "excess of the other days, widened by the standard error of that excess itself; then the share's standard "
            "error, for which the intervals of all traders in a year count as one draw; and in brackets the share "
            "without widening. Prices are the bundled ones, and some made of them in which nothing can be predicted "
            "(`unpredictable_prices`)."
        ),
        columns=("interval of; prices", "validation", "holdout"),
        rows=rows,
        remarks=(
            "The excess of the other days is an estimate too, and the most volatile of them dominate it: its error is "
            "not small beside that of a calm year.",
        ),
    )


@dataclass(frozen=True)
class Coverage:
    """Shares of intervals that contain the excess of the other days.

    Attributes:
        share, error: share, and its standard error if the intervals of one year count as one draw.
        share_of_exact: the share if the excess of the other days is taken as exact.
    """

    share: float
    error: float
    share_of_exact: float

    def __str__(self) -> str:
        return f"{100.0 * self.share:.1f} ± {100.0 * self.error:.1f} % ({self.share_of_exact:.1%})"


def intervals_that_hold(config: Config, panel: Panel, traders: int, years: int, seed: int) -> dict[str, Coverage]:
    """Return the coverage of intervals of validation and holdout, by the excess of the same trader on all other days.

    The intervals are widened by the error of that excess. Each of `traders` agents with random weights plays `years`
    validations and `years` holdouts.
    """
    device = torch.device("cpu")
    task: AnyTask = task_class(config)(config, panel, device, learner_class(config.learner).heads(config))
    weights = initial_weights((task.critic_layout, task.actor_layout), traders, seed, device)
    window, days = config.market.window, config.trading.episode_bars
    everywhere = np.asarray(episode_starts(range(panel.days), window, days)[:: config.trading.trading_bars])
    all_days = _played(task, weights, np.tile(everywhere, (traders, 1)))
    coverages = {}
    for part, length, slices in (
        ("validation", len(panel.splits.validation), config.evaluation.validation_slices),
        ("holdout", len(panel.splits.holdout), config.evaluation.holdout_episodes),
    ):
        generator = keyed_generator(seed, 0, "intervals", part)
        first = generator.integers(window - 1, panel.days - length + 1, (traders, years))
        offsets = spread_starts(episode_starts(range(window - 1, window - 1 + length), window, days), slices)
        starts = first[..., None] + offsets - (window - 1)
        of_years = _played(task, weights, starts.reshape(traders, -1))
        before = np.searchsorted(everywhere, first - days, side="right")
        after = np.searchsorted(everywhere, first + length)
        distances = [
            _distances(
                task.excess(of_years.part(slice(agent, agent + 1), slice(year * slices, (year + 1) * slices))),
                task.excess(
                    all_days.part(slice(agent, agent + 1), slice(before[agent, year])).with_more(
                        all_days.part(slice(agent, agent + 1), slice(after[agent, year], None))
                    )
                ),
            )
            for agent in range(traders)
            for year in range(years)
        ]
        coverages[part] = _coverage(np.array(distances), first.ravel() // length)
    return coverages


def _played(task: AnyTask, weights: torch.Tensor, starts: NDArray[np.int64]) -> Rollout:
    """Play episodes of all agents without noise; `starts` is `[agents, episodes]`."""
    groups = agent_groups(len(weights), _GROUP)
    return Rollout.joined([task.roll_out(weights[agents], starts[agents]) for agents in groups])


def _coverage(distances: NDArray[np.float64], clusters: NDArray[np.int64]) -> Coverage:
    """Return the shares of distances up to 1, float64 `[intervals, 2]`, as `_distances` returns them.

    The error is that of clusters (Cameron and Miller 2015, section II.B), int64 `[intervals]`.
    """
    held = distances <= 1.0
    share, share_of_exact = held.mean(axis=0)
    deviations = np.bincount(clusters, held[:, 0] - share)
    return Coverage(float(share), float(np.sqrt((deviations**2).sum()) / len(held)), float(share_of_exact))


def _distances(found: Excess | None, others: Excess | None) -> tuple[float, float]:
    """Return the distance of the mean of other days in half widths of the interval, widened and exact (inf: none)."""
    if found is None or others is None:
        return math.inf, math.inf
    distance = abs(found.mean - others.mean) / (found.interval[1] - found.mean)
    return distance / math.hypot(1.0, others.standard_error / found.standard_error), distance
