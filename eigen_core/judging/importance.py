"""How much agents of a run use each feature and each column (symbol) of the market: permutation importance."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

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
"""A column is hardly used if shifting it in time changes agents' decisions on at most this share of the days."""
_NEAREST = 0.1

_Part = tuple[slice | int, slice | int]
_Played = tuple[NDArray[np.float64], float | None]
"""Each asset's share in an agent's decisions, float64 `[episodes, days, assets]`, and the mean excess (%)."""


@dataclass(frozen=True)
class Importance:
    """Effect on agents of shifting a feature or column in time: means over random shifts, and 5 and 95 % percentiles.

    Each shift counts with the mean over the agents.

    Attributes:
        name: of the feature, or symbol of the column.
        changed: share of the days on which an agent buys another asset or none; for a portfolio, the mean share of the
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
) -> tuple[tuple[Importance, ...], tuple[Importance, ...]]:
    """Return the importance of each feature and of each column for agents, the most important first.

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
    found: list[Importance] = []
    for done, (name, part) in enumerate(parts, 1):
        moved = []
        for changed in _shifted(panel, part, days, draws, generator):
            other = task.observing(changed)
            moved.append([_play(other, agent, starts) for agent in weights])
        found.append(_importance(name, usual, moved))
        report_progress("importance", done, len(parts))
    features, columns = (
        tuple(sorted(of_kind, key=lambda one: -one.changed))
        for of_kind in (found[: len(panel.feature_names)], found[len(panel.feature_names) :])
    )
    return features, columns


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


def _importance(name: str, usual: Sequence[_Played], moved: Sequence[Sequence[_Played]]) -> Importance:
    changed, lost = [], []
    for of_draw in moved:
        pairs = list(zip(usual, of_draw, strict=True))
        changed.append(fmean(_changed(before, after) for (before, _), (after, _) in pairs))
        losses = [one - other for (_, one), (_, other) in pairs if one is not None and other is not None]
        lost += [fmean(losses)] if losses else []
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
        features, columns: the most important first.
        low_columns: symbols for which the upper bound of `changed` is at most `LOW_CHANGE`.
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
    store: str, run: str, *, agent: str = CHAMPION, draws: int, settings: Sequence[str] = ()
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
    validation = panel.splits.validation
    starts = spread_starts(panel.starts(validation, config), config.evaluation.validation_slices).tolist()
    days = range(max(validation.start - config.market.window + 1, 0), validation.stop)
    with computing_threads(config.threads):
        task = _task(config, panel, weights.device)
        require_shape(weights, (len(weights), task.critic_layout.size + task.actor_layout.size), run)
        weights = weights.to(resolve_device(config.device))
        features, columns = importance(config, panel, weights, starts, days, draws)
    return RunImportance(
        run=run,
        agent=agent,
        agents=len(weights),
        generation=generation,
        first=str(panel.dates[validation[0]]),
        last=str(panel.dates[validation[-1]]),
        draws=draws,
        features=features,
        columns=columns,
        low_columns=tuple(column.name for column in columns if column.changed_interval[1] <= LOW_CHANGE),
    )
