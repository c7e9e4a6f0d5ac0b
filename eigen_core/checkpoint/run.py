"""A run's folder in a store: its configuration, its lock, and one folder a generation."""

import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import JsonValue

from eigen_core.checkpoint import files
from eigen_core.checkpoint.content import json_sha256
from eigen_core.checkpoint.folder import (
    folder_damage,
    folder_name,
    generation_of,
    read_generation,
    read_manifest,
    write_generation,
)
from eigen_core.checkpoint.location import check_run_name, explained, store_folder
from eigen_core.checkpoint.lock import RunLock
from eigen_core.checkpoint.manifest import MANIFEST_NAME, Manifest
from eigen_core.checkpoint.retention import kept_generations
from eigen_core.checkpoint.snapshot import Damage, Snapshot
from eigen_core.errors import InputError

logger = logging.getLogger(__name__)

_CONFIG_NAME = "config.json"
_LOCK_NAME = "lock"
_SAVING, _REMOVING, _REPLACED = "saving", "removing", "replaced"
_TEMPORARY_NAME = re.compile(rf"\.({_SAVING}|{_REMOVING}|{_REPLACED})-(generation-\d+)-[0-9a-f]{{32}}")


class LoadedGeneration(NamedTuple):
    """A generation read from the store."""

    snapshot: Snapshot
    manifest: Manifest
    damages: list[Damage]
    """What is wrong with the newer generations that were skipped, newest first."""


