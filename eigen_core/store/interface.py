"""The interface of stores: a flat set of named objects, each of which is complete or absent."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

Progress = Callable[[int], None]
"""Called with the number of further bytes that were transferred."""

HIDDEN = "."
"""How a part of a name begins that is internal to a store, such as a file that is being written."""


class StoreUnavailableError(Exception):
    """The store did not answer, or not correctly, after all retries. It may work later."""


class MissingObjectError(Exception):
    """There is no object of this name."""


class ObjectExistsError(Exception):
    """There is an object of this name already."""


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


class Store(Protocol):
    """Named objects under one URL. Names are relative, with slashes: `first/blobs/ab/abcd...`.

    All methods raise:
        InputError: the store cannot be used as it is and waiting will not help: no credentials, no permission, no such
            bucket, no space. The message says what to do.
        StoreUnavailableError: it may work later.
        ValueError: a name is not one that `checked_name` accepts.

    Methods may be called from any thread.
    """

    @property
    def url(self) -> str:
        """The store's URL or path, as a user would write it."""

    def time(self) -> datetime:
        """Return the time of the clock by which objects are dated (UTC); nothing is written."""

    def check(self) -> None:
        """Check within 15 seconds that objects can be listed, written and read."""

    def put_file(self, name: str, path: Path, moved: Progress | None = None) -> None:
        """Store a file's content under `name`, replacing the object of that name, in bounded memory.

        When this returns, the object is complete: its size and checksum were compared with the file's.
        """

    def put(self, name: str, content: bytes) -> None:
        """Store a small object under `name`, atomically replacing the object of that name."""

    def create(self, name: str, content: bytes) -> None:
        """Store a small object under a name that is not taken; of several concurrent calls, one succeeds.

        Raises:
            ObjectExistsError: the name is taken.
        """

    def read(self, name: str, limit: int) -> bytes:
        """Return the content of a small object.

        Raises:
            MissingObjectError: there is none.
            StoreUnavailableError: it is longer than `limit` bytes.
        """

    def fetch(self, name: str, path: Path, moved: Progress | None = None) -> None:
        """Copy an object to a file, in bounded memory; the file is replaced atomically.

        Raises:
            MissingObjectError: there is none.
        """

    def holds(self, name: str, path: Path) -> bool:
        """Whether the object exists and has the same content as the file, by size and checksum."""

    def stat(self, name: str) -> StoredObject | None:
        """Return an object's size and date, None if there is no such object."""

    def objects(self, prefix: str) -> list[StoredObject]:
        """Return all objects whose names start with `prefix` ("" or a folder's name with its slash), sorted by name."""

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly under `prefix` ("" or a folder's name with its slash), sorted."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; a missing one is not an error."""


def created(store: Store, name: str, content: bytes) -> bool:
    """Create a small object and return whether the object of that name has this content now.

    A create whose reply was lost is recognised by its content, so different writers must write different contents.

    Raises:
        InputError, StoreUnavailableError: see `Store`.
    """
    try:
        store.create(name, content)
    except ObjectExistsError:
        return has_content(store, name, content)
    return True


def has_content(store: Store, name: str, content: bytes) -> bool:
    """Whether a store has an object of this name with this content.

    Raises:
        InputError, StoreUnavailableError: see `Store`.
    """
    known = store.stat(name)
    if known is None or known.bytes != len(content):
        return False
    try:
        return store.read(name, len(content)) == content
    except MissingObjectError:
        return False


def within(seconds: float, action: Callable[[], object], late: str) -> None:
    """Run `action` in a thread and wait for it no longer than `seconds`.

    A thread that does not end in time is abandoned: a call into a dead network file system cannot be interrupted.

    Raises:
        StoreUnavailableError: it did not end in time; the message is `late`.
        Exception: what `action` raised.
    """
    failures: list[Exception] = []

    def run() -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - raised again in the calling thread
            failures.append(error)

    thread = threading.Thread(target=run, name="eigen-store-check", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise StoreUnavailableError(late)
    if failures:
        raise failures[0]


def checked_name(name: str) -> str:
    """Return `name` if it is valid for an object.

    Raises:
        ValueError: it has an empty part, a part that begins with a dot, a backslash or a control character.
    """
    if is_hidden(name):
        raise ValueError(f"not a name of an object in a store: {name[:200]!r}")
    return name


def checked_prefix(prefix: str) -> str:
    """Return `prefix` if it is "" or a folder's name with its slash.

    Raises:
        ValueError: it is something else.
    """
    if prefix and (not prefix.endswith("/") or is_hidden(prefix[:-1])):
        raise ValueError(f"not the name of a folder in a store with its slash: {prefix[:200]!r}")
    return prefix


def is_hidden(name: str) -> bool:
    """Whether a name found in a store is internal to it, or one that `checked_name` refuses."""
    return not all(
        part and not part.startswith(HIDDEN) and part.isprintable() and "\\" not in part for part in name.split("/")
    )
