"""Which run a flow trains where none was named. No Prefect in here."""

import logging
import os
from dataclasses import dataclass

from eigen_core.config import Config
from eigen_core.config.sections import CheckpointConfig
from eigen_core.errors import InputError
from eigen_core.store import store_from_environment
from flows.runs import configured_place, holdout_of, is_complete, newest_generation, runs_in

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChosenRun:
    """A run to go on with.

    Attributes:
        name: the run.
        config: the configuration it had last, with this machine's places for it (`configured_place`).
        generation: the generation that comes next; one more than the last if only the holdout days are left.
    """

    name: str
    config: Config
    generation: int


def with_store_of_environment(config: Config) -> Config:
    """Return the configuration with the store that the environment names, if its own is the default.

    Raises:
        InputError: the environment's variables are at odds with each other.
    """
    found = store_from_environment(os.environ)
    if found is None or config.checkpoint.store != CheckpointConfig().store:
        return config
    return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"store": found})})


def newest_unfinished(store: str, local: str = CheckpointConfig().local) -> ChosenRun | None:
    """Return the run of a store that was trained last among those that are not complete; None if there is none.

    Runs whose configuration cannot be read are logged and passed over.

    Raises:
        InputError: the store cannot be used.
        StoreUnavailableError: it does not answer.
    """
    candidates = []
    for name in runs_in(store):
        try:
            place, config = configured_place(store, name, local)
        except InputError as error:
            logger.warning("Run '%s' is passed over. %s", name, error)
            continue
        newest = newest_generation(place)
        generation, written = (0, "") if newest is None else (newest[1].generation, newest[1].created)
        if not is_complete(config, generation, holdout_of(place, generation)):
            candidates.append((written, name, ChosenRun(name, config, generation + 1)))
    return max(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None
