"""The commands `eigen plan` (memory, disk and time that a run would take) and `eigen presets` (all settings)."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eigen_core.common.errors import InputError, StoppedByMemory
from eigen_core.common.text import count, rough_duration, size, text_or_json
from flows.cli.common import (
    EXIT_MEMORY,
    LARGEST,
    MEMORY_ADVICE,
    Json,
    RunOptions,
    examples,
    number,
    require_addresses,
    run_options,
)
from flows.cli.console import PlainTable, attributes, print_fact, print_line, print_result, progress_shown
from flows.server.prefect_settings import prepare_environment

if TYPE_CHECKING:
    from eigen_core.config import Config
    from eigen_core.judging.smallest_edges import EdgesHeld
    from eigen_core.planning.probe import ProbeFailure, ProbeResult, Shape
    from eigen_core.planning.run_plan import RunPlan
    from eigen_core.planning.sizes import DiskPlan
    from eigen_core.runs.handle import Run


@examples(
    """
  eigen plan
  eigen plan --preset eigen2 --data prices --set network.column_chunk=32
  eigen plan --preset eigen2 --columns 669 --assets 108 --days 3700     without data
"""
)
@run_options("preset", "generations", "seed", "assignments", "data", "store", "device")
def plan(
    *,
    options: RunOptions,
    days: Annotated[int | None, number("Plan without data: number of days.", most=LARGEST)] = None,
    columns: Annotated[int | None, number("Plan without data: columns, one per symbol.", most=LARGEST)] = None,
    assets: Annotated[int | None, number("Columns that agents can trade.", most=LARGEST, shown="all")] = None,
    as_json: Json = False,
) -> None:
    """Show memory, disk, time of a run and edges that it could show, without training it; exit code 3: does not fit."""
    prepare_environment()
    config = options.config()
    shape = _shape_of(days, columns, assets, config.market.data)
    require_addresses()
    with progress_shown() as display:
        from eigen_core.judging.smallest_edges import smallest_edges
        from eigen_core.planning.run_plan import plan_run, require_run_folder
        from eigen_core.task import open_data, task_class

        require_run_folder(config.checkpoint)
        data = open_data(config) if shape is None else task_class(config).data_of_shape(config, *shape)
        display.waiting_for("timing a part of a generation")
        run_plan = plan_run(config, data, shape=shape)
        edges = smallest_edges(config, data.content) if shape is None and config.task == "market" else ([], "")
    print_result(as_json, plan_document, _print_whole_plan, config, run_plan, edges)
    if not run_plan.fits:
        raise typer.Exit(EXIT_MEMORY)


def _shape_of(days: int | None, columns: int | None, assets: int | None, data: str | None) -> "Shape | None":
    if days is None and columns is None and assets is None:
        return None
    if days is None or columns is None:
        raise InputError("to plan without data, give both --days and --columns; --assets says how many are tradable.")
    if data is not None:
        raise InputError("--data names prices and --columns plans without prices: give one of them.")
    if assets is not None and assets > columns:
        raise InputError(f"--assets {assets:,} of --columns {columns:,} cannot be tradable: lower --assets.")
    return days, columns, columns if assets is None else assets


def _print_whole_plan(
    console: Console, config: "Config", run_plan: "RunPlan", edges: "tuple[list[EdgesHeld], str]"
) -> None:
    print_plan(console, config, run_plan)
    _print_time(console, run_plan.measured, config.generations)
    rows, sentence = edges
    if rows:
        print_line(console, "Smallest information coefficients (IC) that the holdout shows, and that pay their costs:")
        unit = "day" if run_plan.data.dimensions is None else run_plan.data.dimensions.unit
        table = PlainTable(f"{unit}s held", "trades", "IC shown", "IC that pays")
        for row in rows:
            table.add_row(f"{row.holding_bars}", f"{row.trades:,}", _correlation(row.shown), _correlation(row.pays))
        table.print(console)
    if sentence:
        print_line(console, sentence)
    print_line(console, run_plan.sentence())


def _correlation(value: float) -> str:
    return f"{value:.3f}" if value <= 1.0 else "above 1"


def print_plan(console: Console, config: "Config", run_plan: "RunPlan") -> None:
    """Print memory by part and phase, disk, and the memory limits of this machine; not whether the run fits."""
    dimensions = "" if run_plan.data.dimensions is None else f"; {run_plan.data.dimensions}"
    print_line(
        console,
        f"Preset {config.preset}, {config.generations} generations of {config.population.size} agents{dimensions}",
    )
    for split in run_plan.data.parts:
        unit = run_plan.data.dimensions.unit
        days = f"{count(int(split['number']), unit)}, {split['first']} to {split['last']}"
        print_fact(console, str(split["days"]), days)
    _print_parts(console, run_plan)
    _print_phases(console, run_plan)
    _print_disk(console, config, run_plan.disk)
    for index, limit in enumerate(filter(None, (*run_plan.limits, run_plan.device_limit))):
        print_fact(console, "" if index else "limits", str(limit))


@contextmanager
def refused_with_its_plan(config: "Config", console: Console) -> Iterator[None]:
    """Raise `StoppedByMemory` if the block finds that the run does not fit (and print its plan), or lacks memory."""
    try:
        yield
    except Exception as error:
        # Imported here because they need torch.
        from eigen_core.machine.allocation import is_out_of_memory
        from eigen_core.planning.run_plan import RunTooLargeError

        if isinstance(error, RunTooLargeError):
            print_plan(console, config, error.run_plan)
            raise StoppedByMemory(str(error)) from error
        if is_out_of_memory(error):
            raise StoppedByMemory(f"There is not enough memory to prepare the run. {MEMORY_ADVICE}") from error
        raise


def require_trainable(config: "Config", run: "Run") -> "tuple[Sequence[str], RunPlan]":
    """Check that this machine can train a run with a configuration; write nothing.

    Returns the description of the data, in sentences, and the plan of the run.

    Raises:
        InputError: the data or the configuration cannot be used, the run was trained on other data, a tracker is not
            installed, or the Dask scheduler does not answer.
        RunTooLargeError: the run does not fit into memory or disk.
    """
    from eigen_core.checkpoint.integrity import DamagedGenerationError
    from eigen_core.config.registry import tracker_class
    from eigen_core.generation import require_same_data, start_training
    from eigen_core.planning.run_plan import require_fit
    from eigen_core.task import open_data
    from eigen_core.workers import connected

    for tracker in config.reporting.trackers:
        tracker_class(tracker)
    if config.scheduler is not None:
        # Refused here if it cannot be reached: the flow would find out when the run has been made.
        with connected(config.scheduler):
            pass
    data = open_data(config)
    run_plan = require_fit(config, data, run.name)
    state, newest = start_training(config, data.content), run.newest
    if newest is not None:
        contents, manifest = newest
        # Damage is reported when the run is resumed, from the generation before.
        with suppress(DamagedGenerationError, KeyError):
            require_same_data(state, contents.document(manifest, "state"), manifest.generation)
    return data.lines, run_plan


def plan_document(config: "Config", run_plan: "RunPlan", edges: "tuple[list[EdgesHeld], str]") -> dict[str, Any]:
    names = ("where", "phase", "peak_bytes", "limit_bytes", "origin", "fits", "missing_bytes")
    highest = {where: getattr(run_plan.peaks[run_plan.peak_phase(where)], where) for where in ("host", "device")}
    device_limit = run_plan.device_limit
    return {
        **attributes(config, "preset", "generations"),
        "panel": run_plan.data.dimensions,
        "splits": list(run_plan.data.parts),
        "device": run_plan.sizes.device,
        "peak_host_bytes": highest["host"],
        "peak_device_bytes": highest["device"],
        "fits": run_plan.fits,
        "verdicts": [attributes(one, *names) for one in run_plan.checks],
        "phases": {
            phase: {"host_bytes": peak.host, "device_bytes": peak.device} for phase, peak in run_plan.peaks.items()
        },
        **attributes(run_plan, "parts", "disk", "measured"),
        "sentence": run_plan.sentence(),
        "smallest_edges": dict(zip(("rows", "sentence"), edges, strict=True)),
        "limits": [attributes(limit, "bytes", "origin", "kind") for limit in run_plan.limits],
        "device_limit": None if device_limit is None else attributes(device_limit, "bytes", "origin"),
    }


def _print_parts(console: Console, run_plan: "RunPlan") -> None:
    headers = ("part", "host", "device", "phases")
    table = PlainTable(*headers, left=("part", "phases"), least_important=("phases",))
    for part in sorted(run_plan.parts, key=lambda part: -(part.host_bytes + part.device_bytes)):
        table.add_row(part.name, _size(part.host_bytes), _size(part.device_bytes), str(part.row()["phases"]))
    table.print(console)


def _print_phases(console: Console, run_plan: "RunPlan") -> None:
    table = PlainTable("phase", "host at the peak", "device at the peak", left=("phase",))
    for phase, peak in run_plan.peaks.items():
        style = "bold" if phase == run_plan.peak_phase() else ""
        table.add_row(*((cell, style) for cell in (phase, _size(peak.host), _size(peak.device))))
    table.print(console)


def _print_disk(console: Console, config: "Config", disk: "DiskPlan") -> None:
    kept = f"the newest {config.checkpoint.keep_last}"
    every = f" and every {config.checkpoint.keep_every}th" if config.checkpoint.keep_every else ""
    end = f"{_size(disk.run_bytes)} the run at its end ({kept}{every}), {_size(disk.most_bytes)} at most"
    print_fact(console, "disk", f"{_size(disk.checkpoint_bytes)} a checkpoint; {end}")
    if disk.local_bytes:
        print_fact(console, "", f"{_size(disk.local_bytes)} on this machine too, with all that may wait for upload")
    uploads = f"{_size(disk.upload_bytes)} in all" if disk.upload_bytes else "none: the store is a folder here"
    print_fact(console, "uploads", uploads)


def _print_time(console: Console, measured: "ProbeResult | ProbeFailure | None", generations: int) -> None:
    if measured is None:
        print_fact(console, "time", "not estimated: the run does not fit")
        return
    from eigen_core.planning.probe import ProbeFailure

    if isinstance(measured, ProbeFailure):
        print_fact(console, "time", f"not estimated, and memory is computed, not measured: {measured.why}")
        return
    phases = ", ".join(f"{phase} {rough_duration(seconds)}" for phase, seconds in measured.seconds.items())
    print_fact(console, "time", f"about {rough_duration(measured.generation_seconds)} a generation ({phases})")
    whole = rough_duration(measured.generation_seconds * generations)
    print_fact(console, "", f"about {whole} for {generations:,} generations, without checkpoints and plots")
    inferred = f"inferred from a part of a generation, computed here in {rough_duration(measured.probe_seconds)}"
    print_fact(console, "", f"{inferred}: it may take half or twice as long, and longer beside other programs")


def _size(amount: int) -> str:
    return size(amount) if amount else ""


def presets(
    name: Annotated[str | None, typer.Argument(help="Explain every setting of this preset.", metavar="[NAME]")] = None,
    as_json: Json = False,
) -> None:
    """List the presets, or explain every setting of one."""
    from eigen_core.config.loading import load_config

    if name is None:
        print_result(as_json, presets_document, print_presets)
    else:
        print_result(as_json, settings_document, print_settings, load_config(name))


def presets_document() -> list[dict[str, Any]]:
    from eigen_core.config import PRESET_NAMES, preset_values
    from eigen_core.config.explain import flatten

    documents = []
    for name in PRESET_NAMES:
        text = (files("eigen_core.config") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
        description = " ".join(re.findall(r"^# ?(.*)$", text, flags=re.MULTILINE))
        overrides = {key: value for key, value in preset_values(name).items() if key != "preset"}
        documents.append({"preset": name, "description": description, "overrides": flatten(overrides)})
    return documents


def print_presets(console: Console) -> None:
    headers = ("preset", "description", "overrides")
    table = PlainTable(*headers, left=headers, least_important=("overrides",))
    for preset in presets_document():
        overrides = "\n".join(f"{key}={json.dumps(value)}" for key, value in preset["overrides"].items())
        table.add_row(preset["preset"], preset["description"], overrides, ends_section=True)
    table.print(console)
    print_line(console, "All settings of one, explained: eigen presets NAME")


def settings_document(config: "Config") -> list[dict[str, Any]]:
    from eigen_core.config.explain import explain

    return [
        attributes(row, "value", "source") | attributes(row.setting, "key", "default", "accepts", "unit", "meaning")
        for row in explain(config)
    ]


def print_settings(console: Console, config: "Config") -> None:
    """Print every setting with its value; settings of algorithms and methods that the preset does not use have none."""
    from eigen_core.config.explain import explain, settings

    headers = ("setting", "value", "default", "meaning")
    table = PlainTable(*headers, left=headers, least_important=("default", "meaning"))
    rows = {row.setting.key: row for row in explain(config)}
    sections = [key.rpartition(".")[0] for key in settings()]
    for setting, section, following in zip(settings().values(), sections, [*sections[1:], ""], strict=True):
        row = rows.get(setting.key)
        unit = f" {setting.unit}" if setting.unit in ("bars", "reward") else ""
        marked = row is not None and row.source == "preset" and row.value != row.setting.default
        having = "" if row else f" With {', '.join(setting.variants)}."
        table.add_row(
            setting.key,
            (text_or_json(row.value) + unit if row else "", "bold" if marked else ""),
            text_or_json(row.setting.default) if row and marked else "",
            f"{setting.meaning} Give {setting.accepts}.{having}",
            ends_section=section != following,
        )
    table.print(console)
    print_line(console, "Bold: values that the preset changes. Change a setting: eigen train --set KEY=VALUE")
