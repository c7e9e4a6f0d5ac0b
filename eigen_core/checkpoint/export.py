"""The champion (best agent so far) as a safetensors file: its weights; in the header configuration and layout.

from safetensors import safe_open
with safe_open("champion.safetensors", framework="pt") as file:
    weights, config = file.get_tensor("weights"), json.loads(file.metadata()["config"])
"""

import json
import logging
import re
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from pydantic import JsonValue
from safetensors import SafetensorError, safe_open

from eigen_core.checkpoint.integrity import (
    Damage,
    DamagedFileError,
    DamagedGenerationError,
    blob_name,
    canonical_json,
    in_words,
)
from eigen_core.checkpoint.manifest import Manifest, reading_part
from eigen_core.checkpoint.run_contents import RunContents
from eigen_core.checkpoint.tensors import read_tensors
from eigen_core.common.errors import InputError
from eigen_core.common.files import explained, write_file
from eigen_core.common.text import without_credentials
from eigen_core.config.stored import current_values

logger = logging.getLogger(__name__)

CHAMPION = "champion"
"""Name without suffix of a generation's files with the champion's weights (safetensors) and description (JSON)."""
_FORMAT = "eigen champion"
_FORMAT_VERSION = "1"
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
"""Matches a string in JSON text; group 1 is the part inside the quotes."""


class ExportedChampion(NamedTuple):
    weights: torch.Tensor
    """Parameters of the champion's networks, float32 `[parameters]`."""
    config: dict[str, JsonValue]
    """The configuration of its training, converted to the settings of this version of Eigen."""
    metadata: dict[str, JsonValue]
    """`layout` (name and shape of each network parameter, in the order of `weights`), and the entries of
    `Task.metadata`, such as `symbols` and `features`."""


def write_champion(contents: RunContents, path: Path) -> Manifest:
    """Write a run's newest undamaged champion to file `path`; return the manifest it is from. `InputError` if none."""
    damages: list[Damage] = []
    for found in contents.newest_first():
        if isinstance(found, Damage):
            damages.append(found)
            continue
        try:
            _write(contents, path, found)
        except DamagedGenerationError as error:
            damages += error.damages
            logger.warning("Run '%s': %s. An older champion is tried.", contents.name, error.damages[0])
        else:
            return found
    if damages:
        raise DamagedGenerationError(
            f"Run '{contents.name}' in {contents.store.url} has no undamaged champion ({in_words(damages)}): restore "
            "one of these files from a copy of the run.",
            damages,
        )
    raise InputError(f"Run '{contents.name}' has no champion yet: it has not completed a generation.")


def _write(contents: RunContents, path: Path, manifest: Manifest) -> None:
    try:
        description = contents.document(manifest, CHAMPION)
        weights = stored_weights(contents, manifest, CHAMPION)
    except KeyError as error:
        raise InputError(f"Generation {manifest.generation} of run '{contents.name}' holds no champion.") from error
    if not isinstance(description, dict):
        entry = manifest.entry(f"{CHAMPION}.json")
        with reading_part(manifest, entry.name, blob_name(entry.sha256)):
            raise DamagedFileError("does not describe a champion")
    # Earlier versions of Eigen stored URLs of experiment trackers with their passwords.
    config = canonical_json(manifest.config).decode("ascii")
    metadata = {
        "format": _FORMAT,
        "format_version": _FORMAT_VERSION,
        "run": contents.name,
        "generation": str(manifest.generation),
        "config": _TEXT.sub(lambda text: f'"{without_credentials(text[1])}"', config),
        "facts": canonical_json(description).decode("ascii"),
    }
    write_file(path, safetensors.torch.save({"weights": weights}, metadata))


def stored_weights(contents: RunContents, manifest: Manifest, stem: str) -> torch.Tensor:
    """Return float32 weights of a generation: `[parameters]` for `stem` "champion", `[agents, ...]` for "population".

    `DamagedGenerationError` if they are damaged, `KeyError` if the manifest does not list `stem`.safetensors.
    """
    entry = manifest.entry(f"{stem}.safetensors")
    blob = blob_name(entry.sha256)
    with reading_part(manifest, entry.name, blob), contents.blob_file(blob, entry.bytes) as file:
        tensors = read_tensors(file, entry.tensors or ())
        if "weights" not in tensors or tensors["weights"].dtype != torch.float32:
            raise DamagedFileError("has no tensor 'weights' of float32")
    return tensors["weights"]


def read_champion(path: Path) -> ExportedChampion:
    """Read the champion in a file that `eigen export` wrote; `InputError` if a newer version did, or it is none."""
    foreign = f"{path} is no champion that Eigen exported: give a file that `eigen export` wrote."
    with explained("read", path):
        if not path.is_file():
            raise InputError(f"There is no file {path}.")
        try:
            with safe_open(path, framework="pt", device="cpu", backend="pread") as file:
                metadata = file.metadata() or {}
                weights = file.get_tensor("weights")
        except SafetensorError as error:
            raise InputError(foreign) from error
    try:
        config, description = json.loads(metadata["config"]), json.loads(metadata["facts"])
    except (KeyError, ValueError, RecursionError) as error:
        raise InputError(foreign) from error
    if metadata.get("format") != _FORMAT or not isinstance(config, dict) or not isinstance(description, dict):
        raise InputError(foreign)
    if metadata.get("format_version") != _FORMAT_VERSION:
        raise InputError(f"{path} was written by a newer version of Eigen: upgrade Eigen.")
    try:
        return ExportedChampion(weights, current_values(config), description)
    except InputError as error:
        raise InputError(f"The configuration in {path} cannot be used. {error}") from error
