"""Where the time of a generation goes."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.plain_run import PHASES, run_generation
from benchmarks.results import Section
from eigen_core.checkpoint import RunDirectory
from eigen_core.config.loading import load_config
from eigen_core.generation import start_training
from eigen_core.market import build_panel

_CASES: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("quickstart", (), 5),
    ("quickstart with tcn", ("network.encoder=tcn", "learner.gradient_steps=4"), 1),
)


def run() -> Section:
    """Run generations of preset quickstart, with its own encoder and with the convolutions."""
    rows: list[list[str]] = []
    for name, assignments, generations in _CASES:
        rows += _rows(name, assignments, generations)
    return Section(
        title="A generation by phase",
        method="Preset quickstart on the bundled prices (16 agents, 5 training and 3 validation episodes each, 32 "
        "gradient steps on blocks of the whole training range), middle of generations 2 to 6; with tcn: 4 gradient "
        "steps instead of 32 on blocks of 1,000 days, generation 2; plots are drawn in every generation here and "
        "waited for; a training draws every fifth, beside the next generation.",
        columns=("seconds (share)", *PHASES, "generation"),
        rows=rows,
    )


def _rows(name: str, assignments: Sequence[str], generations: int) -> list[list[str]]:
    config = load_config("quickstart", assignments)
    state = start_training(config, build_panel(config)[0])
    with tempfile.TemporaryDirectory(prefix="eigen-benchmark-") as folder:
        directory = RunDirectory.create(Path(folder), "generation", config.model_dump(mode="json"))
        with directory.lock():
            measured = [run_generation(state, directory, plotted=True) for _ in range(1 + generations)][1:]
    seconds = {phase: median(times[phase] for times in measured) for phase in PHASES}
    total = sum(seconds.values())
    shares = [f"{seconds[phase]:.3f} ({100 * seconds[phase] / total:.1f} %)" for phase in PHASES]
    return [[name, *shares, f"{total:.3f}"]]
