"""The flow that removes from a store what need not stay."""

from typing import TYPE_CHECKING, Annotated

from prefect import flow
from prefect.logging import get_run_logger
from pydantic import Field

from eigen_core.units import size

if TYPE_CHECKING:
    from flows.housekeeping import CleanedRun

_GRACE_HOURS = 24.0


@flow(name="cleanup", flow_run_name="cleanup of {store}", persist_result=False)
def cleanup_flow(
    store: Annotated[str, Field(description="Where runs are kept: a folder, or gs://bucket/prefix.")] = "runs",
    grace_hours: Annotated[
        float, Field(ge=0, description="Age from which files of no generation are removed (hours).")
    ] = _GRACE_HOURS,
    dry_run: Annotated[bool, Field(description="Only list what would be removed.")] = False,
) -> int:
    """Apply the retention of every run of a store and return the bytes freed. Runs in use are left alone.

    Raises:
        InputError: the store cannot be used.
        StoreUnavailableError: the store does not answer.
    """
    # As in `train_flow`: this file is rarely read to clean something.
    from flows.housekeeping import clean_runs
    from tasks.artifacts import publish_cleaning

    cleaned = clean_runs(store, None, grace_hours * 3_600.0, dry_run=dry_run)
    freed = sum(run.bytes_freed for run in cleaned)
    get_run_logger().info("%d runs in %s, %s freed", len(cleaned), store, size(freed))
    publish_cleaning(store, [_row(run) for run in cleaned])
    return freed


def _row(run: "CleanedRun") -> dict[str, str | int | float | None]:
    return {
        "run": run.run,
        "generations removed": len(run.stored.generations),
        "files removed": len(run.stored.blobs),
        "freed (MB)": round(run.bytes_freed / 1e6, 1),
        "skipped": run.skipped or "",
    }
