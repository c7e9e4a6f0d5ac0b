"""What a flow run is called in Prefect's pages, and by which tags it is found."""

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from eigen_core.config import Config


def describe_flow_run(config: Config, run: str, generation: int) -> None:
    """Give this flow run a name that says what it trains, such as `mine gen 7-25`, and tags to find it by.

    A server that does not take them is logged: names must not stop a training.
    """
    if flow_run.id is None:
        return
    name = f"{run} gen {generation}-{max(config.generations, generation)}"
    tags = sorted({*flow_run.tags, f"run:{run}", f"preset:{config.preset}", f"device:{config.device}"})
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, name=name, tags=tags)
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("The flow run could not be named: %s: %s", type(error).__name__, error)
