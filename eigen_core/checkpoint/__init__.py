"""Checkpoints: a generation is either completely in the store, checksummed part by part, or not there at all."""

from eigen_core.checkpoint.contents import CleanReport, KeepRule, Listing, RunContents
from eigen_core.checkpoint.export import CHAMPION, ExportedChampion, read_champion, stored_weights, write_champion
from eigen_core.checkpoint.integrity import (
    Damage,
    DamagedFileError,
    DamagedGenerationError,
    UnfitSnapshotError,
    parse_checksummed,
    tensors_sha256,
)
from eigen_core.checkpoint.lease import LeaseHeldError, LeaseLostError, is_live
from eigen_core.checkpoint.manifest import (
    FileEntry,
    Manifest,
    RingEntry,
    ShardEntry,
    TensorFacts,
    Versions,
)
from eigen_core.checkpoint.reading import LoadedGeneration, SnapshotForm
from eigen_core.checkpoint.run import RunDirectory, RunLocation, Saved, list_runs, newest_of, no_such_run
from eigen_core.checkpoint.session import RunSession, create_run, open_session
from eigen_core.checkpoint.snapshot import Ring, Snapshot
from eigen_core.checkpoint.uploads import UploadStatus, read_status
from eigen_core.store.locks import RunLockedError

__all__ = [
    "CHAMPION",
    "CleanReport",
    "Damage",
    "DamagedFileError",
    "DamagedGenerationError",
    "ExportedChampion",
    "FileEntry",
    "KeepRule",
    "LeaseHeldError",
    "LeaseLostError",
    "Listing",
    "LoadedGeneration",
    "Manifest",
    "Ring",
    "RingEntry",
    "RunContents",
    "RunDirectory",
    "RunLocation",
    "RunLockedError",
    "RunSession",
    "Saved",
    "ShardEntry",
    "Snapshot",
    "SnapshotForm",
    "TensorFacts",
    "UnfitSnapshotError",
    "UploadStatus",
    "Versions",
    "create_run",
    "is_live",
    "list_runs",
    "newest_of",
    "no_such_run",
    "open_session",
    "parse_checksummed",
    "read_champion",
    "read_status",
    "stored_weights",
    "tensors_sha256",
    "write_champion",
]
