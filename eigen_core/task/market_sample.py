"""A piece of a run on a market of random numbers, small enough to be timed."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from eigen_core.config import Config, merge
from eigen_core.market import Panel, panel_of_prices
from eigen_core.market.panel import PanelFacts
from eigen_core.networks.encoders import encoder_class
from eigen_core.randomness import keyed_generator
from eigen_core.task.needs import Sample

EvaluatedDays = Callable[[Config, PanelFacts], int]
"""Days that an agent of a run encodes for the episodes of a generation."""

# Days of a column that agents encode, together: half a second on one core. Of few, each costs more than in the run.
_MOST_EVALUATED = 1_000_000
_MOST_LEARNED = 100_000
# As many after the first with an actor that moves in each second step as without.
_TIMED_STEPS = 3
_FEWEST_AGENTS, _ENOUGH_AGENTS = 2, 8
_ONE_VALIDATION = {
    "fitness_slices": 0,
    "validation_slices": 1,
    "validation_lowest": 1,
    "champion_validation_share": 1.0,
    "champion_standard_errors": 0.0,
}
_FEWEST_COLUMNS = 8
# What a longer market changes is how often episodes share a day, which is counted for the run and for its piece.
_MOST_DAYS = 10_000


def market_sample(
    config: Config, panel: PanelFacts, group: int, evaluated_days: EvaluatedDays, *, whole_group: bool
) -> Sample:
    """Return a piece of a run: its time is proportional to the days of columns that are encoded.

    Args:
        config, panel: the run.
        group: agents of the run that are computed at a time, at most.
        evaluated_days: counts what an agent of a run encodes in the evaluate phase.
        whole_group: see `TaskNeeds.sample`.
    """
    piece, facts = _piece(config, panel, group, evaluated_days, whole_group=whole_group)
    return Sample(
        piece,
        _random_panel(piece, facts),
        facts,
        evaluated=_evaluated(config, panel, evaluated_days) / _evaluated(piece, facts, evaluated_days),
        learned=_learned(config, panel) / _learned(piece, facts),
    )


def _evaluated(config: Config, panel: PanelFacts, evaluated_days: EvaluatedDays) -> int:
    """Days of columns that all agents encode in the evaluate phase."""
    return config.population.size * evaluated_days(config, panel) * panel.columns


def _learned(config: Config, panel: PanelFacts) -> int:
    """Days of columns that all agents encode to learn from a batch."""
    learner, encoder = config.learner, encoder_class(config.network)
    days = panel.block_days(config) if encoder.block_bound else learner.batch_size
    return config.population.size * (days + encoder.needs(config, panel).days_before) * panel.columns


def _piece(
    config: Config, panel: PanelFacts, group: int, evaluated_days: EvaluatedDays, *, whole_group: bool
) -> tuple[Config, PanelFacts]:
    """Return the largest piece of a run that is small enough."""
    learner, evaluation, market = config.learner, config.evaluation, config.market
    episode = config.trading.episode_days
    agents, columns = max(group, _FEWEST_AGENTS), panel.columns
    steps = min(learner.gradient_steps, _TIMED_STEPS)
    learning = config.evolution.learning_agents
    one_validation = False
    batch, block, slices = (
        min(learner.batch_size, config.trading.trading_days),
        panel.block_days(config),
        evaluation.slices,
    )

    def changed() -> tuple[Config, PanelFacts]:
        validation = min(market.validation_days, max(_MOST_DAYS // 4, episode))
        longest = max(_MOST_DAYS, market.window + 2 * episode, block) + validation + market.purge_days
        days = min(panel.days - market.holdout_days, longest)
        sections = {
            "generations": 1,
            "market": {"validation_days": validation, "holdout_days": 0},
            "population": {"size": agents, "group_size": min(group, agents)},
            "evolution": {"learning_agents": learning and max(learning * agents // config.population.size, 1)},
            "replay": {"capacity": agents * slices * episode, "minimum": 1},
            "learner": {
                "gradient_steps": steps,
                "accumulation_steps": learner.accumulation_steps if whole_group else 1,
                "batch_size": batch,
                "block_days": block,
                "epochs": learner.epochs if whole_group else 1,
            },
            "evaluation": {
                "slices": slices,
                "lowest": min(evaluation.lowest, slices),
                **(_ONE_VALIDATION if one_validation else {}),
            },
        }
        assets = max(panel.assets * columns // panel.columns, 1)
        facts = replace(panel, days=days, columns=columns, assets=assets)
        return Config(**merge(config.model_dump(mode="json"), sections)), facts

    piece = changed()
    while not whole_group and _learned(*piece) > _MOST_LEARNED:
        if agents > _FEWEST_AGENTS:
            agents = max(agents // 2, _FEWEST_AGENTS)
        elif columns > _FEWEST_COLUMNS:
            columns = max(columns // 2, _FEWEST_COLUMNS)
        elif max(batch, block) > episode:
            block //= 2
        else:
            break
        piece = changed()
    while (
        not whole_group
        and _evaluated(*piece, evaluated_days) > _MOST_EVALUATED
        and not (one_validation and slices == 1)
    ):
        if agents > _ENOUGH_AGENTS:
            agents = max(agents // 2, _ENOUGH_AGENTS)
        elif slices > 1:
            slices //= 2
        else:
            one_validation = True
        piece = changed()
    return piece


def _random_panel(config: Config, facts: PanelFacts) -> Panel:
    generator = keyed_generator(0, 0, "plan", "calibration")
    features = generator.standard_normal((facts.days, facts.columns, facts.features), dtype=np.float32)
    close = 100.0 * np.exp(np.cumsum(0.01 * generator.standard_normal((facts.days, facts.assets)), axis=0))
    dates = np.datetime64("2000-01-01") + np.arange(facts.days)
    symbols = [f"S{column}" for column in range(facts.columns)]
    names = [f"feature{index}" for index in range(facts.features)]
    prices = (close, close * 1.01, close * 0.99, close)
    return panel_of_prices(features, *prices, dates, symbols, names, config.market)
