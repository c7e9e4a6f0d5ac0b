"""A run that this process trains: its directory on this machine, its lease (right to write) and its uploads."""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from eigen_core.checkpoint.integrity import CONFIG_NAME, HOLDOUT, LIST_NAME, LISTS, PLOTS, holdout_name
from eigen_core.checkpoint.locks import Lease
from eigen_core.checkpoint.run_contents import RunLocation, no_such_run
from eigen_core.checkpoint.run_directory import RunDirectory, SavedGeneration, config_content
from eigen_core.checkpoint.snapshot import LoadedGeneration, Snapshot, SnapshotForm
from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.checkpoint.uploads import Uploader, UploadStatus
from eigen_core.common.errors import InputError
from eigen_core.config.model import CheckpointConfig

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class RunSession:
    """A run that this process alone may write to. Make one with `open_session`.

    A generation is committed to the run directory on this machine. If the store is a bucket, `uploader` copies it there
    in the background; otherwise `uploader` is None.
    """

    location: RunLocation
    directory: RunDirectory
    lease: Lease
    settings: CheckpointConfig
    uploader: Uploader | None

    def load_newest(
        self, form: SnapshotForm | None = None, restore: Callable[[Snapshot], None] | None = None
    ) -> LoadedGeneration | None:
        return self.directory.load_newest(form, restore, self.location.stored if self.location.remote else None)

    def save(self, snapshot: Snapshot, config: Mapping[str, JsonValue]) -> SavedGeneration:
        """Commit a generation on this machine and queue it for upload; wait only while that queue is full.

        `config`: that of this generation. `LeaseLostError`, before any write, if another process took the lease.
        """
        if self.uploader is None:
            self.lease.check()
        else:
            self.uploader.wait_for_queue()
        return self._save(snapshot, config)

    def save_before_end(self, snapshot: Snapshot, config: Mapping[str, JsonValue]) -> SavedGeneration | None:
        """Commit `snapshot` without waiting for the upload queue; None if this session has already committed it."""
        self.lease.check()
        newest = self.location.local.newest_manifest()
        if newest is not None and (newest.epoch, newest.generation) == (self.lease.epoch, snapshot.generation):
            return None
        return self._save(snapshot, config)

    def _save(self, snapshot: Snapshot, config: Mapping[str, JsonValue]) -> SavedGeneration:
        saved = self.directory.save(snapshot, config, self.lease.epoch)
        if self.uploader is None:
            self.directory.contents.clean(self.settings.keep_last, self.settings.keep_every)
        else:
            self.uploader.add(saved.manifest)
        return saved

    def keep_holdout(self, generation: int, result: Mapping[str, JsonValue]) -> None:
        name = holdout_name(generation)
        self.directory.contents.write_holdout(name, result)
        self.upload_files([self.directory.path / name, self.directory.path / LIST_NAME])

    def upload_files(self, paths: Iterable[Path]) -> None:
        if self.uploader is not None:
            for path in paths:
                self.uploader.add_file(path.relative_to(self.directory.path).as_posix())

    def finish(self, seconds: float | None = None) -> None:
        """Wait at most `seconds` (default: `checkpoint.finish_seconds`) until the bucket, if any, has all files."""
        if self.uploader is not None:
            self.uploader.finish(self.settings.finish_seconds if seconds is None else seconds)

    def uploads(self) -> UploadStatus | None:
        return None if self.uploader is None else self.uploader.status()


def create_run(location: RunLocation, config: Mapping[str, JsonValue]) -> None:
    """Create a run with its configuration, on this machine and in the bucket, if any; `InputError` if it exists."""
    directory = RunDirectory.create(location.root, location.name, config)
    if location.remote:
        try:
            _publish_config(location, directory)
        except (InputError, StoreUnavailableError):
            shutil.rmtree(directory.path)
            raise


@contextmanager
def open_session(location: RunLocation, settings: CheckpointConfig) -> Iterator[RunSession]:
    """Lock an existing run for this process inside the block; `InputError` if it does not exist or is in use."""
    if location.local.exists():
        directory = RunDirectory(location.local, location.local.config())
        directory.contents.unfit.clear()
    elif location.remote and location.stored.exists():
        directory = RunDirectory.create(location.root, location.name, location.stored.config())
    else:
        raise no_such_run(location.store, location.name)
    with directory.lock(), ExitStack() as stack:
        if location.remote:
            _publish_config(location, directory)
        lease = stack.enter_context(take_lease(location, settings))
        uploader = None
        if location.remote:
            stored = location.stored
            stored.unfit = directory.contents.unfit
            uploader = stack.enter_context(Uploader(directory, stored, lease, settings))
            _upload_newer_files(location, uploader)
        yield RunSession(location, directory, lease, settings, uploader)


def take_lease(location: RunLocation, settings: CheckpointConfig) -> Lease:
    """Take the lease on a run; the caller must already hold the lock of the run's directory on this machine, if any."""
    newest = [contents.newest_manifest() for contents in location.contents()]
    last_epoch, ended = max((found.epoch for found in newest if found is not None), default=0), not location.remote
    duration = settings.lease_seconds
    return Lease.acquire(location.store, location.name, duration, last_epoch=last_epoch, holder_has_ended=ended)


def _publish_config(location: RunLocation, directory: RunDirectory) -> None:
    """Write the run's configuration to the bucket, unless it is there; `InputError` if a different one is."""
    name, content = location.stored.object_name(CONFIG_NAME), config_content(location.name, directory.config)
    if not location.store.create(name, content) and location.stored.config() != dict(directory.config):
        raise InputError(
            f"The run '{location.name}' in {location.store.url} is not the one in {directory.path}, since their "
            "configurations differ: choose another name, or move that folder away."
        )


def _upload_newer_files(location: RunLocation, uploader: Uploader) -> None:
    """Queue plots and holdout results that are newer here than in the bucket; a killed process did not upload them."""
    here, there = location.local, location.stored
    for prefix in (PLOTS, HOLDOUT, LISTS):
        stored = {found.name: found.modified for found in there.store.objects(there.object_name(prefix))}
        for found in here.store.objects(here.object_name(prefix)):
            uploaded = stored.get(found.name)
            if uploaded is None or found.modified > uploaded:
                uploader.add_file(found.name.removeprefix(here.object_name("")))
