"""From a store elsewhere into the run directory, to go on with a run on another machine."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from eigen_core.checkpoint.blobs import blob_damage
from eigen_core.checkpoint.bytes_done import BytesDone
from eigen_core.checkpoint.contents import RunContents
from eigen_core.checkpoint.form import SnapshotForm
from eigen_core.checkpoint.manifest import Manifest, manifest_bytes
from eigen_core.checkpoint.names import BLOBS
from eigen_core.checkpoint.run import RunDirectory
from eigen_core.checkpoint.snapshot import Damage, in_words
from eigen_core.errors import InputError
from eigen_core.store import MissingObjectError, ObjectExistsError
from eigen_core.units import size

logger = logging.getLogger(__name__)


class Fetched(NamedTuple):
    """What was brought to this machine."""

    manifest: Manifest | None
    """The newest generation that is whole, which is in the run directory now; None: the run has none yet."""
    damages: list[Damage]
    """What is wrong with the newer ones in the store, which were skipped, newest first."""
    bytes: int
    """What was fetched (bytes)."""


def fetch_newest(target: RunContents, directory: RunDirectory, form: SnapshotForm | None = None) -> Fetched:
    """Bring the newest generation of a run that is whole into its run directory, unless it is there already.

    Every blob is compared with its SHA-256; blobs that are here and whole are not fetched. Generations in the store
    that are damaged, or of another form, are logged, skipped and added to `directory.contents.unfit`; what is in there
    is left out. The caller holds the run directory's lock. Progress is reported as "download", in bytes.

    Args:
        target: the run in the store.
        directory: the run on this machine.
        form: what a generation must consist of; None: whatever its manifest says.

    Raises:
        InputError: all generations in the store are damaged, and none on this machine is whole; or see `Store`.
        StoreUnavailableError: the store does not answer.
    """
    damages: list[Damage] = []
    here = _newest_whole(directory)
    fetched = 0
    for group in target.newest_first():
        _skip(target, group.damages, damages)
        for manifest in group.manifests:
            if manifest.name in directory.contents.unfit:
                continue
            if here is not None and _rank(here) >= _rank(manifest):
                return Fetched(here, damages, fetched)
            found = form.damages(manifest) if form is not None else []
            if not found:
                found, count = _fetch(target, directory, manifest)
                fetched += count
            if not found:
                return Fetched(manifest, damages, fetched)
            directory.contents.unfit.add(manifest.name)
            _skip(target, found, damages)
    if here is None and damages:
        raise InputError(
            f"Run '{target.name}' in {target.store.url} has no generation that is whole ({in_words(damages)}): restore "
            "it from a backup, or start a run under another name."
        )
    return Fetched(here, damages, fetched)


def _fetch(target: RunContents, directory: RunDirectory, manifest: Manifest) -> tuple[list[Damage], int]:
    """Bring one generation here, its manifest last; return what prevents it, and what was fetched (bytes)."""
    lacking = directory.contents.damages(manifest, deep=True)
    sizes = manifest.blobs
    prefix = target.object_name("")
    listed = {found.name.removeprefix(prefix): found.bytes for found in target.store.objects(target.object_name(BLOBS))}
    damages = [
        replace(damage, what=what)
        for damage in lacking
        if (what := _size_damage(damage.path, sizes, listed)) is not None
    ]
    if damages:
        return damages, 0
    needed = {damage.path: damage for damage in lacking}
    progress = BytesDone("download", sum(sizes[name] for name in needed))
    count = 0
    for name, damage in needed.items():
        what = _fetch_blob(target, directory, name, sizes[name], progress)
        count += sizes[name]
        if what is not None:
            return [replace(damage, what=what)], count
    _write_manifest(directory, manifest)
    logger.info("Run '%s': fetched generation %d, %s", target.name, manifest.generation, size(count))
    return [], count


def _fetch_blob(target: RunContents, directory: RunDirectory, name: str, size: int, progress: BytesDone) -> str | None:
    """Bring a blob into the run directory; return what is wrong with the store's, None if it is whole."""
    path = directory.path / name
    try:
        target.store.fetch(target.object_name(name), path, progress.add)
    except MissingObjectError:
        return "is missing"
    damage = blob_damage(path, size, name.rpartition("/")[2])
    if damage is not None:
        path.unlink(missing_ok=True)
    return damage


def _write_manifest(directory: RunDirectory, manifest: Manifest) -> None:
    here = directory.contents
    name, content = here.object_name(manifest.name), manifest_bytes(manifest)
    try:
        here.store.create(name, content)
    except ObjectExistsError:
        # It has this generation's name and checksum; what it holds was damaged, or its blobs were.
        here.store.put(name, content)


def _newest_whole(directory: RunDirectory) -> Manifest | None:
    here = directory.contents
    manifests = (manifest for group in here.newest_first() for manifest in group.manifests)
    fit = (manifest for manifest in manifests if manifest.name not in here.unfit)
    return next((manifest for manifest in fit if not here.damages(manifest, deep=True)), None)


def _rank(manifest: Manifest) -> tuple[int, int, str]:
    return manifest.generation, manifest.epoch, manifest.created


def _size_damage(name: str, sizes: Mapping[str, int], listed: Mapping[str, int]) -> str | None:
    """Return what is wrong with a blob in the store, by its size alone."""
    if name not in listed:
        return "is missing"
    if listed[name] != sizes[name]:
        return f"has {listed[name]:,} bytes instead of {sizes[name]:,}"
    return None


def _skip(target: RunContents, found: list[Damage], damages: list[Damage]) -> None:
    for damage in found:
        logger.warning("Run '%s' in %s is damaged: %s; it is skipped.", target.name, target.store.url, damage)
    damages += found
