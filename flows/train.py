"""The flow that Prefect calls to train a run."""

from prefect import flow
from prefect.client.schemas.objects import State

from eigen_core.training.stop_requests import stop_requests_raised
from flows.parameters import FormConfig
from flows.server.flow_run import first_name, stop_resuming
from flows.server.prefect_internals import keep_training_without_slot

# Prefect takes the slot of a deployment before it calls the flow.
keep_training_without_slot()


@flow(name="train", flow_run_name=first_name, persist_result=False, on_cancellation=[stop_resuming])
def train_flow(config: FormConfig, run: str | None = None, resume: bool = False) -> State[None] | None:
    """Train a population until the run has all its generations, from its newest checkpoint if there is one.

    Ends as `Completed`, named `AlreadyFinished` when nothing is left to do, `AlreadyRunning` if another process trains
    the run or is about to, `StillSuspended` if the run that is to be resumed was suspended in Prefect's pages, and
    `NothingToDo` if what was asked for is complete or was stopped; as `Failed`, with the exception as its data, named
    `MemoryPlan` if the run cannot fit into memory or onto the disk and nothing was begun, `MemoryGuard` if the guard
    ended it, and `Blocked` if the guard, or whatever ended scheduled resumes, has ended this generation as often as is
    allowed.

    Args:
        config: Everything that determines the run. What is left alone comes from the preset. With resume, only the
            store counts: a run continues as it was configured.
        run: Name of the run: letters, digits, dots, dashes and underscores. Empty: a new run, named by preset and time;
            with resume, the run that was asked for last; if that is complete or was stopped, and no schedule asks, the
            run of the store that was trained last, is not complete and was not stopped.
        resume: Continue a run that exists. Otherwise it is begun if it is missing.

    Raises:
        InputError: the data, the store or the run cannot be used with this configuration.
        StoreUnavailableError: the store does not answer, or has not all of the run at its end.
        LeaseLostError: another process has taken the run over.
    """
    with stop_requests_raised():
        # Prefect also reads this file for a hook, and for a form: there is nothing to train then.
        from flows.training import train_flow_run

        return train_flow_run(config, run, resume=resume)
