"""Uploads to a store elsewhere: training does not wait for the network.

One thread takes generations and small files from one queue and copies them. While the store does not answer the thread
tries again and training goes on, until too much waits; only then training waits too.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from eigen_core.checkpoint.blobs import check_blob
from eigen_core.checkpoint.contents import RunContents, kept_generations
from eigen_core.checkpoint.integrity import BLOBS, DamagedFileError, generation_of
from eigen_core.checkpoint.lease import Lease, LeaseLostError
from eigen_core.checkpoint.manifest import Manifest, manifest_bytes
from eigen_core.checkpoint.store import StoreUnavailableError, created
from eigen_core.common.errors import InputError
from eigen_core.common.files import replacing
from eigen_core.common.text import size
from eigen_core.config import CheckpointConfig

if TYPE_CHECKING:
    from eigen_core.checkpoint.run import RunDirectory

logger = logging.getLogger(__name__)

STATUS_NAME = "uploads.json"
"""Name of the status file in the run directory."""
NOTHING_TO_DO = math.inf

_STATUS_SECONDS = 2.0
_WARN_SECONDS = 60.0
_CLOSE_SECONDS = 5.0
_RETRY_SECONDS = (1.0, 60.0)
_REFUSED_RETRY_SECONDS = (30.0, 300.0)
_MOST_RETRY_SECONDS_AT_END = 5.0
_GRACE_SECONDS = 86_400.0
"""Blobs without a manifest stay in the store for so long (seconds): their manifest may be about to be uploaded."""
_ENDED_IN_STATUS = 20

UploadState = Literal["pending", "uploading", "done", "dropped", "failed"]
"""Of a generation: it waits, is being uploaded, is in the store, was not needed there any more, or can never be."""

UploaderState = Literal["idle", "uploading", "waiting", "lost", "ended", "died"]
"""Of a run's uploads: nothing to do, uploading, waiting to try again, stopped since another process took the run
over, ended with the run, or stopped by an error of their own."""


class UploadsEndedError(RuntimeError):
    """Nothing is uploaded any more: the uploader was closed, or its thread died by an error."""


class _ClosedError(Exception):
    """The uploader was closed in the middle of an upload, which is abandoned."""


class _Status(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class GenerationUpload(_Status):
    """The upload of one generation."""

    generation: int
    state: UploadState = "pending"
    bytes: int
    """Size of all its files, those included that the store has already."""
    attempts: int = 0
    error: str | None = None
    """Why the last attempt failed."""


class UploadStatus(_Status):
    """The uploads of a run, for logs, pages and, through a small file, other processes."""

    run: str
    store: str
    state: UploaderState = "idle"
    updated: datetime
    """When this was true (UTC, by the clock of the machine that uploads)."""
    pending: int = 0
    """Generations that wait or are being uploaded."""
    pending_mb: float = 0.0
    """Bytes of pending generations that are not in the store (MB)."""
    pending_files: int = 0
    """Plots and other small files that wait."""
    done: int = 0
    """Generations uploaded since the process started."""
    failed: int = 0
    """Attempts that failed since the process started."""
    mb_per_second: float = 0.0
    """Rate of the last upload that moved something (MB/s)."""
    oldest_seconds: float | None = None
    """For how long the oldest pending generation has waited (seconds)."""
    last_error: str | None = None
    """Why the last attempt failed; None if it did not."""
    generations: tuple[GenerationUpload, ...] = ()
    """The last ones that left the queue, then those that wait."""

    @property
    def waiting(self) -> str:
        """A sentence that says how much waits for the store, and why."""
        generations = f"{self.pending} generation{'' if self.pending == 1 else 's'} ({self.pending_mb:.1f} MB"
        files = f" and {self.pending_files} small files" if self.pending_files else ""
        age = "" if self.oldest_seconds is None else f", the oldest for {self.oldest_seconds:.0f} s"
        error = f" {self.last_error}" if self.last_error else ""
        return f"{generations}{age}){files} wait for upload to {self.store}.{error}"

    def __str__(self) -> str:
        """One line for a log."""
        parts = [f"{self.pending} pending ({self.pending_mb:.1f} MB)", f"{self.done} done"]
        if self.failed:
            parts.append(f"{self.failed} failed attempts")
        if self.mb_per_second:
            parts.append(f"{self.mb_per_second:.1f} MB/s")
        if self.oldest_seconds is not None:
            parts.append(f"oldest {self.oldest_seconds:.0f} s")
        return f"uploads to {self.store}: {', '.join(parts)}"


def read_status(folder: Path) -> UploadStatus | None:
    """Return the last upload status in a run directory, None if there is none that can be read."""
    try:
        return UploadStatus.model_validate_json((folder / STATUS_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


@dataclass(eq=False)
class _Generation:
    """A generation in the queue; `found`: it existed when the run was opened."""

    manifest: Manifest
    found: bool
    since: float
    upload: GenerationUpload

    def __str__(self) -> str:
        return f"Generation {self.manifest.generation}"

    def update(self, **fields: object) -> None:
        self.upload = self.upload.model_copy(update=fields)


@dataclass(eq=False)
class _File:
    """A small file in the queue, with its name relative to the run."""

    name: str
    path: Path


class Uploader:
    """Copies the committed generations and the small files of one run to a store elsewhere.

    Used as a context manager its thread runs inside the block; leaving the block stops it, whatever is left, so call
    `finish` before. Generations that are in the run directory at the start are queued: the store may lack them.
    Methods may be called from any thread, `add` and `finish` from the one that commits generations.
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
        """
        Args:
            directory: the run on this machine.
            target: the run in the store.
            lease: the right to write there.
            config: retention, the bounds of the queue and the rate limit.
            clock: rising seconds.
            sleep: waits between two blocks; by default `close` ends the wait.

        Raises:
            InputError: the run directory cannot be read.
        """
        self._directory = directory
        self._target = target
        self._lease = lease
        self._config = config
        self._clock = clock
        self._warn_seconds = _WARN_SECONDS
        self._name = directory.name
        self._url = target.store.url
        self._closing = threading.Event()
        self._sleep = sleep or self._closing.wait
        self._thread = threading.Thread(target=self._run, name=f"eigen-uploads-{self._name}", daemon=True)

        # Read and written with the condition held.
        self._changed = threading.Condition()
        self._queue: deque[_Generation | _File] = deque()
        self._status = UploadStatus(run=self._name, store=self._url, updated=datetime.now(UTC))
        self._ended: deque[GenerationUpload] = deque(maxlen=_ENDED_IN_STATUS)
        self._in_store: set[int] | None = None
        """Generations that have a manifest in the store; None until it was listed."""
        self._safe: set[int] = set()
        """Generations whose copy on this machine is not needed: the store has them, or would not keep them."""
        self._blobs: Mapping[str, int] = {}
        """Blobs that are in the store: name, relative to the run -> size (bytes)."""
        self._files_first = False
        self._failures = 0
        self._is_finishing = False
        self._retry_now = False
        self._broken: BaseException | None = None

        # The thread's own.
        self._began = self._free_at = clock()
        self._moved_bytes = 0
        self._saving = threading.Lock()
        self._saved_at = -math.inf
        self._is_status_refused = False
        for manifest in reversed(directory.contents.manifests().manifests):
            self._append(manifest, found=True)

    def add(self, manifest: Manifest) -> None:
        """Queue a generation that was committed in the run directory. This never waits for the store.

        Old generations that are safe in the store, or not needed there, are removed from the run directory here, by the
        thread that commits: any other one could miss what is committed meanwhile, and remove it.

        Raises:
            LeaseLostError: another process has taken the run over.
            UploadsEndedError: nothing is uploaded any more.
        """
        with self._changed:
            self._append(manifest, found=False)
            self._drop_unneeded()
            self._changed.notify_all()
            self._raise_if_broken()
        self._clean_directory()

    def add_file(self, name: str, path: Path) -> None:
        """Queue a small file under `name`, relative to the run, behind all others.

        The store receives the content that the file has when its turn comes.
        """
        with self._changed:
            self._queue = deque(item for item in self._queue if not (isinstance(item, _File) and item.name == name))
            self._queue.append(_File(name, path))
            self._changed.notify_all()

    def wait_for_queue(self) -> None:
        """Return once one more generation may be committed: at once, unless too many or too much wait for upload.

        Raises:
            LeaseLostError: another process has taken the run over.
            UploadsEndedError: nothing is uploaded any more.
        """
        with self._changed:
            self._wait(self._has_room, math.inf, "training waits", -math.inf)
            self._raise_if_broken()

    def finish(self, seconds: float) -> None:
        """Wait until all that was added is in the store, and clean the run directory, as `add` does.

        Raises:
            StoreUnavailableError: something is not there after so many seconds, or cannot be; the message lists it.
            LeaseLostError: another process has taken the run over.
            UploadsEndedError: nothing is uploaded any more.
        """
        with self._changed:
            self._is_finishing = self._retry_now = True
            self._changed.notify_all()
            self._wait(
                lambda: not self._queue and self._status.state != "uploading", seconds, "its end waits", self._clock()
            )
            self._is_finishing = False
            self._raise_if_missing(seconds)
        self._clean_directory()

    def close(self) -> None:
        """Stop uploading; an upload under way is abandoned and leaves nothing in the store that counts."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)
        with self._changed:
            if self._broken is None:
                self._set(state="ended")
        self._save_status()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def status(self) -> UploadStatus:
        """Return the state of the uploads now."""
        with self._changed:
            waiting = self._generations()
            return self._status.model_copy(
                update={
                    "updated": datetime.now(UTC),
                    "pending": len(waiting),
                    "pending_mb": self._waiting_bytes() / 1e6,
                    "pending_files": len(self._queue) - len(waiting),
                    "oldest_seconds": max((self._clock() - item.since for item in waiting), default=None),
                    "generations": (*self._ended, *(item.upload for item in waiting)),
                }
            )

    def step(self) -> float:
        """Upload the next generation or file in the calling thread, and return how long to wait then (seconds).

        `NOTHING_TO_DO` means: until something is added.

        Raises:
            LeaseLostError: another process has taken the run over.
        """
        with self._changed:
            if not self._queue:
                return NOTHING_TO_DO
            self._set(state="uploading")
        item: _Generation | _File | None = None
        try:
            self._list_store()
            item = self._begin()
            if isinstance(item, _Generation):
                self._upload(item)
            elif item is not None:
                self._upload_file(item)
        except _ClosedError:
            return NOTHING_TO_DO
        except (StoreUnavailableError, InputError) as error:
            return self._retry_after(item, error)
        finally:
            if isinstance(item, _Generation) and item.upload.state == "uploading":
                item.update(state="pending")
        with self._changed:
            self._failures = 0
            self._set(state="idle", last_error=None)
        self._save_status()
        return 0.0

    def _run(self) -> None:
        """The thread: upload until the uploader is closed or something breaks, which is logged and kept."""
        try:
            self._save_status()
            while not self._closing.is_set():
                self._pause(self.step())
        except BaseException as error:
            is_lost = isinstance(error, LeaseLostError)
            logger.error("%s", error if is_lost else f"Run '{self._name}': uploads have ended by an error: {error!r}")
            with self._changed:
                self._broken = error
                self._set(state="lost" if is_lost else "died", last_error=str(error) or repr(error))
            self._save_status()
            if not is_lost:
                raise

    def _pause(self, seconds: float) -> None:
        """Wait until there is work, or after a failure for a while, unless `finish` is called."""
        with self._changed:
            if seconds == NOTHING_TO_DO:
                self._changed.wait_for(lambda: self._closing.is_set() or self._queue)
            elif seconds > 0:
                self._changed.wait_for(lambda: self._closing.is_set() or self._retry_now, seconds)
                self._retry_now = False

    def _wait(self, is_done: Callable[[], bool], seconds: float, what: str, warned: float) -> None:
        """Wait until something is done, at most so many seconds, with warnings, the last of which was at `warned`.

        Raises:
            LeaseLostError, UploadsEndedError: see `finish`.
        """
        deadline = self._clock() + seconds
        while not is_done():
            self._raise_if_broken()
            left = deadline - self._clock()
            if left <= 0:
                return
            if self._clock() - warned >= self._warn_seconds:
                warned = self._clock()
                logger.warning("Run '%s': %s: %s", self._name, what, self.status().waiting)
            self._changed.wait(min(left, self._warn_seconds))

    def _append(self, manifest: Manifest, *, found: bool) -> None:
        """Queue a generation, instead of an older version of it."""
        number = manifest.generation
        self._safe.discard(number)
        self._ended = deque((one for one in self._ended if one.generation != number), _ENDED_IN_STATUS)
        older = [item for item in self._generations() if item.manifest.generation == number]
        upload = GenerationUpload(generation=number, bytes=manifest.bytes)
        self._queue = deque(item for item in self._queue if item not in older)
        self._queue.append(_Generation(manifest, found, self._clock(), upload))

    def _generations(self) -> list[_Generation]:
        return [item for item in self._queue if isinstance(item, _Generation)]

    def _waiting_bytes(self) -> int:
        blobs = {blob for item in self._generations() for blob in item.manifest.blobs.items()}
        return sum(count for name, count in blobs if self._blobs.get(name) != count)

    def _has_room(self) -> bool:
        """Whether one more generation may wait, however large it is; always if none does."""
        few = len(self._generations()) < self._config.queue_generations
        return few and self._waiting_bytes() < self._config.queue_mb * 1e6

    def _list_store(self) -> None:
        """Once, list the generations that the store has, and drop those that need not be uploaded.

        A generation that was found on this machine and is in the store under another manifest, written by a process
        that had taken over, is not uploaded beside it.
        """
        if self._in_store is not None:
            return
        names = self._target.manifest_names()
        with self._changed:
            self._in_store = {number for name in names if (number := generation_of(name)) is not None}
            for item in self._generations():
                if item.found and item.manifest.generation in self._in_store and item.manifest.name not in names:
                    self._end(item, "dropped")
            self._drop_unneeded()

    def _drop_unneeded(self) -> None:
        """Drop the waiting generations that retention would not keep in the store anyway, but for the current one."""
        waiting = {item.manifest.generation: item for item in self._generations()}
        if not waiting:
            return
        present = sorted({*(self._in_store or ()), *waiting}, reverse=True)
        champion = waiting[max(waiting)].manifest.champion_generation
        kept = kept_generations(present, present[: self._config.keep_last], self._config.keep_every, champion)
        for number, item in waiting.items():
            if number not in kept and item.upload.state != "uploading":
                self._end(item, "dropped")

    def _begin(self) -> _Generation | _File | None:
        """Return the next item: the first generation, but after each generation all files."""
        with self._changed:
            if not self._queue:
                return None
            first = _File if self._files_first else _Generation
            item = next((item for item in self._queue if isinstance(item, first)), self._queue[0])
            if isinstance(item, _Generation):
                item.update(state="uploading", attempts=item.upload.attempts + 1)
        self._save_status()
        self._began, self._moved_bytes = self._clock(), 0
        return item

    def _end(self, item: _Generation | _File, state: UploadState, error: str | None = None) -> bool:
        """Take an item off the queue; False if a newer version of it is there instead."""
        with self._changed:
            if item not in self._queue:
                return False
            self._queue.remove(item)
            if isinstance(item, _Generation):
                item.update(state=state, error=error or item.upload.error)
                self._ended.append(item.upload)
                if state != "failed":
                    self._safe.add(item.upload.generation)
                if state == "dropped":
                    logger.info(
                        "Run '%s': generation %d is not needed in the store", self._name, item.upload.generation
                    )
            return True

    def _upload(self, item: _Generation) -> None:
        manifest = item.manifest
        try:
            self._write(manifest)
        except DamagedFileError as error:
            why = f"{error}. It stays on this machine alone; verify the run."
            if self._end(item, "failed", why):
                logger.error("Generation %d of run '%s' cannot be uploaded: %s", manifest.generation, self._name, why)
            return
        with self._changed:
            self._in_store = {*(self._in_store or ()), manifest.generation}
            self._set(done=self._status.done + 1)
            self._end(item, "done")
            self._files_first = True
        seconds = self._clock() - self._began
        logger.info(
            "Generation %d is in %s: %s in %.1f s", manifest.generation, self._url, size(self._moved_bytes), seconds
        )
        self._clean_store(manifest.champion_generation)

    def _upload_file(self, item: _File) -> None:
        self._lease.raise_if_lost()
        try:
            self._target.store.put_file(self._target.object_name(item.name), item.path, self._moved)
        except FileNotFoundError:
            logger.warning("Run '%s': %s was removed before it could be uploaded", self._name, item.path)
        self._end(item, "done")

    def _write(self, manifest: Manifest) -> None:
        """Make sure that a generation is in the store as a whole: its blobs first, its manifest last.

        Blobs that the store has with the very same content are not sent again.

        Raises:
            DamagedFileError: it is damaged on this machine.
            LeaseLostError: another process has taken the run over; the manifest is not written.
            InputError, StoreUnavailableError: see `Store`.
        """
        prefix = self._target.object_name("")
        objects = self._target.store.objects(self._target.object_name(BLOBS))
        listed = {found.name.removeprefix(prefix): found.bytes for found in objects}
        self._blobs = {name: count for name, count in self._blobs.items() if listed.get(name) == count}
        for name, count in manifest.blobs.items():
            if name not in self._blobs:
                self._write_blob(name, count, is_listed=listed.get(name) == count)
                self._blobs = {**self._blobs, name: count}
        self._moved(0)
        self._lease.announce(manifest.name)
        self._write_manifest(manifest)
        self._lease.conclude(manifest.name)

    def _write_blob(self, name: str, count: int, *, is_listed: bool) -> None:
        path = self._directory.path / name
        # A blob that is damaged on this machine must not replace one that may be whole in the store.
        try:
            check_blob(path, count)
        except DamagedFileError as error:
            raise DamagedFileError(f"{path} {error}") from error
        target = self._target.object_name(name)
        if not (is_listed and self._target.store.holds(target, path)):
            self._target.store.put_file(target, path, self._moved)

    def _write_manifest(self, manifest: Manifest) -> None:
        store, name, content = self._target.store, self._target.object_name(manifest.name), manifest_bytes(manifest)
        if created(store, name, content):
            return
        self._lease.check()
        # Its name has a part of its checksum. What reads differently is damaged, or was announced by a former holder.
        logger.warning("%s in %s was damaged or withdrawn, and is replaced", name, store.url)
        store.delete([name])
        self._lease.check()
        if not created(store, name, content):
            raise StoreUnavailableError(f"{store.url} gives back something else than {name}, as it was written")

    def _moved(self, count: int) -> None:
        """Called with the bytes of each block, and with 0 before a manifest: keep to the rate limit.

        Unused time is not saved up.
        """
        if self._clock() - self._saved_at >= _STATUS_SECONDS:
            self._save_status()
        now, limit = self._clock(), self._config.upload_mb_per_second * 1e6
        self._moved_bytes += count
        if now > self._began:
            with self._changed:
                self._set(mb_per_second=self._moved_bytes / (now - self._began) / 1e6)
        if limit > 0:
            self._free_at = max(self._free_at, now) + count / limit
            if self._free_at > now:
                self._sleep(self._free_at - now)
        if self._closing.is_set():
            raise _ClosedError

    def _clean_store(self, champion_generation: int) -> None:
        """Apply retention in the store; if it fails, it is applied again after the next generation."""
        try:
            # It may take long: the lease is made to last.
            self._lease.renew()
            self._target.clean(
                self._config.keep_last,
                self._config.keep_every,
                champion_generation,
                unnamed_grace_seconds=_GRACE_SECONDS,
                confirm=self._lease.check,
            )
        except (StoreUnavailableError, InputError) as error:
            logger.warning("Run '%s': old generations stay in %s for now: %s", self._name, self._url, error)

    def _clean_directory(self) -> None:
        """Remove old generations from this machine that are safe in the store, or not needed there."""
        with self._changed:
            safe = set(self._safe)
        try:
            self._directory.clean(self._config.keep_local, 0, 0, self._directory.contents.generations() - safe)
        except (StoreUnavailableError, InputError) as error:
            logger.warning("Run '%s': old generations stay in %s for now: %s", self._name, self._directory.path, error)

    def _retry_after(self, item: _Generation | _File | None, error: StoreUnavailableError | InputError) -> float:
        """Report a failed attempt and return how long to wait before the next one (seconds)."""
        first, most = _REFUSED_RETRY_SECONDS if isinstance(error, InputError) else _RETRY_SECONDS
        with self._changed:
            most = _MOST_RETRY_SECONDS_AT_END if self._is_finishing else most
            pause = min(first * 2.0 ** min(self._failures, 16), most)
            self._failures += 1
            if isinstance(item, _Generation):
                item.update(state="pending", error=str(error))
            elif item is not None:
                self._files_first = False
            self._drop_unneeded()
            self._set(state="waiting", failed=self._status.failed + 1, last_error=str(error))
        logger.warning("Run '%s', next attempt in %.0f s: %s", self._name, pause, self.status().waiting)
        self._save_status()
        return pause

    def _raise_if_broken(self) -> None:
        self._lease.raise_if_lost()
        if isinstance(self._broken, LeaseLostError):
            raise LeaseLostError(str(self._broken)) from self._broken
        if self._broken is not None:
            raise UploadsEndedError(
                f"Uploads of run '{self._name}' have ended by an error ({self._broken!r}): what is not in {self._url} "
                f"is in {self._directory.path}."
            ) from self._broken
        if self._closing.is_set():
            raise UploadsEndedError(f"Uploads of run '{self._name}' are closed.")

    def _raise_if_missing(self, seconds: float) -> None:
        """Raise `StoreUnavailableError` if something is not in the store, or its newest generation cannot be."""
        missing = [f"generation {item.manifest.generation}" for item in self._generations()]
        missing += sorted(item.name for item in self._queue if isinstance(item, _File))
        error = f" Last error: {self._status.last_error}" if self._status.last_error else ""
        if missing:
            raise StoreUnavailableError(
                f"Run '{self._name}' is not wholly in {self._url} after {seconds:.0f} s. Only on this machine, in "
                f"{self._directory.path}: {', '.join(missing)}. Resume the run here to upload them.{error}"
            )
        last = max(self._ended, key=lambda upload: upload.generation, default=None)
        if last is not None and last.state == "failed":
            raise StoreUnavailableError(
                f"Generation {last.generation} of run '{self._name}' is not in {self._url}: {last.error}"
            )

    def _set(self, **fields: object) -> None:
        self._status = self._status.model_copy(update=fields)
        self._changed.notify_all()

    def _save_status(self) -> None:
        """Replace the status file in one step. A file that cannot be written is logged once, and uploads go on."""
        with self._saving:
            self._saved_at = self._clock()
            try:
                with replacing(self._directory.path / STATUS_NAME) as file:
                    file.write(self.status().model_dump_json(indent=2).encode() + b"\n")
            except OSError as error:
                if not self._is_status_refused:
                    logger.warning("Run '%s': the state of its uploads cannot be written: %s", self._name, error)
                self._is_status_refused = True
