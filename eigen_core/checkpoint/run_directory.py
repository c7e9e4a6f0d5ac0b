"""The directory of a run on this machine: training commits generations to it and loads them from it."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pydantic import JsonValue

from eigen_core.checkpoint.integrity import (
    BEFORE_A_RUN,
    CONFIG_NAME,
    LOCK_NAME,
    PLOTS,
    Damage,
    DamagedGenerationError,
    UnfitSnapshotError,
    checksummed,
    generation_of,
    in_words,
)
from eigen_core.checkpoint.locks import FileLock
from eigen_core.checkpoint.manifest import FORMAT_VERSION, Manifest, damaged_generation, manifest_bytes
from eigen_core.checkpoint.replay_shards import ring_columns, write_ring
from eigen_core.checkpoint.run_contents import RunContents, newest_of, no_such_run
from eigen_core.checkpoint.snapshot import (
    LoadedGeneration,
    Snapshot,
    SnapshotForm,
    compose_manifest,
    read_snapshot,
    write_files,
)
from eigen_core.checkpoint.store import ANOTHER_FOLDER, LocalStore, check_run_name
from eigen_core.checkpoint.store_location import command_for
from eigen_core.common.errors import InputError
from eigen_core.common.files import explained, temporary_files_in
from eigen_core.common.text import size

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedGeneration:
    """A committed generation; `written_bytes`: size of its new files, `ring_bytes` that of new replay shards alone."""

    manifest: Manifest
    written_bytes: int
    ring_bytes: int


class RunDirectory:
    """A run's folder `path` on this machine, in a `LocalStore` at `root`. Make one with `create` or `open`.

    A generation is committed by its manifest, which is written last. If a process is killed before that, the next
    `lock` removes its temporary files, and the next `RunContents.clean` the blobs without a manifest. `config` is the
    configuration with which the run was created.
    """

    def __init__(self, contents: RunContents, config: Mapping[str, JsonValue]) -> None:
        assert isinstance(contents.store, LocalStore)
        self.root = contents.store.folder
        self.name = contents.name
        self.path = self.root / self.name
        self.config: Mapping[str, JsonValue] = dict(config)
        self.contents = contents
        self._lock = FileLock(self.path / LOCK_NAME)
        self._base: Manifest | None = None

    @classmethod
    def create(cls, root: Path, name: str, config: Mapping[str, JsonValue]) -> Self:
        """Create a run that has only its configuration, completely or not at all; `InputError` if it exists."""
        check_run_name(name)
        content = config_content(name, config)
        store = LocalStore(root)
        taken = (
            f"There is already a file or folder {store.folder / name}: choose another name, move it away or, if it is "
            f"a run, continue it with `{command_for('resume', name, store.url)}`."
        )
        if _is_taken(store.folder / name) or not store.create(f"{name}/{CONFIG_NAME}", content):
            raise InputError(taken)
        return cls(RunContents(store, name), config)

    @classmethod
    def open(cls, root: Path, name: str) -> Self:
        check_run_name(name)
        store = LocalStore(root)
        contents = RunContents(store, name)
        if not contents.exists():
            raise no_such_run(store, name)
        return cls(contents, contents.config())

    @property
    def plots(self) -> Path:
        return self.path / PLOTS

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing (they get `InUseError`); first remove temporary files of a killed one."""
        self._lock.require(f"Run '{self.name}'")
        try:
            with explained("remove temporary files from", self.path, ANOTHER_FOLDER):
                left = temporary_files_in(self.path)
                for path in left:
                    path.unlink(missing_ok=True)  # it may be a status file that another thread has renamed
            if left:
                logger.info("Run '%s': removed %d unfinished files of a process that was killed.", self.name, len(left))
            yield
        finally:
            self._lock.release()

    def save(
        self, snapshot: Snapshot, config: Mapping[str, JsonValue] | None = None, epoch: int = 0
    ) -> SavedGeneration:
        """Commit a generation durably, completely or not at all, under the run's lock.

        Of the replay buffer, only those rows are written that were appended since this object last saved or loaded a
        generation; older rows must not have changed. An existing generation with the same content stays unchanged.
        `config` defaults to the configuration of the run's creation; `epoch` is that of the lease, 0 without a lease.

        Raises:
            InputError: the run's folder cannot be written to (no space, no permission, ...).
            InUseError: another process is writing to the run.
            ValueError: a tensor's type or a document cannot be stored.
        """
        saving = f"save generation {snapshot.generation} in"
        with nullcontext() if self._lock.held else self.lock(), explained(saving, self.path, ANOTHER_FOLDER):
            base = self._base
            if snapshot.ring is not None:
                ring_columns(snapshot.ring)
            entries = write_files(snapshot, self.path)
            ring, ring_bytes = write_ring(snapshot.ring, None if base is None else base.ring, self.path)
            parent = None if base is None else base.checksum
            if base is not None and base.generation == snapshot.generation:
                parent = base.parent
            config = self.config if config is None else config
            manifest = compose_manifest(self.name, snapshot, entries, ring, parent, epoch, config)
            stored = self._stored_like(manifest)
            name = self.contents.object_name(manifest.name)
            if stored is None and not self.contents.store.create(name, manifest_bytes(manifest)):
                raise FileExistsError(name)
            self._base = stored or manifest
            # All blobs of this generation were just written or found with the right size.
            self.contents.unfit.discard(self._base.name)
            return SavedGeneration(self._base, sum(entry.bytes for entry in entries) + ring_bytes, ring_bytes)

    def _stored_like(self, manifest: Manifest) -> Manifest | None:
        """Return a stored manifest that equals `manifest` except for `created` and `checksum`, else None."""
        names = [name for name in self.contents.manifest_names() if generation_of(name) == manifest.generation]
        for found in map(self.contents.manifest, names):
            if isinstance(found, Manifest):
                time = {"created": manifest.created, "checksum": manifest.checksum}
                if found.model_copy(update=time) == manifest:
                    return found
        return None

    def load(self, manifest: Manifest) -> LoadedGeneration:
        """Verify and read a generation, each tensor in its own memory on the CPU; else `DamagedGenerationError`."""
        if damages := self.contents.damages(manifest, deep=True, phase="load"):
            raise damaged_generation(manifest, damages)
        snapshot = read_snapshot(manifest, self.path)
        self._base = manifest
        return LoadedGeneration(snapshot, manifest, [])

    def load_newest(
        self,
        form: SnapshotForm | None = None,
        restore: Callable[[Snapshot], None] | None = None,
        stored: RunContents | None = None,
    ) -> LoadedGeneration | None:
        """Read the newest undamaged generation; log and skip damaged ones. Return None if the run has no generation.

        Args:
            form: a generation of another form counts as damaged, and its files are not read; None: any form.
            restore: called with the snapshot; if it raises `UnfitSnapshotError`, the generation counts as damaged.
            stored: the run in a bucket, from which generations and files that are missing or damaged here are fetched.

        Raises:
            InputError: all generations are damaged, or a newer version of Eigen wrote the newest one.
        """
        damages: list[Damage] = []
        names_stored = set() if stored is None else set(stored.manifest_names())
        for contents, found in newest_of([self.contents, *([] if stored is None else [stored])]):
            if isinstance(found, Damage):
                self._skip(contents, [found], damages)
            elif found.name not in self.contents.unfit:
                try:
                    loaded = self._restored(found, form, restore, stored if found.name in names_stored else None)
                except DamagedGenerationError as error:
                    self.contents.unfit.add(found.name)
                    self._skip(contents, error.damages, damages)
                else:
                    self._log_unreferenced(found.generation)
                    return loaded._replace(damages=damages)
        if damages:
            raise DamagedGenerationError(
                f"All saved generations of run '{self.name}' in {(stored or self.contents).store.url} are damaged "
                f"({in_words(damages)}): restore these files from a copy of the run, or train a new run with "
                "another name.",
                damages,
            )
        return None

    def _restored(
        self,
        manifest: Manifest,
        form: SnapshotForm | None,
        restore: Callable[[Snapshot], None] | None,
        stored: RunContents | None,
    ) -> LoadedGeneration:
        if form is not None and (damages := form.damages(manifest)):
            raise damaged_generation(manifest, damages)
        if stored is not None:
            stored.fetch_generation(manifest, self.contents)
        loaded = self.load(manifest)
        try:
            if restore is not None:
                restore(loaded.snapshot)
        except UnfitSnapshotError as error:
            damage = Damage(manifest.generation, error.file, error.what, manifest.name)
            raise damaged_generation(manifest, [damage]) from error
        return loaded

    def _skip(self, contents: RunContents, found: list[Damage], damages: list[Damage]) -> None:
        for damage in found:
            logger.warning(
                "Run '%s' in %s is damaged: %s. An older generation is tried.", self.name, contents.store.url, damage
            )
        damages += [damage for damage in found if damage not in damages]

    def _log_unreferenced(self, newest: int) -> None:
        if unreferenced := self.contents.unreferenced():
            logger.warning(
                "Run '%s' has %d files (%s) that no generation up to %d uses: a later generation was not "
                "completed, or its manifest is missing. The next checkpoint removes them.",
                self.name,
                len(unreferenced),
                size(sum(stored.bytes for stored in unreferenced)),
                newest,
            )


def config_content(name: str, config: Mapping[str, JsonValue]) -> bytes:
    return checksummed(
        {
            "format_version": FORMAT_VERSION,
            "run": name,
            "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "config": dict(config),
        }
    )


def _is_taken(path: Path) -> bool:
    with explained("make a run in", path.parent, ANOTHER_FOLDER):
        try:
            names = os.listdir(path)
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            return os.path.lexists(path)
    return any(not name.startswith(".") and name not in BEFORE_A_RUN for name in names)
