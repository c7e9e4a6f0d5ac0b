"""The command `eigen plan`: what a run would take, and whether this machine has it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from eigen_core.config import Config
from eigen_core.errors import InputError
from eigen_core.progress import progress_to
from eigen_core.units import rough_duration, size
from flows.cli.display import display_on
from flows.cli.plain_table import PlainTable
from flows.endings import require_addresses
from flows.prefect_environment import prepare_environment

if TYPE_CHECKING:
    from eigen_core.planning import Calibration, DiskPlan, PanelFacts
    from flows.run_plan import RunPlan


@dataclass(frozen=True)
class PlannedRun:
    """What `eigen plan` found.

    Attributes:
        config: the run that was planned.
        run_plan: what it takes, and whether that fits.
        calibration: how long its phases take; None if it does not fit.
    """

    config: Config
    run_plan: "RunPlan"
    calibration: "Calibration | None" = None


@dataclass(frozen=True)
class Shape:
    """The size of a panel that is not there.

    Attributes:
        days, columns: its dimensions.
        assets: how many of the columns are tradable.
    """

    days: int
    columns: int
    assets: int


def shape_of(days: int | None, columns: int | None, assets: int | None, data: str | None) -> Shape | None:
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
    return Shape(days, columns, columns if assets is None else assets)


def planned_run(
    config: Config, console: Console, shape: Shape | None = None, *, whole_group: bool = False
) -> PlannedRun:
    """Plan a run. Nothing is written but the cache of its panel.

    Args:
        config: the run.
        console: where progress is shown if it is a terminal.
        shape: the size of its panel; None: that of its data, which is read.
        whole_group: time a larger piece of a generation (`eigen_core.planning.calibrate`).

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
            from eigen_core.planning import PanelFacts
            from eigen_core.task import open_data
            from eigen_core.task.market import require_scale
            from flows.run_plan import plan_run

            if shape is None:
                facts = PanelFacts.of(open_data(config).content)
            else:
                facts = PanelFacts.of_shape(config, shape.days, shape.columns, shape.assets)
                require_scale(config, facts.days)
            display.waiting_for("planning")
            run_plan = plan_run(config, facts)
            calibration = None
            if run_plan.fits:
                display.waiting_for("timing a piece")
                calibration = _calibrated(config, facts, whole_group=whole_group)
    return PlannedRun(config, run_plan, calibration)


def _calibrated(config: Config, facts: "PanelFacts", *, whole_group: bool) -> "Calibration":
    import torch

    from eigen_core.planning import calibrate

    if config.threads > 0:
        torch.set_num_threads(config.threads)
    return calibrate(config, facts, whole_group=whole_group)


def print_planned(console: Console, planned: PlannedRun, *, explained: bool = False) -> None:
    """Print a plan: memory by part and phase, disk, uploads, time, limits, and the verdict.

    Args:
        console: where to.
        planned: what to print.
        explained: say of each part how its size is computed.
    """
    print_plan(console, planned.config, planned.run_plan, explained=explained)
    if planned.calibration is not None:
        _print_time(console, planned.calibration, planned.config.generations)
    else:
        _line(console, "time", "not estimated: the run does not fit")
    console.print(planned.run_plan.sentence(), highlight=False, markup=False, soft_wrap=True)