class RunDirectory:
    """A run in a store that is a folder.

    Layout: `<store>/<name>/{config.json, lock, plots/, generation-0007/{manifest.json, ...}}`. A generation is written
    into a folder with a temporary name and renamed, so its folder is there with all its files or not at all. Names
    that start with a dot are work in progress; what a killed process left of it is cleared when the run is next locked.

    Make one with `create` or `open`.
    """

    def __init__(self, store: Path, name: str, config: Mapping[str, JsonValue]) -> None:
        self.store = store
        self.name = name
        self.path = store / name
        self.config: Mapping[str, JsonValue] = dict(config)
        self._lock = RunLock(self.path / _LOCK_NAME, name)

    @classmethod
    def create(cls, store: str, name: str, config: Mapping[str, JsonValue]) -> Self:
        """Make a new run that holds nothing but its configuration, completely or not at all.

        Args:
            store: path or `file://` URL of the folder that holds the runs; it is made if it is missing.
            name: the run's name, see `check_run_name`.
            config: the run's configuration as JSON; its key `seed`, if it is a number, goes into the manifests.

        Raises:
            InputError: the name or the store cannot be used, or there is such a run already.
            ValueError: the configuration holds NaN or infinity.
        """
        check_run_name(name)
        folder = store_folder(store)
        content = json.dumps(dict(config), indent=2, allow_nan=False).encode("ascii") + b"\n"
        run = folder / name
        taken = f"There is already something at {run}: choose another name, or resume the run that is there."
        if os.path.lexists(run):
            raise InputError(taken)
        with explained("make a run in", folder):
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".creating-{name}-{uuid.uuid4().hex}"
            temporary.mkdir()
            try:
                files.write_file(temporary / _CONFIG_NAME, [content])
                files.sync_folder(temporary)
                try:
                    temporary.rename(run)
                except OSError as error:
                    if os.path.lexists(run):
                        raise InputError(taken) from error
                    raise
                files.sync_folder(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        return cls(folder, name, config)

    @classmethod
    def open(cls, store: str, name: str) -> Self:
        """Return the run that was created under this name.

        Raises:
            InputError: there is none, or its configuration cannot be read.
        """
        check_run_name(name)
        folder = store_folder(store)
        path = folder / name / _CONFIG_NAME
        with explained("open a run in", folder):
            there_is_one = path.is_file()
        if not there_is_one:
            runs = list_runs(store)
            there = f"it holds {', '.join(runs[:20])}{', ...' if len(runs) > 20 else ''}" if runs else "it holds none"
            raise InputError(f"There is no run '{name}' in {folder}: {there}.")
        document = files.read_document(path)
        if isinstance(document, str) or not isinstance(document[0], dict):
            what = document if isinstance(document, str) else "does not hold a configuration"
            raise InputError(f"Run '{name}' cannot be opened: {path} {what}. Restore that file.")
        return cls(folder, name, document[0])

    @property
    def plots(self) -> Path:
        """Folder for the run's plots; it is made by whoever plots."""
        return self.path / "plots"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep every other process from writing to the run, and clear what a killed one has left half done.

        Raises:
            RunLockedError: another process is writing to the run; the message names it.
            InputError: the run's folder cannot be written to.
        """
        self._lock.acquire()
        try:
            self._clear_leftovers()
            yield
        finally:
            self._lock.release()

    def is_locked(self) -> bool:
        """Whether a process is writing to the run."""
        return self._lock.is_taken()

    def generations(self) -> list[int]:
        """Return the numbers of the generations that have a manifest, rising. Nothing is verified."""
        return [number for number in self._stored() if (self._folder(number) / MANIFEST_NAME).is_file()]

    def manifest(self, generation: int) -> Manifest:
        """Return a generation's manifest; its files are not looked at.

        Raises:
            InputError: there is no such generation, or the manifest is damaged.
        """
        self._require(generation)
        manifest = read_manifest(self._folder(generation), generation)
        if isinstance(manifest, Damage):
            raise InputError(f"Run '{self.name}', {manifest}.")
        return manifest

    def newest_manifest(self) -> Manifest | None:
        """Return the newest manifest that is whole, None if there is none; no other file is looked at."""
        return self._newest_manifest_below(None)

    def save(self, snapshot: Snapshot) -> Manifest:
        """Commit a generation: when this returns it is there for good, when it raises it is not there at all.

        A generation that is there with the same content stays as it is; one that is damaged or differs is replaced.
        The run is locked meanwhile, unless it is already.

        Raises:
            InputError: the store cannot be written to (no space, no permission, ...).
            RunLockedError: another process is writing to the run.
            ValueError: a tensor's type or a document cannot be stored.
        """
        generation = snapshot.generation
        with self._locked(), explained(f"save generation {generation} in", self.path):
            parent = self._newest_manifest_below(generation)
            temporary = self._temporary(_SAVING, generation)
            temporary.mkdir()
            try:
                manifest = write_generation(
                    temporary, self.name, snapshot, parent.checksum if parent else None, self.config
                )
                stored = self._whole_manifest(generation)
                if stored is not None and _same_content(stored, manifest):
                    return stored
                self._commit(temporary, generation)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            return manifest

    def verify(self, generation: int) -> list[Damage]:
        """Return all that is wrong with a generation: sizes and SHA-256 of all its files.

        Raises:
            InputError: there is no such generation.
        """
        self._require(generation)
        manifest = read_manifest(self._folder(generation), generation)
        return (
            [manifest] if isinstance(manifest, Damage) else folder_damage(self._folder(generation), manifest, deep=True)
        )

    def load(self, generation: int) -> LoadedGeneration:
        """Read one generation, every file verified before any is parsed. Tensors are on the CPU, in their own memory.

        Raises:
            InputError: there is no such generation, it is damaged, or the run's configuration was changed since.
        """
        self._require(generation)
        loaded = self._read(generation)
        if isinstance(loaded, list):
            raise InputError(
                f"Run '{self.name}' has a damaged generation {generation} ({_in_words(loaded)}): load another one."
            )
        return loaded

    def load_newest(self) -> LoadedGeneration | None:
        """Read the newest generation that is whole, as `load` does. Damaged ones are logged, returned and skipped.

        Returns None for a run without any generation.

        Raises:
            InputError: all generations are damaged, or the run's configuration was changed since.
        """
        damages: list[Damage] = []
        for generation in reversed(self._stored()):
            loaded = self._read(generation)
            if isinstance(loaded, LoadedGeneration):
                return loaded._replace(damages=damages)
            for damage in loaded:
                logger.warning("Run '%s' is damaged: %s; this generation is skipped.", self.name, damage)
            damages += loaded
        if damages:
            raise InputError(
                f"Run '{self.name}' has no generation that is whole ({_in_words(damages)}): "
                f"restore {self.path} from a backup, or start a run under another name."
            )
        return None

    def apply_retention(self, keep_last: int, keep_every: int, champion_generation: int) -> list[int]:
        """Remove the generations that need not stay, and return their numbers, rising.

        Args:
            keep_last: so many of the newest generations stay; only those count whose manifest is whole and whose files
                are there in the right size, so that damage never costs the last good one.
            keep_every: every so many generations one stays for good; 0: none.
            champion_generation: the generation in which the champion was found; it stays.

        Raises:
            InputError: the store cannot be written to.
            RunLockedError: another process is writing to the run.
        """
        if keep_last < 1:
            raise ValueError(f"keep_last is {keep_last}, but the newest generation always stays")
        with self._locked(), explained("remove old generations from", self.path):
            stored = self._stored()
            whole: list[int] = []
            for generation in reversed(stored):
                if len(whole) == keep_last:
                    break
                manifest = read_manifest(self._folder(generation), generation)
                if isinstance(manifest, Manifest) and not folder_damage(self._folder(generation), manifest, deep=False):
                    whole.append(generation)
            kept = kept_generations(stored, whole, keep_every, champion_generation)
            removed = [generation for generation in stored if generation not in kept]
            for generation in removed:
                temporary = self._temporary(_REMOVING, generation)
                self._folder(generation).rename(temporary)
                _remove(temporary)
            return removed

    def _folder(self, generation: int) -> Path:
        return self.path / folder_name(generation)

    def _temporary(self, purpose: str, generation: int) -> Path:
        return self.path / f".{purpose}-{folder_name(generation)}-{uuid.uuid4().hex}"

    def _stored(self) -> list[int]:
        """Return the numbers of all generations that have a folder, damaged or not, rising."""
        with explained("list", self.path):
            numbers = [generation_of(name) for name in os.listdir(self.path)]
        return sorted(number for number in numbers if number is not None)

    def _require(self, generation: int) -> None:
        stored = self._stored()
        if generation not in stored:
            there = ", ".join(map(str, stored)) or "none"
            raise InputError(f"Run '{self.name}' has no generation {generation}; there are: {there}.")

    def _newest_manifest_below(self, generation: int | None) -> Manifest | None:
        for number in reversed(self._stored()):
            if generation is None or number < generation:
                manifest = read_manifest(self._folder(number), number)
                if isinstance(manifest, Manifest):
                    return manifest
        return None

    def _whole_manifest(self, generation: int) -> Manifest | None:
        folder = self._folder(generation)
        manifest = read_manifest(folder, generation)
        if isinstance(manifest, Damage) or folder_damage(folder, manifest, deep=True):
            return None
        return manifest

    def _read(self, generation: int) -> LoadedGeneration | list[Damage]:
        manifest = read_manifest(self._folder(generation), generation)
        if isinstance(manifest, Damage):
            return [manifest]
        if manifest.config_sha256 != json_sha256(dict(self.config)):
            raise InputError(
                f"{self.path / _CONFIG_NAME} was changed after generation {generation} was saved, so the run cannot be "
                "continued exactly: restore that file, or start a run under another name."
            )
        snapshot = read_generation(self._folder(generation), manifest)
        return snapshot if isinstance(snapshot, list) else LoadedGeneration(snapshot, manifest, [])

    def _commit(self, temporary: Path, generation: int) -> None:
        """Give a finished folder its name; what is there under that name steps aside until it is done."""
        target = self._folder(generation)
        if not os.path.lexists(target):
            temporary.rename(target)
            files.sync_folder(self.path)
            return
        aside = self._temporary(_REPLACED, generation)
        target.rename(aside)
        try:
            temporary.rename(target)
        finally:
            if not os.path.lexists(target):
                aside.rename(target)
        files.sync_folder(self.path)
        _remove(aside)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if self._lock.held:
            yield
        else:
            with self.lock():
                yield

    def _clear_leftovers(self) -> None:
        """Remove what a killed process was writing or removing, and put back what it was about to replace."""
        with explained("clear leftovers from", self.path):
            for name in os.listdir(self.path):
                match = _TEMPORARY_NAME.fullmatch(name)
                if match is None:
                    continue
                target = self.path / match[2]
                if match[1] == _REPLACED and not os.path.lexists(target):
                    (self.path / name).rename(target)
                else:
                    _remove(self.path / name)
                logger.info("Run '%s': cleared %s, left by a process that was stopped.", self.name, name)
            for leftover in self.store.glob(f".creating-{self.name}-{'[0-9a-f]' * 32}"):
                shutil.rmtree(leftover)


def list_runs(store: str) -> list[str]:
    """Return the names of the runs in a store, sorted; none if the store is missing.

    Raises:
        InputError: the store is not a folder, or cannot be read.
    """
    folder = store_folder(store)
    with explained("list the runs in", folder):
        if not os.path.lexists(folder):
            return []
        return sorted(
            name for name in os.listdir(folder) if not name.startswith(".") and (folder / name / _CONFIG_NAME).is_file()
        )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _same_content(one: Manifest, other: Manifest) -> bool:
    return one.files == other.files and one.champion_generation == other.champion_generation


def _in_words(damages: list[Damage]) -> str:
    shown = "; ".join(str(damage) for damage in damages[:3])
    return shown + (f"; and {len(damages) - 3} more" if len(damages) > 3 else "")
