"""How much agents of a run use each feature and each column (symbol) of the market: permutation importance."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.checkpoint.export import CHAMPION
from eigen_core.common.progress import report_progress
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.generation.state import resolve_device
from eigen_core.judging.run_backtests import agents_on_market, config_to_judge, require_shape
from eigen_core.learning import learner_class
from eigen_core.learning.fitness import spread_starts
from eigen_core.machine.performance import computing_threads
from eigen_core.market.panel import Panel
from eigen_core.runs.handle import Run
from eigen_core.task import task_class
from eigen_core.task.panel import PanelTask

INTERVAL = (5.0, 95.0)
"""Percentiles, over the random shifts of a feature or column, that bound an interval."""
LOW_CHANGE = 0.01
"""A column is hardly used if shifting it in time changes an agent's decisions on at most this share of the days."""
_NEAREST = 0.1

_Part = tuple[slice | int, slice | int]
_Played = tuple[NDArray[np.float64], float | None]
"""Each asset's share in an agent's decisions, float64 `[episodes, days, assets]`, and the mean excess (%)."""


@dataclass(frozen=True)
class Importance:
    """Effect on an agent of shifting a feature or column in time: means over random shifts, and 5 and 95 % percentiles.

    Attributes:
        name: of the feature, or symbol of the column.
        changed: share of the days on which the agent buys another asset or none; for a portfolio, the mean share of the
            equity that moves to other assets or cash.
        excess_lost: loss of gain beyond the market (`Excess`), per trade or per year (%); None without two trades.
    """

    name: str
    changed: float
    changed_interval: tuple[float, float]
    excess_lost: float | None
    excess_lost_interval: tuple[float, float] | None


def importance(
    config: Config, panel: Panel, weights: Tensor, starts: Sequence[int], days: range, draws: int = 20
) -> list[tuple[list[Importance], list[Importance]]]:
    """Return for each agent the importance of each feature and of each column, the most important first.

    Args:
        weights: of the agents, float32 `[agents, parameters]`, on the device that computes.
        starts: indices of the first days of the episodes that each agent plays.
        days: indices of the days of these episodes, and of the windows that agents observe before them.

    A draw shifts the values of a feature (in all columns) or of a column (all features) cyclically within `days`: they
    keep their distribution, course and correlations, but lose their relation to the day (permutation importance,
    Breiman 2001, "Random forests", section 10; single values are too similar to their neighbours to be permuted).
    """
    generator = keyed_generator(config.seed, 0, "importance")
    task = _task(config, panel, weights.device)
    usual = [_play(task, agent, starts) for agent in weights]
    parts: list[tuple[str, _Part]] = [
        *((name, (slice(None), index)) for index, name in enumerate(panel.feature_names)),
        *((name, (index, slice(None))) for index, name in enumerate(panel.symbols)),
    ]
    found: list[list[Importance]] = []
    for done, (name, part) in enumerate(parts, 1):
        moved = []
        for changed in _shifted(panel, part, days, draws, generator):
            other = _task(config, changed, weights.device)
            moved.append([_play(other, agent, starts) for agent in weights])
        found.append([_importance(name, *played) for played in zip(usual, zip(*moved, strict=True), strict=True)])
        report_progress("importance", done, len(parts))
    features, columns = found[: len(panel.feature_names)], found[len(panel.feature_names) :]
    by_agent = zip(zip(*features, strict=True), zip(*columns, strict=True), strict=True)
    return [(_ranked(of_features), _ranked(of_columns)) for of_features, of_columns in by_agent]


def _ranked(found: Sequence[Importance]) -> list[Importance]:
    return sorted(found, key=lambda one: -one.changed)


def _task(config: Config, panel: Panel, device: torch.device) -> PanelTask:
    task = task_class(config)(config, panel, device, learner_class(config.learner).heads(config))
    assert isinstance(task, PanelTask)
    return task


def _shifted(panel: Panel, part: _Part, days: range, draws: int, generator: np.random.Generator) -> Iterator[Panel]:
    nearest = max(1, int(_NEAREST * len(days)))
    for shift in generator.integers(nearest, max(len(days) - nearest, nearest + 1), draws):
        features = np.array(panel.features)
        within = features[days.start : days.stop]
        within[:, part[0], part[1]] = np.roll(within[:, part[0], part[1]], shift, axis=0)
        yield replace(panel, features=features)


def _play(task: PanelTask, weights: Tensor, starts: Sequence[int]) -> _Played:
    shares, excess = task.decisions(weights[None], np.array([starts], dtype=np.int64))
    return shares.cpu().numpy(), None if excess is None else excess.mean


