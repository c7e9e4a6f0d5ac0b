"""The memory plan beside what runs really take: each trained by `eigen train`, watched from outside."""

import argparse
import csv
import os
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.memory_picture import Span, draw_memory
from benchmarks.process_memory import Sample, highest, watched
from benchmarks.results import Section
from eigen_core.config import Config
from eigen_core.config.loading import load_config
from eigen_core.market import PanelFacts, build_panel
from eigen_core.planning import Phase, Plan, plan_of
from eigen_core.randomness import keyed_generator
from eigen_core.task import open_data
from eigen_core.units import size

_MB = 1e6
GOAL = 0.15
_DAYS, _COLUMNS, _ASSETS = 3_700, 669, 108
_RUN = "measured"
_PICTURE = Path(__file__).parent / "memoryplan.png"
_PICTURED = "eigen2"
# Those of a run that is not resumed.
RUN_PHASES: tuple[Phase, ...] = ("start", "evaluate", "train", "evolve", "checkpoint", "plot", "holdout")


@dataclass(frozen=True)
class Case:
    """A setting whose plan is compared.

    Attributes:
        key: a short name, for files.
        name: what it is called in the table.
        preset: the preset.
        settings: laid over it.
        synthetic: on a market made by a generator, of the size of the replaced system's; else on the bundled prices.
    """

    key: str
    name: str
    preset: str
    settings: tuple[str, ...] = ()
    synthetic: bool = False


CASES = (
    Case("quickstart", "quickstart", "quickstart"),
    Case(
        "tcn",
        "quickstart, tcn",
        "quickstart",
        ("network.encoder=tcn", "learner.gradient_steps=4", "generations=2"),
    ),
    Case(
        "eigen2",
        "eigen2, filter_bank",
        "eigen2",
        ("network.encoder=filter_bank", "market.features=classic", "generations=7"),
        synthetic=True,
    ),
    Case(
        "larger",
        "quickstart, 32 agents, 3 times the replay",
        "quickstart",
        ("population.size=32", "replay.capacity=150000", "generations=8"),
    ),
)


@dataclass(frozen=True)
class Compared:
    """A case that was planned and trained.

    Attributes:
        case: which.
        plan: what was expected.
        samples: what was seen.
        spans: its phases, in order.
        disk_bytes: what the run takes in its store.
    """

    case: Case
    plan: Plan
    samples: Sequence[Sample]
    spans: Sequence[Span]
    disk_bytes: int

    @property
    def planned(self) -> int:
        """The highest peak of a run that is not resumed (bytes)."""
        return max(self.plan.host_bytes(phase) for phase in RUN_PHASES)

    @property
    def error(self) -> float:
        """By which share the plan is above what was seen."""
        return self.planned / highest(self.samples) - 1.0

    def row(self) -> list[str]:
        """The case as a row of a table."""
        seen = _by_phase(self.samples, self.spans)
        cells = [pair(self.plan.host_bytes(phase), seen[phase]) if phase in seen else "-" for phase in RUN_PHASES]
        disk = pair(self.plan.disk.run_bytes, self.disk_bytes)
        return [self.case.name, *cells, pair(self.planned, highest(self.samples)), f"{100 * self.error:+.1f} %", disk]


def run(curves: Path | None = None) -> Section:
    """Plan and train all cases and draw one of them as `memoryplan.png`.

    Args:
        curves: folder for what was seen of each case, as a CSV file; None: it is not kept.
    """
    with tempfile.TemporaryDirectory(prefix="eigen-plan-", ignore_cleanup_errors=True) as folder:
        compared = [compare(case, Path(folder)) for case in CASES]
    if curves is not None:
        for found in compared:
            _write_curve(found.samples, curves / f"{found.case.key}-curve.csv")
    _draw(next(found for found in compared if found.case.key == _PICTURED))
    worst = max(compared, key=lambda found: abs(found.error))
    return Section(
        title="The memory plan beside what runs take",
        method="MB planned / MB seen. Peak of the resident memory of the training process and its children (Prefect's "
        "embedded server), as `eigen plan` has it and as a run of `eigen train` takes it with checkpoints, plots and "
        "holdout, from prices to a finished run with nothing in the cache: 20 looks a second from outside, and the "
        "system's own peak. Settings: " + "; ".join(f"*{case.name}*: {settings_of(case)}" for case in CASES) + ". "
        f"The synthetic market has {_DAYS:,} days, {_COLUMNS} columns ({_ASSETS} tradable) and 9 features. A dash: the "
        "phase was too short to be seen. One torch thread.",
        columns=("", *RUN_PHASES, "peak", "error", "run on disk"),
        rows=[found.row() for found in compared],
        remarks=(
            f"The goal is an error of at most {GOAL:.0%} at the peak; the largest is {100 * worst.error:+.1f} % "
            f"(*{worst.case.name}*). No constant of the plan was chosen by the last row.",
            f"[`{_PICTURE.name}`]({_PICTURE.name}) shows *{_name_of(_PICTURED)}*.",
        ),
    )


