"""How the time of a generation grows with agents, columns, window and replay."""

from collections.abc import Sequence
from math import log
from statistics import median

import numpy as np

from benchmarks.measure import seconds_of
from benchmarks.results import Section
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.generation import TrainingState, evaluate, evolve, start_training, train
from eigen_core.machine import tune_allocator
from eigen_core.market import Panel
from eigen_core.market.panel import panel_of_prices

_ENCODERS = ("filter_bank", "tcn")
_AGENTS, _COLUMNS, _WINDOW, _REPLAY = 16, 108, 64, 12_500
_GROWTH: dict[str, tuple[int, int, int]] = {
    "agents": (4, 16, 64),
    "columns": (20, 108, 669),
    "window": (64, 128, 504),
    "replay": (12_500, 50_000, 500_000),
}
_GENERATIONS = 3
_PHASES = {"evaluate": evaluate, "train": train, "evolve": evolve}
_TRADABLE, _FEATURES, _DAYS = 108, 9, 1_200
_SETTINGS = (
    "device=cpu",
    "market.validation_days=160",
    "market.holdout_days=0",
    "replay.minimum=100",
    "learner.gradient_steps=1",
    "learner.batch_size=24",
    "learner.block_days=256",
    "evaluation.slices=1",
    "evaluation.lowest=1",
    "evaluation.fitness_slices=0",
    "evaluation.champion_validation_share=1",
    "evaluation.validation_slices=1",
    "evaluation.validation_lowest=1",
)
"""Of a run whose phases are as short as they can be."""
_LINEAR = 1.05
"""Exponents up to this one count as linear: times differ by a few percent from run to run."""


def run() -> Section:
    """Run generations of growing sizes with both encoders."""
    tune_allocator()
    found = {
        (encoder, name): [_generation(encoder, name, size) for size in sizes]
        for encoder in _ENCODERS
        for name, sizes in _GROWTH.items()
    }
    exponents = {key: _exponent(_GROWTH[key[1]], times) for key, times in found.items()}
    steeper = [f"{encoder} over {name}" for (encoder, name), exponent in exponents.items() if exponent > _LINEAR]
    verdict = f"Steeper than linear: {', '.join(steeper)}." if steeper else "None grows faster than its size."
    return Section(
        title="A generation over sizes",
        method=f"Middle of {_GENERATIONS} generations after a first one, of runs of {_AGENTS} agents, {_COLUMNS} "
        "columns (at most 108 of them tradable, random prices of 1,200 days), window "
        f"{_WINDOW} and {_REPLAY:,} transitions, of which one size grows; a gradient step of 24 transitions in blocks "
        "of 256 days, an episode of a kind. Groups of agents are those that `population.group_size` 0 chooses. The "
        "exponent is that of the power of the size by which the whole time grows from the middle size to the largest.",
        columns=("encoder", "what grows", "sizes", *(f"{phase}: s" for phase in _PHASES), "exponent"),
        rows=[
            [encoder, name, _shown(_GROWTH[name], ",")]
            + [_shown([times[phase] for times in found[encoder, name]], ".2f") for phase in _PHASES]
            + [f"{exponents[encoder, name]:.2f}"]
            for encoder, name in found
        ],
        remarks=(verdict,),
    )


def _shown(values: Sequence[float], form: str) -> str:
    return " / ".join(format(value, form) for value in values)


def _exponent(sizes: Sequence[int], times: Sequence[dict[str, float]]) -> float:
    *_, before, last = (sum(phases.values()) for phases in times)
    return log(last / before) / log(sizes[-1] / sizes[-2])


def _generation(encoder: str, name: str, size: int) -> dict[str, float]:
    """Return the time of each phase (seconds)."""
    sizes = {"agents": _AGENTS, "columns": _COLUMNS, "window": _WINDOW, "replay": _REPLAY} | {name: size}
    config = load_config(
        "quickstart",
        [
            *_SETTINGS,
            f"network.encoder={encoder}",
            f"population.size={sizes['agents']}",
            f"market.window={sizes['window']}",
            f"replay.capacity={sizes['replay']}",
        ],
    )
    state = start_training(config, random_panel(config, sizes["columns"]))
    _run(state)
    while state.replay.size < state.replay.capacity:
        state.commit(replay=state.replay.appended(state.replay.newest(min(state.replay.size, _REPLAY // 2))))
    measured = [_run(state) for _ in range(_GENERATIONS)]
    return {phase: median(times[phase] for times in measured) for phase in _PHASES}


def _run(state: TrainingState) -> dict[str, float]:
    return {phase: seconds_of(lambda compute=compute: compute(state)) for phase, compute in _PHASES.items()}  # type: ignore[misc]


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
