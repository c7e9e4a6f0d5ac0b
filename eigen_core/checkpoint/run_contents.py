"""A run on this machine or in a bucket: its location, its generations, how they are verified and which are kept."""

import hashlib
import heapq
import logging
import math
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, JsonValue

from eigen_core.checkpoint.integrity import (
    BLOBS,
    CONFIG_NAME,
    DELETED_MARK,
    HOLDOUT,
    LIST_NAME,
    LOCK_NAME,
    MANIFESTS,
    BytesDone,
    Damage,
    DamagedFileError,
    blob_name,
    check_blob,
    checksummed,
    generation_of,
    is_blob,
    is_verified,
    parse_checksummed,
    parse_document,
)
from eigen_core.checkpoint.locks import FileLock
from eigen_core.checkpoint.manifest import (
    FORMAT_VERSION,
    MANIFEST_LIMIT,
    Manifest,
    Natural,
    Sha256,
    manifest_bytes,
    parse_manifest,
    reading_part,
)
from eigen_core.checkpoint.store import (
    LocalStore,
    MissingObjectError,
    Progress,
    RemoteStore,
    Store,
    StoredObject,
    StoreUnavailableError,
    check_run_name,
)
from eigen_core.checkpoint.store_location import is_remote, open_store, own_folder, run_root
from eigen_core.common.errors import InputError
from eigen_core.common.files import ForeignPlaceError
from eigen_core.common.text import size as in_mb
from eigen_core.config.model import CheckpointConfig

logger = logging.getLogger(__name__)

_DOCUMENT_LIMIT = 16 << 20
_MISSING = "is missing"
_MOST_MISSING = 1_000
_READERS = 2


@dataclass(frozen=True)
class CleanReport:
    """What `RunContents.clean` removed, or would remove in a dry run.

    `generations`: numbers of those that have no manifest left, ascending; `blobs`: names of the removed blobs.
    """

    generations: tuple[int, ...]
    blobs: tuple[str, ...]
    bytes_freed: int


class _Summary(NamedTuple):
    """The fields of a manifest that `clean` needs: a tenth of the manifest's memory, which matters in a long run."""

    name: str
    generation: int
    champion_generation: int
    age: tuple[int, str, str]
    blobs: dict[str, int]


class _ListedFile(BaseModel):
    name: str
    bytes: Natural
    sha256: Sha256


class _FileList(BaseModel):
    """Content of `LIST_NAME`: the holdout results with their SHA-256, which reveal missing and replaced results."""

    format_version: int = FORMAT_VERSION
    files: tuple[_ListedFile, ...]


