"""Which features and columns of the market agents of a run use."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigen_core.checkpoint import CHAMPION, DamagedGenerationError, stored_weights
from eigen_core.evolution.fitness import spread_starts
from eigen_core.generation.importance import Importance, importance
from eigen_core.generation.state import resolve_device
from eigen_core.judging.backtests import agents_on_market
from eigen_core.machine.threads import computing_threads
from eigen_core.training.runs import Run

logger = logging.getLogger(__name__)

LOW_CHANGE = 0.01
"""A column is hardly used if an agent decides otherwise without it on at most this share of the days."""


@dataclass(frozen=True)
class RunImportance:
    """Importance of a market's features and columns for agents of a run.

    Attributes:
        run: its name.
        agent: champion, champions, elites, or an agent's number.
        agents: how many played.
        generation: the newest of the run's generations whose agents played.
        generations: those generations, the newest first.
        first, last: the validation days that were played, as YYYY-MM-DD.
        draws: how often the values of each feature and column were moved.
        features, columns: means over the agents, the most important first, with the smallest and the largest bound.
        low_columns: columns that every one of the agents hardly uses, by the upper bound of its changed decisions.
        persistent_low_features, persistent_low_columns: those that are low (`persistently_low`) for most of several
            agents; empty for one.
    """

    run: str
    agent: str
    agents: int
    generation: int
    generations: tuple[int, ...]
    first: str
    last: str
    draws: int
    features: tuple[Importance, ...]
    columns: tuple[Importance, ...]
    low_columns: tuple[str, ...]
    persistent_low_features: tuple[str, ...] = ()
    persistent_low_columns: tuple[str, ...] = ()


def run_importance(
    store: str, run: str, *, agent: str = CHAMPION, generations: int | None = None, draws: int
) -> RunImportance:
    """Return which features and columns agents of a run use in its validation episodes.

    Args:
        store: where the run is kept.
        run: its name.
        agent: `champion`, `champions` (of the kept generations, each once), `elites`, or the number of an agent of the
            newest generation.
        generations: how many of the newest kept generations `champions` are of; None: all.
        draws: how often the values of each are moved.

    Raises:
        InputError: there is no such run or agent, the run plays no market, or its prices are not those that it was
            trained on.
        StoreUnavailableError: the store does not answer.
    """
    config = Run.open(store, run).config_to_resume()
    several = agent == "champions"
    weights, generation, panel = agents_on_market(store, run, config, CHAMPION if several else agent)
    read: tuple[int, ...] = (generation,)
    if several:
        weights, read = _champions(store, run, generations)
    weights = weights.to(resolve_device(config.device))
    validation = panel.splits.validation
    starts = spread_starts(panel.validation_starts(config), config.evaluation.validation_slices).tolist()
    days = range(max(validation.start - config.market.window + 1, 0), validation.stop)
    with computing_threads(config.threads):
        found = importance(config, panel, weights, starts, days, draws)
    by_feature, by_column = [of_features for of_features, _ in found], [of_columns for _, of_columns in found]
    columns = over_agents(by_column)
    return RunImportance(
        run=run,
        agent=agent,
        agents=len(weights),
        generation=read[0],
        generations=read,
        first=str(panel.dates[validation[0]]),
        last=str(panel.dates[validation[-1]]),
        draws=draws,
        features=over_agents(by_feature),
        columns=columns,
        low_columns=tuple(column.name for column in columns if column.changed_interval[1] <= LOW_CHANGE),
        persistent_low_features=persistently_low(by_feature),
        persistent_low_columns=persistently_low(by_column),
    )


def persistently_low(found: Sequence[Sequence[Importance]]) -> tuple[str, ...]:
    """Return the features or columns that are low for most of several agents, in alphabetical order; for one none.

    Low is one whose share of changed decisions has an interval that reaches 0, or that is in the lowest tenth.

    Args:
        found: of each agent, the most important first.
    """
    lows: Counter[str] = Counter()
    for of_agent in found:
        lowest = {each.name for each in of_agent[len(of_agent) - len(of_agent) // 10 :]}
        lows.update(each.name for each in of_agent if each.name in lowest or each.changed_interval[0] <= 0.0)
    return tuple(sorted(name for name, times in lows.items() if 2 * times > len(found))) if len(found) > 1 else ()


def _champions(store: str, run: str, generations: int | None) -> tuple[Tensor, tuple[int, ...]]:
    """Return the champions of the newest kept generations, float32 `[champions, parameters]`, and these generations.

    A champion of several generations is there once; damaged generations are skipped.
    """
    champions: dict[bytes, Tensor] = {}
    read: list[int] = []
    for contents, manifest in Run.open(store, run).newest_first():
        if len(read) == generations:
            break
        if manifest.generation in read:
            continue
        try:
            weights = stored_weights(contents, manifest, CHAMPION)
        except DamagedGenerationError as error:
            logger.warning("Run '%s': generation %d is skipped (%s).", run, manifest.generation, error)
            continue
        champions.setdefault(weights.numpy().tobytes(), weights)
        read.append(manifest.generation)
    return torch.stack(list(champions.values())), tuple(read)


def over_agents(found: Sequence[Sequence[Importance]]) -> tuple[Importance, ...]:
    """Return the mean importance of each feature or column over agents, with the widest bounds, largest first."""
    by_agent = [{each.name: each for each in of_agent} for of_agent in found]
    means = [_mean([of_agent[name] for of_agent in by_agent]) for name in by_agent[0]]
    return tuple(sorted(means, key=lambda each: -each.changed))


def _mean(of_agents: Sequence[Importance]) -> Importance:
    lost = [(each.excess_lost, each.excess_lost_interval) for each in of_agents]
    means = [mean for mean, _ in lost if mean is not None]
    bounds = [interval for _, interval in lost if interval is not None]
    return Importance(
        name=of_agents[0].name,
        changed=sum(each.changed for each in of_agents) / len(of_agents),
        changed_interval=_widest([each.changed_interval for each in of_agents]),
        excess_lost=sum(means) / len(means) if means else None,
        excess_lost_interval=_widest(bounds) if bounds else None,
    )


def _widest(intervals: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min(low for low, _ in intervals), max(high for _, high in intervals)
