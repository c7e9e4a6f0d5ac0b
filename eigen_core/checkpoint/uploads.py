"""From the run directory to a store elsewhere, in the background: training never waits for the network.

A generation that is committed on this machine is queued, and one thread copies it. As long as the store is away the
thread tries again and training goes on, until too much waits; only then training waits too.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from eigen_core.checkpoint.contents import RunContents
from eigen_core.checkpoint.damage import DamagedFileError
from eigen_core.checkpoint.lease import Lease, LeaseLostError
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.names import generation_of
from eigen_core.checkpoint.run import RunDirectory
from eigen_core.checkpoint.store_writer import StoreWriter
from eigen_core.checkpoint.upload_pace import RateLimit, Speedometer, pause_after
from eigen_core.checkpoint.upload_queue import UploadQueue
from eigen_core.checkpoint.upload_status import UploaderState, UploadStatus, now, write_status
from eigen_core.config import CheckpointConfig
from eigen_core.errors import InputError
from eigen_core.store import StoreUnavailableError
from eigen_core.units import size

logger = logging.getLogger(__name__)

NOTHING_TO_DO = math.inf

_STATUS_SECONDS = 2.0
_CLOSE_SECONDS = 5.0


class UploadsEndedError(RuntimeError):
    """Nothing is uploaded any more: the thread that does it was closed, or died by an error of its own."""


class _StoppedError(Exception):
    """Uploads are closed: what is on its way is abandoned."""


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
        warn_seconds: float = 60.0,
    ) -> None:
        """
        Args:
            directory: the run on this machine.
            target: the run in the store.
            lease: the right to write there.
            config: what is kept here and there, how much may wait and how fast it may go.
            clock: rising seconds.
            sleep: waits between two blocks; by default it is woken by `close`.
            warn_seconds: time between two warnings that something waits for uploads (seconds).

        Raises:
            InputError: the run directory cannot be read.
        """
        self._directory = directory
        self._lease = lease
        self._config = config
        self._clock = clock
        self._warn_seconds = warn_seconds
        self._name = directory.name
        self._url = target.store.url

        # What follows is read and written with the condition held.
        self._changed = threading.Condition()
        self._queue = UploadQueue(config, clock)
        self._files: dict[str, tuple[Path]] = {}
        self._champion: int | None = None
        self._surveyed = False
        self._others_first = False
        self._busy = False
        self._hurry = False
        self._kicks = 0
        self._broken: BaseException | None = None
        self._state: UploaderState = "idle"
        self._failures = 0
        self._failed = 0
        self._last_error: tuple[str, datetime] | None = None

        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._writer = StoreWriter(directory.path, target, lease, self._moved)
        self._speed = Speedometer(clock)
        self._limit = RateLimit(config.upload_mb_per_second * 1e6, clock, sleep or self._closing.wait)
        self._status_lock = threading.Lock()
        self._status_at = -math.inf
        self._status_refused = False
        for manifest in reversed(directory.contents.manifests().manifests):
            self._queue.add(manifest, found=True)

    def start(self) -> None:
        """Begin to upload in the background; once is enough."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._work, name=f"eigen-uploads-{self._name}", daemon=True)
        self._thread.start()

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
            self._drop(self._queue.drop_unneeded())
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

    def wait_for_room(self) -> None:
        """Return once one more generation may be committed: at once, unless too many or too much wait for upload.

        Raises:
            LeaseLostError: another process has taken the run over.
            UploadsEndedError: nothing is uploaded any more.
        """
        warned = -math.inf
        with self._changed:
            while True:
                self._raise_if_broken()
                if self._queue.has_room(self._writer.there):
                    return
                if self._clock() - warned >= self._warn_seconds:
                    warned = self._clock()
                    logger.warning("Run '%s': training waits: %s", self._name, self.status().waiting)
                self._changed.wait(self._warn_seconds)

    def finish(self, seconds: float) -> None:
        """Wait until all that was added is in the store, and remove what this machine need not keep, as `add` does.

        Raises:
            StoreUnavailableError: it is not, after so many seconds, or cannot be; the message says what is missing.
            LeaseLostError: another process has taken the run over.
            UploadsEndedError: nothing is uploaded any more.
        """
        deadline = self._clock() + seconds
        warned = self._clock()
        with self._changed:
            self._hurry = True
            self._kicks += 1
            self._changed.notify_all()
            while self._is_work() or self._busy:
                self._raise_if_broken()
                left = deadline - self._clock()
                if left <= 0:
                    break
                if self._clock() - warned >= self._warn_seconds:
                    warned = self._clock()
                    logger.warning("Run '%s': its end waits: %s", self._name, self.status().waiting)
                self._changed.wait(min(left, self._warn_seconds))
            self._hurry = False
            self._raise_if_missing(seconds)
        self._clean_directory()

    def close(self) -> None:
        """Stop uploading; what is on its way is abandoned and leaves nothing in the store that counts."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)
        with self._changed:
            if self._broken is None:
                self._state = "ended"
        self._save_status()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
                pending_mb=self._queue.waiting_bytes(self._writer.there) / 1e6,
                pending_files=len(self._files),
                done=self._queue.done,
                failed=self._failed,
                mb_per_second=self._speed.mb_per_second,
                oldest_seconds=self._queue.oldest_seconds(),
                last_error=error,
                last_error_at=error_at,
                generations=self._queue.describe(),
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
            self._busy = True
            self._state = "uploading"
        try:
            self._do_next()
        except _StoppedError:
            return NOTHING_TO_DO
        except (StoreUnavailableError, InputError) as error:
            return self._note_failure(error)
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
        with self._changed:
            self._failures = 0
            self._state = "idle"
            self._last_error = None
        self._save_status()
        return 0.0

    def _work(self) -> None:
        try:
            self._save_status()
            while not self._closing.is_set():
                kicks = self._kicks
                self._rest(self.step(), kicks)
        except LeaseLostError as error:
            logger.error("%s", error)
            self._break(error, "lost")
        except BaseException as error:
            logger.error("Run '%s': uploads have ended by an error: %r", self._name, error)
            self._break(error, "died")
            raise

    def _rest(self, pause: float, kicks: int) -> None:
        """Wait until there is work, or after a failure for a while, unless a caller begins to wait."""
        with self._changed:
            if pause == NOTHING_TO_DO:
                self._changed.wait_for(lambda: self._closing.is_set() or self._is_work())
            elif pause > 0:
                self._changed.wait_for(lambda: self._closing.is_set() or self._kicks != kicks, pause)

    def _break(self, error: BaseException, state: UploaderState) -> None:
        with self._changed:
            self._broken = error
            self._state = state
            self._last_error = (str(error) or repr(error), now())
            self._changed.notify_all()
        self._save_status()

    def _is_work(self) -> bool:
        return bool(self._queue.generations() or self._files or self._champion is not None)

    def _do_next(self) -> None:
        """Do the most urgent piece of work: generations first, but after each one all that came up beside it."""
        if not self._surveyed:
            self._survey()
        with self._changed:
            others = self._champion is not None or bool(self._files)
            manifest = None if others and self._others_first else self._queue.begin()
            champion, file = self._champion, next(iter(self._files.items()), None)
        if manifest is not None:
            self._upload(manifest)
        elif champion is not None:
            self._clean_store(champion)
        elif file is not None:
            self._upload_file(*file)

    def _survey(self) -> None:
        """See which generations the store has."""
        names = self._writer.generations()
        with self._changed:
            self._surveyed = True
            self._drop(self._queue.survey(names))

    def _upload(self, manifest: Manifest) -> None:
        self._save_status()
        self._speed.begin()
        started = self._clock()
        try:
            self._writer.write(manifest)
        except DamagedFileError as error:
            self._give_up(manifest, f"{error}. It stays on this machine alone; verify the run.")
            return
        except (StoreUnavailableError, InputError, LeaseLostError, _StoppedError) as error:
            with self._changed:
                self._queue.put_off(manifest, str(error))
            raise
        with self._changed:
            self._queue.finish(manifest)
            self._champion = manifest.champion_generation
            self._others_first = True
        moved, seconds = size(self._speed.bytes), self._clock() - started
        logger.info("Generation %d is in %s: %s in %.1f s", manifest.generation, self._url, moved, seconds)

    def _give_up(self, manifest: Manifest, reason: str) -> None:
        with self._changed:
            if not self._queue.give_up(manifest, reason):
                return
        logger.error("Generation %d of run '%s' cannot be uploaded: %s", manifest.generation, self._name, reason)

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
        """Apply retention in the store; that it fails is no reason to wait: the next generation brings it again."""
        self._champion = None
        try:
            self._writer.retain(self._config.keep_last, self._config.keep_every, champion_generation)
        except (StoreUnavailableError, InputError) as error:
            logger.warning("Run '%s': old generations stay in %s for now: %s", self._name, self._url, error)

    def _clean_directory(self) -> None:
        """Remove old generations from this machine that are safe in the store, or not needed there."""
        with self._changed:
            safe = set(self._queue.safe)
        try:
            here = {generation_of(name) for name in self._directory.contents.manifest_names()}
            needed = frozenset(number for number in here if number is not None and number not in safe)
            self._directory.clean(self._config.keep_local, 0, 0, needed)
        except (StoreUnavailableError, InputError) as error:
            logger.warning("Run '%s': old generations stay in %s for now: %s", self._name, self._directory.path, error)

    def _moved(self, count: int) -> None:
        """Called after each block, and before a manifest."""
        self._speed.moved(count)
        if self._clock() - self._status_at >= _STATUS_SECONDS:
            self._save_status()
        self._limit.spend(count)
        if self._closing.is_set():
            raise _StoppedError

    def _note_failure(self, error: StoreUnavailableError | InputError) -> float:
        """Report a failed attempt and return how long to wait before the next one (seconds)."""
        with self._changed:
            pause = pause_after(self._failures, refused=isinstance(error, InputError), hurried=self._hurry)
            self._failures += 1
            self._failed += 1
            self._state = "waiting"
            self._last_error = (str(error), now())
            self._drop(self._queue.drop_unneeded())
        logger.warning("Run '%s', next attempt in %.0f s: %s", self._name, pause, self.status().waiting)
        self._save_status()
        return pause

    def _drop(self, generations: list[int]) -> None:
        """Take note that some generations need not be uploaded any more."""
        if generations:
            logger.info("Run '%s': generations %s need not be uploaded any more", self._name, generations)

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
        last = max(self._queue.describe(), key=lambda upload: upload.generation, default=None)
        if last is not None and last.state == "failed":
            raise StoreUnavailableError(
                f"Generation {last.generation} of run '{self._name}' is not in {self._url}: {last.error}"
            )

    def _save_status(self) -> None:
        """Tell other processes; that this fails is no reason to stop."""
        status = self.status()
        with self._status_lock:
            self._status_at = self._clock()
            try:
                write_status(self._directory.path, status)
            except OSError as error:
                if not self._status_refused:
                    logger.warning("Run '%s': the state of its uploads cannot be written: %s", self._name, error)
                self._status_refused = True
