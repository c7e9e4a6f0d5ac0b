"""Short lists of records that are kept in a run's folder, on this machine and in its store. No Prefect in here."""

import logging
from collections.abc import Sequence
from typing import Generic, TypeVar

from pydantic import ValidationError

from eigen_core.checkpoint import RunContents, RunPlace
from eigen_core.checkpoint.sealed import sealed, unsealed
from eigen_core.records import Record
from eigen_core.store import MissingObjectError, StoreUnavailableError

logger = logging.getLogger(__name__)

_MOST_BYTES = 1 << 20

R = TypeVar("R", bound=Record)


class Journal(Generic[R]):
    """The newest records of a kind, in a sealed JSON file.

    What cannot be read counts as empty: a journal only keeps a run from being tried in vain.

    Args:
        name: the file, relative to the run's folder.
        kind: the records.
        kept: so many stay.
    """

    def __init__(self, name: str, kind: type[R], kept: int = 20) -> None:
        self._name = name
        self._kind = kind
        self._kept = kept

    def read(self, place: RunPlace) -> list[R]:
        """Return the records of a run, oldest first, from wherever most of them are known."""
        return max((self._read_in(contents) for contents in place.contents()), key=len)

    def append(self, place: RunPlace, record: R) -> list[R]:
        """Add a record to those of a run, as `replace` does, and return them all."""
        records = [*self.read(place), record][-self._kept :]
        self.replace(place, records)
        return records

    def replace(self, place: RunPlace, records: Sequence[R]) -> None:
        """Let these be the records of a run, here and in its store.

        A store that does not answer is logged: they are then known on this machine alone.
        """
        content = sealed({"records": [entry.model_dump(mode="json") for entry in records]})
        for contents in place.contents():
            try:
                contents.store.put(contents.object_name(self._name), content)
            except StoreUnavailableError as error:
                logger.warning("%s of run '%s' is kept on this machine only: %s", self._name, place.name, error)

    def _read_in(self, contents: RunContents) -> list[R]:
        name = contents.object_name(self._name)
        try:
            document = unsealed(contents.store.read(name, _MOST_BYTES))
            if isinstance(document, str):
                raise ValueError(document)
            rows = document["records"]
            if not isinstance(rows, list):
                raise ValueError("it holds no records")
            return [self._kind.model_validate(row) for row in rows]
        except MissingObjectError:
            return []
        except (KeyError, ValueError, ValidationError) as error:
            logger.warning("%s in %s is skipped (%s).", name, contents.store.url, error)
            return []
