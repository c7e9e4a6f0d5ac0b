"""The head of a ledger: number and SHA-256 of the newest entry of its chain, kept apart from the chain.

Without it, nothing would say that the newest entries were deleted. It is an object of the store, and each machine that
has added an entry has a copy. Whoever can write to the store and to the machine can change both: it is no signature.
"""

import hashlib
import logging
import uuid
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from eigen_core.cache_root import default_cache_root
from eigen_core.records import Record
from eigen_core.store import MissingObjectError, Store, created
from eigen_core.store.files import replacing
from eigen_core.store.location import LEDGER_HEAD

logger = logging.getLogger(__name__)

_LIMIT = 2**16
LAST = 99_999_999
"""The greatest number of an entry."""


class Head(Record):
    """The newest entry of a chain, when it was added."""

    ledger: str
    """Drawn when the ledger was begun: another store in the same place has another one."""
    number: Annotated[int, Field(ge=0, le=LAST)]
    """The entry's; 0: there is none yet."""
    sha256: str
    """The entry's; empty: there is none yet."""


def stored_head(store: Store) -> Head | None:
    """Return the head that a store has, None if it has none that can be read.

    Raises:
        InputError, StoreUnavailableError: see `Store`.
    """
    try:
        return _parsed(store.read(LEDGER_HEAD, _LIMIT))
    except MissingObjectError:
        return None


def copied_head(store: Store) -> Head | None:
    """Return this machine's copy of a store's head, None if it has none that can be read."""
    try:
        return _parsed(_copy_of(store).read_bytes())
    except OSError:
        return None


def begun_head(store: Store) -> Head:
    """Return the head that a store has, after making one if there is none.

    Raises:
        InputError, StoreUnavailableError: see `Store`.
    """
    found = stored_head(store)
    if found is not None:
        return found
    head = Head(ledger=uuid.uuid4().hex, number=0, sha256="")
    # Of several processes that begin a ledger, one succeeds.
    if not created(store, LEDGER_HEAD, _content(head)):
        found = stored_head(store)
        if found is None:  # What is there cannot be read.
            store.put(LEDGER_HEAD, _content(head))
    return found or head


def keep_head(store: Store, head: Head) -> None:
    """Keep the head of a store, there and as this machine's copy. That there can be no copy is logged.

    Raises:
        InputError, StoreUnavailableError: see `Store`.
    """
    store.put(LEDGER_HEAD, _content(head))
    path = _copy_of(store)
    try:
        with replacing(path) as file:
            file.write(_content(head))
    except OSError as error:
        logger.warning("This machine keeps no copy of the ledger's head: %s cannot be written (%s).", path, error)


def _copy_of(store: Store) -> Path:
    return default_cache_root() / "ledgers" / f"{hashlib.sha256(store.url.encode()).hexdigest()}.json"


def _content(head: Head) -> bytes:
    return head.model_dump_json().encode()


def _parsed(content: bytes) -> Head | None:
    try:
        return Head.model_validate_json(content)
    except ValidationError:
        return None
