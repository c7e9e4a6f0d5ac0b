"""What of a run in a store elsewhere is this machine's own business: where its data are, and where its copies.

The store's word for either is not taken: who can write to it could choose what is read and written here.
No Prefect in here.
"""

import logging

from pydantic import ValidationError

from eigen_core.checkpoint import RunPlace, unsealed
from eigen_core.checkpoint.sealed import sealed
from eigen_core.config import Config
from eigen_core.errors import InputError
from eigen_core.records import Record
from eigen_core.store import LocalStore, MissingObjectError, StoreUnavailableError, is_remote, run_root

logger = logging.getLogger(__name__)

_MOST_BYTES = 1 << 16


class OwnSettings(Record):
    """The settings of a run with which it was last trained on this machine."""

    data: str | None
    """`market.data`."""


def own_settings(place: RunPlace, local: str) -> OwnSettings | None:
    """Return what is remembered of a run in a store elsewhere; None if it was never trained here, or the store is here.

    Args:
        place: the run.
        local: the folder that may hold the memory, a value of `checkpoint.local`.
    """
    if not place.remote:
        return None
    try:
        memory = _memory(place.store.url, local)
        document = unsealed(memory.read(_object_name(place.name), _MOST_BYTES))
        if isinstance(document, str):
            raise InputError(f"{_object_name(place.name)} in {memory.url} {document}.")
        return OwnSettings.model_validate({"data": document["data"]})
    except MissingObjectError:
        return None
    except (InputError, StoreUnavailableError, KeyError, ValidationError) as error:
        logger.warning("Where this machine keeps run '%s' is not remembered: %s", place.name, error)
        return None


def remember_own_settings(config: Config, name: str) -> None:
    """Keep this machine's own settings of a run in a store elsewhere, in its folder for what is on its way there.

    Raises:
        InputError: the folder cannot be written to.
    """
    settings = config.checkpoint
    if is_remote(settings.store):
        content = sealed(OwnSettings(data=config.market.data).model_dump(mode="json"))
        _memory(settings.store, settings.local).put(_object_name(name), content)


def _memory(store: str, local: str) -> LocalStore:
    return LocalStore(run_root(store, local) / ".own")


def _object_name(name: str) -> str:
    return f"{name}.json"
