"""Flow runs that the server takes for running though their process is gone: killed together with their worker."""

from typing import TYPE_CHECKING

import psutil

from flows.operations.home import Record
from flows.operations.processes import this_machine

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

_WORKER_LABEL = "prefect.worker.name"
_VARIABLE = "PREFECT__FLOW_RUN_ID"
_ENGINE = "prefect.engine"


def report_lost(client: "SyncPrefectClient", worker: Record | None, name: str) -> "list[FlowRun]":
    """Tell the server which flow runs of a worker that has ended have no process any more, and return them.

    Prefect itself would not, until their heartbeats have been missed for a while. What runs is left alone, and so is
    what may run where it cannot be seen: on another machine, in another container, or under another worker.

    Args:
        client: of the server.
        worker: what was noted of the worker that has ended, None if nothing was.
        name: what the server calls it.
    """
    from prefect.client.schemas.objects import StateType
    from prefect.states import Cancelled, Crashed

    from flows.operations.flow_runs import active_flow_runs

    if worker is None or worker.process.is_alive() or worker.machine is None or worker.machine != this_machine():
        return []
    theirs = [found for found in active_flow_runs(client) if found.labels.get(_WORKER_LABEL) == name]
    lost = [found for found in theirs if not has_process(found.id)]
    for found in lost:
        message = "Its process was killed together with its worker."
        ended = Cancelled if found.state_type == StateType.CANCELLING else Crashed
        client.set_flow_run_state(found.id, ended(message=message))
    return lost


def has_process(flow_run_id: "UUID") -> bool:
    """Whether a process of this machine works for a flow run, or may: if that is not known of one, it is taken to."""
    return any(_may_work_for(process, str(flow_run_id)) for process in psutil.process_iter())


def _may_work_for(process: psutil.Process, flow_run_id: str) -> bool:
    try:
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return False
        return process.environ().get(_VARIABLE) == flow_run_id
    except psutil.AccessDenied:
        return _may_be_engine(process)
    except psutil.NoSuchProcess:
        return False


def _may_be_engine(process: psutil.Process) -> bool:
    """Whether a process whose environment is hidden, since it is another user's, may be that of a flow run."""
    try:
        return _ENGINE in process.cmdline()
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False
