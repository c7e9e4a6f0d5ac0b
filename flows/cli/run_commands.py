"""The commands that list, show, check and clean the runs of a store.

Torch and Prefect take seconds to import: a command imports them when it needs them.
"""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.common import EXIT_OTHER, AnyRunName, Json, RunName, Store, sentences, store_of
from flows.cli.output import output_console, print_json, print_line, print_result
from flows.cli.runs import (
    cleaned_document,
    print_cleaned,
    print_run,
    print_runs,
    print_verification,
    run_document,
    runs_document,
    verification_document,
)


@sentences
def runs(store: Store = None, as_json: Json = False) -> None:
    """List the runs of a store."""
    from eigen_core.training.runs import statuses_of

    statuses, unreadable = statuses_of(store_of(store))
    if statuses or unreadable or as_json:
        print_result(as_json, runs_document, print_runs, statuses, unreadable)
    else:
        print_line(output_console(), f"There are no runs in {store_of(store)}. Start one: eigen train")


@sentences
def show(name: RunName, store: Store = None, as_json: Json = False) -> None:
    """Show a run: how far it is, and what each generation gave; as JSON also the verdict on its holdout."""
    from eigen_core.training.runs import status_of

    status = status_of(store_of(store), name)
    if not as_json:
        print_run(output_console(), status)
        return
    verdict = None
    if status.holdout is not None:
        from eigen_core.judging.backtests import holdout_verdict

        verdict = holdout_verdict(status)
    shown = verdict and {"claim": verdict.claim, "sentence": verdict.sentence}
    print_json({**run_document(status), "verdict": shown})


@sentences
def memory(name: RunName, store: Store = None, as_json: Json = False) -> None:
    """Show what took the memory of a run: its newest memory report, or what each phase of it took."""
    from flows.cli.memory import memory_document, memory_of, print_memory

    print_result(as_json, memory_document, print_memory, memory_of(store_of(store), name))


@sentences
def verify(
    name: RunName,
    deep: Annotated[bool, typer.Option("--deep", help="Compare SHA-256 too, not just sizes.", metavar="")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Look for damage in a run: exit code 0 if it is whole, 1 if it is not, with each file named."""
    from eigen_core.housekeeping import verify_run

    found = verify_run(store_of(store), name, deep=deep)
    print_result(as_json, verification_document, print_verification, found)
    if found.damages:
        raise typer.Exit(EXIT_OTHER)


@sentences
def clean(
    name: AnyRunName = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.", metavar="")] = False,
    older_than: Annotated[
        str, typer.Option(help="Age from which files of no generation are removed: 90s, 30m, 12h, 7d.", metavar="TIME")
    ] = "1d",
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Remove generations that need not stay, and files that belong to none. Runs in use are left alone."""
    from eigen_core.housekeeping import clean_runs, parse_duration

    grace = parse_duration(older_than)
    cleaned = clean_runs(store_of(store), None if name is None else [name], grace, dry_run=dry_run)
    print_result(as_json, cleaned_document, partial(print_cleaned, dry_run=dry_run), cleaned)


@sentences
def export(
    name: RunName,
    champion: Annotated[Path, typer.Option(help="File to write, a safetensors file.", metavar="FILE")],
    store: Store = None,
) -> None:
    """Write the champion's weights, with the configuration in the header, into a file."""
    from eigen_core.housekeeping import export_champion

    print_line(output_console(), export_champion(store_of(store), name, champion))