def _importance(name: str, usual: _Played, moved: Sequence[_Played]) -> Importance:
    changed = [_changed(usual[0], shares) for shares, _ in moved]
    lost = [usual[1] - excess for _, excess in moved if usual[1] is not None and excess is not None]
    return Importance(
        name=name,
        changed=float(np.mean(changed)),
        changed_interval=_bounds(changed),
        excess_lost=float(np.mean(lost)) if lost else None,
        excess_lost_interval=_bounds(lost) if lost else None,
    )


def _changed(usual: NDArray[np.float64], moved: NDArray[np.float64]) -> float:
    """Return the mean share of the decisions `usual` that `moved` has in other assets, or in none."""
    more = moved - usual
    return float(np.maximum(np.maximum(more, 0.0).sum(axis=2), np.maximum(-more, 0.0).sum(axis=2)).mean())


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.percentile(values, INTERVAL)
    return float(low), float(high)


@dataclass(frozen=True)
class RunImportance:
    """Importance of a market's features and columns for agents of a run.

    Attributes:
        agent, agents, generation: which agents (see `run_importance`), their number and their generation.
        first, last, draws: first and last validation day (YYYY-MM-DD); number of shifts of each feature and column.
        features, columns: means over the agents, the most important first, with the widest bounds.
        low_columns: symbols for which the upper bound of `changed` is at most `LOW_CHANGE` for every agent.
    """

    run: str
    agent: str
    agents: int
    generation: int
    first: str
    last: str
    draws: int
    features: tuple[Importance, ...]
    columns: tuple[Importance, ...]
    low_columns: tuple[str, ...]


def run_importance(
    store: str,
    run: str,
    *,
    agent: str = CHAMPION,
    draws: int,
    settings: Sequence[str] = (),
) -> RunImportance:
    """Return the importance of features and columns for agents of a run in its validation episodes.

    Args:
        agent: `champion`, or agents of the newest generation: `elites`, `population`, or the number of one.
        settings: changeable settings of the market, as market.KEY=VALUE, by which the prices are read.

    Raises:
        InputError: there is no such run or agent, the run has no prices, or was trained on other ones than are there.
        StoreUnavailableError: the store does not answer.
    """
    opened = Run.open(store, run)
    config = config_to_judge(opened, settings, sections=("market.",))
    weights, generation, panel = agents_on_market(opened, config, agent)
    with computing_threads(config.threads):
        task = _task(config, panel, weights.device)
    expected = task.critic_layout.size + task.actor_layout.size
    require_shape(weights, (len(weights), expected), run)
    weights = weights.to(resolve_device(config.device))
    validation = panel.splits.validation
    starts = spread_starts(panel.starts(panel.splits.validation, config), config.evaluation.validation_slices).tolist()
    days = range(max(validation.start - config.market.window + 1, 0), validation.stop)
    with computing_threads(config.threads):
        found = importance(config, panel, weights, starts, days, draws)
    columns = over_agents([of_columns for _, of_columns in found])
    return RunImportance(
        run=run,
        agent=agent,
        agents=len(weights),
        generation=generation,
        first=str(panel.dates[validation[0]]),
        last=str(panel.dates[validation[-1]]),
        draws=draws,
        features=over_agents([of_features for of_features, _ in found]),
        columns=columns,
        low_columns=tuple(column.name for column in columns if column.changed_interval[1] <= LOW_CHANGE),
    )


def over_agents(found: Sequence[Sequence[Importance]]) -> tuple[Importance, ...]:
    """Return the mean over agents of each feature's or column's importance, largest first, with the widest bounds."""
    by_agent = [{each.name: each for each in of_agent} for of_agent in found]
    return tuple(_ranked([_mean([of_agent[name] for of_agent in by_agent]) for name in by_agent[0]]))


def _mean(of_agents: Sequence[Importance]) -> Importance:
    means = [each.excess_lost for each in of_agents if each.excess_lost is not None]
    bounds = [each.excess_lost_interval for each in of_agents if each.excess_lost_interval is not None]
    return Importance(
        name=of_agents[0].name,
        changed=sum(each.changed for each in of_agents) / len(of_agents),
        changed_interval=_widest([each.changed_interval for each in of_agents]),
        excess_lost=sum(means) / len(means) if means else None,
        excess_lost_interval=_widest(bounds) if bounds else None,
    )


def _widest(intervals: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min(low for low, _ in intervals), max(high for _, high in intervals)
