"""Groups of agents as they are chosen by bytes, against one agent after the other, over sizes of the run."""

from collections.abc import Callable

import numpy as np

from benchmarks.measure import take_turns
from benchmarks.population import learn_in_groups, learn_one_by_one, plain_learners
from benchmarks.results import Section
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.generation import TrainingState, evaluate, start_training
from eigen_core.learners.batches import BatchPlan
from eigen_core.market import Panel
from eigen_core.market.panel import panel_of_prices
from eigen_core.memory import tune_allocator
from eigen_core.randomness import keyed_generator

_AGENTS = (4, 16, 64)
_COLUMNS = (20, 108, 669)
_ENCODERS = ("filter_bank", "tcn")
_TRADABLE, _FEATURES, _DAYS = 108, 9, 1_200
_PLAIN_AGENTS = 4
_ROUNDS = 2
_BATCH = 24
SETTINGS = (
    "device=cpu",
    "market.validation_days=160",
    "market.holdout_days=0",
    "replay.minimum=100",
    "learner.gradient_steps=1",
    f"learner.batch_size={_BATCH}",
    "learner.block_days=256",
    "evaluation.slices=1",
    "evaluation.lowest=1",
    "evaluation.fitness_slices=0",
    "evaluation.champion_validation_share=1",
    "evaluation.validation_slices=1",
    "evaluation.validation_lowest=1",
)
"""Of a run whose phases are as short as they can be."""


def run() -> Section:
    """Take one gradient step with each encoder, number of agents and number of columns."""
    tune_allocator()
    return Section(
        title="Groups of agents chosen by bytes, over sizes",
        method=f"One gradient step of all agents (window 64, batch {_BATCH}, blocks of 256 days, at most {_TRADABLE} "
        "tradable columns, random prices), by turns: `DdpgLearner` in groups of the size that `population.group_size` "
        f"0 chooses, and a loop over `torch.nn` modules, which is measured with {_PLAIN_AGENTS} agents and taken to "
        "last as long for each further one. Agents, optimizers and targets of both are made before.",
        columns=("encoder", "agents", "columns", "group", "a step per agent (ms)", "in a loop (ms)", "loop / groups"),
        rows=[_row(encoder, agents, columns) for encoder in _ENCODERS for agents in _AGENTS for columns in _COLUMNS],
        remarks=(),
    )


def _row(encoder: str, agents: int, columns: int) -> list[str]:
    config = load_config("quickstart", [*SETTINGS, f"network.encoder={encoder}", f"population.size={agents}"])
    state = start_training(config, random_panel(config, columns))
    evaluate(state)
    plan = state.learner.plan(state.replay, agents, 1)
    assert isinstance(plan, BatchPlan)
    times = take_turns({"groups": _grouped(state, plan), "loop": _looped(state, plan)}, _ROUNDS)
    ours, loop = times["groups"].least / agents, times["loop"].least / _PLAIN_AGENTS
    return [
        encoder,
        str(agents),
        str(columns),
        str(state.group_size),
        f"{1e3 * ours:,.1f}",
        f"{1e3 * loop:,.1f}",
        f"{loop / ours:.2f}",
    ]


def _grouped(state: TrainingState, plan: BatchPlan) -> Callable[[], object]:
    population = state.population.clone()
    return lambda: learn_in_groups(state, plan, state.group_size, population)


def _looped(state: TrainingState, plan: BatchPlan) -> Callable[[], object]:
    learners, part = plain_learners(state, _PLAIN_AGENTS), plan.rows(slice(0, _PLAIN_AGENTS))
    return lambda: learn_one_by_one(state, part, learners)


def random_panel(config: Config, columns: int, days: int = _DAYS) -> Panel:
    """Return a panel of random prices, the same for the same number of columns and days."""
    generator = keyed_generator(1, 0, "benchmark", "groups")
    assets = min(columns, _TRADABLE)
    features = generator.standard_normal((days, columns, _FEATURES), dtype=np.float32)
    close = 100.0 * np.exp(np.cumsum(0.01 * generator.standard_normal((days, assets)), axis=0))
    dates = np.datetime64("2000-01-01") + np.arange(days)
    symbols = [f"S{column}" for column in range(columns)]
    names = [f"feature{index}" for index in range(_FEATURES)]
    prices = (close, close * 1.01, close * 0.99, close)
    return panel_of_prices(features, *prices, dates, symbols, names, config.market)
