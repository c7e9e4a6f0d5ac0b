"""Today's settings accept the configuration of every case of every benchmark; nothing is trained."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

import benchmarks
from benchmarks import (
    axes,
    baselines,
    control,
    gpu,
    gpu_case,
    kill,
    memoryplan,
    overhead,
    populations,
    soak,
    workers as workers_bench,
)
from benchmarks.__main__ import BENCHMARKS
from benchmarks.fuzz import small_run
from benchmarks.learning import bench
from benchmarks.results import RESULTS
from eigen_core.config import Config
from eigen_core.config.loading import config_from_values, load_config

PENDULUM = {f"{name}, {seed}": (settings, seed) for name, settings in populations._METHODS.items() for seed in (1, 2)}
CPU = torch.device("cpu")
CONFIGURATIONS: dict[str, Callable[[], Iterable[Config]]] = {
    "baselines": lambda: (case.config(size) for case in baselines._CASES for size in (0, 1)),
    "control": lambda: (load_config(control.preset_of(name), [f"task=gym:{name}"]) for name in ("Pendulum-v1",)),
    "fuzz": lambda: [small_run._config(Path("runs"))],
    "gpu": lambda: (
        gpu_case._config(CPU, make(encoder), small=small)
        for make in gpu._CASES.values()
        for encoder in gpu._ENCODERS
        for small in (False, True)
    ),
    "axes": lambda: (axes.config(days) for days in axes._JUDGED),
    # Runs under limits have the same.
    "kill": lambda: [config_from_values({**kill.CONFIG})],
    "learning": lambda: (
        one.config for part in bench.PARTS.values() for one in part.planned() if one.seed in part.seeds[:1]
    ),
    "memoryplan": lambda: (load_config(case.preset, case.settings) for case in memoryplan.CASES),
    "overhead": lambda: (load_config(overhead._PRESET, settings) for settings in overhead._CASES.values()),
    "populations": lambda: (
        load_config("pendulum", [f"seed={seed}", *populations._PENDULUM, *settings])
        for settings, seed in PENDULUM.values()
    ),
    "soak": lambda: [soak.soak_config(3, Path("runs"))],
    "workers": lambda: (
        load_config("ddpg", [f"population.size={agents}", *settings]) for _, agents, settings in workers_bench._CASES
    ),
}


@pytest.mark.parametrize("benchmark", CONFIGURATIONS)
def test_every_case_has_a_configuration(benchmark: str) -> None:
    assert list(CONFIGURATIONS[benchmark]())


@pytest.mark.parametrize("module", [one.name for one in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")])
def test_every_benchmark_can_be_imported(module: str) -> None:
    if not module.endswith("__main__"):
        importlib.import_module(module)


def test_each_section_of_the_results_has_a_script() -> None:
    sections = [line.split()[2] for line in RESULTS.read_text().splitlines() if line.startswith("<!-- benchmark: ")]
    by_hand = {"control", "fuzz", "gpu", "kill", "limits", "soak", "stop", "trust"}
    by_hand |= {part.section for part in bench.PARTS.values()}
    assert set(sections) <= {*BENCHMARKS, *by_hand}
