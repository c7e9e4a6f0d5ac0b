"""What a service elsewhere must be able to do to keep a store: one request each, without a check of what arrives."""

from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO, Protocol

from eigen_core.store.checksums import crc32c
from eigen_core.store.interface import Progress

NEW = "0"
"""The version of an object that is not there."""


class LostUploadError(Exception):
    """The service has forgotten an upload that had begun, or holds other bytes of it: it must be begun anew."""


@dataclass(frozen=True)
class Entry:
    """What a service knows of an object.

    Attributes:
        name: its name, relative to the store.
        size: its size (bytes).
        modified: when it was last written, by the service's clock (UTC).
        checksum: its CRC-32C.
        version: changes whenever the object is written.
    """

    name: str
    size: int
    modified: datetime
    checksum: int
    version: str

    def is_of(self, name: str, content: bytes) -> bool:
        """Whether this is what an object of that name and content must be."""
        return (self.name, self.size, self.checksum) == (name, len(content), crc32c(content))


class Bucket(Protocol):
    """A store's part of a service. Names are relative to the store.

    All methods try again for a limited time where that may help, and raise what those of a `Store` may raise.
    """

    @property
    def url(self) -> str:
        """Where it is."""
        ...

    def hasty(self, seconds: float) -> "Bucket":
        """Return the same, which gives up earlier: no request is tried again after `seconds`."""
        ...

    def check_access(self) -> None:
        """Find out whether this process may ask anything at all, and list."""
        ...

    def time(self) -> datetime:
        """Return what the service's clock shows (UTC), to the second at least."""
        ...

    def entry(self, name: str) -> Entry | None:
        """Return what is known of an object, None if there is none."""
        ...

    def entries(self, prefix: str) -> list[Entry]:
        """Return all objects whose names start with `prefix`."""
        ...

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly under `prefix`."""
        ...

    def upload(self, name: str, content: bytes, version: str | None = None) -> Entry:
        """Write a small object in one step.

        Args:
            name: its name.
            content: its content.
            version: write only if the object is of this version now; None: whatever it is.

        Returns: what the service says it wrote.

        Raises:
            ObjectExistsError: the object is of another version.
        """
        ...

    def upload_file(self, name: str, file: BinaryIO, size: int, checksum: int, moved: Progress) -> None:
        """Write an object from a file of `size` bytes with a CRC-32C of `checksum`, in blocks.

        Raises:
            LostUploadError: it must be begun anew.
        """
        ...

    def read(self, name: str, count: int) -> tuple[bytes, int | None]:
        """Return an object's first bytes, at most `count`, and the CRC-32C of the whole object where it is given.

        Raises:
            MissingObjectError: there is none.
        """
        ...

    def download(self, entry: Entry, first: int, count: int) -> bytes:
        """Return `count` bytes of an object from `first` on.

        Raises:
            MissingObjectError: there is none, or not of this version.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove an object; one that is missing is no error."""
        ...
