"""The flow that removes from a store what need not stay."""

import os
from typing import TYPE_CHECKING, Annotated

from prefect import flow
from prefect.logging import get_run_logger
from pydantic import Field

from eigen_core.common.errors import InputError
from eigen_core.common.text import size
from eigen_core.config.model import CheckpointConfig
from eigen_core.store import store_from_environment

if TYPE_CHECKING:
    from eigen_core.housekeeping import CleanedRun

_GRACE_HOURS = 24.0


@flow(name="cleanup", flow_run_name="cleanup", persist_result=False)
def cleanup_flow(
    store: Annotated[str | None, Field(description="Leave empty: the store of the worker's environment.")] = None,
    grace_hours: Annotated[
        float, Field(ge=0, description="Age from which files of no generation are removed (hours).")
    ] = _GRACE_HOURS,
    dry_run: Annotated[bool, Field(description="Only list what would be removed.")] = False,
) -> int:
    """Apply the retention of every run of a store and return the bytes freed. Runs in use are left alone.

    Args:
        store: where runs are kept; None: the store of the environment, else `runs`. A worker is given none.
        grace_hours: age from which files of no generation are removed (hours).
        dry_run: only list what would be removed.

    Raises:
        InputError: the store cannot be used, or the parameters of a deployed flow run name one.
        StoreUnavailableError: the store does not answer.
    """
    # As in `train_flow`: this file is rarely read to clean something.
    from eigen_core.housekeeping import clean_runs
    from flows.server.flow_runs import own_deployment
    from tasks.artifacts import publish_cleaning

    if store is not None and own_deployment() is not None:
        raise InputError(
            "The parameters of this flow run name a store, which is the worker's own: leave it out, and set "
            "EIGEN_STORE in the worker's environment."
        )
    store = store or store_from_environment(os.environ) or CheckpointConfig().store
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
