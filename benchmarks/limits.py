"""Train under random memory limits below the need, and check how each run ends.

`python -m benchmarks.limits [--runs 20] [--seed 1]` resumes a run of two generations with `eigen train`. Some limits
are below the plan; in the other runs a phase takes memory beyond the plan. The exit code is 1 if a run is ended by
anything but the plan or the guard, or leaves damaged files.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks.kill import CONFIG, settings_of
from benchmarks.kill_training import facts_of
from benchmarks.limited_training import PHASES, Appetite, Limits
from benchmarks.results import Section, publish
from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.common.text import size
from eigen_core.config.model import MemoryConfig
from eigen_core.machine.memory_guard import MemoryGuardError

RUN = "base"
BEGUN = 2
HARD = MemoryConfig().hard
_PATIENCE_SECONDS = 400.0
_EXIT_MEMORY = 3
_AMPLE_ADDRESSES = 8_000_000_000

Kind = Literal["memory.limit_gb", "RLIMIT_AS"]
KINDS: tuple[Kind, ...] = ("memory.limit_gb", "RLIMIT_AS")


@dataclass(frozen=True)
class Need:
    """Memory of the training (bytes).

    Attributes:
        measured, least: peak over all generations and its smallest value over them, that counts against each limit.
        admitted: smallest limit that the plan accepts.
    """

    measured: Mapping[Kind, int]
    least: Mapping[Kind, int]
    loading: Mapping[Kind, int]
    admitted: Mapping[Kind, int]
    largest: str


@dataclass(frozen=True)
class Case:
    """A run under a limit; `need` is the smallest sufficient one (bytes)."""

    kind: Kind
    limit: int
    need: int
    appetite: Appetite | None

    def options(self) -> list[str]:
        return ["--set", f"memory.limit_gb={self.limit / 1e9:.6f}"] if self.kind == "memory.limit_gb" else []

    def limits(self, notes: Path) -> Limits:
        return Limits(self.limit if self.kind == "RLIMIT_AS" else None, self.appetite, str(notes))


@dataclass
class Outcome:
    """The end of a run.

    Attributes:
        by: "plan"; "guard"; "refusal" of a limit that is too small to load the libraries; or "neither".
        largest: largest part by plan or report, and its size (bytes).
        peak: resident memory at the peak by the report, as a share of the limit; 0 without a report.
    """

    case: Case
    exit_code: int
    by: str = "neither"
    phase: str = ""
    largest: tuple[str, int] = ("", 0)
    peak: float = 0.0
    faults: list[str] = field(default_factory=list)


class Limiter:
    """Runs trainings under limits in `folder`, with these environment variables, and checks their files."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")},
            "PREFECT_HOME": str(folder / "home"),
            "EIGEN_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "COLUMNS": "120",
            **(environment or {}),
        }

    def command(
        self, name: str, arguments: Sequence[str], limits: Limits | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `eigen`; `name` is the folder of its store."""
        given = ["-m", "flows.cli"]
        if limits is not None:
            path = self._folder / f"{name}.limits.json"
            limits.write(path)
            given = ["-m", "benchmarks.limited_training", str(path)]
        return subprocess.run(
            [sys.executable, "-P", *given, *arguments],
            env=self._environment,
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
        )

    def train(
        self, name: str, generations: int, options: Sequence[str] = (), limits: Limits | None = None
    ) -> subprocess.CompletedProcess[str]:
        settings = [*settings_of(CONFIG), *options]
        given = ["train", "--run", RUN, "--store", str(self.store(name)), "--generations", str(generations)]
        return self.command(name, [*given, *settings], limits)

    def store(self, name: str) -> Path:
        return self._folder / "stores" / name

    def facts(self, name: str) -> dict[str, str]:
        settings = {"store": str(self.store(name)), "local": str(self._folder / "local")}
        return facts_of({**CONFIG, "checkpoint": settings}, RUN, {})

    def begin(self) -> None:
        _require(self.train("begun", BEGUN))

    def copy(self, name: str) -> Path:
        return Path(shutil.copytree(self.store("begun"), self.store(name)))

    def measure(self) -> Need:
        """Train without a limit, in store `undisturbed`, and measure."""
        self.copy("undisturbed")
        notes = self._folder / "undisturbed.notes"
        _require(self.train("undisturbed", CONFIG["generations"], limits=Limits(None, None, str(notes))))
        shown = _require(
            self.command("undisturbed", ["show", RUN, "--json", "--store", str(self.store("undisturbed"))])
        )
        peaks = [row["rss_peak_bytes"] for row in json.loads(shown.stdout)["history"][BEGUN:]]
        return self.plan((min(peaks), max(peaks)), _notes(notes)[1])

    def plan(self, resident: tuple[int, int], addresses: int) -> Need:
        """Return the need by measurement (least and most resident memory, addresses) and by plan."""
        notes = self._folder / "plan.notes"
        # With ample addresses the plan states how many it counts as used.
        limits = Limits(_AMPLE_ADDRESSES, None, str(notes))
        document = json.loads(_require(self.command("plan", ["plan", "--json", *settings_of(CONFIG)], limits)).stdout)
        peak = document["peak_host_bytes"]
        apart = HARD * _AMPLE_ADDRESSES - document["verdicts"][0]["limit_bytes"]
        return Need(
            measured={"memory.limit_gb": resident[1], "RLIMIT_AS": addresses},
            least={"memory.limit_gb": resident[0], "RLIMIT_AS": addresses},
            loading={"memory.limit_gb": 0, "RLIMIT_AS": _notes(notes)[1]},
            admitted={"memory.limit_gb": int(peak / HARD), "RLIMIT_AS": int((peak + apart) / HARD)},
            largest=max(document["parts"], key=lambda part: part["host_bytes"])["name"],
        )

    def run(self, case: Case, name: str, need: Need) -> Outcome:
        folder = self.copy(name) / RUN
        before = _files(folder)
        notes = self._folder / f"{name}.notes"
        ended = self.train(name, CONFIG["generations"], case.options(), case.limits(notes))
        outcome = Outcome(case, ended.returncode)
        if ended.returncode != _EXIT_MEMORY:
            outcome.faults.append(f"exit code {ended.returncode}: {ended.stderr[-500:]}")
        for word in ("Traceback", "MemoryError"):
            if word in ended.stderr:
                outcome.faults.append(f"{word} on standard error: {ended.stderr[-2_000:]}")
        if "does not fit" in ended.stderr:
            outcome.by = "plan"
            self._look_at_the_plan(ended.stdout, need, outcome)
        elif "torch and Prefect alone take" in ended.stderr:
            outcome.by, outcome.largest = "refusal", ("torch and Prefect", 0)
        else:
            self._look_at_the_report(folder, ended.stderr, _notes(notes)[0], outcome)
        if outcome.by in ("plan", "refusal") and _files(folder) != before:
            outcome.faults.append("files of the run have changed although it was refused")
        if case.appetite is not None and outcome.by != "guard":
            outcome.faults.append(f"ended by {outcome.by}, not by the guard: {ended.stderr[-500:]}")
        verified = self.command(name, ["verify", RUN, "--deep", "--store", str(self.store(name))])
        if verified.returncode != 0:
            outcome.faults.append(f"verify --deep: {verified.stdout[-500:]}{verified.stderr[-500:]}")
        return outcome

    @staticmethod
    def _look_at_the_plan(printed: str, need: Need, outcome: Outcome) -> None:
        rows = [line.split("  ")[0].strip() for line in printed.splitlines() if " MB " in line or " GB " in line]
        first = next((row for row in rows if row), "")
        outcome.largest = (first, 0)
        if first != need.largest:
            outcome.faults.append(f"the plan begins with {first!r}, its largest part is {need.largest!r}")

    def _look_at_the_report(self, folder: Path, told: str, held: int, outcome: Outcome) -> None:
        reports = sorted((folder / "memory").glob("2*.json"))
        if len(reports) != 1 or not reports[0].with_suffix(".md").exists():
            outcome.faults.append(f"{len(reports)} reports: {told[-500:]}")
            return
        outcome.by = "guard"
        report = json.loads(reports[0].read_text())
        outcome.phase = reports[0].stem.rsplit("-", 1)[1]
        outcome.largest = (report["parts"][0]["name"], report["parts"][0]["host"])
        outcome.peak = max(phase["peak_bytes"] for phase in report["phases"]) / report["limits"][0]["bytes"]
        said = reports[0].with_suffix(".md").read_text()
        named = f"The largest part of the run is {outcome.largest[0]} "
        if named not in said or str(reports[0].with_suffix(".md")) not in told:
            outcome.faults.append(f"report or command do not name the largest part or the report: {told[-800:]}")
        if outcome.case.appetite is not None:
            outcome.faults += _faults_of(report, held, outcome)

    def compare(self, outcome: Outcome, name: str, expected: Mapping[str, str]) -> None:
        """Resume without a limit to the end, and compare."""
        from eigen_core.run import train_run
        from eigen_core.runs.handle import Run

        try:
            train_run(self.config(name), Run.of(self.config(name), RUN))
            equal = self.facts(name) == dict(expected)
        except (InputError, MemoryGuardError, RuntimeError, ValueError) as error:
            outcome.faults.append(f"it cannot be resumed: {error}")
            return
        if not equal:
            outcome.faults.append("its end differs from that of an undisturbed run")

    def config(self, name: str, **sections: Mapping[str, Any]) -> Any:  # noqa: ANN401 - loaded late: a Config
        from eigen_core.config.loading import config_from_values

        return config_from_values({**CONFIG, "checkpoint": {"store": str(self.store(name))}, **sections})


def _faults_of(report: Mapping[str, Any], held: int, outcome: Outcome) -> list[str]:
    """Return the failures of a report on a phase that held this many bytes."""
    faults = []
    assert outcome.case.appetite is not None
    if outcome.phase != outcome.case.appetite.phase:
        faults.append(f"it was ended in {outcome.phase}")
    shown = outcome.case.appetite.content == "tensor"
    name = "tensors of no known owner" if shown else "memory that no tensor shows"
    found = {part["name"]: part["host"] for part in report["parts"]}.get(name, 0)
    if found < 0.9 * held:
        faults.append(f"{name}: {found:,} bytes; it held {held:,}")
    return faults


def _notes(path: Path) -> tuple[int, int]:
    """Return the bytes that a phase held and the peak of the address space; 0 if the process could not write them."""
    held, addresses = path.read_text().split() or ("0", "0")
    return int(held), int(addresses)


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    found = ((path.relative_to(folder), path.stat()) for path in folder.rglob("*") if path.is_file())
    return {
        str(path): (status.st_size, status.st_mtime_ns)
        for path, status in found
        if path.parts[0] not in ("lease", "lock")
    }


def _require(ended: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, ended.args))} ended with {ended.returncode}: {ended.stderr}")
    return ended


# Of five runs, those that the guard has to end.
_GUARDED_OF_FIVE = 3
_EXTRA = {"memory.limit_gb": 700_000_000, "RLIMIT_AS": 2_200_000_000}
_PIECES = (32, 256, 2_000)


def drawn(index: int, seed: int, need: Need) -> Case:
    """Draw a run: three of five with an appetite, in each phase in turn."""
    generator = keyed_generator(seed, 0, "limits", index, "case")
    kind = KINDS[int(generator.integers(len(KINDS)))]
    row, place = divmod(index, 5)
    if place >= _GUARDED_OF_FIVE:
        return below_the_need(kind, need, generator)
    return with_appetite(PHASES[(row * _GUARDED_OF_FIVE + place) % len(PHASES)], kind, need, generator)


def below_the_need(kind: Kind, need: Need, generator: np.random.Generator) -> Case:
    """Draw a limit that the plan of the training refuses.

    A training takes hardly more addresses than its libraries, and the plan counts those that may come as well.
    """
    enough = int(need.measured[kind] / HARD)
    lowest, highest = max(int(1.1 * need.loading[kind]), enough // 5), int(0.95 * need.admitted[kind])
    return Case(kind, int(generator.integers(lowest, highest)), enough, None)


def with_appetite(phase: str, kind: Kind, need: Need, generator: np.random.Generator) -> Case:
    """Draw a limit that fits the training, but not with the memory that one phase takes beyond the plan."""
    extra = _EXTRA[kind]
    appetite = Appetite(
        phase=phase,
        way="steps" if generator.random() < 0.5 else "one step",
        content="tensor" if generator.random() < 0.5 else "array",
        after=bool(generator.random() < 0.5),
        bytes=extra,
        pieces=int(generator.choice(_PIECES)),
    )
    if appetite.way == "steps":
        appetite = replace(appetite, pieces=_PIECES[0])
    enough = int((need.least[kind] + extra) / HARD)
    # The plan of a training also counts what its process has loaded.
    lowest, highest = int(1.06 * need.admitted[kind]), int((0.9 * need.least[kind] + extra) / HARD)
    return Case(kind, int(generator.integers(lowest, highest)), enough, appetite)


def run(limiter: Limiter, runs: int, seed: int, console: Console) -> tuple[Need, list[Outcome]]:
    with Progress(console=console) as progress:
        bar = progress.add_task("runs under limits", total=runs)
        limiter.begin()
        need = limiter.measure()
        expected = limiter.facts("undisturbed")
        outcomes = []
        for index in range(runs):
            outcome = limiter.run(drawn(index, seed, need), f"run-{index}", need)
            limiter.compare(outcome, f"run-{index}", expected)
            console.print(*row_of(index, outcome), sep=" | ", highlight=False, markup=False)
            for fault in outcome.faults:
                console.print(f"   fault: {fault}", highlight=False, markup=False)
            outcomes.append(outcome)
            progress.update(bar, completed=index + 1)
        return need, outcomes


COLUMNS = ("run", "limit", "of", "need", "taken by", "ended by", "largest part", "passed")


def row_of(index: int, outcome: Outcome) -> list[str]:
    case, appetite = outcome.case, outcome.case.appetite
    taking = "the training"
    if appetite is not None:
        when = "after" if appetite.after else "before"
        taking = f"{appetite.phase}: {appetite.content}s in {appetite.way}, {when} its work"
    largest = outcome.largest[0] + (f" {size(outcome.largest[1])}" if outcome.largest[1] else "")
    by = f"{outcome.by} in {outcome.phase}" if outcome.phase else outcome.by
    well = "yes" if not outcome.faults else "no"
    return [str(index + 1), size(case.limit), case.kind, size(case.need), taking, by, largest, well]


def _section(need: Need, outcomes: Sequence[Outcome]) -> Section:
    by = [outcome.by for outcome in outcomes]
    well = sum(not outcome.faults for outcome in outcomes)
    highest = max(range(len(outcomes)), key=lambda index: outcomes[index].peak)
    return Section(
        title="Under limits below the need",
        method=f"`eigen train` resumes a run of {BEGUN} generations under a random limit: below the need of the "
        "training, or above it but below the need with a phase that keeps "
        f"{' or '.join(size(extra) for extra in _EXTRA.values())} beyond the plan. Passed: exit code 3, no MemoryError "
        "and no traceback, and a report that names the largest part and the kept memory to 10 %; or the plan was "
        "printed, or the limit refused, and nothing written. `eigen verify --deep` finds no damage, and without the "
        "limit the run ends with the bits of one that had none.",
        columns=COLUMNS,
        rows=[row_of(index, outcome) for index, outcome in enumerate(outcomes)],
        remarks=[
            f"{well} of {len(outcomes)} passed; the guard ended {by.count('guard')}, the plan {by.count('plan')}; "
            f"{by.count('refusal')} had a limit that is too small to load torch and Prefect.",
            f"Without a limit the training takes at most {_sizes(need.measured.values())}; the plan accepts limits "
            f"from {_sizes(need.admitted.values())} ({' and '.join(KINDS)}). RLIMIT_AS is at least 1.1 x "
            f"{size(need.loading['RLIMIT_AS'])}, the need to load the libraries and make the plan.",
            f"The highest resident peak was {outcomes[highest].peak:.0%} of its limit, in run {highest + 1}: "
            "memory.limit_gb refuses no allocation, so a phase that takes much memory without reporting progress is "
            "ended above it.",
            *(f"Run {index + 1}: {fault}" for index, outcome in enumerate(outcomes) for fault in outcome.faults),
        ],
    )


def _sizes(amounts: Iterable[int]) -> str:
    return " and ".join(size(amount) for amount in amounts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="runs under limits (20)")
    parser.add_argument("--seed", type=int, default=1, help="seed of limits and appetites (1)")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="eigen-limits-") as name:
        os.environ.update(EIGEN_CACHE=f"{name}/cache", OMP_NUM_THREADS="1")
        need, outcomes = run(Limiter(Path(name)), options.runs, options.seed, console)
    publish("limits", _section(need, outcomes))
    return 1 if any(outcome.faults for outcome in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
