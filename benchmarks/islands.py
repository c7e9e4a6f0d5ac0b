"""Whether islands find more of a known edge than one population of as many agents."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import torch
from torch import Tensor

from benchmarks.learning.judgement import judged
from benchmarks.learning.markets import known_market
from benchmarks.learning.table import Estimate
from benchmarks.learning.trial import trial_config
from benchmarks.results import Section
from eigen_core.config import Config
from eigen_core.generation import TrainingState, evaluate, evolve, start_training, train
from eigen_core.threads import usable_cores
from flows.migration import source_of

_ISLANDS, _AGENTS, _MIGRATION = 4, 8, 2
_CASES: tuple[tuple[str, float, str, int], ...] = (
    ("memory", 0.3, "both", 10),
    ("unblocked", 0.1, "both", 10),
    ("plain", 0.3, "evolution", 30),
)
"""Market, information coefficient of its signal, way to learn, generations."""
_SEEDS = range(9_701, 9_706)
_FORMS = ("one population", "islands", "islands apart")


@dataclass(frozen=True)
class _Trial:
    """A training of so many agents, in one of `_FORMS`."""

    market: str
    edge: float
    method: str
    generations: int
    form: str
    seed: int

    @property
    def configs(self) -> list[Config]:
        """Of each population."""
        populations = 1 if self.form == "one population" else _ISLANDS
        names = [f"island-{number}" for number in range(populations)]
        sizes = [f"population.size={_AGENTS * _ISLANDS // populations}"]
        if self.form == "islands":
            sizes += [f"evolution.islands={','.join(names)}", f"evolution.migration_generations={_MIGRATION}"]
            sizes += [f"checkpoint.keep_every={_MIGRATION}"]
        return [
            trial_config(self.market, 10 * self.seed + number, self.method, sizes, self.generations)
            for number in range(populations)
        ]

    def share(self) -> float:
        """Train; return what the champion with the highest validation earns of what the oracle earns (%)."""
        torch.set_num_threads(1)
        configs = self.configs
        known = known_market(self.market, configs[0], self.edge, self.seed)
        states = [start_training(config, known.panel) for config in configs]
        champions: dict[tuple[str, int], Tensor] = {}
        for generation in range(1, self.generations + 1):
            for state in states:
                evaluate(state)
                train(state)
            for number, state in enumerate(states):
                _give_immigrant(state, f"island-{number}", generation, champions)
                evolve(state)
                assert state.champion is not None
                champions[f"island-{number}", generation] = state.champion.weights
        best = max(states, key=lambda state: state.champion.validation if state.champion else -float("inf"))
        return float(judged(best, known)["share"]["champion"])


def _give_immigrant(state: TrainingState, run: str, generation: int, champions: dict[tuple[str, int], Tensor]) -> None:
    """As `await_immigrant`, without a store."""
    every = state.config.evolution.migration_generations
    if state.config.evolution.migrates(generation):
        state.commit(immigrant=champions[source_of(state.config, run, generation), generation - every])


def run() -> Section:
    """Train islands, one population of as many agents, and islands that exchange nothing, on markets with an edge."""
    trials = [_Trial(*case, form, seed) for case in _CASES for seed in _SEEDS for form in _FORMS]
    with ProcessPoolExecutor(usable_cores(), get_context("spawn")) as pool:
        shares = dict(zip(trials, pool.map(_Trial.share, trials), strict=True))
    return Section(
        title="Islands",
        method=f"Trainings of {_ISLANDS * _AGENTS} agents on the markets of `make bench-learning`, {len(_SEEDS)} seeds "
        f"each: one population; {_ISLANDS} islands of {_AGENTS} agents, each of which takes a champion every "
        f"{_MIGRATION} generations; the same islands, exchanging nothing. What the champion with the highest "
        "validation earns in the holdout, in percent of what an oracle earns: interquartile mean, 95 % interval of it. "
        "The last two columns: on how many seeds islands earn more than the other.",
        columns=("market", "IC", "method", "generations", *_FORMS, "more than one population", "more than apart"),
        rows=[_row(case, shares) for case in _CASES],
    )


def _row(case: tuple[str, float, str, int], shares: dict[_Trial, float]) -> list[str]:
    market, edge, method, generations = case
    one, islands, apart = ([shares[_Trial(*case, form, seed)] for seed in _SEEDS] for form in _FORMS)

    def more(other: Sequence[float]) -> str:
        return f"{sum(mine > its for mine, its in zip(islands, other, strict=True))} of {len(_SEEDS)}"

    estimates = [Estimate.of(found).shown() for found in (one, islands, apart)]
    return [market, f"{edge:g}", method, f"{generations}", *estimates, more(one), more(apart)]
