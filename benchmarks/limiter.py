"""Trainings in processes under limits of memory, and what they leave."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.kill import CONFIG
from benchmarks.kill_training import facts_of
from benchmarks.limited_training import Appetite, Limits
from eigen_core.common.errors import InputError
from eigen_core.config.model import MemoryConfig
from eigen_core.machine import MemoryGuardError

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
    """What the training takes (bytes).

    Attributes:
        measured: the most that counted against a limit of each kind, without any limit.
        least: the same at the end of a generation.
        loading: what counts when the plan is made.
        admitted: limits from which on the plan lets the training begin.
        largest: the largest part by plan.
    """

    measured: Mapping[Kind, int]
    least: Mapping[Kind, int]
    loading: Mapping[Kind, int]
    admitted: Mapping[Kind, int]
    largest: str


@dataclass(frozen=True)
class Case:
    """A run under a limit.

    Attributes:
        kind: of the limit.
        limit: it (bytes).
        need: the limit that would do (bytes).
        appetite: what a phase takes that no plan knows; None: the training as it is.
    """

    kind: Kind
    limit: int
    need: int
    appetite: Appetite | None

    def options(self) -> list[str]:
        """What the command is given."""
        return ["--set", f"memory.limit_gb={self.limit / 1e9:.6f}"] if self.kind == "memory.limit_gb" else []

    def limits(self, notes: Path) -> Limits:
        """What its process is given."""
        return Limits(self.limit if self.kind == "RLIMIT_AS" else None, self.appetite, str(notes))


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        case: what was tried.
        exit_code: of the command.
        by: "plan"; "guard"; "refusal", of a limit under which not even the libraries can be loaded; or "neither".
        phase: where the guard ended it.
        largest: the largest part, as plan or report name it, and its size (bytes).
        peak: the most that a report shows of the resident memory, as a share of the limit; 0 without a report.
        faults: what is not as it should be; empty: all is well.
    """

    case: Case
    exit_code: int
    by: str = "neither"
    phase: str = ""
    largest: tuple[str, int] = ("", 0)
    peak: float = 0.0
    faults: list[str] = field(default_factory=list)


class Limiter:
    """Runs trainings under limits and looks at what they leave.

    Args:
        folder: for stores, Prefect's home and the panel's cache.
        environment: variables for the processes that are limited.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")},
            "PREFECT_HOME": str(folder / "home"),
            "EIGEN_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "120",
            **(environment or {}),
        }

    def command(
        self, name: str, arguments: Sequence[str], limits: Limits | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `eigen` to its end; `name` is the folder of its store."""
        given = ["-m", "flows.cli"]
        if limits is not None:
            path = self._folder / f"{name}.limits.json"
            limits.write(path)
            given = ["-m", "benchmarks.limited_training", str(path)]
        return subprocess.run(
            [sys.executable, *given, *arguments],
            env=self._environment,
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
        )

    def train(
        self, name: str, generations: int, options: Sequence[str] = (), limits: Limits | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Train the run in store `name` up to a generation."""
        settings = [*settings_of(CONFIG), *options]
        given = ["train", "--run", RUN, "--store", str(self.store(name)), "--generations", str(generations)]
        return self.command(name, [*given, *settings], limits)

    def store(self, name: str) -> Path:
        """The folder of a store."""
        return self._folder / "stores" / name

    def facts(self, name: str) -> dict[str, str]:
        """What equal ends share."""
        settings = {"store": str(self.store(name)), "local": str(self._folder / "local")}
        return facts_of({**CONFIG, "checkpoint": settings}, RUN, {})

    def begin(self) -> None:
        """Train the generations that all runs begin with."""
        _require(self.train("begun", BEGUN))

    def copy(self, name: str) -> Path:
        """Make a store with the run as it was begun; return it."""
        return Path(shutil.copytree(self.store("begun"), self.store(name)))

    def measure(self) -> Need:
        """Train to the end without any limit, in store `undisturbed`, and measure."""
        self.copy("undisturbed")
        notes = self._folder / "undisturbed.notes"
        _require(self.train("undisturbed", CONFIG["generations"], limits=Limits(None, None, str(notes))))
        shown = _require(
            self.command("undisturbed", ["show", RUN, "--json", "--store", str(self.store("undisturbed"))])
        )
        peaks = [row["rss_peak_bytes"] for row in json.loads(shown.stdout)["history"][BEGUN:]]
        return self.plan((min(peaks), max(peaks)), _notes(notes)[1])

    def plan(self, resident: tuple[int, int], addresses: int) -> Need:
        """Return what the training takes: as measured (least and most resident memory, addresses), and by plan."""
        notes = self._folder / "plan.notes"
        # Under ample addresses the plan tells what of them it takes for used.
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
        """Go on with the run under a limit, in store `name`, and look at how that ends; its end is not compared."""
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
        if f"The largest part is {outcome.largest[0]} " not in said or str(reports[0].with_suffix(".md")) not in told:
            outcome.faults.append(f"report or command do not name the largest part or the report: {told[-800:]}")
        if outcome.case.appetite is not None:
            outcome.faults += _faults_of(report, held, outcome)

    def compare(self, outcome: Outcome, name: str, expected: Mapping[str, str]) -> None:
        """Go on without limit and appetite to the end, and compare."""
        from eigen_core.run import train_run

        try:
            train_run(self.config(name), RUN)
            equal = self.facts(name) == dict(expected)
        except (InputError, MemoryGuardError, RuntimeError, ValueError) as error:
            outcome.faults.append(f"it does not go on to its end: {error}")
            return
        if not equal:
            outcome.faults.append("its end differs from that of an undisturbed run")

    def config(self, name: str, **sections: Mapping[str, Any]) -> Any:  # noqa: ANN401 - loaded late: a Config
        """The configuration of the run in a store."""
        from eigen_core.config.loading import config_from_values

        return config_from_values({**CONFIG, "checkpoint": {"store": str(self.store(name))}, **sections})


def settings_of(values: Mapping[str, Any]) -> list[str]:
    """Return a configuration as options of the command; how many generations there are is another option."""
    options = []
    for section, given in values.items():
        if section == "generations":
            continue
        for key, value in given.items() if isinstance(given, dict) else [("", given)]:
            options += ["--set", f"{section}.{key}={value}".replace(".=", "=")]
    return options


def _faults_of(report: Mapping[str, Any], held: int, outcome: Outcome) -> list[str]:
    """What is wrong with a report on a phase that has held so many bytes."""
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
    """What a process has said of itself at its end: bytes held by its appetite, most addresses; 0 if it could not."""
    held, addresses = path.read_text().split() or ("0", "0")
    return int(held), int(addresses)


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """The files of a folder with size and time; those that say who has the run in use are left out."""
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
