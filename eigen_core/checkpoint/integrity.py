"""Names and checksums of a run's files, blobs (files named by their SHA-256), and descriptions of damaged files."""

import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from pydantic import JsonValue

from eigen_core.common.errors import InputError
from eigen_core.common.files import HIDDEN, make_folder, open_regular_file, place, sync_folder, temporary_file
from eigen_core.common.progress import report_progress

CONFIG_NAME = "config.json"
LISTS = "attachments/"
LIST_NAME = f"{LISTS}list.json"
"""File that lists the holdout results with their SHA-256; in runs of earlier versions of Eigen, plots too."""
LOCK_NAME = "lock"
ATTEMPTS_NAME = "attempts.json"
BLOBS = "blobs/"
MANIFESTS = "manifests/"
LEASES = "lease/"
BEFORE_A_RUN = (LOCK_NAME, ATTEMPTS_NAME, LEASES.rstrip("/"))
"""Names of files and folders that may be in a run's folder before the run is created."""
PLOTS = "plots/"
HOLDOUT = "holdout/"
REPAIR = "restore the file from a copy of the run, or resume the run from its newest undamaged generation"
"""Advice in errors about a damaged generation."""
DELETED_MARK = b"withdrawn\n"
"""Content of an object that reserves a manifest's name, so that no suspended process can create this manifest later."""
_CHECKSUM = "checksum"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MANIFEST = re.compile(rf"(?:{MANIFESTS})?([0-9]{{6}}|[1-9][0-9]{{6,17}})-[0-9a-f]{{8}}\.json")


def blob_name(sha256: str) -> str:
    return f"{BLOBS}{sha256[:2]}/{sha256}"


def is_blob(name: str) -> bool:
    """Whether a name, relative to the run's folder, is a blob's; other files in `blobs/` are not Eigen's."""
    sha256 = name.rpartition("/")[2]
    return _SHA256.fullmatch(sha256) is not None and name == blob_name(sha256)


def is_verified(name: str) -> bool:
    """Whether a run goes around this file if it is damaged, or is no regular file."""
    return name == CONFIG_NAME or generation_of(name) is not None or is_blob(name)


def manifest_name(generation: int, checksum: str) -> str:
    return f"{MANIFESTS}{generation:06d}-{checksum[:8]}.json"


def generation_of(name: str) -> int | None:
    """Return the generation in a manifest's name, with or without `manifests/` before it; None for other names."""
    match = _MANIFEST.fullmatch(name)
    return None if match is None else int(match[1])


def holdout_name(generation: int) -> str:
    return f"{HOLDOUT}{generation:06d}.json"


@dataclass(frozen=True)
class Damage:
    """A defect of a file that `generation` needs (None: the whole run); `path` is relative to the run's folder.

    `file`, such as "replay shard 11600", and `what`, such as "is missing", together are a sentence.
    """

    generation: int | None
    file: str
    what: str
    path: str

    def __str__(self) -> str:
        where = f" ({self.path})" if self.path != self.file else ""
        generation = "" if self.generation is None else f"generation {self.generation}: "
        return f"{generation}{self.file} {self.what}{where}"


class DamagedFileError(ValueError):
    """A file is missing or damaged. The message, such as "is missing", follows the file's name in a sentence."""


class UnfitSnapshotError(InputError):
    """A snapshot is undamaged, but no run with this configuration can have written it; `file`, `what`: see `Damage`."""

    def __init__(self, file: str, what: str) -> None:
        super().__init__(f"{file} {what}.")
        self.file = file
        self.what = what


class DamagedGenerationError(InputError):
    """A generation, or every generation of a run, cannot be read; `damages` are the reasons."""

    def __init__(self, message: str, damages: list[Damage]) -> None:
        super().__init__(message)
        self.damages = damages


def in_words(damages: list[Damage]) -> str:
    shown = "; ".join(str(damage) for damage in damages[:3])
    return shown + (f"; and {len(damages) - 3} more" if len(damages) > 3 else "")


