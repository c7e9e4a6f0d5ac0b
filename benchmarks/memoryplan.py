"""The memory plan, which a probe measures, beside the memory of `eigen train`."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.measure import peak_bytes
from benchmarks.results import Section
from eigen_core.common.randomness import keyed_generator

_MB = 1e6
GOAL = 0.15
_DAYS, _COLUMNS, _ASSETS = 3_700, 669, 108
# Few gradient steps: their number does not change the memory.
_FEW_STEPS = ("learner.gradient_steps=8", "replay.minimum=1")
_SHORT = (*_FEW_STEPS, "generations=4")
# Their generations are so short that in 4 of them the process that draws plots often meets no phase at its peak.
_QUICK = (*_FEW_STEPS, "generations=12")
_FILLING = ("learner.gradient_steps=2", "reporting.plot_every=0")
_UNUSED = ("resume",)


@dataclass(frozen=True)
class Case:
    """A preset with settings; `synthetic`: on random prices of 669 columns, else on the bundled prices."""

    name: str
    preset: str
    settings: tuple[str, ...] = _SHORT
    synthetic: bool = False


CASES = (
    *(Case(name, name, _QUICK) for name in ("quickstart", "ddpg", "portfolio")),
    *(Case(name, name) for name in ("eigen2", "eigen2-classic")),
    Case("ppo", "ppo", ("generations=4",)),
    *(Case(name, name) for name in ("pendulum", "swimmer", "halfcheetah")),
    *(Case(name, name, ("generations=4",)) for name in ("pendulum-ppo", "cartpole")),
    Case("ddpg, tcn", "ddpg", ("network.encoder=tcn", *_SHORT)),
    Case("ddpg, sac", "ddpg", ("learner.algorithm=sac", *_SHORT)),
    Case("portfolio, direct", "portfolio", ("learner.algorithm=direct", *_QUICK)),
    Case("ddpg, two workers", "ddpg", ("workers=2", *_SHORT)),
    Case("ddpg, 32 agents", "ddpg", ("population.size=32", "replay.capacity=150000", *_SHORT)),
    Case(
        "ddpg, 500,000 transitions",
        "ddpg",
        ("replay.capacity=500000", "evaluation.slices=50", "generations=5", *_FILLING),
    ),
    Case(
        "eigen2, full shape",
        "eigen2",
        ("network.encoder=filter_bank", "market.features=classic", *_SHORT),
        synthetic=True,
    ),
)


@dataclass(frozen=True)
class Compared:
    """A case with the output of `eigen plan --json`, and the measured peak and size on disk (bytes)."""

    case: Case
    plan: dict[str, Any]
    measured: int
    disk_bytes: int

    @property
    def planned(self) -> int:
        """The highest peak of a run that is not resumed (bytes)."""
        return max(int(held["host_bytes"]) for phase, held in self.plan["phases"].items() if phase not in _UNUSED)

    @property
    def error(self) -> float:
        return self.planned / self.measured - 1.0

    def row(self) -> list[str]:
        memory, disk = (
            f"{planned / _MB:,.0f} / {measured / _MB:,.0f}"
            for planned, measured in (
                (self.planned, self.measured),
                (self.plan["disk"]["run_bytes"], self.disk_bytes),
            )
        )
        return [self.case.name, memory, f"{100 * self.error:+.1f} %", disk]


def run(names: Sequence[str] = ()) -> Section:
    """Plan and train the cases of these names, or all."""
    compared = []
    for case in CASES:
        if not names or case.name in names:
            with tempfile.TemporaryDirectory(prefix="eigen-plan-", ignore_cleanup_errors=True) as folder:
                compared.append(compare(case, Path(folder)))
                print(*compared[-1].row(), sep="  ", flush=True)
    worst = max(compared, key=lambda found: abs(found.error))
    return Section(
        title="The memory plan and the memory of runs",
        method="MB planned / MB measured. Peak of the resident memory of the training process and its children (plots, "
        "workers): by `eigen plan`, which measures a piece in a child process, and in a run of `eigen train` with "
        "checkpoints, plots and holdout, sampled 20 times a second, with the system's own peak. Settings: "
        + "; ".join(f"*{found.case.name}*: {_settings_of(found.case)}" for found in compared)
        + f". The synthetic market has {_DAYS:,} days, {_COLUMNS} columns ({_ASSETS} tradable) and 9 features. One "
        "torch thread.",
        columns=("", "peak", "error", "run on disk"),
        rows=[found.row() for found in compared],
        remarks=(
            f"The goal is an error of at most {GOAL:.0%} at the peak; the largest is {100 * worst.error:+.1f} % "
            f"(*{worst.case.name}*).",
        ),
    )


def _settings_of(case: Case) -> str:
    data = ", the synthetic market" if case.synthetic else ""
    return f"preset `{case.preset}` with {', '.join(f'`{one}`' for one in case.settings)}{data}"


def compare(case: Case, folder: Path) -> Compared:
    """Plan and train a case, with all files in `folder`."""
    settings = [*case.settings, f"checkpoint.store={folder / 'runs'}", "device=cpu"]
    settings += _market(folder) if case.synthetic else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "EIGEN_"))}
    environment |= {
        "EIGEN_CACHE": str(folder / "cache"),
        "PREFECT_HOME": str(folder / "prefect"),
        "OMP_NUM_THREADS": "1",
    }
    eigen = [sys.executable, "-P", "-m", "flows.cli"]
    chosen = ["--preset", case.preset, *(word for setting in settings for word in ("--set", setting))]
    planned = subprocess.run(
        [*eigen, "plan", "--json", *chosen], env=environment, check=True, stdout=subprocess.PIPE
    ).stdout
    measured = peak_bytes([*eigen, "train", "--run", "measured", *chosen], environment)
    taken = sum(path.stat().st_size for path in (folder / "runs" / "measured").rglob("*") if path.is_file())
    return Compared(case, json.loads(planned), measured, taken)


def _market(folder: Path) -> list[str]:
    """Write random walks as a long Parquet file and return the settings that train on them."""
    symbols = [f"S{column:03d}" for column in range(_COLUMNS)]
    generator = keyed_generator(1, 0, "market", "memory plan", "prices")
    shape = (_DAYS, _COLUMNS)
    close = 100.0 * np.exp(np.cumsum(0.0003 + 0.01 * generator.standard_normal(shape), axis=0))
    opened = np.vstack([close[:1], close[:-1]]) * np.exp(0.002 * generator.standard_normal(shape))
    days = np.busday_offset("2005-01-03", np.arange(_DAYS), roll="forward").astype("datetime64[ns]")
    prices = {
        "date": np.repeat(days, _COLUMNS),
        "symbol": np.tile(np.array(symbols), _DAYS),
        "open": opened.ravel(),
        "high": (np.maximum(opened, close) * 1.003).ravel(),
        "low": (np.minimum(opened, close) * 0.997).ravel(),
        "close": close.ravel(),
    }
    path = folder / "prices.parquet"
    pd.DataFrame(prices).to_parquet(path)
    context = ",".join(f'"{name}"' for name in symbols[_ASSETS:])
    return [f"market.data={path}", f"market.context=[{context}]"]


def main() -> None:
    from rich.console import Console

    parser = argparse.ArgumentParser(prog="python -m benchmarks.memoryplan", description=__doc__)
    parser.add_argument("names", nargs="*", help="cases; none: all")
    run(parser.parse_args().names).show(Console(width=160))


if __name__ == "__main__":
    main()
