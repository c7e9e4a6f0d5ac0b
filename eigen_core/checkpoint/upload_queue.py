"""Which committed generations wait for upload, which need not be uploaded any more, and whether more may wait."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.retention import kept_generations
from eigen_core.checkpoint.upload_status import GenerationUpload, UploadState
from eigen_core.config import CheckpointConfig

logger = logging.getLogger(__name__)

_REMEMBERED = 20


@dataclass
class _Waiting:
    manifest: Manifest
    found: bool
    since: float
    upload: GenerationUpload


@dataclass
class UploadQueue:
    """The generations of a run that are to be uploaded, oldest first. Not safe for threads by itself.

    Attributes:
        config: what is kept in the store, and how much may wait.
        clock: rising seconds.
        stored: generations that have a manifest in the store.
        safe: generations whose copy on this machine is not needed any more: they are in the store as a whole, or
            retention would not keep them there.
        done: how many generations were uploaded or found in the store.
    """

    config: CheckpointConfig
    clock: Callable[[], float]
    stored: set[int] = field(default_factory=set)
    safe: set[int] = field(default_factory=set)
    done: int = 0
    _waiting: dict[int, _Waiting] = field(default_factory=dict)
    _ended: list[GenerationUpload] = field(default_factory=list)

    def add(self, manifest: Manifest, *, found: bool = False) -> None:
        """Queue a generation, instead of an older version of it.

        Args:
            manifest: its manifest.
            found: it existed when the run was opened, rather than was committed since.
        """
        generation = manifest.generation
        self.safe.discard(generation)
        self._ended = [ended for ended in self._ended if ended.generation != generation]
        upload = GenerationUpload(generation=generation, bytes=manifest.bytes, queued=datetime.now(UTC))
        self._waiting[generation] = _Waiting(manifest, found, self.clock(), upload)

    def begin(self) -> Manifest | None:
        """Return the generation that goes next, the oldest, and note that an attempt begins; None if none waits."""
        if not self._waiting:
            return None
        waiting = self._waiting[min(self._waiting)]
        _change(waiting, state="uploading", attempts=waiting.upload.attempts + 1)
        return waiting.manifest

    def put_off(self, manifest: Manifest, error: str) -> None:
        """Note that the attempt has ended without success; the generation goes on waiting."""
        if self._waits(manifest):
            _change(self._waiting[manifest.generation], state="pending", error=error)

    def finish(self, manifest: Manifest) -> None:
        """Note that a generation is in the store as a whole."""
        self.stored.add(manifest.generation)
        self.done += 1
        if self._waits(manifest):
            self.safe.add(manifest.generation)
            self._end(manifest.generation, "done")

    def give_up(self, manifest: Manifest, error: str) -> bool:
        """Note that a generation cannot be uploaded, ever; what is left of it on this machine stays there.

        Returns:
            False if it did not wait any more, since a newer version of it does.
        """
        waits = self._waits(manifest)
        if waits:
            _change(self._waiting[manifest.generation], error=error)
            self._end(manifest.generation, "failed")
        return waits

    def note_stored(self, names: Iterable[tuple[int, str]]) -> None:
        """Take note of the generations in the store, and drop those that need not be uploaded any more.

        A generation that was found on this machine and is in the store under another manifest, written by a process
        that had taken over, is not uploaded beside it.

        Args:
            names: generations in the store and the names of their manifests.
        """
        pairs = set(names)
        self.stored = {generation for generation, _ in pairs}
        foreign = [
            generation
            for generation, waiting in sorted(self._waiting.items())
            if waiting.found and generation in self.stored and (generation, waiting.manifest.name) not in pairs
        ]
        self._drop(foreign)
        self.drop_unneeded()

    def drop_unneeded(self) -> None:
        """Drop the waiting generations that retention would not keep in the store anyway.

        One that is being uploaded stays until its attempt has ended.
        """
        if not self._waiting:
            return
        present = sorted({*self.stored, *self._waiting}, reverse=True)
        champion = self._waiting[max(self._waiting)].manifest.champion_generation
        kept = kept_generations(present, present[: self.config.keep_last], self.config.keep_every, champion)
        waiting = sorted(self._waiting.items())
        self._drop([number for number, one in waiting if number not in kept and one.upload.state != "uploading"])

    def generations(self) -> list[int]:
        """Return the generations that wait, rising."""
        return sorted(self._waiting)

    def waiting_bytes(self, stored: Mapping[str, int]) -> int:
        """Return the size of all blobs of waiting generations that are not `stored` (name -> bytes), each once."""
        blobs = {blob for waiting in self._waiting.values() for blob in waiting.manifest.blobs.items()}
        return sum(size for name, size in blobs if stored.get(name) != size)

    def may_grow(self, stored: Mapping[str, int]) -> bool:
        """Whether one more generation may wait, however large it is; always if none does."""
        few = len(self._waiting) < self.config.queue_generations
        return few and self.waiting_bytes(stored) < self.config.queue_mb * 1e6

    def oldest_seconds(self) -> float | None:
        """Return for how long the generation has waited that has waited longest; None if none waits (seconds)."""
        return max((self.clock() - waiting.since for waiting in self._waiting.values()), default=None)

    def uploads(self) -> tuple[GenerationUpload, ...]:
        """Return the last generations that have left the queue, in that order, and then those that wait, rising."""
        return (*self._ended, *(waiting.upload for _, waiting in sorted(self._waiting.items())))

    def _waits(self, manifest: Manifest) -> bool:
        waiting = self._waiting.get(manifest.generation)
        return waiting is not None and waiting.manifest is manifest

    def _drop(self, generations: Iterable[int]) -> None:
        for generation in generations:
            run = self._waiting[generation].manifest.run
            logger.info("Run '%s': generation %d need not be uploaded any more", run, generation)
            self.safe.add(generation)
            self._end(generation, "dropped")

    def _end(self, generation: int, state: UploadState) -> None:
        waiting = self._waiting.pop(generation)
        _change(waiting, state=state, ended=datetime.now(UTC))
        self._ended = [*self._ended, waiting.upload][-_REMEMBERED:]


def _change(waiting: _Waiting, **fields: object) -> None:
    waiting.upload = waiting.upload.model_copy(update=fields)
