"""Checkpoints: a generation is either completely in the store, checksummed file by file, or not there at all."""

from eigen_core.checkpoint.content import tensors_sha256
from eigen_core.checkpoint.location import check_run_name, store_folder
from eigen_core.checkpoint.lock import RunLockedError
from eigen_core.checkpoint.manifest import FileEntry, Manifest, Versions
from eigen_core.checkpoint.run import LoadedGeneration, RunDirectory, list_runs
from eigen_core.checkpoint.snapshot import Damage, Snapshot

__all__ = [
    "Damage",
    "FileEntry",
    "LoadedGeneration",
    "Manifest",
    "RunDirectory",
    "RunLockedError",
    "Snapshot",
    "Versions",
    "check_run_name",
    "list_runs",
    "store_folder",
    "tensors_sha256",
]
