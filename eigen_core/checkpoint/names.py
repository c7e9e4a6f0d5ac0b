"""Names of a run's objects, relative to the run's folder; they are the same in every store."""

import re

CONFIG_NAME = "config.json"
ATTACHMENTS = "attachments/"
ATTACHMENTS_NAME = f"{ATTACHMENTS}list.json"
LOCK_NAME = "lock"
ATTEMPTS_NAME = "attempts.json"
BLOBS = "blobs/"
MANIFESTS = "manifests/"
LEASES = "lease/"
BEFORE_A_RUN = (LOCK_NAME, ATTEMPTS_NAME, LEASES.rstrip("/"))
"""Names that may be in a run's folder before the run is created."""
PLOTS = "plots/"
HOLDOUT = "holdout/"
DELETED_MARK = b"withdrawn\n"
"""Content under the name of a manifest that must never be created."""

_MANIFEST = re.compile(rf"(?:{MANIFESTS})?(\d{{6,18}})-[0-9a-f]{{8}}\.json")


def blob_name(sha256: str) -> str:
    """Return the name of the blob with this SHA-256 (hexadecimal)."""
    return f"{BLOBS}{sha256[:2]}/{sha256}"


def manifest_name(generation: int, checksum: str) -> str:
    """Return the name of a generation's manifest, given the manifest's own checksum (hexadecimal)."""
    return f"{MANIFESTS}{generation:06d}-{checksum[:8]}.json"


def generation_of(name: str) -> int | None:
    """Return the generation whose manifest has this name, with or without its folder; None if it is no manifest's."""
    match = _MANIFEST.fullmatch(name)
    if match is None or f"{int(match[1]):06d}" != match[1]:
        return None
    return int(match[1])


def holdout_name(generation: int) -> str:
    """Return the name of the holdout's result after a generation."""
    return f"{HOLDOUT}{generation:06d}.json"
