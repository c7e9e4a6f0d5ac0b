"""From the run directory to a store elsewhere, in the background: training never waits for the network.

A generation that is committed on this machine is queued, and one thread copies it. As long as the store does not answer
the thread tries again and training goes on, until too much waits; only then training waits too.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Self

from eigen_core.checkpoint.contents import RunContents
from eigen_core.checkpoint.damage import DamagedFileError
from eigen_core.checkpoint.lease import Lease, LeaseLostError
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.run import RunDirectory
from eigen_core.checkpoint.store_writer import StoreWriter
from eigen_core.checkpoint.upload_pace import UploadPace, pause_after
from eigen_core.checkpoint.upload_queue import UploadQueue
from eigen_core.checkpoint.upload_status import StatusFile, UploaderState, UploadStatus, now
from eigen_core.config import CheckpointConfig
from eigen_core.errors import InputError
from eigen_core.store import StoreUnavailableError
from eigen_core.units import size

logger = logging.getLogger(__name__)

NOTHING_TO_DO = math.inf

_STATUS_SECONDS = 2.0
_WARN_SECONDS = 60.0
_CLOSE_SECONDS = 5.0


class UploadsEndedError(RuntimeError):
    """Nothing is uploaded any more: the thread that does it was closed, or died by an error of its own."""


class _ClosedError(Exception):
    """Uploads are closed: the one that was under way is abandoned."""


class Uploader:
    """Copies the committed generations and the small files of one run to a store elsewhere.

    Used as a context manager its thread runs inside the block; leaving the block stops it, whatever is left, so call
    `finish` before. Each generation that is found in the run directory at the start is queued: the store may lack it.
    Methods may be called from any thread, `add` and `finish` from the one that commits generations.
    """

    def __init__(
        self,
        directory: RunDirectory,
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
            config: what is kept here and in the store, how much may wait and how fast it may go.
            clock: rising seconds.
            sleep: waits between two blocks; by default it is woken by `close`.

        Raises:
            InputError: the run directory cannot be read.
        """
        self._directory = directory
        self._lease = lease
        self._config = config
        self._clock = clock
        self._warn_seconds = _WARN_SECONDS
        self._name = directory.name
        self._url = target.store.url

        # What follows is read and written with the condition held.
        self._changed = threading.Condition()
        self._queue = UploadQueue(config, clock)
        self._files: dict[str, tuple[Path]] = {}
        self._champion_to_keep: int | None = None
        """The champion's generation if retention is to be applied in the store."""
        self._others_first = False
        self._is_store_listed = False
        self._is_hurried = False
        self._skip_pause = False
        self._broken: BaseException | None = None
        self._state: UploaderState = "idle"
        self._failures = 0
        self._failed = 0
        self._last_error: tuple[str, datetime] | None = None

        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"eigen-uploads-{self._name}", daemon=True)
        self._writer = StoreWriter(directory.path, target, lease, self._moved)
        self._pace = UploadPace(config.upload_mb_per_second, clock, sleep or self._closing.wait)
        self._status_file = StatusFile(directory.path, clock)
        for manifest in reversed(directory.contents.manifests().manifests):
            self._queue.add(manifest, found=True)

    def add(self, manifest: Manifest) -> None:
        """Queue a generation that was committed in the run directory. This never waits for the store.

        Old generations that are safe in the store, or not needed there, are removed from the run directory here, by the
        thread that commits: any other one could miss what is committed meanwhile, and remove it.

        Raises:
            LeaseLostError: another process has taken the run over.
            UploadsEndedError: nothing is uploaded any more.
        """
        with self._changed:
            self._queue.add(manifest)
            self._queue.drop_unneeded()
            self._changed.notify_all()
            self._raise_if_broken()
        self._clean_directory()

    def add_file(self, name: str, path: Path) -> None:
        """Queue a small file under `name`, relative to the run, as the last one.

        What it holds when its turn comes is what is stored.
        """
        with self._changed:
            self._files.pop(name, None)
            self._files[name] = (path,)
            self._changed.notify_all()

    def wait_for_queue(self) -> None:
        """Return once one more generation may be committed: at once, unless too many or too much wait for upload.

        Raises:
            LeaseLostError: another process has taken the run over.
            UploadsEndedError: nothing is uploaded any more.
        """
        with self._changed:
            self._wait(lambda: self._queue.may_grow(self._writer.stored), math.inf, "training waits", -math.inf)
            self._raise_if_broken()

    def finish(self, seconds: float) -> None:
        """Wait until all that was added is in the store, and remove what this machine need not keep, as `add` does.

        Raises:
            StoreUnavailableError: it is not, after so many seconds, or cannot be; the message says what is missing.
            LeaseLostError: another process has taken the run over.
            UploadsEndedError: nothing is uploaded any more.
        """
        with self._changed:
            self._is_hurried = self._skip_pause = True
            self._changed.notify_all()
            self._wait(self._is_all_done, seconds, "its end waits", self._clock())
            self._is_hurried = False
            self._raise_if_missing(seconds)
        self._clean_directory()

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

    def close(self) -> None:
        """Stop uploading; an upload under way is abandoned and leaves nothing in the store that counts."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)
        with self._changed:
            if self._broken is None:
                self._state = "ended"
        self._save_status()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def status(self) -> UploadStatus:
        """Return how far everything is."""
        with self._changed:
            error, error_at = self._last_error or (None, None)
            return UploadStatus(
                run=self._name,
                store=self._url,
                state=self._state,
                updated=now(),
                pending=len(self._queue.generations()),
                pending_mb=self._queue.waiting_bytes(self._writer.stored) / 1e6,
                pending_files=len(self._files),
                done=self._queue.done,
                failed=self._failed,
                mb_per_second=self._pace.mb_per_second,
                oldest_seconds=self._queue.oldest_seconds(),
                last_error=error,
                last_error_at=error_at,
                generations=self._queue.uploads(),
            )

    def step(self) -> float:
        """Do the next piece of work in the calling thread, and return for how long to wait then (seconds).

        `NOTHING_TO_DO` means: until something is added.

        Raises:
            LeaseLostError: another process has taken the run over.
        """
        with self._changed:
            if not self._is_work():
                return NOTHING_TO_DO
            self._state = "uploading"
        try:
            self._do_next()
        except _ClosedError:
            return NOTHING_TO_DO
        except (StoreUnavailableError, InputError) as error:
            return self._note_failure(error)
        with self._changed:
            self._failures = 0
            self._state = "idle"
            self._last_error = None
            self._changed.notify_all()
        self._save_status()
        return 0.0

    def _work(self) -> None:
        try:
            self._save_status()
            while not self._closing.is_set():
                self._rest(self.step())
        except BaseException as error:
            is_lost = isinstance(error, LeaseLostError)
            logger.error("%s", error if is_lost else f"Run '{self._name}': uploads have ended by an error: {error!r}")
            with self._changed:
                self._broken = error
                self._state = "lost" if is_lost else "died"
                self._last_error = (str(error) or repr(error), now())
                self._changed.notify_all()
            self._save_status()
            if not is_lost:
                raise

    def _rest(self, pause: float) -> None:
        """Wait until there is work, or after a failure for a while, unless a caller begins to wait."""
        with self._changed:
            if pause == NOTHING_TO_DO:
                self._changed.wait_for(lambda: self._closing.is_set() or self._is_work())
            elif pause > 0:
                self._changed.wait_for(lambda: self._closing.is_set() or self._skip_pause, pause)
                self._skip_pause = False

    def _is_work(self) -> bool:
        return bool(self._queue.generations() or self._files or self._champion_to_keep is not None)

    def _is_all_done(self) -> bool:
        return self._state != "uploading" and not self._is_work()

    def _do_next(self) -> None:
        """Do the most urgent piece of work: generations first, but after each one all that came up beside it."""
        if not self._is_store_listed:
            names = self._writer.generations()
            with self._changed:
                self._is_store_listed = True
                self._queue.note_stored(names)
        with self._changed:
            champion, file = self._champion_to_keep, next(iter(self._files.items()), None)
            wait = self._others_first and (champion is not None or file is not None)
            manifest = None if wait else self._queue.begin()
        if manifest is not None:
            self._upload(manifest)
        elif champion is not None:
            self._clean_store(champion)
        elif file is not None:
            self._upload_file(*file)

    def _upload(self, manifest: Manifest) -> None:
        self._save_status()
        self._pace.begin()
        started = self._clock()
        try:
            self._writer.write(manifest)
        except DamagedFileError as error:
            why = f"{error}. It stays on this machine alone; verify the run."
            with self._changed:
                is_given_up = self._queue.give_up(manifest, why)
            if is_given_up:
                logger.error("Generation %d of run '%s' cannot be uploaded: %s", manifest.generation, self._name, why)
            return
        except (StoreUnavailableError, InputError, LeaseLostError, _ClosedError) as error:
            with self._changed:
                self._queue.put_off(manifest, str(error))
            raise
        with self._changed:
            self._queue.finish(manifest)
            self._champion_to_keep = manifest.champion_generation
            self._others_first = True
        moved, seconds = size(self._pace.bytes), self._clock() - started
        logger.info("Generation %d is in %s: %s in %.1f s", manifest.generation, self._url, moved, seconds)

    def _upload_file(self, name: str, file: tuple[Path]) -> None:
        try:
            self._writer.write_file(name, *file)
        except FileNotFoundError:
            logger.warning("Run '%s': %s was removed before it could be uploaded", self._name, *file)
        except (StoreUnavailableError, InputError):
            self._others_first = False
            raise
        with self._changed:
            # Unless it was added again meanwhile.
            if self._files.get(name) is file:
                del self._files[name]

    def _clean_store(self, champion_generation: int) -> None:
        """Apply retention in the store; if it fails, it is applied again after the next generation."""
        self._champion_to_keep = None
        try:
            self._writer.clean(self._config.keep_last, self._config.keep_every, champion_generation)
        except (StoreUnavailableError, InputError) as error:
            logger.warning("Run '%s': old generations stay in %s for now: %s", self._name, self._url, error)

    def _clean_directory(self) -> None:
        """Remove old generations from this machine that are safe in the store, or not needed there."""
        with self._changed:
            safe = set(self._queue.safe)
        try:
            self._directory.clean(self._config.keep_local, 0, 0, self._directory.contents.generations() - safe)
        except (StoreUnavailableError, InputError) as error:
            logger.warning("Run '%s': old generations stay in %s for now: %s", self._name, self._directory.path, error)

    def _moved(self, count: int) -> None:
        """Called after each block, and before a manifest."""
        if self._status_file.age_seconds >= _STATUS_SECONDS:
            self._save_status()
        self._pace.moved(count)
        if self._closing.is_set():
            raise _ClosedError

    def _note_failure(self, error: StoreUnavailableError | InputError) -> float:
        """Report a failed attempt and return how long to wait before the next one (seconds)."""
        with self._changed:
            pause = pause_after(self._failures, refused=isinstance(error, InputError), hurried=self._is_hurried)
            self._failures += 1
            self._failed += 1
            self._state = "waiting"
            self._last_error = (str(error), now())
            self._queue.drop_unneeded()
            self._changed.notify_all()
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
        missing = [f"generation {generation}" for generation in self._queue.generations()] + sorted(self._files)
        error = f" Last error: {self._last_error[0]}" if self._last_error else ""
        if missing:
            raise StoreUnavailableError(
                f"Run '{self._name}' is not wholly in {self._url} after {seconds:.0f} s. Only on this machine, in "
                f"{self._directory.path}: {', '.join(missing)}. Resume the run here to upload them.{error}"
            )
        last = max(self._queue.uploads(), key=lambda upload: upload.generation, default=None)
        if last is not None and last.state == "failed":
            raise StoreUnavailableError(
                f"Generation {last.generation} of run '{self._name}' is not in {self._url}: {last.error}"
            )

    def _save_status(self) -> None:
        self._status_file.write(self.status())
