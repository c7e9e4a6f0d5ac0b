"""The flow of a walk: each of its runs is trained by the flow `train`, as a flow run under its own."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled

from eigen_core.judging.walks import Walk
from flows.server.environment import RUNNING_NAME
from flows.server.flow_run import correct_state
from flows.train import train_flow


def _name() -> str:
    return f"walk {flow_run.parameters['walk'].name}"


@flow(name="walk", flow_run_name=_name, persist_result=False, validate_parameters=False)
def walk_flow(walk: Walk) -> State[Any] | None:
    """Train the runs of a walk, one after another; those that are finished are passed over.

    Ends as the first of its trainings that did not end well; then the runs after it are not begun. When it is cancelled
    in Prefect's pages, so is the training that goes on, after its generation.

    Args:
        walk: with its folds and seeds.

    Raises:
        CancellationError: it was cancelled in Prefect's pages, between two runs.
    """
    for run, config in walk.runs():
        correct_state()
        ended = train_flow(config, run, return_state=True)
        if ended.is_cancelled():
            # Of a state that has been reported, Prefect makes one without its message.
            return Cancelled(message=ended.message)
        if not ended.is_completed() or ended.name == RUNNING_NAME:
            return ended
    return None
