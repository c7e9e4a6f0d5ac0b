"""One generation's folder: all its files and, written last, its manifest."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import JsonValue

from eigen_core.checkpoint import files
from eigen_core.checkpoint.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    compose_manifest,
    manifest_bytes,
    parse_manifest,
)
from eigen_core.checkpoint.snapshot import Damage, Snapshot

_FOLDER_NAME = re.compile(r"generation-(\d{4,18})")


def folder_name(generation: int) -> str:
    """Return the name of a generation's folder."""
    return f"generation-{generation:04d}"


def generation_of(name: str) -> int | None:
    """Return the generation whose folder has this name, None if it is no generation's."""
    match = _FOLDER_NAME.fullmatch(name)
    if match is None or folder_name(int(match[1])) != name:
        return None
    return int(match[1])


def write_generation(
    folder: Path, run: str, snapshot: Snapshot, parent: str | None, config: Mapping[str, JsonValue]
) -> Manifest:
    """Write a snapshot into an empty folder so that it lasts, the manifest last."""
    entries: list[FileEntry] = []
    for stem, tensors in sorted(snapshot.tensors.items()):
        entries.append(files.write_tensors(folder / f"{stem}.safetensors", tensors))
    for stem, document in sorted(snapshot.documents.items()):
        entries.append(files.write_document(folder / f"{stem}.json", document))
    manifest = compose_manifest(run, snapshot, entries, parent, dict(config))
    files.write_file(folder / MANIFEST_NAME, [manifest_bytes(manifest)])
    files.sync_folder(folder)
    return manifest


def read_manifest(folder: Path, generation: int) -> Manifest | Damage:
    """Return a generation's manifest if it is whole, else what is wrong with it."""
    content = files.read_whole(folder / MANIFEST_NAME)
    manifest = content if isinstance(content, str) else parse_manifest(content)
    if isinstance(manifest, str):
        return Damage(generation, MANIFEST_NAME, manifest)
    if manifest.generation != generation:
        return Damage(generation, MANIFEST_NAME, f"belongs to generation {manifest.generation}")
    return manifest


def folder_damage(folder: Path, manifest: Manifest, *, deep: bool) -> list[Damage]:
    """Return what is wrong with the files of a generation: presence and sizes, with `deep` also their SHA-256."""
    damages = []
    for entry in manifest.files:
        what = files.file_damage(folder, entry, deep=deep)
        if what is not None:
            damages.append(Damage(manifest.generation, entry.name, what))
    return damages


def read_generation(folder: Path, manifest: Manifest) -> Snapshot | list[Damage]:
    """Return the snapshot in a folder, or all that is wrong with it. No file is parsed before all are verified."""
    damages = folder_damage(folder, manifest, deep=True)
    if damages:
        return damages
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    documents: dict[str, JsonValue | bytes] = {}
    for entry in manifest.files:
        path = folder / entry.name
        content: dict[str, torch.Tensor] | tuple[JsonValue] | str
        content = files.read_tensors(path) if path.suffix == ".safetensors" else files.read_document(path)
        if isinstance(content, str):
            damages.append(Damage(manifest.generation, entry.name, content))
        elif isinstance(content, dict):
            tensors[path.stem] = content
        else:
            documents[path.stem] = content[0]
    if damages:
        return damages
    return Snapshot(manifest.generation, tensors, documents, manifest.champion_generation)
