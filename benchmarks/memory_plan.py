"""The memory plan beside what runs really take: each in a process of its own, through the flow, with plots."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import torch

from benchmarks.results import Section
from eigen_core.config.loading import load_config
from eigen_core.market import build_panel
from eigen_core.memory import peak_resident_bytes, reset_peak
from eigen_core.planning import PHASES, PanelFacts, plan_of
from eigen_core.randomness import keyed_generator
from eigen_core.records import GenerationRecord, Telemetry

_MB = 1e6
_DAYS, _COLUMNS, _ASSETS = 3_700, 669, 108
_BETWEEN = "between"


@dataclass(frozen=True)
class Case:
    """A setting whose plan is compared.

    Attributes:
        name: what it is called in the table.
        preset: the preset.
        settings: laid over it.
        synthetic: on a market made by a generator, of the size of the replaced system's; else on the bundled prices.
    """

    name: str
    preset: str
    settings: tuple[str, ...]
    synthetic: bool = False


CASES = (
    Case("quickstart, 3 generations", "quickstart", ("generations=3",)),
    Case(
        "quickstart with tcn, 2 generations",
        "quickstart",
        ("generations=2", "network.encoder=tcn", "learner.gradient_steps=4"),
    ),
    Case(
        "eigen2 with filter_bank, 5 generations",
        "eigen2",
        ("generations=5", "network.encoder=filter_bank", "market.features=classic"),
        synthetic=True,
    ),
)


class Watch:
    """A training observer that notes the peak of the resident memory of each phase.

    Attributes:
        peaks: the highest of each phase over all generations (bytes).
    """

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self._phase = "start"
        reset_peak()

    def begin(self, phase: str) -> None:
        """Note the peak of the phase that ends."""
        self.peaks[self._phase] = max(self.peaks.get(self._phase, 0), peak_resident_bytes())
        reset_peak()
        self._phase = phase

    def started(self, generation: int, generations: int) -> None:  # noqa: ARG002 - the observer's interface
        """Training begins."""
        self.begin(_BETWEEN)

    def phase_started(self, generation: int, phase: str) -> None:  # noqa: ARG002 - the observer's interface
        """A phase begins."""
        self.begin(phase)

    def generation_finished(self, record: GenerationRecord, telemetry: Telemetry) -> None:  # noqa: ARG002 - the observer's interface
        """A generation is complete."""
        self.begin(_BETWEEN)


def run() -> Section:
    """Measure all cases."""
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="eigen-plan-") as folder:
        data = Path(folder) / "prices.parquet"
        _write_prices(data)
        for case in CASES:
            rows += _rows(case, Path(folder), data)
    return Section(
        title="The memory plan beside what runs take",
        method="Peak of the resident memory of the training process, without Prefect's server, as the plan predicts it "
        "and as a run through the flow takes it, with checkpoints, plots and holdout; one torch thread, the panel in "
        f"the cache. eigen2 runs on a synthetic market of {_DAYS:,} days, {_COLUMNS} columns ({_ASSETS} tradable) and "
        "9 features, until its replay is full. A dash: the phase was too short to raise the peak, or did not come.",
        columns=("MB planned / measured", *[phase for phase in PHASES if phase != "resume"], "peak", "error"),
        rows=rows,
    )


def _rows(case: Case, folder: Path, data: Path) -> list[list[str]]:
    settings = [*case.settings, f"checkpoint.store={folder / 'runs'}"]
    if case.synthetic:
        context = ",".join(f'"{name}"' for name in _symbols()[_ASSETS:])
        settings += [f"market.data={data}", f"market.context=[{context}]"]
    facts = PanelFacts(**_in_process(folder, "facts", case, settings))
    plan = plan_of(load_config(case.preset, settings), facts)
    peaks: dict[str, int] = _in_process(folder, "train", case, settings)
    planned = max(plan.host_bytes(phase, server=False) for phase in PHASES if phase != "resume")
    measured = max(peaks.values())
    cells = [
        f"{plan.host_bytes(phase, server=False) / _MB:,.0f} / {peaks[phase] / _MB:,.0f}" if phase in peaks else "-"
        for phase in PHASES
        if phase != "resume"
    ]
    whole = f"{planned / _MB:,.0f} / {measured / _MB:,.0f}"
    return [[case.name, *cells, whole, f"{100 * (planned / measured - 1):+.1f} %"]]


def _symbols() -> list[str]:
    return [f"S{column:03d}" for column in range(_COLUMNS)]


def _write_prices(path: Path) -> None:
    """Write random walks as a long Parquet file."""
    generator = keyed_generator(1, 0, "market", "memory plan", "prices")
    shape = (_DAYS, _COLUMNS)
    close = 100.0 * np.exp(np.cumsum(0.0003 + 0.01 * generator.standard_normal(shape), axis=0))
    opened = np.vstack([close[:1], close[:-1]]) * np.exp(0.002 * generator.standard_normal(shape))
    days = np.busday_offset("2005-01-03", np.arange(_DAYS), roll="forward").astype("datetime64[ns]")
    prices = {
        "date": np.repeat(days, _COLUMNS),
        "symbol": np.tile(np.array(_symbols()), _DAYS),
        "open": opened.ravel(),
        "high": (np.maximum(opened, close) * 1.003).ravel(),
        "low": (np.minimum(opened, close) * 0.997).ravel(),
        "close": close.ravel(),
    }
    pd.DataFrame(prices).to_parquet(path)


def _in_process(folder: Path, what: str, case: Case, settings: Sequence[str]) -> dict[str, int]:
    """Do `what` in a process of its own and return what it found."""
    found = folder / f"{what}.json"
    order = folder / f"{what}-order.json"
    order.write_text(json.dumps({"preset": case.preset, "settings": list(settings)}))
    environment = {**os.environ, "EIGEN_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "benchmarks.memory_plan", what, str(order), str(found)], check=True, env=environment
    )
    answer: dict[str, int] = json.loads(found.read_text())
    return answer


def _facts(preset: str, settings: Sequence[str]) -> dict[str, int]:
    return asdict(PanelFacts.of(build_panel(load_config(preset, settings))[0]))


def _train(preset: str, settings: Sequence[str]) -> dict[str, int]:
    from benchmarks.isolated_prefect import isolated_prefect

    with isolated_prefect():
        from flows.observer import observed_by
        from flows.train import train_flow

        watch = Watch()
        with observed_by(watch):
            train_flow(load_config(preset, settings), f"measured-{os.getpid()}")
        watch.begin(_BETWEEN)
    return watch.peaks


def main() -> None:
    """Do one piece of the benchmark in this process, or, without arguments, show all of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_plan", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("facts", "train"), help="what this process does; none: all")
    parser.add_argument("order", nargs="?", type=Path, help="file that says with which settings")
    parser.add_argument("found", nargs="?", type=Path, help="file for what was found")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what is None:
        from rich.console import Console

        run().show(Console(width=200))
        print(f"{psutil.virtual_memory().total / 1e9:.1f} GB in this machine")
        return
    order = json.loads(options.order.read_text())
    found = (_facts if options.what == "facts" else _train)(order["preset"], order["settings"])
    options.found.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