def canonical_json(document: JsonValue) -> bytes:
    """Return `document` as JSON with sorted keys, no spaces and only ASCII; `ValueError` for NaN and infinity."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def json_sha256(document: JsonValue) -> str:
    return hashlib.sha256(canonical_json(document)).hexdigest()


def checksummed(fields: Mapping[str, JsonValue]) -> bytes:
    """Return a JSON document with these fields and `checksum`, the SHA-256 of the fields (`json_sha256`)."""
    document = {**fields, _CHECKSUM: json_sha256(dict(fields))}
    return (json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n").encode("ascii")


def parse_checksummed(content: bytes) -> dict[str, JsonValue]:
    """Return the fields that `checksummed` wrote, without the checksum; `DamagedFileError` if `content` has changed."""
    document = parse_document(content)
    if not isinstance(document, dict) or document.pop(_CHECKSUM, None) is None:
        raise DamagedFileError("has no checksum")
    try:
        whole = checksummed(document) == content
    except (ValueError, RecursionError) as error:
        raise DamagedFileError("is not JSON") from error
    if not whole:
        raise DamagedFileError("does not match its own checksum")
    return document


class BytesDone:
    """Counts bytes in any thread and reports progress of `name` as if in the thread that constructed it."""

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._done = 0
        self._lock = Lock()
        self._context = copy_context()

    def add(self, count: int) -> None:
        with self._lock:
            self._done = min(self._done + count, self._total)
            self._context.run(report_progress, self._name, self._done, self._total)


def document_bytes(file: str, document: JsonValue | bytes) -> bytes:
    try:
        return document if isinstance(document, bytes) else canonical_json(document)
    except ValueError as error:
        raise ValueError(f"{file} cannot be written as JSON: {error}") from error


def parse_document(content: bytes) -> JsonValue:
    try:
        document: JsonValue = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError("is not JSON") from error
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON does not have {name}")


_READ_BYTES = 1 << 20


def blob_path(run: Path, sha256: str) -> Path:
    return place(run, blob_name(sha256))


def write_blob(run: Path, fill: Callable[[Path], object]) -> tuple[str, int]:
    """Write a blob durably to a run's folder `run`; return its SHA-256 and size (bytes).

    `fill` gets the path of a temporary file and writes the content to it. An existing blob of the same SHA-256 is
    replaced, since it may be damaged.
    """
    with temporary_file(place(run, BLOBS)) as (_, temporary):
        mode = temporary.stat().st_mode
        fill(temporary)
        # The writer of safetensors leaves a file that only its owner may read.
        temporary.chmod(mode)
        with open_regular_file(temporary) as file:
            sha256, size = _sha256(file), os.fstat(file.fileno()).st_size
            os.fsync(file.fileno())
        path = blob_path(run, sha256)
        make_folder(path.parent)
        if path.is_dir() and not path.is_symlink():
            # A file cannot replace a folder. The folder is renamed, not deleted, since its owner may need its content.
            path.rename(path.with_name(f"{HIDDEN}{path.name}-{uuid.uuid4().hex}"))
        os.replace(temporary, path)
        sync_folder(path.parent)
    return sha256, size


def check_blob(path: Path, size: int, read: Callable[[int], None] | None = None) -> None:
    """Raise `DamagedFileError` unless a blob has this `size` and the SHA-256 in its name; `read` counts bytes."""
    try:
        with open_regular_file(path, follow=False) as file:
            found = os.fstat(file.fileno()).st_size
            if found != size:
                raise DamagedFileError(f"has {found:,} bytes instead of {size:,}")
            if _sha256(file, read) != path.name:
                raise DamagedFileError("does not match its SHA-256")
    except FileNotFoundError as error:
        raise DamagedFileError("is missing") from error
    except IsADirectoryError as error:
        raise DamagedFileError("is not a file") from error
    except OSError as error:
        raise DamagedFileError(f"cannot be read ({error.strerror})") from error


def _sha256(file: BinaryIO, read: Callable[[int], None] | None = None) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_READ_BYTES))
    while count := file.readinto(buffer):  # type: ignore[attr-defined]  # BinaryIO lacks it; files have it
        digest.update(buffer[:count])
        if read is not None:
            read(count)
    return digest.hexdigest()
