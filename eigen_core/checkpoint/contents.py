"""What a run holds in a store: its generations, whether they are whole, and what of them can go."""

import logging
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue

from eigen_core.checkpoint.attachments import Attachments
from eigen_core.checkpoint.blobs import check_blob
from eigen_core.checkpoint.bytes_done import BytesDone
from eigen_core.checkpoint.checksums import parse_checksummed
from eigen_core.checkpoint.damage import Damage, DamagedFileError
from eigen_core.checkpoint.lease import is_live
from eigen_core.checkpoint.manifest import (
    MANIFEST_LIMIT,
    Manifest,
    damaged_generation,
    manifest_bytes,
    parse_manifest,
    reading_part,
)
from eigen_core.checkpoint.names import (
    BLOBS,
    CONFIG_NAME,
    MANIFESTS,
    WITHDRAWN,
    blob_name,
    generation_of,
)
from eigen_core.checkpoint.retention import (
    CleanReport,
    KeepRule,
    ManifestSummary,
    age_of,
    kept_manifests,
    missing_damages,
    unneeded_blobs,
)
from eigen_core.checkpoint.tensor_files import parse_document
from eigen_core.errors import InputError
from eigen_core.store import LocalStore, MissingObjectError, Progress, Store, StoredObject, StoreUnavailableError
from eigen_core.units import size as in_mb

logger = logging.getLogger(__name__)

_CONFIG_LIMIT = 16 << 20
_MISSING = "is missing"


class Listing(NamedTuple):
    """The generations of a run."""

    manifests: list[Manifest]
    """Newest first: by generation, then by the lease's epoch, then by when it was written."""
    damages: list[Damage]
    """Manifests that cannot be read, newest generation first."""


