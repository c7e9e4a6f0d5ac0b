"""The commands `eigen runs`, `show`, `memory`, `verify`, `clean` and `export`, on the runs of a store."""

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eigen_core.checkpoint.store_location import command_for
from eigen_core.common.errors import InputError
from eigen_core.common.text import BYTES_PER_MB, size
from flows.cli.common import EXIT_OTHER, Json, RunName, Store, flag, option, store_of
from flows.cli.console import PlainTable, attributes, output_console, print_fact, print_line, print_result

if TYPE_CHECKING:
    from eigen_core.common.records import Telemetry
    from eigen_core.housekeeping import CleanedRun, Verification
    from eigen_core.runs.handle import RunStatus

_SHOWN_GENERATIONS = 40
_MEMORY_GENERATIONS = 3
_SHOWN_DAMAGES = 50
_CHAMPION_KEYS = ("champion_validation", "champion_score")
_HISTORY_KEYS = (
    *("generation", "best_fitness", "mean_fitness", "validation", *_CHAMPION_KEYS),
    *("champion_excess", "distinct_ancestors", "policy_distance", "transitions", "weights_sha256", "replay_sha256"),
)


def print_ending(console: Console, status: "RunStatus", how: str) -> None:
    print_history(console, status)
    print_line(
        console, "Run ", (status.run, "bold"), f" {how}: generation {status.generation} of {status.config.generations}"
    )
    # Imported here because it needs pandas, which help and presets do without.
    from eigen_core.reporting.health import learning_sentences
    from eigen_core.reporting.tables import champion_sentence, diversity_sentence, holdout_sentence

    if status.history:
        print_line(console, champion_sentence(status.history))
        if diversity := diversity_sentence(status.history[-1]):
            print_line(console, diversity)
        for sentence in learning_sentences(status.history):
            print_line(console, sentence)
    if status.holdout:
        print_line(console, holdout_sentence(status.holdout))
    if status.uploads:
        print_line(console, f"  {status.uploads}")
    print_fact(console, "plots", str(status.folder / "plots"))
    print_fact(console, "checkpoints", f"{status.store.rstrip('/')}/{status.run}")
    print_fact(console, "look again", command_for("show", status.run, status.store))


def print_history(console: Console, status: "RunStatus") -> None:
    from eigen_core.reporting.tables import excess_unit

    if not status.history:
        return
    newest = status.history[-_SHOWN_GENERATIONS:]
    took = {entry.generation: entry for entry in status.telemetry}
    table = PlainTable(
        *("generation", "best fitness", "mean fitness", "validation", "champion", f"excess/{excess_unit(newest)}"),
        *("replay", "time", "RSS", "peak", "exchanged"),
        least_important=("RSS", "peak", "replay", "mean fitness", "time", "validation", "best fitness"),
    )
    for record in newest:
        fitness = (record.best_fitness, record.mean_fitness, record.validation, record.champion_score)
        entry = took.get(record.generation)
        table.add_row(
            str(record.generation),
            *(f"{value:,.1f}" for value in fitness),
            record.champion_excess.short if record.champion_excess else "",
            f"{record.transitions:,}",
            *((f"{entry.seconds:,.1f} s", size(entry.rss_bytes), size(entry.rss_peak_bytes)) if entry else [""] * 3),
            size(entry.exchanged_bytes) if entry and entry.exchanged_bytes else "",
        )
    table.print(console)
    hidden = len(status.history) - _SHOWN_GENERATIONS
    if hidden > 0:
        print_line(console, f"The first {hidden} generations are not shown; --json has them all.")


def print_run(console: Console, status: "RunStatus") -> None:
    print_ending(console, status, f"is {status.state}")
    if status.computed_by is not None:
        print_fact(console, "computed by", str(status.computed_by))
    if status.state == "unfinished":
        print_fact(console, "go on", command_for("resume", status.run, status.store))
    if status.state == "blocked":
        print_fact(console, "why", command_for("memory", status.run, status.store))


def run_document(status: "RunStatus") -> dict[str, Any]:
    took = {entry.generation: entry for entry in status.telemetry}
    return {
        **attributes(status, "run", "state", "generation", "store", "computed_by", "uploads"),
        "generations": status.config.generations,
        "config": status.config.model_dump(mode="json"),
        "history": [
            attributes(record, *_HISTORY_KEYS)
            | {key: getattr(took.get(record.generation), key, None) for key in ("seconds", "rss_peak_bytes")}
            for record in status.history
        ],
    }


