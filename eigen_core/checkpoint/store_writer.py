"""Bringing one generation, or one small file, from the run directory into a store elsewhere."""

import logging
from collections.abc import Mapping
from pathlib import Path

from eigen_core.checkpoint.blobs import check_blob
from eigen_core.checkpoint.contents import RunContents
from eigen_core.checkpoint.damage import DamagedFileError
from eigen_core.checkpoint.lease import Lease
from eigen_core.checkpoint.manifest import Manifest, manifest_bytes
from eigen_core.checkpoint.names import BLOBS, generation_of
from eigen_core.store import Progress, StoreUnavailableError, created

logger = logging.getLogger(__name__)

_GRACE_SECONDS = 86_400.0
"""Blobs without a manifest stay so long (seconds): the manifest may be about to be uploaded."""


class StoreWriter:
    """Writes to one run in a store for the holder of its lease. It belongs to one thread.

    Attributes:
        stored: the blobs that were uploaded or found in the store: name, relative to the run -> size (bytes). Other
            threads may read it.
    """

    def __init__(self, folder: Path, target: RunContents, lease: Lease, moved: Progress) -> None:
        """
        Args:
            folder: the run directory.
            target: the run in the store.
            lease: the right to write there.
            moved: called with the bytes of each block, and with 0 before a manifest; what it raises ends the upload.
        """
        self.stored: Mapping[str, int] = {}
        self._folder = folder
        self._target = target
        self._store = target.store
        self._lease = lease
        self._moved = moved

    def generations(self) -> list[tuple[int, str]]:
        """Return the generations in the store with the names of their manifests.

        Raises:
            InputError, StoreUnavailableError: see `Store`.
        """
        names = ((generation_of(name), name) for name in self._target.manifest_names())
        return [(generation, name) for generation, name in names if generation is not None]

    def write(self, manifest: Manifest) -> None:
        """Make sure that a generation is in the store as a whole: its blobs first, its manifest last.

        Blobs that the store has with the very same content are not sent again.

        Raises:
            DamagedFileError: it is damaged on this machine.
            LeaseLostError: another process has taken the run over; the manifest is not written.
            InputError, StoreUnavailableError: see `Store`.
        """
        listed = {found.name: found.bytes for found in self._store.objects(self._target.object_name(BLOBS))}
        self.stored = {
            name: size for name, size in self.stored.items() if listed.get(self._target.object_name(name)) == size
        }
        for name, size in manifest.blobs.items():
            if name not in self.stored:
                self._write_blob(name, size, listed.get(self._target.object_name(name)) == size)
                self.stored = {**self.stored, name: size}
        self._moved(0)
        self._lease.announce(manifest.name)
        self._write_manifest(manifest)
        self._lease.conclude(manifest.name)

    def write_file(self, name: str, path: Path) -> None:
        """Store a small file under `name`, relative to the run, instead of what was there.

        Raises:
            FileNotFoundError: there is no such file on this machine.
            LeaseLostError, InputError, StoreUnavailableError: as for `write`.
        """
        self._lease.raise_if_lost()
        self._store.put_file(self._target.object_name(name), path, self._moved)

    def clean(self, keep_last: int, keep_every: int, champion_generation: int) -> None:
        """Remove the generations from the store that need not stay there.

        Raises:
            LeaseLostError, InputError, StoreUnavailableError: as for `write`.
        """
        # It may take long: the lease is made to last.
        self._lease.renew()
        self._target.clean(
            keep_last,
            keep_every,
            champion_generation,
            unnamed_grace_seconds=_GRACE_SECONDS,
            confirm=self._lease.check,
        )

    def _write_blob(self, name: str, size: int, listed: bool) -> None:
        path = self._folder / name
        # What is damaged on this machine must not replace what may be whole in the store.
        try:
            check_blob(path, size)
        except DamagedFileError as error:
            raise DamagedFileError(f"{path} {error}") from error
        target = self._target.object_name(name)
        if not (listed and self._store.holds(target, path)):
            self._store.put_file(target, path, self._moved)

    def _write_manifest(self, manifest: Manifest) -> None:
        name = self._target.object_name(manifest.name)
        content = manifest_bytes(manifest)
        if created(self._store, name, content):
            return
        self._lease.check()
        # Its name has a part of its checksum. What reads differently is damaged, or was announced by a former holder.
        logger.warning("%s in %s was damaged or withdrawn, and is replaced", name, self._store.url)
        self._store.delete([name])
        self._lease.check()
        if not created(self._store, name, content):
            raise StoreUnavailableError(f"{self._store.url} gives back something else than {name}, as it was written")
