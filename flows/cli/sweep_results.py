"""What a sweep has reached: its trials by the history of their runs, as a table and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from rich.console import Console

from flows.cli.output import PlainTable, print_line

if TYPE_CHECKING:
    from eigen_core.config import Config
    from eigen_core.judging.sweeps import Study
    from flows.cli.sweep import Sweep


@dataclass(frozen=True)
class SweepRun:
    """A run of a trial.

    Attributes:
        run: its name.
        seed: of the run.
        champions: validation fitness of the champion after each generation.
    """

    run: str
    seed: int
    champions: Sequence[float]


@dataclass(frozen=True)
class TrialResult:
    """A trial.

    Attributes:
        number: of the trial.
        state: finished, pruned, refused (its settings cannot be trained) or unfinished.
        settings: what it varies.
        runs: one for each seed that was begun.
        reason: why it was refused.
    """

    number: int
    state: str
    settings: Mapping[str, Any]
    runs: Sequence[SweepRun]
    reason: str | None

    @property
    def value(self) -> float | None:
        """Mean of its champions' validation fitness; None unless it is finished."""
        return fmean(run.champions[-1] for run in self.runs) if self.state == "finished" else None

    @property
    def spread(self) -> float | None:
        """Standard deviation of that over its seeds; None for a single one."""
        finished = self.state == "finished" and len(self.runs) > 1
        return stdev(run.champions[-1] for run in self.runs) if finished else None


def champions_of(config: "Config", run: str) -> list[float]:
    """What the champion of a run had reached after each generation that is stored."""
    from eigen_core.training.runs import Run, status_of

    if not Run(config.checkpoint, run).exists:
        return []
    return [record.champion_validation for record in status_of(config.checkpoint.store, run).history]


def results_of(sweep: "Sweep", study: "Study") -> list[TrialResult]:
    """Return all trials of a sweep, the best first, those without a value after them."""
    results = []
    for trial in study.trials():
        runs = [(seed, sweep.run_of(trial.number, seed)) for seed in sweep.all_seeds]
        known = [SweepRun(run, seed, champions_of(sweep.config, run)) for seed, run in runs]
        begun = [run for run in known if run.champions]
        results.append(TrialResult(trial.number, study.state_of(trial), trial.params, begun, study.reason_of(trial)))
    return sorted(results, key=lambda one: (one.value is None, -(one.value or 0.0), one.number))


def print_results(console: Console, results: Sequence[TrialResult]) -> None:
    """Print the table of a sweep."""
    table = PlainTable(
        "trial",
        "champion validation",
        "generations",
        "settings",
        left=("champion validation", "settings"),
        least_important=("generations",),
    )
    for one in results:
        value = one.state if one.value is None else f"{one.value:,.1f}"
        spread = "" if one.spread is None else f" ± {one.spread:,.1f}"
        generations = " + ".join(str(len(run.champions)) for run in one.runs)
        table.add_row(str(one.number), value + spread, generations, in_words(one.settings))
    table.print(console)
    finished = sum(one.value is not None for one in results)
    print_line(
        console,
        "Champion validation: mean of a trial's seeds ± their standard deviation. The best of "
        f"{finished} finished trials is chosen by these values: expect less of it on other days.",
    )
    for one in results:
        if one.reason is not None:
            print_line(console, f"Trial {one.number} was refused: {one.reason}")


def results_document(sweep: "Sweep", results: Sequence[TrialResult]) -> dict[str, Any]:
    """Return what `eigen sweep --json` prints. Its keys are a contract."""
    return {
        "sweep": sweep.name,
        "trials": [
            {
                "number": one.number,
                "state": one.state,
                "value": one.value,
                "spread": one.spread,
                "settings": dict(one.settings),
                "reason": one.reason,
                "runs": [
                    {
                        "run": run.run,
                        "seed": run.seed,
                        "generation": len(run.champions),
                        "champion_validation": run.champions[-1],
                    }
                    for run in one.runs
                ],
            }
            for one in results
        ],
    }


def in_words(values: Mapping[str, Any]) -> str:
    """Return settings in words."""
    return (
        ", ".join(
            f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()
        )
        or "nothing is varied"
    )
