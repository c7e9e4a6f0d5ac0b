"""How far the uploads of a run are, for logs, artifacts and, through a small file, for other processes."""

import logging
import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from eigen_core.store.files import replacing

logger = logging.getLogger(__name__)

STATUS_NAME = "uploads.json"
"""Name of the file in the run directory."""

UploadState = Literal["pending", "uploading", "done", "dropped", "failed"]
"""Of a generation: it waits, is being uploaded, is in the store, was not needed there any more, or can never be."""

UploaderState = Literal["idle", "uploading", "waiting", "lost", "ended", "died"]
"""Of a run's uploads: nothing to do, uploading, waiting to try again, stopped since another process took the run
over, ended with the run, or stopped by an error of their own."""


class _Status(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class GenerationUpload(_Status):
    """How far one generation is."""

    generation: int
    state: UploadState = "pending"
    bytes: int
    """Size of all its files, those included that the store has already."""
    attempts: int = 0
    """How often it was tried."""
    queued: datetime
    """When it was committed on this machine (UTC)."""
    ended: datetime | None = None
    """When it left the queue (UTC)."""
    error: str | None = None
    """Why the last attempt failed."""


class UploadStatus(_Status):
    """How far the uploads of a run are."""

    run: str
    store: str
    state: UploaderState
    updated: datetime
    """When this was found (UTC, by the clock of the machine that uploads)."""
    pending: int
    """Generations that wait or are being uploaded."""
    pending_mb: float
    """What of them is not in the store (MB)."""
    pending_files: int
    """Plots and other small files that wait."""
    done: int
    """Generations uploaded since the process started."""
    failed: int
    """Attempts that failed since the process started."""
    mb_per_second: float
    """Rate of the last upload that moved something (MB/s)."""
    oldest_seconds: float | None
    """For how long the oldest pending generation had waited when this was found (seconds)."""
    last_error: str | None
    """Why the last attempt failed; None if it did not."""
    last_error_at: datetime | None
    """When it did (UTC)."""
    generations: tuple[GenerationUpload, ...]
    """The last ones, by generation."""

    @property
    def waiting(self) -> str:
        """What waits, and for what, as a sentence."""
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


class StatusFile:
    """The status of uploads in a run directory, for other processes. Methods may be called from any thread.

    Args:
        folder: the run directory.
        clock: rising seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._written = -math.inf
        self._is_refused = False

    @property
    def age_seconds(self) -> float:
        """Time since it was written; infinite if it was not (seconds)."""
        return self._clock() - self._written

    def write(self, status: UploadStatus) -> None:
        """Replace the status in one step. That it cannot be written is logged once, and uploads go on."""
        with self._lock:
            self._written = self._clock()
            try:
                with replacing(self._folder / STATUS_NAME) as file:
                    file.write(status.model_dump_json(indent=2).encode() + b"\n")
            except OSError as error:
                if not self._is_refused:
                    logger.warning("Run '%s': the state of its uploads cannot be written: %s", status.run, error)
                self._is_refused = True


def read_status(folder: Path) -> UploadStatus | None:
    """Return the last status in a run directory, None if there is none that can be read."""
    try:
        return UploadStatus.model_validate_json((folder / STATUS_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def now() -> datetime:
    """Return the time (UTC)."""
    return datetime.now(UTC)