def print_plan(console: Console, config: Config, run_plan: "RunPlan", *, explained: bool = False) -> None:
    """Print the tables of a plan, what it writes, and the limits of this machine; no verdict."""
    facts = run_plan.facts
    console.print(
        f"Preset {config.preset}, {config.generations} generations of {config.population.size} agents; "
        f"{facts.days:,} days, {facts.columns:,} columns, {facts.assets:,} of them tradable, {facts.features} features",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    _print_parts(console, run_plan, explained=explained)
    _print_phases(console, run_plan)
    _print_disk(console, config, run_plan.plan.disk)
    for index, limit in enumerate(run_plan.limits.limits):
        _line(console, "" if index else "limits", str(limit))
    if run_plan.device_limit is not None:
        _line(console, "", str(run_plan.device_limit))


def planned_document(planned: PlannedRun) -> dict[str, Any]:
    """Return what `eigen plan --json` prints. Its keys are a contract."""
    calibration = planned.calibration
    return {
        "preset": planned.config.preset,
        "generations": planned.config.generations,
        **planned.run_plan.document(),
        "calibration": None
        if calibration is None
        else {
            "evaluate_seconds": calibration.evaluate,
            "train_seconds": calibration.train,
            "evolve_seconds": calibration.evolve,
            "piece_seconds": calibration.piece_seconds,
            "generation_seconds": calibration.seconds,
            "run_seconds": calibration.seconds * planned.config.generations,
        },
    }


def _print_parts(console: Console, run_plan: "RunPlan", *, explained: bool) -> None:
    plan = run_plan.plan
    on_device = plan.device != "cpu"
    headers = ["part", "host", *(["device"] if on_device else []), "phases", *(["how"] if explained else [])]
    table = PlainTable(*headers, left=("part", "phases", "how"), least_important=("phases", *headers[4:]))
    rows = zip(plan.parts, plan.part_rows(), strict=True)
    for part, row in sorted(rows, key=lambda pair: -(pair[0].host_bytes + pair[0].device_bytes)):
        device = [_size(part.device_bytes)] if on_device else []
        how = [escape(part.how)] if explained else []
        table.add_row(escape(part.name), _size(part.host_bytes), *device, str(row["phases"]), *how)
    table.print(console)


def _print_phases(console: Console, run_plan: "RunPlan") -> None:
    from eigen_core.planning import PHASES

    plan = run_plan.plan
    on_device = plan.device != "cpu"
    table = PlainTable("phase", "host at the peak", *(["device at the peak"] if on_device else []), left=("phase",))
    for phase in PHASES:
        device = [_size(plan.device_bytes(phase))] if on_device else []
        highest = phase == plan.peak_phase()
        row = [phase, _size(plan.host_bytes(phase)), *device]
        table.add_row(*(f"[bold]{cell}[/]" if highest else cell for cell in row))
    table.print(console)


def _print_disk(console: Console, config: Config, disk: "DiskPlan") -> None:
    kept = f"the newest {config.checkpoint.keep_last}"
    every = f" and every {config.checkpoint.keep_every}th" if config.checkpoint.keep_every else ""
    _line(console, "disk", f"{_size(disk.checkpoint_bytes)} a checkpoint")
    _line(console, "", f"{_size(disk.run_bytes)} the run at its end ({kept}{every}), {_size(disk.most_bytes)} at most")
    if disk.local_bytes:
        _line(console, "", f"{_size(disk.local_bytes)} on this machine too, with all that may wait for upload")
    _line(console, "", disk.assumption)
    if disk.upload_bytes:
        each, whole = _size(disk.upload_generation_bytes), _size(disk.upload_bytes)
        _line(console, "uploads", f"{each} a generation, {whole} in all")
    else:
        _line(console, "uploads", "none: the store is a folder here")


def _print_time(console: Console, calibration: "Calibration", generations: int) -> None:
    phases = ", ".join(
        f"{phase} {rough_duration(getattr(calibration, phase))}" for phase in ("evaluate", "train", "evolve")
    )
    _line(console, "time", f"about {rough_duration(calibration.seconds)} a generation ({phases})")
    whole = rough_duration(calibration.seconds * generations)
    _line(console, "", f"about {whole} for {generations:,} generations, without checkpoints and plots")
    _line(
        console,
        "",
        f"inferred from a piece of a generation, timed here in {rough_duration(calibration.piece_seconds)}: it may "
        "take half as long or twice, and longer while others use the processors",
    )


def _line(console: Console, label: str, text: str) -> None:
    console.print(f"  {label:<10}{text}", highlight=False, markup=False, soft_wrap=True)


def _size(amount: int) -> str:
    return size(amount) if amount else ""
