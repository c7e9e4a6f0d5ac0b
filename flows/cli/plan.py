"""The commands plan and doctor: what a run would take, and whether this machine has it."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from eigen_core.common.errors import InputError
from eigen_core.common.progress import progress_to
from eigen_core.common.text import rough_duration, size
from flows.cli.display import display_on
from flows.cli.output import PlainTable, print_fact, print_line
from flows.endings import require_addresses
from flows.server.environment import prepare_environment

if TYPE_CHECKING:
    from eigen_core.config import Config
    from eigen_core.planning import DiskPlan, ProbeFailure, ProbeResult, Shape, WorkerPlan
    from eigen_core.planning.run_plan import RunPlan
    from flows.cli.doctor import Finding, Status

_FINDING_STYLES: "dict[Status, str]" = {"ok": "green", "warning": "yellow", "failed": "bold red"}
_CHECK_WIDTH = 15
_print_fact = partial(print_fact, width=10)

PLAN_EXAMPLES = """[bold]Examples[/]

  eigen plan
  eigen plan --preset eigen2 --data prices --set network.column_chunk=32
  eigen plan --preset eigen2 --columns 669 --assets 108 --days 3700     without data
"""


@dataclass(frozen=True)
class PlannedRun:
    """Result of `eigen plan`.

    Attributes:
        config: the run that was planned.
        run_plan: what it takes, and whether that fits.
        workers: what one of its scheduler takes, by their number; none if it has no scheduler or was not measured.
    """

    config: "Config"
    run_plan: "RunPlan"
    workers: "Sequence[WorkerPlan]" = ()


def shape_of(days: int | None, columns: int | None, assets: int | None, data: str | None) -> "Shape | None":
    """Return the shape that was given; None if none was.

    Raises:
        InputError: it is incomplete, has more tradable columns than columns, or data was given too.
    """
    if days is None and columns is None and assets is None:
        return None
    if days is None or columns is None:
        raise InputError("to plan without data, give both --days and --columns; --assets says how many are tradable.")
    if data is not None:
        raise InputError("--data names a panel and --columns plans without one: give one of them.")
    if assets is not None and assets > columns:
        raise InputError(f"--assets {assets:,} of --columns {columns:,} cannot be tradable: lower it.")
    return days, columns, columns if assets is None else assets


def planned_run(config: "Config", console: Console, shape: "Shape | None" = None) -> PlannedRun:
    """Plan a run, and measure it. Nothing is written but the cache of its panel, and that of what was measured.

    Args:
        config: the run.
        console: where progress is shown if it is a terminal.
        shape: the size of its panel; None: that of its data, which is read.

    Raises:
        InputError: the data cannot be used, the run could not be trained with this configuration, or a limit of this
            machine cannot be read.
        StoppedByMemory: not even the planning fits.
    """
    prepare_environment()
    require_addresses()
    with display_on(console) as display:
        display.waiting_for("reading the data")
        with progress_to(display):
            from eigen_core.planning import ProbeResult, worker_plans
            from eigen_core.planning.run_plan import plan_run
            from eigen_core.task import open_data, task_class

            data = open_data(config) if shape is None else task_class(config).data_of_shape(config, *shape)
            display.waiting_for("measuring a piece")
            run_plan = plan_run(config, data, shape=shape)
            measured = run_plan.plan.measured
            workers = worker_plans(config, run_plan.sizes, measured) if isinstance(measured, ProbeResult) else []
    return PlannedRun(config, run_plan, workers)


def print_planned(console: Console, planned: PlannedRun, *, explained: bool = False) -> None:
    """Print a plan: memory by part and phase, disk, uploads, time, limits, and the verdict.

    Args:
        console: where to.
        planned: what to print.
        explained: say of each part how its size is computed.
    """
    print_plan(console, planned.config, planned.run_plan, explained=explained)
    _print_time(console, planned.run_plan.plan.measured, planned.config.generations)
    if planned.workers:
        _print_workers(console, planned.workers)
    print_line(console, planned.run_plan.sentence())


def print_plan(console: Console, config: "Config", run_plan: "RunPlan", *, explained: bool = False) -> None:
    """Print the tables of a plan, what it writes, and the limits of this machine; no verdict."""
    size = "" if run_plan.data.facts is None else f"; {run_plan.data.facts}"
    print_line(
        console,
        f"Preset {config.preset}, {config.generations} generations of {config.population.size} agents{size}",
    )
    _print_parts(console, run_plan, explained=explained)
    _print_phases(console, run_plan)
    _print_disk(console, config, run_plan.plan.disk)
    for index, limit in enumerate(run_plan.limits.limits):
        _print_fact(console, "" if index else "limits", str(limit))
    if run_plan.device_limit is not None:
        _print_fact(console, "", str(run_plan.device_limit))


def planned_document(planned: PlannedRun) -> dict[str, Any]:
    """Return what `eigen plan --json` prints. Its keys are a contract."""
    generations = planned.config.generations
    measured = planned.run_plan.measured
    return {
        "preset": planned.config.preset,
        "generations": generations,
        **planned.run_plan.document(),
        "calibration": measured
        and {
            **{f"{phase}_seconds": seconds for phase, seconds in measured.seconds.items()},
            "piece_seconds": measured.probe_seconds,
            "generation_seconds": measured.generation_seconds,
            "run_seconds": measured.generation_seconds * generations,
        },
        "workers": [asdict(plan) for plan in planned.workers],
    }


def print_findings(console: Console, findings: "Iterable[Finding]") -> "list[Finding]":
    """Print each finding of `eigen doctor` as it comes, then how many were bad, and return them."""
    printed = []
    for finding in findings:
        status = (f"{finding.status:<9}", _FINDING_STYLES[finding.status])
        print_line(console, status, f"{finding.check:<{_CHECK_WIDTH}}{finding.found}")
        if finding.advice:
            print_line(console, f"{'':<{9 + _CHECK_WIDTH}}{finding.advice}")
        printed.append(finding)
    failed = sum(finding.status == "failed" for finding in printed)
    warnings = sum(finding.status == "warning" for finding in printed)
    if failed or warnings:
        print_line(console, f"{failed} failed, {warnings} with a warning, of {len(printed)} checks.")
    else:
        print_line(console, f"All {len(printed)} checks passed: train with `eigen train`.")
    return printed


def is_healthy(findings: "Sequence[Finding]") -> bool:
    """Whether nothing failed."""
    return all(finding.status != "failed" for finding in findings)


def findings_document(findings: "Sequence[Finding]") -> dict[str, Any]:
    """Return what `eigen doctor --json` prints. Its keys are a contract."""
    return {"healthy": is_healthy(findings), "checks": [asdict(finding) for finding in findings]}


def _print_parts(console: Console, run_plan: "RunPlan", *, explained: bool) -> None:
    plan = run_plan.plan
    on_device = plan.device != "cpu"
    headers = ["part", "host", *(["device"] if on_device else []), "phases", *(["how"] if explained else [])]
    table = PlainTable(*headers, left=("part", "phases", "how"), least_important=("phases", *headers[4:]))
    rows = zip(plan.parts, plan.part_rows(), strict=True)
    for part, row in sorted(rows, key=lambda pair: -(pair[0].host_bytes + pair[0].device_bytes)):
        device = [_size(part.device_bytes)] if on_device else []
        how = [part.how] if explained else []
        table.add_row(part.name, _size(part.host_bytes), *device, str(row["phases"]), *how)
    table.print(console)


def _print_phases(console: Console, run_plan: "RunPlan") -> None:
    from eigen_core.planning import PHASES

    plan = run_plan.plan
    on_device = plan.device != "cpu"
    table = PlainTable("phase", "host at the peak", *(["device at the peak"] if on_device else []), left=("phase",))
    for phase in PHASES:
        device = [_size(plan.device_bytes(phase))] if on_device else []
        style = "bold" if phase == plan.peak_phase() else ""
        table.add_row(*((cell, style) for cell in (phase, _size(plan.host_bytes(phase)), *device)))
    table.print(console)


def _print_disk(console: Console, config: "Config", disk: "DiskPlan") -> None:
    kept = f"the newest {config.checkpoint.keep_last}"
    every = f" and every {config.checkpoint.keep_every}th" if config.checkpoint.keep_every else ""
    _print_fact(console, "disk", f"{_size(disk.checkpoint_bytes)} a checkpoint")
    _print_fact(
        console, "", f"{_size(disk.run_bytes)} the run at its end ({kept}{every}), {_size(disk.most_bytes)} at most"
    )
    if disk.local_bytes:
        _print_fact(console, "", f"{_size(disk.local_bytes)} on this machine too, with all that may wait for upload")
    _print_fact(console, "", disk.assumption)
    if disk.upload_bytes:
        each, whole = _size(disk.upload_generation_bytes), _size(disk.upload_bytes)
        _print_fact(console, "uploads", f"{each} a generation, {whole} in all")
    else:
        _print_fact(console, "uploads", "none: the store is a folder here")


def _print_workers(console: Console, plans: "Sequence[WorkerPlan]") -> None:
    for plan in plans:
        on_gpu = f" and {_size(plan.device_bytes)} of its GPU" if plan.device_bytes else ""
        _print_fact(
            console,
            "" if plan.workers > 1 else "workers",
            f"one of {plan.workers:,} takes up to {_size(plan.host_bytes)} of its machine{on_gpu}",
        )
    _print_fact(
        console, "", f"{_size(plans[0].replay_bytes)} of it for the replay, which one keeps for all of a machine"
    )


def _print_time(console: Console, measured: "ProbeResult | ProbeFailure | None", generations: int) -> None:
    if measured is None:
        _print_fact(console, "time", "not estimated: the run does not fit")
        return
    from eigen_core.planning import ProbeFailure

    if isinstance(measured, ProbeFailure):
        _print_fact(console, "time", f"not estimated, and memory only as far as it can be counted: {measured.why}")
        return
    phases = ", ".join(f"{phase} {rough_duration(seconds)}" for phase, seconds in measured.seconds.items())
    _print_fact(console, "time", f"about {rough_duration(measured.generation_seconds)} a generation ({phases})")
    whole = rough_duration(measured.generation_seconds * generations)
    _print_fact(console, "", f"about {whole} for {generations:,} generations, without checkpoints and plots")
    _print_fact(
        console,
        "",
        f"inferred from a piece of a generation, computed here in {rough_duration(measured.probe_seconds)}: it may "
        "take half as long or twice, and longer while others use the processors",
    )


def _size(amount: int) -> str:
    return size(amount) if amount else ""
