"""What every store can do: a flat set of named objects, each there as a whole or not at all."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

Progress = Callable[[int], None]
"""Called with the number of further bytes that were moved."""


class StoreUnavailableError(Exception):
    """The store did not answer, or not as it should, after all retries. It may do so later."""


class MissingObjectError(Exception):
    """There is no object of this name."""


class ObjectExistsError(Exception):
    """There is an object of this name already, made by somebody else."""


@dataclass(frozen=True)
class StoredObject:
    """An object in a store.

    Attributes:
        name: its name, relative to the store, with slashes.
        bytes: its size.
        modified: when it was last written, by the store's clock (UTC).
    """

    name: str
    bytes: int
    modified: datetime


def created(store: "Store", name: str, content: bytes) -> bool:
    """Create a small object; whether its name has this very content now.

    What was created by a request whose reply was lost is found so, since contents of different makers differ.

    Raises:
        InputError, StoreUnavailableError: see `Store`.
    """
    try:
        store.create(name, content)
    except ObjectExistsError:
        known = store.stat(name)
        if known is None or known.bytes != len(content):
            return False
        try:
            return store.read(name, len(content)) == content
        except MissingObjectError:
            return False
    return True


class Store(Protocol):
    """Named objects in one place. Names are relative, with slashes: `first/blobs/ab/abcd...`.

    All methods raise:
        InputError: the store cannot be used as it is and waiting will not help: no credentials, no permission, no such
            bucket, no space. The message says what to do.
        StoreUnavailableError: it may work later.

    Methods may be called from any thread.
    """

    @property
    def url(self) -> str:
        """Where it is, as a user would write it."""
        ...

    def time(self) -> datetime:
        """Return what the clock shows by which objects are dated (UTC); nothing is written."""
        ...

    def check(self) -> None:
        """Find out within 15 seconds whether objects can be listed, written and read here."""
        ...

    def put_file(self, name: str, path: Path, moved: Progress | None = None) -> None:
        """Store a file's content under `name`, replacing what was there, in bounded memory.

        When this returns, the object is whole: its size and checksum were compared with the file's.
        """
        ...

    def put(self, name: str, content: bytes) -> None:
        """Store a small object under `name`, replacing what was there in one step."""
        ...

    def create(self, name: str, content: bytes) -> None:
        """Store a small object under a name that is free; of several who try at a time, one succeeds.

        Raises:
            ObjectExistsError: the name is taken.
        """
        ...

    def read(self, name: str, limit: int) -> bytes:
        """Return the content of a small object.

        Raises:
            MissingObjectError: there is none.
            StoreUnavailableError: it is longer than `limit` bytes.
        """
        ...

    def fetch(self, name: str, path: Path, moved: Progress | None = None) -> None:
        """Copy an object into a new file, in bounded memory; the file is there as a whole or not at all.

        Raises:
            MissingObjectError: there is none.
        """
        ...

    def holds(self, name: str, path: Path) -> bool:
        """Whether there is an object of this name with the file's very content, by size and checksum."""
        ...

    def stat(self, name: str) -> StoredObject | None:
        """Return what is known of an object, None if there is none."""
        ...

    def objects(self, prefix: str) -> list[StoredObject]:
        """Return all objects whose names start with `prefix` (a folder's name with its slash), sorted by name."""
        ...

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly under `prefix` ("" or a folder's name with its slash), sorted."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; those that are missing are no error."""
        ...
