"""What lies beside a run's generations, plots and the holdout's results, and whether it is whole.

A list of its own names each with size and SHA-256. It is written after them, without them before they change, so that
what a killed process leaves is at worst not listed. Such files, as those of older runs, have their own checksums alone.
"""

import hashlib
import zlib
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eigen_core.checkpoint.checksums import checksummed, parse_checksummed
from eigen_core.checkpoint.damage import Damage, DamagedFileError
from eigen_core.checkpoint.manifest import FORMAT_VERSION, Natural, Sha256
from eigen_core.checkpoint.names import ATTACHMENTS_NAME, HOLDOUT, PLOTS
from eigen_core.store import MissingObjectError, Store

_LIMIT = 64 << 20
"""Most bytes that one of them, or their list, may have."""
_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"IEND"
_WORD = 4


def check_attachment(name: str, content: bytes) -> None:
    """Check a JSON document by its checksum, or a PNG image by its own; other files have nothing to go by.

    Args:
        name: its name, whose ending says what it is.
        content: all of it.

    Raises:
        DamagedFileError: it is damaged.
    """
    if name.endswith(".json"):
        parse_checksummed(content)
    if name.endswith(".png") and not _is_whole_png(content):
        raise DamagedFileError("is not a whole PNG image")


def _is_whole_png(content: bytes) -> bool:
    """Whether all chunks of an image have the checksums that they carry, and the last one is its end.

    A chunk is the length of its data, a type, the data, and the CRC-32 of type and data.
    """
    if not content.startswith(_PNG_START):
        return False
    at = len(_PNG_START)
    kind = b""
    while kind != _PNG_END:
        length = int.from_bytes(content[at : at + _WORD], "big")
        kind = content[at + _WORD : at + 2 * _WORD]
        end = at + 2 * _WORD + length
        checksum = content[end : end + _WORD]
        if len(checksum) < _WORD or zlib.crc32(content[at + _WORD : end]) != int.from_bytes(checksum, "big"):
            return False
        at = end + _WORD
    return at == len(content)


class AttachmentEntry(BaseModel):
    """One file beside the generations."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """Relative to the run's folder."""
    bytes: Natural
    """Size (bytes)."""
    sha256: Sha256


class _List(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: int = Field(ge=1, le=FORMAT_VERSION)
    files: tuple[AttachmentEntry, ...]


class Attachments:
    """The files beside a run's generations, in any store.

    Args:
        store: where runs are kept.
        run: the run's name.
    """

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run

    def read(self, name: str) -> bytes:
        """Return the content of an attachment.

        Args:
            name: relative to the run's folder.

        Raises:
            MissingObjectError: there is none.
            DamagedFileError: it is damaged, or not the one that is listed.
        """
        return self._read(name, self._entries())

    def put(self, name: str, content: bytes) -> None:
        """Keep a small file and list it."""
        self.forget(name)
        self._store.put(f"{self._run}/{name}", content)
        self.add([name])

    def forget(self, prefix: str) -> None:
        """Take those whose names begin with `prefix` off the list, since they are about to change."""
        entries = self._entries()
        left = [entry for name, entry in entries.items() if not name.startswith(prefix)]
        if len(left) < len(entries):
            self._write(left)

    def add(self, names: Iterable[str]) -> None:
        """List files as they are now."""
        entries = self._entries()
        for name in names:
            content = self._store.read(f"{self._run}/{name}", _LIMIT)
            entries[name] = AttachmentEntry(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        self._write(entries.values())

    def damages(self) -> list[Damage]:
        """Return what is wrong with the list, what it names, and what else is there."""
        try:
            return self._damages(self._listed())
        except DamagedFileError as error:
            return [Damage(None, ATTACHMENTS_NAME, str(error), ATTACHMENTS_NAME), *self._damages({})]

    def _damages(self, listed: dict[str, AttachmentEntry]) -> list[Damage]:
        prefix = f"{self._run}/"
        stored = [*self._store.objects(f"{prefix}{PLOTS}"), *self._store.objects(f"{prefix}{HOLDOUT}")]
        damages = []
        for name in sorted({found.name.removeprefix(prefix) for found in stored} | listed.keys()):
            try:
                self._read(name, listed)
            except DamagedFileError as error:
                damages.append(Damage(None, name, str(error), name))
            except MissingObjectError:
                if name in listed:
                    damages.append(Damage(None, name, "is missing", name))
        return damages

    def _read(self, name: str, listed: dict[str, AttachmentEntry]) -> bytes:
        full, entry = f"{self._run}/{name}", listed.get(name)
        stored = self._store.stat(full)
        if stored is None:
            raise MissingObjectError(f"{self._store.url} has no {full}")
        if stored.bytes > _LIMIT:
            raise DamagedFileError(f"has {stored.bytes:,} bytes, more than any of its kind")
        content = self._store.read(full, _LIMIT)
        if entry is not None and hashlib.sha256(content).hexdigest() != entry.sha256:
            raise DamagedFileError(f"is not the file that {ATTACHMENTS_NAME} lists")
        check_attachment(name, content)
        return content

    def _entries(self) -> dict[str, AttachmentEntry]:
        try:
            return self._listed()
        except DamagedFileError:
            return {}

    def _listed(self) -> dict[str, AttachmentEntry]:
        """Return the list, empty if there is none.

        Raises:
            DamagedFileError: it is damaged.
        """
        try:
            content = self._store.read(f"{self._run}/{ATTACHMENTS_NAME}", _LIMIT)
            return {entry.name: entry for entry in _List.model_validate(parse_checksummed(content)).files}
        except MissingObjectError:
            return {}
        except ValidationError as error:
            raise DamagedFileError(f"has an unexpected form ({error.errors()[0]['msg']})") from error

    def _write(self, entries: Iterable[AttachmentEntry]) -> None:
        files = tuple(sorted(entries, key=lambda entry: entry.name))
        fields = _List(format_version=FORMAT_VERSION, files=files).model_dump(mode="json")
        self._store.put(f"{self._run}/{ATTACHMENTS_NAME}", checksummed(fields))
