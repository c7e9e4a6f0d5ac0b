"""Uploads of a run to a bucket: a thread copies generations and small files, one after the other, with retries.

Training waits only while the queue of generations is full.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from eigen_core.checkpoint.integrity import BLOBS, REPAIR, DamagedFileError, check_blob
from eigen_core.checkpoint.locks import Lease, LeaseLostError
from eigen_core.checkpoint.manifest import Manifest, manifest_bytes
from eigen_core.checkpoint.run_contents import RunContents, kept_generations
from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.common.errors import InputError
from eigen_core.common.files import replacing
from eigen_core.common.records import Printable
from eigen_core.common.text import count, size
from eigen_core.config import CheckpointConfig

if TYPE_CHECKING:
    from eigen_core.checkpoint.run_directory import RunDirectory

logger = logging.getLogger(__name__)

STATUS_NAME = "uploads.json"
"""Name of the status file in the run directory."""
NOTHING_TO_DO = math.inf

_WARN_SECONDS = 60.0
_CLOSE_SECONDS = 5.0
_MOST_RETRY_SECONDS = 60.0
_MOST_RETRY_SECONDS_AT_END = 5.0
# Blobs without a manifest that are younger than this stay in the store: their manifest may be uploaded soon.
_GRACE_SECONDS = 86_400.0
_NOT_DELETED = "Run '%s': old generations in %s could not be deleted and stay until the next checkpoint: %s"

UploaderState = Literal["idle", "uploading", "waiting", "ended"]
"""State of a run's uploads: `waiting` for a retry after an error; `ended`: closed, or broken by `last_error`."""


class UploadsEndedError(RuntimeError):
    """Nothing more is uploaded: the uploader was closed, or an error ended its thread (the message says which)."""


class _ClosedError(Exception):
    """The uploader was closed during an upload, which therefore ends unfinished."""


class UploadStatus(BaseModel):
    """Status of a run's uploads, for logs and pages; other processes read it in the file `STATUS_NAME`."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    run: str
    store: Printable
    state: UploaderState = "idle"
    updated: datetime
    """Time of this status (UTC, by the clock of the machine that uploads)."""
    pending: int = 0
    """Number of generations that wait for their upload or are being uploaded."""
    pending_mb: float = 0.0
    """Size of the pending generations' files that are not in the store (MB)."""
    pending_files: int = 0
    """Number of plots and other small files that wait for their upload or are being uploaded."""
    done: int = 0
    """Number of generations uploaded since the process started."""
    mb_per_second: float = 0.0
    """Rate of the last generation's upload (MB/s)."""
    oldest_seconds: float | None = None
    """Time since the oldest pending generation was queued (seconds); None if none is pending."""
    last_error: Printable | None = None
    """Error of the last attempt to upload; None if it succeeded."""

    def __str__(self) -> str:
        if not self.pending and not self.pending_files:
            rate = f", {self.mb_per_second:.1f} MB/s" if self.mb_per_second else ""
            return f"Everything is in {self.store} ({count(self.done, 'generation')} uploaded{rate})."
        age = "" if self.oldest_seconds is None else f", the oldest for {self.oldest_seconds:.0f} s"
        files = f" and {count(self.pending_files, 'small file')}" if self.pending_files else ""
        error = f" {self.last_error}" if self.last_error else ""
        generations = f"{count(self.pending, 'generation')} ({self.pending_mb:.1f} MB{age})"
        return f"Not in {self.store} yet: {generations}{files}.{error}"