def _name_of(key: str) -> str:
    return next(case.name for case in CASES if case.key == key)


def settings_of(case: Case) -> str:
    """Return preset, settings and data of a case in words."""
    where = "the synthetic market" if case.synthetic else "the bundled prices"
    data = f", {where}" if load_config(case.preset, case.settings).task == "market" else ""
    return f"preset `{case.preset}` with {', '.join(f'`{one}`' for one in case.settings) or 'nothing changed'}{data}"


def pair(planned: int, seen: int) -> str:
    """Return both sizes in MB."""
    return f"{planned / _MB:,.0f} / {seen / _MB:,.0f}"


def compare(case: Case, root: Path) -> Compared:
    """Train a case in a folder of its own below `root`, and plan it.

    Args:
        case: which.
        root: where its run, its cache and Prefect's files are kept.
    """
    folder = root / case.key
    folder.mkdir()
    settings = [*case.settings, f"checkpoint.store={folder / 'runs'}", *(_market(folder) if case.synthetic else ())]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "EIGEN_"))}
    environment |= {
        "EIGEN_CACHE": str(folder / "cache"),
        "PREFECT_HOME": str(folder / "prefect"),
        "OMP_NUM_THREADS": "1",
    }
    assignments = [word for setting in settings for word in ("--set", setting)]
    eigen = [sys.executable, "-m", "flows.cli"]
    samples = watched([*eigen, "train", "--run", _RUN, "--preset", case.preset, *assignments], environment)
    config = load_config(case.preset, settings)
    taken = sum(path.stat().st_size for path in (folder / "runs" / _RUN).rglob("*") if path.is_file())
    return Compared(case, _plan(config, folder), samples, _spans(folder / "prefect" / "prefect.db"), taken)


def _plan(config: Config, folder: Path) -> Plan:
    """Plan the run as `eigen plan` does; the panel of a market is in the cache by now."""
    market = config.task == "market"
    facts = PanelFacts.of(build_panel(config, folder / "cache")[0]) if market else open_data(config).facts
    return plan_of(config, facts, device="cpu")


def _spans(database: Path) -> list[Span]:
    """Return the phases of a run, by the times that Prefect has recorded of its tasks."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        tasks = connection.execute(
            "select name, start_time, end_time from task_run where end_time is not null order by start_time"
        ).fetchall()
    spans = [Span("start", 0, 0.0, _seconds(tasks[0][1]))]
    for name, began, ended in tasks:
        phase, _, generation = name.rpartition("-")
        spans.append(Span(phase, int(generation), _seconds(began), _seconds(ended)))
    return spans


def _by_phase(samples: Sequence[Sample], spans: Sequence[Span]) -> dict[str, int]:
    """Return the highest of each phase (bytes)."""
    found: dict[str, int] = {}
    for span in spans:
        # The peak that the system knows may be that of the phase before: only looks count here.
        seen = [sample.own + sample.children for sample in samples if span.began <= sample.moment <= span.ended]
        if seen:
            found[span.phase] = max(found.get(span.phase, 0), *seen)
    return found


def _draw(found: Compared) -> None:
    planned, seen = size(found.planned), size(highest(found.samples))
    story = (
        f"{found.case.name}, 16 agents, {_COLUMNS} columns, 50,000 transitions: planned {planned}, seen "
        f"{seen}; the system that it replaces died of 175 GB."
    )
    host: dict[str, int] = {phase: found.plan.host_bytes(phase) for phase in RUN_PHASES}
    draw_memory(_PICTURE, story, found.samples, found.spans, host)


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()


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


def _write_curve(samples: Sequence[Sample], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    began = samples[0].moment
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("seconds", "process_mb", "children_mb"))
        for sample in samples:
            rows.writerow((f"{sample.moment - began:.2f}", f"{sample.own / _MB:.1f}", f"{sample.children / _MB:.1f}"))


def main() -> None:
    """Show the benchmark without keeping it."""
    from rich.console import Console

    parser = argparse.ArgumentParser(prog="python -m benchmarks.memoryplan", description=__doc__)
    parser.add_argument("--curves", type=Path, metavar="FOLDER", help="where to write what was seen, as CSV files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run(options.curves).show(Console(width=200))


if __name__ == "__main__":
    main()
