"""The commands that look after a store: clean, verify, export."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from eigen_core.units import BYTES_PER_MB, size

if TYPE_CHECKING:
    from flows.housekeeping import CleanedRun, Verification

_SHOWN_DAMAGES = 50


def print_cleaned(console: Console, runs: Sequence["CleanedRun"], *, dry_run: bool) -> None:
    """Print what was removed of each run, or would be, and how much that frees."""
    would = "would be " if dry_run else ""
    for run in runs:
        console.print(
            f"{run.run}: {run.skipped or _removed(run, would)}", highlight=False, markup=False, soft_wrap=True
        )
    freed = sum(run.bytes_freed for run in runs)
    console.print(f"{freed / BYTES_PER_MB:,.1f} MB {would}freed.", highlight=False)


def _removed(run: "CleanedRun", would: str) -> str:
    generations = run.stored.generations
    blobs = len(run.stored.blobs) + len(run.local.blobs)
    if not generations and not blobs and not run.local.generations:
        return "nothing to remove."
    plural = "s" * (len(generations) > 1)
    named = f"generation{plural} {', '.join(map(str, generations))}" if generations else "no generation"
    local = f", here also {', '.join(map(str, run.local.generations))}" if run.local.generations else ""
    return f"{named}{local} and {blobs} files {would}removed, {size(run.bytes_freed)}."


def cleaned_document(runs: Sequence["CleanedRun"]) -> list[dict[str, Any]]:
    """Return what `eigen clean --json` prints."""
    return [
        {
            "run": run.run,
            "skipped": run.skipped,
            "generations": list(run.stored.generations),
            "blobs": len(run.stored.blobs),
            "local_generations": list(run.local.generations),
            "local_blobs": len(run.local.blobs),
            "bytes_freed": run.bytes_freed,
        }
        for run in runs
    ]


def print_verification(console: Console, found: "Verification") -> None:
    """Print whether a run is whole, and each damage."""
    how = "sizes and SHA-256" if found.deep else "sizes; --deep compares SHA-256 too"
    if found.damages:
        console.print(f"Run {found.run} is damaged ({how}):", highlight=False, soft_wrap=True)
    else:
        count = len(found.generations)
        console.print(f"Run {found.run} is whole: {count} generations ({how}).", highlight=False, soft_wrap=True)
    for damage in found.damages[:_SHOWN_DAMAGES]:
        console.print(f"  {damage}", highlight=False, markup=False, soft_wrap=True)
    if len(found.damages) > _SHOWN_DAMAGES:
        console.print(f"  and {len(found.damages) - _SHOWN_DAMAGES} more; --json has them all", highlight=False)
    if found.unreferenced_files:
        console.print(
            f"{found.unreferenced_files} files ({size(found.unreferenced_bytes)}) belong to no generation: "
            "one is being written, was cut short, or has lost its manifest.",
            highlight=False,
            soft_wrap=True,
        )


def verification_document(found: "Verification") -> dict[str, Any]:
    """Return what `eigen verify --json` prints."""
    return {
        "run": found.run,
        "whole": not found.damages,
        "deep": found.deep,
        "generations": list(found.generations),
        "damages": [
            {"generation": damage.generation, "file": damage.file, "path": damage.path, "what": damage.what}
            for damage in found.damages
        ],
        "unreferenced_files": found.unreferenced_files,
        "unreferenced_bytes": found.unreferenced_bytes,
    }
