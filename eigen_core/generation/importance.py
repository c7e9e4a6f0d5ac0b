"""Importance for an agent's decisions: features and columns are moved in time, and decisions compared."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.common.progress import report_progress
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.learners import learner_class
from eigen_core.market.panel import Panel
from eigen_core.task import task_class
from eigen_core.task.panel_task import PanelTask

INTERVAL = (5.0, 95.0)
"""Percentiles of the draws that bound an interval."""
_NEAREST = 0.1

_Part = tuple[slice | int, slice | int]


@dataclass(frozen=True)
class Importance:
    """Changes where values do not belong to their days any more; intervals are over the draws (5 to 95 %).

    Attributes:
        name: the feature or column.
        changed: share of the days on which something else is bought, or nothing instead of something; of a portfolio,
            the mean share of it that is in other assets.
        changed_interval: its bounds.
        excess_lost: how much less a trade, or a portfolio in a year, gains beyond the market (%); None without trades.
        excess_lost_interval: its bounds.
    """

    name: str
    changed: float
    changed_interval: tuple[float, float]
    excess_lost: float | None
    excess_lost_interval: tuple[float, float] | None


@dataclass(frozen=True)
class _Played:
    """Results of an agent: shares of its decisions, float64 `[episodes, days, assets]`, and the mean excess (%)."""

    shares: NDArray[np.float64]
    excess: float | None


def importance(
    config: Config, panel: Panel, weights: Tensor, starts: Sequence[int], days: range, draws: int = 20
) -> list[tuple[list[Importance], list[Importance]]]:
    """Return for each agent the importance of each feature and of each column, the most important first.

    Args:
        config: the run's.
        panel: its market.
        weights: of the agents, float32 `[agents, parameters]`, on the device that computes.
        starts: first days of the episodes that each plays.
        days: the days that these episodes and the windows before them reach.
        draws: how often the values of each are moved.

    The values of a feature (of all columns), or of a column (all features), are moved by the same random number of
    days, around the end of `days`: they keep their distribution, their course and what they have in common, and say
    nothing about the days that they stand on (permutation importance, Breiman 2001, "Random forests", section 10, with
    whole courses instead of single values, which follow one another too closely to be exchanged one by one).
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
        for changed in _moved(panel, part, days, draws, generator):
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


def _moved(panel: Panel, part: _Part, days: range, draws: int, generator: np.random.Generator) -> Iterator[Panel]:
    """Yield panels in which the values of a part, (columns, features), are moved in time within `days`."""
    nearest = max(1, int(_NEAREST * len(days)))
    for shift in generator.integers(nearest, max(len(days) - nearest, nearest + 1), draws):
        features = np.array(panel.features)
        within = features[days.start : days.stop]
        within[:, part[0], part[1]] = np.roll(within[:, part[0], part[1]], shift, axis=0)
        yield replace(panel, features=features)


def _play(task: PanelTask, weights: Tensor, starts: Sequence[int]) -> _Played:
    shares, excess = task.decisions(weights[None], np.array([starts], dtype=np.int64))
    return _Played(shares.cpu().numpy(), None if excess is None else excess.mean)


def _importance(name: str, usual: _Played, moved: Sequence[_Played]) -> Importance:
    changed = [_changed(usual, played) for played in moved]
    lost = [usual.excess - played.excess for played in moved if usual.excess is not None and played.excess is not None]
    return Importance(
        name=name,
        changed=float(np.mean(changed)),
        changed_interval=_bounds(changed),
        excess_lost=float(np.mean(lost)) if lost else None,
        excess_lost_interval=_bounds(lost) if lost else None,
    )


def _changed(usual: _Played, moved: _Played) -> float:
    """Return the mean share that is given to other assets, or to none instead of some."""
    more = moved.shares - usual.shares
    return float(np.maximum(np.maximum(more, 0.0).sum(axis=2), np.maximum(-more, 0.0).sum(axis=2)).mean())


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.percentile(values, INTERVAL)
    return float(low), float(high)