def print_runs(console: Console, statuses: Sequence["RunStatus"], unreadable: Mapping[str, str]) -> None:
    headers = ("run", "state", "generation", "champion", "preset")
    table = PlainTable(*headers, left=("run", "state", "preset"), least_important=headers[:1:-1])
    for status in statuses:
        champion = f"{status.history[-1].champion_score:,.1f}" if status.history else ""
        generation = f"{status.generation}/{status.config.generations}"
        table.add_row(status.run, status.state, generation, champion, status.config.preset)
    table.print(console)
    for sentence in unreadable.values():
        print_line(console, sentence)


def runs_document(statuses: Sequence["RunStatus"], unreadable: Mapping[str, str]) -> list[dict[str, Any]]:
    readable = [
        {
            **attributes(status, "run", "state", "generation", "store"),
            **attributes(status.config, "generations", "preset"),
            **{name: getattr(status.history[-1], name) if status.history else None for name in _CHAMPION_KEYS},
        }
        for status in statuses
    ]
    return readable + [{"run": run, "state": "unreadable", "error": sentence} for run, sentence in unreadable.items()]


def print_cleaned(console: Console, runs: Sequence["CleanedRun"], *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    for run in runs:
        print_line(console, f"{run.run}: {run.skipped or _removed(run, would)}")
    freed = sum(run.bytes_freed for run in runs)
    print_line(console, f"{freed / BYTES_PER_MB:,.1f} MB {would}freed.")


def _removed(run: "CleanedRun", would: str) -> str:
    stored, local = (", ".join(map(str, files.generations)) for files in (run.stored, run.local))
    blobs = len(run.stored.blobs) + len(run.local.blobs)
    if not (stored or local or blobs):
        return "nothing to remove."
    named = f"generation{'s' * (len(run.stored.generations) > 1)} {stored}" if stored else "no generation"
    here = f", on this machine also {local}," if local else ""
    return f"{named}{here} and {blobs} files {would}removed, {size(run.bytes_freed)}."


def cleaned_document(runs: Sequence["CleanedRun"]) -> list[dict[str, Any]]:
    return [
        {
            **attributes(run, "run", "skipped", "bytes_freed"),
            "generations": run.stored.generations,
            "blobs": len(run.stored.blobs),
            "local_generations": run.local.generations,
            "local_blobs": len(run.local.blobs),
        }
        for run in runs
    ]


def print_verification(console: Console, found: "Verification") -> None:
    how = "sizes and SHA-256" if found.deep else "sizes; --deep compares SHA-256 too"
    whole = f"Run {found.run} is whole: {len(found.generations)} generations ({how})."
    print_line(console, f"Run {found.run} is damaged ({how}):" if found.damages else whole)
    for damage in found.damages[:_SHOWN_DAMAGES]:
        print_line(console, f"  {damage}")
    if len(found.damages) > _SHOWN_DAMAGES:
        print_line(console, f"  and {len(found.damages) - _SHOWN_DAMAGES} more; --json has them all")
    if found.unreferenced_files:
        print_line(
            console,
            f"{found.unreferenced_files} files ({size(found.unreferenced_bytes)}) belong to no generation: "
            "a generation is being written, was cut short, or its manifest is missing. eigen clean removes old ones.",
        )


def verification_document(found: "Verification") -> dict[str, Any]:
    damages = [attributes(damage, "generation", "file", "path", "what") for damage in found.damages]
    return {"whole": not found.damages, **asdict(found), "damages": damages}


def runs(store: Store = None, as_json: Json = False) -> None:
    """List the runs of a store."""
    from eigen_core.runs.handle import statuses_of

    statuses, unreadable = statuses_of(store_of(store))
    if statuses or unreadable or as_json:
        print_result(as_json, runs_document, print_runs, statuses, unreadable)
    else:
        print_line(output_console(), f"There are no runs in {store_of(store)}. Start one: eigen train")


def show(name: RunName, store: Store = None, as_json: Json = False) -> None:
    """Show a run: its progress, and the results of each generation."""
    from eigen_core.runs.handle import status_of

    print_result(as_json, run_document, print_run, status_of(store_of(store), name))


def memory(name: RunName, store: Store = None, as_json: Json = False) -> None:
    """Show a run's newest memory report; if it has none, the memory of each phase of the last generations."""
    from eigen_core.runs.handle import status_of
    from eigen_core.runs.journals import memory_reports

    status = status_of(store_of(store), name)
    print_result(as_json, memory_document, print_memory, status, memory_reports(status.folder))


def verify(
    name: RunName,
    deep: Annotated[bool, flag("--deep", "Compare SHA-256 too, not just sizes.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Look for missing and damaged files of a run, and name them: exit code 1 if there are any, else 0."""
    from eigen_core.housekeeping import verify_run

    found = verify_run(store_of(store), name, deep=deep)
    print_result(as_json, verification_document, print_verification, found)
    if found.damages:
        raise typer.Exit(EXIT_OTHER)


def clean(
    name: Annotated[str | None, typer.Argument(help="Name of the run.", show_default="all", metavar="[NAME]")] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Only list what would be removed.")] = False,
    older_than: Annotated[str, option("TIME", "Keep unused files that are newer: 90s, 30m, 12h, 7d.")] = "1d",
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Remove generations beyond checkpoint.keep_last and keep_every, and unused files. Skip runs in use."""
    from eigen_core.housekeeping import clean_runs, parse_duration

    grace = parse_duration(older_than)
    cleaned = clean_runs(store_of(store), None if name is None else [name], grace, dry_run=dry_run)
    print_result(as_json, cleaned_document, partial(print_cleaned, dry_run=dry_run), cleaned)


def export(
    name: RunName, champion: Annotated[Path, option("FILE", "Safetensors file to write.")], store: Store = None
) -> None:
    """Write the champion's weights into a safetensors file, whose header has the run's configuration."""
    from eigen_core.housekeeping import export_champion

    print_line(output_console(), export_champion(store_of(store), name, champion))


def memory_document(status: "RunStatus", reports: Sequence[Path]) -> dict[str, Any]:
    report = None
    if reports:
        path = reports[0].with_suffix(".json")
        content = _content(path)
        try:
            report = json.loads(content)
        except ValueError as error:
            raise _unusable(path, f"is damaged ({error})") from error
    return {
        **attributes(status, "run", "state"),
        "pid": _pid(status),
        "folder": status.folder / "memory",
        "report": report,
        "files": _files(reports),
        "older_reports": max(len(reports) - 1, 0),
        "generations": [
            attributes(entry, "generation", "rss_bytes", "rss_peak_bytes", "phases")
            for entry in status.telemetry[-_MEMORY_GENERATIONS:]
        ],
    }


def print_memory(console: Console, status: "RunStatus", reports: Sequence[Path]) -> None:
    """Print the newest memory report of a run; without one, the memory of each phase of the newest generations."""
    if reports:
        print_line(console, _content(reports[0]))
        for index, path in enumerate(_files(reports)):
            print_fact(console, "" if index else "files", str(path), width=8)
        older = len(reports) - 1
        print_fact(console, "older", f"{older} report{'s' * (older != 1)} in {reports[0].parent}", width=8)
        return
    if status.telemetry:
        _print_phases(console, status.telemetry[-_MEMORY_GENERATIONS:])
    else:
        print_line(console, f"  Run {status.run} has no generation yet.")
    print_line(
        console,
        f"  Run {status.run} has no memory report on this machine. Its memory guard writes one when it stops the run, "
        f"and a training when it gets SIGUSR1: kill -USR1 {_pid(status) or 'PID'}",
    )


def _print_phases(console: Console, shown: "Sequence[Telemetry]") -> None:
    headers = ("generation", "phase", "RSS at start", "peak", "end", "tensors on GPU", "held on GPU")
    table = PlainTable(*headers, left=("phase",), least_important=("RSS at start", "end"))
    keys = ("start_bytes", "peak_bytes", "end_bytes", "device_allocated_peak", "device_reserved_peak")
    for entry in shown:
        rows = [(phase.phase, [getattr(phase, key) for key in keys]) for phase in entry.phases]
        rows = rows or [("all", [None, entry.rss_peak_bytes, entry.rss_bytes, None, None])]
        for index, (phase, sizes) in enumerate(rows):
            cells = [size(amount) if amount else "" for amount in sizes]
            table.add_row("" if index else str(entry.generation), phase, *cells, ends_section=index == len(rows) - 1)
    table.print(console)


def _files(reports: Sequence[Path]) -> list[Path]:
    files = [reports[0].with_suffix(suffix) for suffix in (".md", ".json")] if reports else []
    return [path for path in files if path.is_file()]


def _pid(status: "RunStatus") -> int | None:
    """Return the id of the process that trains a run on this machine; None if none does, or its id is unknown."""
    from eigen_core.checkpoint.integrity import LOCK_NAME
    from eigen_core.checkpoint.locks import FileLock

    holder = FileLock(status.folder / LOCK_NAME).holder() if status.state == "running" else None
    return holder.pid if holder is not None and holder.host == socket.gethostname() else None


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise _unusable(path, f"cannot be read ({error.strerror})") from error


def _unusable(path: Path, why: str) -> InputError:
    pair = f"{path.stem}.md and {path.stem}.json"
    return InputError(f"The memory report {path} {why}: remove {pair} to see the report before it.")