class RunContents:
    """A run in a store (folder or bucket). Reading it needs no lock; nothing may write to the run during `clean`.

    `unfit` has the names of manifests from which training could not continue; `clean` counts them as damaged.
    """

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.unfit: set[str] = set()
        self._known: dict[StoredObject, _Summary] = {}

    @property
    def remote_store(self) -> RemoteStore:
        assert isinstance(self.store, RemoteStore)
        return self.store

    def object_name(self, relative: str) -> str:
        return f"{self.name}/{relative}"

    def exists(self) -> bool:
        """Whether the store has the run's configuration, or at least one manifest of the run."""
        return self.store.stat(self.object_name(CONFIG_NAME)) is not None or bool(self.manifest_names())

    def config(self) -> dict[str, JsonValue]:
        """Return the configuration of the run's creation, or if damaged the newest manifest's; `InputError` if none."""
        config = self.first_config()
        if isinstance(config, dict):
            return config
        newest = self.newest_manifest()
        if newest is None:
            raise InputError(
                f"Run '{self.name}' in {self.store.url} cannot be used: {config}. Restore that file from a copy of "
                "the run."
            )
        logger.warning(
            "Run '%s': %s; the configuration of generation %d is used instead.", self.name, config, newest.generation
        )
        return newest.config

    def first_config(self) -> dict[str, JsonValue] | Damage:
        try:
            config = self.read_json(CONFIG_NAME).get("config")
            if not isinstance(config, dict):
                raise DamagedFileError("does not hold a configuration")
        except MissingObjectError:
            return Damage(None, CONFIG_NAME, _MISSING, CONFIG_NAME)
        except DamagedFileError as error:
            return Damage(None, CONFIG_NAME, str(error), CONFIG_NAME)
        return config

    def read_json(self, relative: str) -> dict[str, JsonValue]:
        """Return the fields in JSON file `relative`; `MissingObjectError` if none, `DamagedFileError` if damaged."""
        return parse_checksummed(self._read(relative, _DOCUMENT_LIMIT))

    def write_json(self, relative: str, fields: Mapping[str, JsonValue]) -> None:
        self.store.put(self.object_name(relative), checksummed(fields))

    def read_holdout(self, name: str) -> dict[str, JsonValue]:
        """Return a holdout result; raises as `read_json`, `DamagedFileError` if its SHA-256 in `LIST_NAME` differs."""
        fields, listed = self.read_json(name), self._listed().get(name)
        if listed is not None and listed.sha256 != _listed_file(name, fields).sha256:
            raise DamagedFileError(f"does not match its SHA-256 in {LIST_NAME}")
        return fields

    def write_holdout(self, name: str, fields: Mapping[str, JsonValue]) -> None:
        self.write_json(name, fields)
        listed = {**self._listed(), name: _listed_file(name, fields)}
        files = tuple(listed[other] for other in sorted(listed) if other.startswith(HOLDOUT))
        self.write_json(LIST_NAME, _FileList(files=files).model_dump(mode="json"))

    def _listed(self) -> dict[str, _ListedFile]:
        try:
            return {entry.name: entry for entry in _FileList.model_validate(self.read_json(LIST_NAME)).files}
        except (MissingObjectError, ValueError):
            return {}

    def _read(self, relative: str, limit: int) -> bytes:
        name = self.object_name(relative)
        try:
            return self.store.read(name, limit)
        except StoreUnavailableError as error:
            stored = self.store.stat(name)
            if stored is None or stored.bytes <= limit:
                raise
            raise DamagedFileError(f"has {stored.bytes:,} bytes, more than its kind can have ({limit:,})") from error

    def manifest_names(self) -> list[str]:
        """Return the names of all manifests, even damaged, relative to the run's folder, newest generation first."""
        return [self._relative(found) for found in self._stored_manifests()]

    def generations(self) -> set[int]:
        """Return the numbers of the generations that have a manifest, even a damaged one."""
        return _generations(self.manifest_names())

    def _stored_manifests(self) -> list[StoredObject]:
        found = [
            (generation, stored)
            for stored in self.store.objects(self.object_name(MANIFESTS))
            if (generation := generation_of(self._relative(stored))) is not None and not self._is_withdrawn(stored)
        ]
        return [stored for _, stored in sorted(found, key=lambda pair: (-pair[0], pair[1].name))]

    def _is_withdrawn(self, stored: StoredObject) -> bool:
        """Whether an object only reserves a manifest's name, so that no process creates the manifest (see `Lease`)."""
        if stored.bytes != len(DELETED_MARK):
            return False
        with suppress(MissingObjectError):
            return self.store.read(stored.name, len(DELETED_MARK)) == DELETED_MARK
        return True

    def _relative(self, stored: StoredObject) -> str:
        return stored.name.removeprefix(f"{self.name}/")

    def manifest(self, name: str) -> Manifest | Damage:
        """Return a manifest, or its damage; do not check blobs. `InputError` if a newer version of Eigen wrote it."""
        try:
            manifest = parse_manifest(self._read(name, MANIFEST_LIMIT))
            if manifest.name != name:
                raise DamagedFileError(f"has the content of {manifest.name}")
        except MissingObjectError:
            return Damage(generation_of(name), "manifest", _MISSING, name)
        except DamagedFileError as error:
            return Damage(generation_of(name), "manifest", str(error), name)
        return manifest

    def manifests(self) -> list[Manifest]:
        """Return the undamaged manifests, newest first: by generation, then epoch of the lease, then `created`."""
        return [found for found in self.newest_first() if isinstance(found, Manifest)]

    def newest_first(self) -> Iterator[Manifest | Damage]:
        """Yield each manifest, or its damage, newest first; those of a generation are read when they are requested."""
        for _, names in groupby(self.manifest_names(), generation_of):
            # A manifest that has disappeared since it was listed is not damaged: its generation was removed.
            found = [one for one in map(self.manifest, names) if isinstance(one, Manifest) or one.what != _MISSING]
            yield from sorted(found, key=age_key, reverse=True)

    def newest_manifest(self) -> Manifest | None:
        """Return the newest undamaged manifest; its blobs are not checked."""
        return next((found for found in self.newest_first() if isinstance(found, Manifest)), None)

    def document(self, manifest: Manifest, stem: str) -> JsonValue:
        """Parse the file `stem`.json of a generation; `KeyError` if none, `DamagedGenerationError` if it is damaged."""
        entry = manifest.entry(f"{stem}.json")
        blob = blob_name(entry.sha256)
        with reading_part(manifest, entry.name, blob), self.blob_file(blob, entry.bytes) as path:
            return parse_document(path.read_bytes())

    @contextmanager
    def blob_file(self, blob: str, size: int, read: Progress | None = None) -> Iterator[Path]:
        """Verify a blob of `size` bytes; yield the path of its file, or of a temporary copy if the store is a bucket.

        `DamagedFileError` if the blob is missing or damaged. `read` is called after each block with its size (bytes).
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
        try:
            self.remote_store.fetch(self.object_name(blob), path, moved)
        except MissingObjectError as error:
            raise DamagedFileError(_MISSING) from error

    def fetch_generation(self, manifest: Manifest, local: "RunContents") -> None:
        """Copy those files of a generation from the bucket to `local` that it lacks or has damaged; the manifest last.

        The caller holds the lock of `local`. The progress of "download" is reported in bytes. `DamagedGenerationError`
        if a file is missing or damaged in the bucket.
        """
        assert isinstance(local.store, LocalStore)
        lacking = {damage.path: damage.file for damage in local.damages(manifest, deep=True)}
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
            # This also replaces a damaged manifest of that name.
            local.store.put(local.object_name(manifest.name), manifest_bytes(manifest))
        if lacking:
            logger.info(
                "Run '%s': fetched generation %d from the bucket, %s", self.name, manifest.generation, in_mb(total)
            )

    def damages(self, *manifests: Manifest, deep: bool = False, phase: str = "verify") -> list[Damage]:
        """Check the sizes of all blobs of `manifests`, with `deep` also their SHA-256, and return the damages.

        With `deep`, progress is reported in bytes under the name `phase`.
        """
        blobs = {name: size for manifest in manifests for name, size in manifest.blobs.items()}
        if deep:
            wrong = self._deep_damages(blobs, phase)
        else:
            there = {name: stored.bytes for name, stored in self._blobs().items()}
            wrong = {name: what for name, size in blobs.items() if (what := _size_damage(there.get(name), size))}
        return [
            Damage(manifest.generation, part, wrong[name], name)
            for manifest in manifests
            for part, name in manifest.parts.items()
            if name in wrong
        ]

    def verify(self, *, deep: bool = True) -> list[Damage]:
        """Return the damages of the configuration, the manifests, and all files that the manifests list.

        With `deep`, SHA-256 and holdout results are checked, too, and progress is reported in bytes as "verify".
        """
        config = self.first_config()
        found = list(self.newest_first())
        damages = [one for one in (config, *found) if isinstance(one, Damage)]
        wrong = self.damages(*(one for one in found if isinstance(one, Manifest)), deep=deep)
        # Missing files are not damages if training has removed their generation (its manifest first) meanwhile.
        present = self.generations() if wrong else set()
        damages += [damage for damage in wrong if damage.generation in present]
        return [*damages, *self._holdout_damages()] if deep else damages

    def _holdout_damages(self) -> list[Damage]:
        damages = []
        stored = {self._relative(found) for found in self.store.objects(self.object_name(HOLDOUT))}
        listed = {name for name in self._listed() if name.startswith(HOLDOUT)}
        for name in (LIST_NAME, *sorted(stored | listed)):
            try:
                self.read_holdout(name)
            except MissingObjectError:
                if name in listed:
                    damages.append(Damage(None, name, _MISSING, name))
            except DamagedFileError as error:
                damages.append(Damage(None, name, str(error), name))
        return damages

    def missing_generations(self, rules: Collection[CheckpointConfig]) -> list[Damage]:
        """Return damages of up to 1,000 missing generations that each of `rules` (the run's settings) would keep."""
        newest = self.newest_manifest()
        # Listed after the newest one was read: training may meanwhile commit a newer one and remove older ones.
        missing = missing_generations(self.generations(), 0 if newest is None else newest.champion_generation, rules)
        return [
            Damage(
                generation,
                "manifest",
                "is missing, though the retention settings keep it",
                f"{MANIFESTS}{generation:06d}-*.json",
            )
            for generation in islice(missing, _MOST_MISSING)
        ]

    def _blobs(self) -> dict[str, StoredObject]:
        found = {self._relative(stored): stored for stored in self.store.objects(self.object_name(BLOBS))}
        return {name: stored for name, stored in found.items() if is_blob(name)}

    def unreferenced(self) -> list[StoredObject]:
        """Return the blobs that no undamaged manifest lists: their generation is incomplete, damaged or removed."""
        blobs = self._blobs()
        needed = {blob for manifest in self.manifests() for blob in manifest.blobs}
        return [stored for name, stored in blobs.items() if name not in needed]

    def _deep_damages(self, blobs: dict[str, int], phase: str) -> dict[str, str]:
        progress = BytesDone(phase, sum(blobs.values()))

        def damage_of(name: str) -> str | None:
            try:
                with self.blob_file(name, blobs[name], progress.add):
                    return None
            except DamagedFileError as error:
                return str(error)

        with ThreadPoolExecutor(_READERS) as threads:
            found = zip(blobs, threads.map(damage_of, blobs), strict=True)
            return {name: what for name, what in found if what is not None}

    def clean(
        self,
        keep_last: int,
        keep_every: int,
        *,
        keep_champion: bool = True,
        protected: Collection[int] = frozenset(),
        grace_seconds: float = 0.0,
        dry_run: bool = False,
        confirm: Callable[[], None] | None = None,
    ) -> CleanReport:
        """Remove the generations that need not stay, manifests first, then the blobs that no manifest lists any more.

        No other process may write to the run, unless `grace_seconds` exceeds the time that writing a generation takes.

        Args:
            keep_last: number of newest generations that stay, 1 or more. Generations with missing or truncated files
                are not counted, so that the newest complete one always stays.
            keep_every: generations whose number is a multiple of this stay; 0: none.
            keep_champion: whether the generation stays that found the champion of the newest complete generation.
            protected: numbers of generations that stay in any case.
            grace_seconds: a blob that no manifest named before this call stays while it is younger (seconds, by the
                store's clock): another process may be about to write its manifest.
            dry_run: only report what would be removed.
            confirm: called before anything is removed; if it raises, nothing is removed.
        """
        if keep_last < 1:
            raise ValueError(f"keep_last is {keep_last}, but must be at least 1: the newest generation always stays")
        # Blobs are listed before manifests: a generation that is completed in between has a manifest that keeps it.
        blobs = self._blobs()
        listed = {self._relative(stored): stored for stored in self._stored_manifests()}
        read = {name: self._summary(name, stored) for name, stored in listed.items()}
        sizes = {name: stored.bytes for name, stored in blobs.items()}
        kept = _kept_manifests(read, sizes, keep_last, keep_every, keep_champion, protected)
        gone = [name for name in listed if name not in kept]
        known = [found for found in read.values() if found is not None]
        named = {blob for found in known for blob in found.blobs}
        needed = {blob for found in known if found.name in kept for blob in found.blobs}
        unneeded = blobs.keys() - needed
        if grace_seconds > 0 and (unnamed := unneeded - named):
            now = self.store.time()
            unneeded -= {blob for blob in unnamed if (now - blobs[blob].modified).total_seconds() < grace_seconds}
        if confirm is not None:
            confirm()
        if not dry_run:
            self.store.delete(map(self.object_name, gone))
            self.store.delete(map(self.object_name, sorted(unneeded)))
            self._known = {stored: found for stored, found in self._known.items() if found.name in kept}
        return CleanReport(
            generations=tuple(sorted(_generations(gone) - _generations(kept))),
            blobs=tuple(sorted(unneeded)),
            bytes_freed=sum(listed[name].bytes for name in gone) + sum(sizes[name] for name in unneeded),
        )

    def _summary(self, name: str, stored: StoredObject) -> _Summary | None:
        """Return a manifest's summary, None if it is damaged or in `unfit`; an unchanged manifest is not read again."""
        if name in self.unfit:
            return None
        if stored not in self._known:
            found = self.manifest(name)
            if isinstance(found, Damage):
                return None
            self._known[stored] = _Summary(
                found.name, found.generation, found.champion_generation, _age_of(found), found.blobs
            )
        return self._known[stored]


def _listed_file(name: str, fields: Mapping[str, JsonValue]) -> _ListedFile:
    content = checksummed(fields)
    return _ListedFile(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def age_key(found: Manifest | Damage) -> tuple[int, bool, tuple[int, str, str]]:
    """Return a sort key, which is greater for a manifest (or damage) that `RunContents.newest_first` yields earlier."""
    if isinstance(found, Damage):
        return found.generation or 0, True, (0, "", found.path)
    return found.generation, False, _age_of(found)


def _age_of(manifest: Manifest) -> tuple[int, str, str]:
    return manifest.epoch, manifest.created, manifest.name


def _size_damage(found: int | None, size: int) -> str | None:
    if found is None:
        return _MISSING
    return None if found == size else f"has {found:,} bytes instead of {size:,}"


def _generations(names: Iterable[str]) -> set[int]:
    return {generation for name in names if (generation := generation_of(name)) is not None}


def kept_generations(
    stored: Collection[int], whole: Sequence[int], keep_every: int, champion_generation: int
) -> set[int]:
    """Return the generations of `stored` that stay: first, those in `whole`, the newest undamaged ones.

    Multiples of `keep_every` (0: none) and the champion's generation stay, too, and all that are newer than those in
    `whole`: they are damaged, and stay as evidence until they are written again. If `whole` is empty, all stay.
    """
    newest = max(whole, default=-1)
    return {
        generation
        for generation in stored
        if generation > newest
        or generation in whole
        or generation == champion_generation
        or (keep_every > 0 and generation % keep_every == 0)
    }


def missing_generations(
    present: Collection[int], champion_generation: int, rules: Collection[CheckpointConfig]
) -> Iterator[int]:
    """Yield the generations, ascending, that each of `rules` (at least one) would keep and that are not `present`.

    A manifest with a huge generation number makes this iterator very long.
    """
    newest = max(present, default=0)
    last = min(rule.keep_last for rule in rules)
    every = math.lcm(*(rule.keep_every for rule in rules))
    expected = heapq.merge(
        range(max(1, newest - last + 1), newest),
        range(every, newest, every) if every else (),
        [champion_generation] if champion_generation > 0 else [],
    )
    return (generation for generation, _ in groupby(expected) if generation not in present)


def _kept_manifests(
    read: dict[str, _Summary | None],
    sizes: dict[str, int],
    keep_last: int,
    keep_every: int,
    keep_champion: bool,
    protected: Collection[int],
) -> set[str]:
    """Return the names of the manifests that stay (see `RunContents.clean`).

    `read`: name -> summary of the manifest, None if it is damaged; `sizes`: name of each blob in the store -> bytes.
    """
    best: dict[int, _Summary] = {}
    for found in sorted((found for found in read.values() if found is not None), key=lambda found: found.age):
        if all(sizes.get(blob) == size for blob, size in found.blobs.items()):
            best[found.generation] = found
    whole = sorted(best, reverse=True)
    champion = best[whole[0]].champion_generation if keep_champion and whole else 0
    kept = kept_generations(_generations(read), whole[:keep_last], keep_every, champion) | set(protected)
    return {
        name
        for name in read
        if (generation := generation_of(name)) in kept
        and (generation in protected or generation not in best or best[generation].name == name)
    }


@dataclass(frozen=True)
class RunLocation:
    """Where a run is: its store (a bucket if `remote`), and `root`, the folder here that has the run's directory."""

    name: str
    store: Store
    root: Path
    remote: bool

    @classmethod
    def of(cls, settings: CheckpointConfig, name: str) -> "RunLocation":
        url = settings.store
        check_run_name(name)
        location = cls(name, open_store(url), run_root(url, settings.local), is_remote(url))
        # Before anything is read: a link to a folder would let a resume delete what is there.
        own_folder(url, settings.local, name, is_verified)
        return location

    @cached_property
    def local(self) -> RunContents:
        return RunContents(LocalStore(self.root), self.name)

    @cached_property
    def stored(self) -> RunContents:
        return RunContents(self.store, self.name) if self.remote else self.local

    def is_locked(self) -> bool:
        return FileLock(self.root / self.name / LOCK_NAME).is_taken()

    def exists(self) -> bool:
        return self.local.exists() or (self.remote and self.stored.exists())

    def contents(self) -> list[RunContents]:
        """Return the run's contents on this machine, followed by those in the bucket if the store is one."""
        return [self.local, self.stored] if self.remote else [self.local]


def newest_of(contents: Iterable[RunContents]) -> Iterator[tuple[RunContents, Manifest | Damage]]:
    """Yield each manifest (or damage) with the contents that hold it, newest first; ties in the order of `contents`."""

    def pairs(one: RunContents) -> Iterator[tuple[RunContents, Manifest | Damage]]:
        return ((one, found) for found in one.newest_first())

    return heapq.merge(*map(pairs, contents), key=lambda pair: age_key(pair[1]), reverse=True)


def list_runs(store: Store) -> list[str]:
    """Return the names of all runs in a store, sorted."""

    def is_run(name: str) -> bool:
        try:
            return RunContents(store, name).exists()
        except ForeignPlaceError:
            return True  # Whoever opens it is told.

    return list(filter(is_run, store.folders("")))


def no_such_run(store: Store, name: str) -> InputError:
    runs = list_runs(store)
    held = f"its runs are {', '.join(runs[:20])}{', ...' if len(runs) > 20 else ''}" if runs else "it has no runs"
    return InputError(f"There is no run '{name}' in {store.url}: {held}.")
