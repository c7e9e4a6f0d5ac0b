"""Which features and columns of the market agents of a run use. No Prefect in here."""

from collections.abc import Sequence
from dataclasses import dataclass

from eigen_core.evaluation import spread_starts
from eigen_core.generation.importance import Importance, importance
from eigen_core.generation.state import resolve_device
from flows.backtests import agents_on_market
from flows.runs import config_to_resume

LOW_CHANGE = 0.01
"""A column is hardly used if an agent decides otherwise without it on at most this share of the days."""


@dataclass(frozen=True)
class RunImportance:
    """What agents of a run use of its market.

    Attributes:
        run: its name.
        agent: champion, elites, or an agent's number.
        agents: how many played.
        generation: the run's generation whose agents played.
        first, last: the validation days that were played, as YYYY-MM-DD.
        draws: how often the values of each feature and column were moved.
        features, columns: means over the agents, the most important first, with the smallest and the largest bound.
        low_columns: columns that every one of the agents hardly uses, by the upper bound of its changed decisions.
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


def run_importance(store: str, run: str, *, agent: str, draws: int) -> RunImportance:
    """Return which features and columns agents of a run use in its validation episodes.

    Args:
        store: where the run is kept.
        run: its name.
        agent: `champion`, `elites`, or the number of an agent of the newest generation.
        draws: how often the values of each are moved.

    Raises:
        InputError: there is no such run or agent, the run plays no market, or its prices are not those that it was
            trained on.
        StoreUnavailableError: the store does not answer.
    """
    config = config_to_resume(store, run, None)
    weights, generation, panel = agents_on_market(store, run, config, agent)
    weights = weights.to(resolve_device(config.device))
    validation = panel.splits.validation
    starts = spread_starts(panel.validation_starts(config), config.evaluation.validation_slices).tolist()
    days = range(max(validation.start - config.market.window + 1, 0), validation.stop)
    found = [importance(config, panel, each, starts, days, draws) for each in weights]
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
    """Return the mean importance of each feature or column over agents, with the widest bounds, largest first."""
    by_agent = [{each.name: each for each in of_agent} for of_agent in found]
    means = [_mean([of_agent[name] for of_agent in by_agent]) for name in by_agent[0]]
    return tuple(sorted(means, key=lambda each: -each.changed))


def _mean(of_agents: Sequence[Importance]) -> Importance:
    lost = [(each.excess_lost, each.excess_lost_interval) for each in of_agents]
    means = [mean for mean, _ in lost if mean is not None]
    bounds = [interval for _, interval in lost if interval is not None]
    attention = [each.attention for each in of_agents if each.attention is not None]
    return Importance(
        name=of_agents[0].name,
        changed=sum(each.changed for each in of_agents) / len(of_agents),
        changed_interval=_widest([each.changed_interval for each in of_agents]),
        excess_lost=sum(means) / len(means) if means else None,
        excess_lost_interval=_widest(bounds) if bounds else None,
        attention=sum(attention) / len(attention) if attention else None,
    )


def _widest(intervals: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min(low for low, _ in intervals), max(high for _, high in intervals)