class RunContents:
    """What a run holds in any store. Reading needs no lock; cleaning is for the run's only writer, or for none.

    Args:
        store: where runs are kept.
        name: the run's name.

    Attributes:
        attachments: what lies beside its generations.
        unfit: names of manifests that were found to be unfit to go on from; retention does not count on them.
    """

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.unfit: set[str] = set()
        self.attachments = Attachments(store, name)
        self._known: dict[StoredObject, ManifestSummary] = {}

    def object_name(self, relative: str) -> str:
        """Return the name in the store of what has a name relative to the run's folder."""
        return f"{self.name}/{relative}"

    def exists(self) -> bool:
        """Whether there is such a run: its configuration, or at least one manifest."""
        return self.store.stat(self.object_name(CONFIG_NAME)) is not None or bool(self.manifest_names())

    def config(self) -> dict[str, JsonValue]:
        """Return the configuration that the run began with.

        If that file is missing or damaged it is the newest manifest's, which may differ in what may change.

        Raises:
            InputError: there is no such run, or neither can be read.
        """
        config = self.begun_config()
        if isinstance(config, dict):
            return config
        newest = self.newest_manifest()
        if newest is None:
            raise InputError(f"Run '{self.name}' in {self.store.url} cannot be used: {config}. Restore that file.")
        logger.warning(
            "Run '%s': %s; the configuration of generation %d is used.", self.name, config, newest.generation
        )
        return newest.config

    def begun_config(self) -> dict[str, JsonValue] | Damage:
        """Return the configuration that the run began with, or what is wrong with the file that holds it."""
        try:
            config = parse_checksummed(self._read(CONFIG_NAME, _CONFIG_LIMIT)).get("config")
            if not isinstance(config, dict):
                raise DamagedFileError("does not hold a configuration")
        except DamagedFileError as error:
            return Damage(None, CONFIG_NAME, str(error), CONFIG_NAME)
        return config

    def _read(self, relative: str, limit: int) -> bytes:
        """Return the content of a small object.

        Raises:
            DamagedFileError: there is none, or it is too large.
        """
        name = self.object_name(relative)
        try:
            return self.store.read(name, limit)
        except MissingObjectError as error:
            raise DamagedFileError(_MISSING) from error
        except StoreUnavailableError as error:
            stored = self.store.stat(name)
            if stored is None or stored.bytes <= limit:
                raise
            raise DamagedFileError(f"has {stored.bytes:,} bytes, more than any of its kind") from error

    def manifest_names(self) -> list[str]:
        """Return the names of all manifests, relative to the run's folder, newest generation first."""
        return [self._relative(found) for found in self._stored_manifests()]

    def generations(self) -> set[int]:
        """Return the generations that have a manifest, damaged ones too."""
        return _generations(self.manifest_names())

    def _stored_manifests(self) -> list[StoredObject]:
        found = [
            (generation, stored)
            for stored in self.store.objects(self.object_name(MANIFESTS))
            if (generation := generation_of(self._relative(stored))) is not None and not self._is_withdrawn(stored)
        ]
        return [stored for _, stored in sorted(found, key=lambda pair: (-pair[0], pair[1].name))]

    def _is_withdrawn(self, stored: StoredObject) -> bool:
        """Whether a manifest's name is occupied, so that it cannot be created too late (see `Lease`)."""
        if stored.bytes != len(WITHDRAWN):
            return False
        with suppress(MissingObjectError):
            return self.store.read(stored.name, len(WITHDRAWN)) == WITHDRAWN
        return True

    def _relative(self, stored: StoredObject) -> str:
        return stored.name.removeprefix(f"{self.name}/")

    def manifest(self, name: str) -> Manifest | Damage:
        """Return a manifest if it is whole, else what is wrong with it; what it refers to is not looked at.

        Args:
            name: as `manifest_names` gives it.

        Raises:
            InputError: it was written by a newer version of Eigen.
        """
        try:
            manifest = parse_manifest(self._read(name, MANIFEST_LIMIT))
            if manifest.name != name:
                raise DamagedFileError(f"is that of {manifest.name}")
        except DamagedFileError as error:
            return Damage(generation_of(name), "manifest", str(error), name)
        return manifest

    def manifests(self) -> Listing:
        """Return all manifests, newest first, and those that are damaged."""
        listing = Listing([], [])
        for found in self.newest_first():
            if isinstance(found, Manifest):
                listing.manifests.append(found)
            else:
                listing.damages.append(found)
        return listing

    def newest_first(self) -> Iterator[Manifest | Damage]:
        """Yield the manifests, or what is wrong with them, the newest first; of a generation the damaged ones first.

        A generation's manifests are read when it is their turn.
        """
        for _, names in groupby(self.manifest_names(), generation_of):
            # One that is gone since it was listed was removed with its generation.
            found = [one for one in map(self.manifest, names) if isinstance(one, Manifest) or one.what != _MISSING]
            yield from sorted(found, key=newness, reverse=True)

    def newest_manifest(self) -> Manifest | None:
        """Return the newest manifest that is whole, None if there is none; nothing else is looked at."""
        return next((found for found in self.newest_first() if isinstance(found, Manifest)), None)

    def document(self, manifest: Manifest, stem: str) -> JsonValue:
        """Return one of a generation's documents, verified against its manifest.

        Raises:
            DamagedGenerationError: it is missing or damaged.
            KeyError: the manifest lists no such document.
        """
        entry = manifest.entry(f"{stem}.json")
        blob = blob_name(entry.sha256)
        with reading_part(manifest, entry.name, blob), self.blob_file(blob, entry.bytes) as path:
            return parse_document(path.read_bytes())

    @contextmanager
    def blob_file(self, blob: str, size: int, read: Progress | None = None) -> Iterator[Path]:
        """Give a file with a blob's verified content, a temporary one if the store is elsewhere.

        Args:
            blob: its name, relative to the run's folder.
            size: the size that it must have (bytes).
            read: called with the number of further bytes that were read.

        Raises:
            DamagedFileError: it is missing or damaged.
        """
        name = self.object_name(blob)
        if isinstance(self.store, LocalStore):
            path = self.store.path(name)
            check_blob(path, size, read)
            yield path
            return
        stored = self.store.stat(name)
        if what := _size_damage(None if stored is None else stored.bytes, size):
            raise DamagedFileError(what)
        with tempfile.TemporaryDirectory(prefix="eigen-") as folder:
            path = Path(folder, blob.rpartition("/")[2])
            self.fetch(blob, path)
            check_blob(path, size, read)
            yield path

    def fetch(self, blob: str, path: Path, moved: Progress | None = None) -> None:
        """Copy a blob to a file.

        Raises:
            DamagedFileError: there is none.
        """
        try:
            self.store.fetch(self.object_name(blob), path, moved)
        except MissingObjectError as error:
            raise DamagedFileError(_MISSING) from error

    def fetch_generation(self, manifest: Manifest, local: "RunContents") -> None:
        """Copy to this machine what its run directory lacks of a generation, the manifest last.

        Every blob is compared with its SHA-256; those that are whole on this machine are not fetched. The caller holds
        the run directory's lock. Progress is reported as "download", in bytes.

        Args:
            manifest: the generation's, which this store has.
            local: the run on this machine, in a `LocalStore`.

        Raises:
            DamagedGenerationError: a needed part of it is damaged in the store. If that shows in the sizes, nothing is
                fetched.
            InputError, StoreUnavailableError: see `Store`.
        """
        assert isinstance(local.store, LocalStore)
        lacking = {damage.path: damage.file for damage in local.damages(manifest, deep=True)}
        damages = [damage for damage in self.damages(manifest) if damage.path in lacking] if lacking else []
        if damages:
            raise damaged_generation(manifest, damages)
        sizes = manifest.blobs
        total = sum(sizes[blob] for blob in lacking)
        progress = BytesDone("download", total)
        for blob, part in lacking.items():
            path = local.store.path(local.object_name(blob))
            with reading_part(manifest, part, blob):
                self.fetch(blob, path, progress.add)
                try:
                    check_blob(path, sizes[blob])
                except DamagedFileError:
                    path.unlink(missing_ok=True)
                    raise
        if local.manifest(manifest.name) != manifest:
            # Instead of a damaged one of that name, if there is one.
            local.store.put(local.object_name(manifest.name), manifest_bytes(manifest))
        if lacking:
            logger.info("Run '%s': fetched generation %d, %s", self.name, manifest.generation, in_mb(total))

    def damages(self, manifest: Manifest, *, deep: bool = False) -> list[Damage]:
        """Return what is wrong with a generation: sizes, with `deep` also the SHA-256 of all that it refers to."""
        return self._damages([manifest], deep=deep)

    def verify(self, *, deep: bool = True) -> list[Damage]:
        """Return all that is wrong with a run: its configuration, its manifests, and all that these refer to.

        Args:
            deep: compare SHA-256 too, not just sizes, and read plots and the holdout's results; progress is reported
                as "verify", in bytes.
        """
        config = self.begun_config()
        listing = self.manifests()
        damages = [config] if isinstance(config, Damage) else []
        found = self._damages(listing.manifests, deep=deep)
        # What a living run has removed meanwhile, manifest first, is not damaged.
        present = self.generations() if found else set()
        damages += [*listing.damages, *(damage for damage in found if damage.generation in present)]
        attached = self.attachments.damages() if deep else []
        # The process that trains the run may be replacing them, their list last.
        return damages if attached and is_live(self.store, self.name) else [*damages, *attached]

    def missing_generations(self, rules: Collection[KeepRule]) -> list[Damage]:
        """Return the generations that retention keeps and that are gone.

        Args:
            rules: those that the run began with and goes by now.
        """
        newest = self.newest_manifest()
        # Listed after the newest one was read: a living run's older ones go when a newer one is there.
        return missing_damages(self.generations(), 0 if newest is None else newest.champion_generation, rules)

    def unreferenced(self) -> list[StoredObject]:
        """Return the blobs that no readable manifest refers to.

        They are those of a generation that is being written, or that was cut short, or whose manifest is gone.
        """
        blobs = self.store.objects(self.object_name(BLOBS))
        needed = {blob for manifest in self.manifests().manifests for blob in manifest.blobs}
        return [stored for stored in blobs if self._relative(stored) not in needed]

    def _damages(self, manifests: list[Manifest], *, deep: bool) -> list[Damage]:
        blobs = {name: size for manifest in manifests for name, size in manifest.blobs.items()}
        wrong = self._deep_damages(blobs) if deep else self._shallow_damages(blobs)
        return [
            Damage(manifest.generation, part, wrong[name], name)
            for manifest in manifests
            for part, name in manifest.parts.items()
            if name in wrong
        ]

    def _shallow_damages(self, blobs: dict[str, int]) -> dict[str, str]:
        found = {self._relative(stored): stored.bytes for stored in self.store.objects(self.object_name(BLOBS))}
        return {name: what for name, size in blobs.items() if (what := _size_damage(found.get(name), size))}

    def _deep_damages(self, blobs: dict[str, int]) -> dict[str, str]:
        wrong = {}
        progress = BytesDone("verify", sum(blobs.values()))
        for name, size in blobs.items():
            try:
                with self.blob_file(name, size, progress.add):
                    pass
            except DamagedFileError as error:
                wrong[name] = str(error)
        return wrong

    def clean(
        self,
        keep_last: int,
        keep_every: int,
        champion_generation: int | None = None,
        protected: Collection[int] = frozenset(),
        *,
        grace_seconds: float = 0.0,
        unnamed_grace_seconds: float = 0.0,
        dry_run: bool = False,
        confirm: Callable[[], None] | None = None,
    ) -> CleanReport:
        """Remove the generations that need not stay, manifests first, then the blobs that no manifest refers to.

        No process may write to the run meanwhile, unless the grace period is longer than writing a generation takes.

        Args:
            keep_last: so many of the newest generations stay; only those count that are whole by presence and size, so
                that damage never costs the last good one.
            keep_every: every so many generations one stays for good; 0: none.
            champion_generation: the generation in which the champion was found; it stays. None: what the newest whole
                manifest says.
            protected: generations that stay in any case.
            grace_seconds: blobs that are younger, by the store's clock, stay.
            unnamed_grace_seconds: the same, if it is longer, for those that no manifest names, not even a removed one.
            dry_run: remove nothing.
            confirm: called once it is known what can go; what it raises keeps everything.
        """
        if keep_last < 1:
            raise ValueError(f"keep_last is {keep_last}, but the newest generation always stays")
        # Blobs first: those of a generation that is completed meanwhile are not among them, or its manifest is seen.
        blobs = {self._relative(stored): stored for stored in self.store.objects(self.object_name(BLOBS))}
        listed = {self._relative(stored): stored for stored in self._stored_manifests()}
        read = {name: self._summary(name, stored) for name, stored in listed.items()}
        sizes = {name: stored.bytes for name, stored in blobs.items()}
        kept = kept_manifests(read, sizes, keep_last, keep_every, champion_generation, protected)
        gone = [name for name in listed if name not in kept]
        unneeded = unneeded_blobs(blobs, read, kept)
        longer_grace = max(grace_seconds, unnamed_grace_seconds)
        if unneeded and longer_grace > 0:
            grace = {name: grace_seconds if is_named else longer_grace for name, is_named in unneeded.items()}
            now = self.store.time()
            age = {name: (now - blobs[name].modified).total_seconds() for name in unneeded}
            unneeded = {name: unneeded[name] for name in unneeded if grace[name] <= 0 or age[name] >= grace[name]}
        if confirm is not None:
            confirm()
        if not dry_run:
            self.store.delete(map(self.object_name, gone))
            self.store.delete(map(self.object_name, unneeded))
            self._known = {stored: found for stored, found in self._known.items() if found.name in kept}
        return CleanReport(
            generations=tuple(sorted(_generations(gone) - _generations(kept))),
            manifests=tuple(gone),
            blobs=tuple(unneeded),
            bytes_freed=sum(listed[name].bytes for name in gone) + sum(sizes[name] for name in unneeded),
        )

    def _summary(self, name: str, stored: StoredObject) -> ManifestSummary | None:
        """Sum a manifest up, None if it is damaged or unfit; one that has not changed is not read again."""
        if name in self.unfit:
            return None
        if stored not in self._known:
            found = self.manifest(name)
            if isinstance(found, Damage):
                # What it refers to is about to be given up: one more look, lest a passing trouble costs a generation.
                found = self.manifest(name)
            if isinstance(found, Damage):
                return None
            self._known[stored] = ManifestSummary.of(found)
        return self._known[stored]


def newness(found: Manifest | Damage) -> tuple[int, bool, tuple[int, str, str]]:
    """Return what is higher for a manifest that `RunContents.newest_first` yields earlier."""
    if isinstance(found, Damage):
        return found.generation or 0, True, (0, "", found.path)
    return found.generation, False, age_of(found)


def _size_damage(found: int | None, size: int) -> str | None:
    """Return what is wrong with a blob's size, if anything; None: there is no blob (bytes)."""
    if found is None:
        return _MISSING
    return None if found == size else f"has {found:,} bytes instead of {size:,}"


def _generations(names: Iterable[str]) -> set[int]:
    return {generation for name in names if (generation := generation_of(name)) is not None}