def read_status(folder: Path) -> UploadStatus | None:
    """Return the upload status that was last written to a run directory, None if it has none or a damaged one."""
    try:
        return UploadStatus.model_validate_json((folder / STATUS_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


@dataclass(frozen=True, eq=False)
class _File:
    name: str


@dataclass(frozen=True, eq=False)
class _Generation(_File):
    manifest: Manifest
    since: float


class Uploader:
    """Copies generations and small files from a run's `directory` to a bucket (`target`), first added, first copied.

    As a context manager, it uploads in a thread inside the block. The block's end drops what is still queued, so call
    `finish` first. The constructor queues all generations of the run directory. Call `add` and `finish` only from the
    thread that commits generations, other methods from any thread. `sleep(seconds)` pauses for the rate limit; the
    default is a pause that `close` ends.
    """

    def __init__(
        self,
        directory: "RunDirectory",
        target: RunContents,
        lease: Lease,
        config: CheckpointConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._directory = directory
        self._target = target
        self._store = target.remote_store
        self._lease = lease
        self._config = config
        self._clock = clock
        self._name = directory.name
        self._url = self._store.url
        self._closing = threading.Event()
        self._sleep = sleep or self._closing.wait
        self._thread = threading.Thread(target=self._run, name=f"eigen-uploads-{self._name}", daemon=True)

        # Read and written only while `_changed` is held.
        self._changed = threading.Condition()
        self._queue: dict[str, _File] = {}  # by name; the first one is uploaded first
        self._current: _File | None = None
        self._status = UploadStatus(run=self._name, store=self._url, updated=datetime.now(UTC))
        self._blobs: Mapping[str, int] = {}  # blobs in the store: name, relative to the run -> bytes
        self._damaged: dict[int, str] = {}  # generation newer than all in the store -> why it cannot be uploaded
        self._failures = 0
        self._is_finishing = False
        self._broken: BaseException | None = None

        # Used by the upload thread only.
        self._free_at = clock()
        self._moved_bytes = 0
        for manifest in reversed(directory.contents.manifests()):
            self._append(manifest)

    def add(self, manifest: Manifest) -> None:
        """Queue a committed generation and remove old ones from the run directory, without waiting for the store.

        Old ones are removed in the thread that commits; another could remove blobs of a generation being committed.
        Raises `LeaseLostError` if another process has taken the lease, `UploadsEndedError` if nothing is uploaded more.
        """
        with self._changed:
            self._append(manifest)
            self._drop_unneeded()
            self._changed.notify_all()
            self._raise_if_broken()
        self._clean_directory()

    def add_file(self, name: str) -> None:
        """Queue a small file, named relative to the run directory; its content is read when it is uploaded."""
        with self._changed:
            self._put(_File(name))
            self._changed.notify_all()

    def wait_for_queue(self) -> None:
        """Wait while `checkpoint.queue_generations` or `checkpoint.queue_mb` is reached; raises as `add`."""
        with self._changed:
            self._wait(self._has_room, math.inf, "training", -math.inf)
            self._raise_if_broken()

    def finish(self, seconds: float) -> None:
        """Wait at most `seconds` until all queued files are in the store, then remove old generations on this machine.

        Raises as `add`; `StoreUnavailableError`, which names the file, if one is not in the store by then.
        """
        with self._changed:
            self._is_finishing = True
            self._changed.notify_all()
            self._wait(self._has_finished, seconds, "the end of the run", self._clock())
            self._is_finishing = False
            self._raise_if_missing(seconds)
        self._clean_directory()

    def close(self) -> None:
        """Stop uploading at once. A generation that is being uploaded does not get its manifest in the store."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)
        self._set(state="ended")
        self._save_status()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def status(self) -> UploadStatus:
        with self._changed:
            waiting = self._generations().values()
            return self._status.model_copy(
                update={
                    "updated": datetime.now(UTC),
                    "pending": len(waiting),
                    "pending_mb": self._waiting_bytes() / 1e6,
                    "pending_files": len(self._queue) - len(waiting),
                    "oldest_seconds": max((self._clock() - item.since for item in waiting), default=None),
                }
            )

    def step(self) -> float:
        """Upload the next generation or file in the calling thread; `LeaseLostError` if another process has the lease.

        Return the longest pause before the next call (seconds); `NOTHING_TO_DO`: until a generation or file is added.
        """
        if not self._queue:
            return NOTHING_TO_DO
        self._set(state="uploading")
        self._save_status()
        try:
            with self._changed:
                self._current = item = next(iter(self._queue.values()), None)
            if isinstance(item, _Generation):
                self._upload(item)
            elif item is not None:
                self._upload_file(item)
        except _ClosedError:
            return NOTHING_TO_DO
        except (StoreUnavailableError, InputError) as error:
            return self._retry_after(error)
        finally:
            self._current = None
        self._failures = 0
        self._set(state="idle", last_error=None)
        self._save_status()
        return 0.0

    def _run(self) -> None:
        try:
            self._save_status()
            while not self._closing.is_set():
                self._pause(self.step())
        except BaseException as error:
            is_lost = isinstance(error, LeaseLostError)
            logger.error("%s", error if is_lost else f"Run '{self._name}': an error has ended its uploads: {error!r}")
            self._broken = error
            self._set(state="ended", last_error=" ".join(str(error).split()) or repr(error))
            self._save_status()
            if not is_lost:
                raise

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if seconds == NOTHING_TO_DO:
                self._changed.wait_for(lambda: self._closing.is_set() or self._queue)
            elif seconds > 0:
                was_finishing = self._is_finishing
                if was_finishing:
                    seconds = min(seconds, _MOST_RETRY_SECONDS_AT_END)
                self._changed.wait_for(lambda: self._closing.is_set() or self._is_finishing > was_finishing, seconds)

    def _wait(self, is_done: Callable[[], bool], seconds: float, what: str, last_warning: float) -> None:
        """Wait at most `seconds` until `is_done`; each minute after `last_warning`, log a warning that `what` waits."""
        deadline = self._clock() + seconds
        while not is_done():
            self._raise_if_broken()
            left = deadline - self._clock()
            if left <= 0:
                return
            if self._clock() - last_warning >= _WARN_SECONDS:
                last_warning = self._clock()
                logger.warning("Run '%s': %s waits for uploads. %s", self._name, what, self.status())
            self._changed.wait(min(left, _WARN_SECONDS))

    def _append(self, manifest: Manifest) -> None:
        self._damaged.pop(manifest.generation, None)
        self._put(_Generation(f"generation {manifest.generation}", manifest, self._clock()))

    def _put(self, item: _File) -> None:
        self._queue.pop(item.name, None)
        self._queue[item.name] = item

    def _take(self, item: _File) -> bool:
        """Remove an item from the queue; False if it was replaced there by a newer item of the same name."""
        if self._queue.get(item.name) is not item:
            return False
        del self._queue[item.name]
        return True

    def _generations(self) -> dict[int, _Generation]:
        return {item.manifest.generation: item for item in self._queue.values() if isinstance(item, _Generation)}

    def _has_finished(self) -> bool:
        return not self._queue and self._status.state != "uploading"

    def _waiting_bytes(self) -> int:
        blobs = {blob for item in self._generations().values() for blob in item.manifest.blobs.items()}
        return sum(length for name, length in blobs if self._blobs.get(name) != length)

    def _has_room(self) -> bool:
        few = len(self._generations()) < self._config.queue_generations
        return few and self._waiting_bytes() < self._config.queue_mb * 1e6

    def _drop_unneeded(self) -> None:
        waiting = self._generations()
        if not waiting:
            return
        newest = sorted(waiting, reverse=True)
        champion = waiting[newest[0]].manifest.champion_generation
        kept = kept_generations(newest, newest[: self._config.keep_last], self._config.keep_every, champion)
        for number, item in waiting.items():
            if number not in kept and item is not self._current:
                self._take(item)
                logger.info("Run '%s': %s is not uploaded, since retention would remove it", self._name, item.name)

    def _upload(self, item: _Generation) -> None:
        number, began, self._moved_bytes = item.manifest.generation, self._clock(), 0
        try:
            self._write(item.manifest)
        except DamagedFileError as error:
            why = f"{error}. It is on this machine only: {REPAIR}."
            with self._changed:
                if self._take(item):
                    self._damaged[number] = why
                    logger.error("Generation %d of run '%s' cannot be uploaded: %s", number, self._name, why)
            return
        seconds = self._clock() - began
        with self._changed:
            self._take(item)
            self._damaged = {newer: why for newer, why in self._damaged.items() if newer > number}
            self._set(done=self._status.done + 1)
            if self._moved_bytes and seconds > 0:
                self._set(mb_per_second=self._moved_bytes / seconds / 1e6)
        logger.info("Generation %d is now in %s: %s in %.1f s", number, self._url, size(self._moved_bytes), seconds)
        self._clean_store()

    def _upload_file(self, item: _File) -> None:
        self._lease.raise_if_lost()
        path = self._directory.path / item.name
        try:
            self._store.put_file(self._target.object_name(item.name), path, self._moved)
        except FileNotFoundError:
            logger.warning("Run '%s': %s was removed before it could be uploaded", self._name, path)
        with self._changed:
            self._take(item)

    def _write(self, manifest: Manifest) -> None:
        """Upload the blobs that the store lacks, then the manifest; `DamagedFileError` if a blob is damaged here."""
        prefix = self._target.object_name("")
        objects = self._store.objects(self._target.object_name(BLOBS))
        listed = {found.name.removeprefix(prefix): found.bytes for found in objects}
        self._blobs = {name: length for name, length in self._blobs.items() if listed.get(name) == length}
        for name, length in manifest.blobs.items():
            if name not in self._blobs:
                self._upload_blob(name, length, is_listed=listed.get(name) == length)
                self._blobs = {**self._blobs, name: length}
        self._moved(0)
        self._lease.announce(manifest.name)
        self._upload_manifest(manifest)
        self._lease.conclude(manifest.name)

    def _upload_blob(self, name: str, length: int, *, is_listed: bool) -> None:
        path = self._directory.path / name
        # A blob that is damaged on this machine must not replace one that may be whole in the store.
        try:
            check_blob(path, length)
        except DamagedFileError as error:
            raise DamagedFileError(f"{path} {error}") from error
        target = self._target.object_name(name)
        if not (is_listed and self._store.holds(target, path)):
            self._store.put_file(target, path, self._moved)

    def _upload_manifest(self, manifest: Manifest) -> None:
        name, content = self._target.object_name(manifest.name), manifest_bytes(manifest)
        if self._store.create(name, content):
            return
        self._lease.check()
        # The name has a part of the checksum, so other content is damaged or only reserves the name (see `Lease`).
        logger.warning("%s in %s is damaged or left by an interrupted upload: it is uploaded again", name, self._url)
        self._store.delete([name])
        self._lease.check()
        if not self._store.create(name, content):
            raise StoreUnavailableError(f"{self._url} returns other content for {name} than was written")

    def _moved(self, count: int) -> None:
        """After `count` more bytes, pause as the rate limit requires; idle time does not allow a higher rate later."""
        now, limit = self._clock(), self._config.upload_mb_per_second * 1e6
        self._moved_bytes += count
        if limit > 0:
            self._free_at = max(self._free_at, now) + count / limit
            if self._free_at > now:
                self._sleep(self._free_at - now)
        if self._closing.is_set():
            raise _ClosedError

    def _clean_store(self) -> None:
        """Remove old generations from the store; only log a failure, since the next upload tries again."""
        try:
            # Cleaning may take long: the lease must not expire before it ends.
            self._lease.renew()
            self._target.clean(
                self._config.keep_last, self._config.keep_every, grace_seconds=_GRACE_SECONDS, confirm=self._lease.check
            )
        except (StoreUnavailableError, InputError) as error:
            logger.warning(_NOT_DELETED, self._name, self._url, error)

    def _clean_directory(self) -> None:
        with self._changed:
            only_here = {*self._generations(), *self._damaged}
        try:
            self._directory.contents.clean(self._config.keep_local, 0, keep_champion=False, protected=only_here)
        except (StoreUnavailableError, InputError) as error:
            logger.warning(_NOT_DELETED, self._name, self._directory.path, error)

    def _retry_after(self, error: StoreUnavailableError | InputError) -> float:
        with self._changed:
            item, self._current = self._current, None
            pause = min(2.0 ** min(self._failures, 16), _MOST_RETRY_SECONDS)
            self._failures += 1
            if item is not None and not isinstance(item, _Generation) and self._take(item):
                # To the end of the queue, so that a small file that the store refuses does not block generations.
                self._put(item)
            self._drop_unneeded()
            self._set(state="waiting", last_error=" ".join(str(error).split()))
        logger.warning("Run '%s': an upload failed, next attempt within %.0f s. %s", self._name, pause, self.status())
        self._save_status()
        return pause

    def _raise_if_broken(self) -> None:
        self._lease.raise_if_lost()
        if isinstance(self._broken, LeaseLostError):
            raise LeaseLostError(str(self._broken)) from self._broken
        if self._broken is not None:
            raise UploadsEndedError(
                f"An error has ended the uploads of run '{self._name}' ({self._broken!r}): files that are not in "
                f"{self._url} are in {self._directory.path}. Resume the run here to upload them."
            ) from self._broken
        if self._closing.is_set():
            raise UploadsEndedError(f"The uploads of run '{self._name}' were closed: resume it to upload the rest.")

    def _raise_if_missing(self, seconds: float) -> None:
        generations = [item.name for item in self._generations().values()]
        missing = [*generations, *sorted(self._queue.keys() - generations)]
        if missing:
            error = f" Last error: {self._status.last_error}" if self._status.last_error else ""
            raise StoreUnavailableError(
                f"Run '{self._name}' is not completely in {self._url} after {seconds:.0f} s. Only on this machine, in "
                f"{self._directory.path}: {', '.join(missing)}. Resume the run here to upload them.{error}"
            )
        if self._damaged:
            number, why = max(self._damaged.items())
            raise StoreUnavailableError(f"Generation {number} of run '{self._name}' is not in {self._url}: {why}")

    def _set(self, **fields: object) -> None:
        with self._changed:
            self._status = self._status.model_copy(update=fields)
            self._changed.notify_all()

    def _save_status(self) -> None:
        try:
            with replacing(self._directory.path / STATUS_NAME) as file:
                file.write(self.status().model_dump_json(indent=2).encode() + b"\n")
        except OSError as error:
            logger.warning("Run '%s' uploads, but its upload status file cannot be written: %s", self._name, error)
