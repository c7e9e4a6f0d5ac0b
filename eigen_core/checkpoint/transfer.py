"""From a store elsewhere into the run directory, to go on with a run on another machine."""

import logging

from eigen_core.checkpoint.blobs import check_blob
from eigen_core.checkpoint.bytes_done import BytesDone
from eigen_core.checkpoint.contents import RunContents
from eigen_core.checkpoint.damage import DamagedFileError
from eigen_core.checkpoint.manifest import Manifest, damaged_generation, manifest_bytes, reading_part
from eigen_core.store import LocalStore
from eigen_core.units import size

logger = logging.getLogger(__name__)


def fetch_generation(stored: RunContents, local: RunContents, manifest: Manifest) -> None:
    """Copy what a run directory lacks of a generation from the store, the manifest last.

    Every blob is compared with its SHA-256; those that are whole on this machine are not fetched. The caller holds the
    run directory's lock. Progress is reported as "download", in bytes.

    Args:
        stored: the run in the store, which has that manifest.
        local: the run on this machine, in a `LocalStore`.
        manifest: the generation's.

    Raises:
        DamagedGenerationError: what is needed of it is damaged in the store. If that shows in the sizes, nothing is
            fetched.
        InputError, StoreUnavailableError: see `Store`.
    """
    assert isinstance(local.store, LocalStore)
    lacking = {damage.path: damage.file for damage in local.damages(manifest, deep=True)}
    damages = [damage for damage in stored.damages(manifest) if damage.path in lacking] if lacking else []
    if damages:
        raise damaged_generation(manifest, damages)
    sizes = manifest.blobs
    total = sum(sizes[blob] for blob in lacking)
    progress = BytesDone("download", total)
    for blob, part in lacking.items():
        path = local.store.path(local.object_name(blob))
        with reading_part(manifest, part, blob):
            stored.fetch(blob, path, progress.add)
            try:
                check_blob(path, sizes[blob])
            except DamagedFileError:
                path.unlink(missing_ok=True)
                raise
    if local.manifest(manifest.name) != manifest:
        # Instead of a damaged one of that name, if there is one.
        local.store.put(local.object_name(manifest.name), manifest_bytes(manifest))
    if lacking:
        logger.info("Run '%s': fetched generation %d, %s", stored.name, manifest.generation, size(total))
