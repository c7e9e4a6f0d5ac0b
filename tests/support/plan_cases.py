"""What a probe could have measured."""

from dataclasses import replace

from eigen_core.config import Config
from eigen_core.planning.probe import ProbeResult
from eigen_core.planning.sizes import Memory

MB = 1_000_000
MEASURED = ProbeResult(
    process=340 * MB,
    started=Memory(100 * MB, 100 * MB),
    phases={
        "start": Memory(150 * MB, 150 * MB),
        "evaluate": Memory(80 * MB, 80 * MB),
        "train": Memory(200 * MB, 200 * MB),
        "evolve": Memory(10 * MB, 10 * MB),
    },
    seconds={"evaluate": 1.0, "train": 2.0, "evolve": 0.5},
    playing=4,
    learning=8,
    probe_seconds=3.0,
)


def pretended_probe(config: Config, shape: object, limit: int) -> ProbeResult:  # noqa: ARG001 - as a probe is called
    """Find the same of every run, but less where agents learn one by one."""
    less = {**MEASURED.phases, "train": Memory(100 * MB, 100 * MB)}
    return replace(MEASURED, phases=less) if config.population.group_size == 1 else MEASURED
