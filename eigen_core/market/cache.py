"""Built panels on disk: memory-mapped arrays under the fingerprint of what they were built from."""

import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigen_core.config import MarketConfig
from eigen_core.errors import InputError
from eigen_core.market.panel import Panel, Splits
from eigen_core.market.report import DataReport

logger = logging.getLogger(__name__)

_ARRAYS = ("features", "valid", "open", "high", "low", "close", "dates")
_MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished-"
_UNFINISHED_SECONDS = 86_400.0
_COPIED_BYTES = 4 << 20


# A change of how prices are read or reported makes cached panels be built again: what was misread is not kept.
_READING = 7


class _DamagedError(Exception):
    """An entry of the cache is not what its manifest says."""


@dataclass(frozen=True)
class PanelCache:
    """Panels under `root`/panels/`fingerprint`/, one `.npy` file an array and a manifest with sizes and SHA-256.

    An entry appears by a rename when it is complete and on disk; several processes may build the same one at once.
    """

    root: Path

    def load(self, fingerprint: str, market: MarketConfig) -> tuple[Panel, DataReport] | None:
        """Return the panel with this fingerprint, its arrays mapped from disk and read-only; None if there is none.

        What is mapped is a copy without a name, on the same disk for as long as it is used: whatever happens to the
        cache, even a file that is written to in place, does not reach a training that runs. A damaged entry is logged
        and counts as none.
        """
        folder = self._folder(fingerprint)
        if not folder.is_dir():
            return None
        try:
            return _load(folder, fingerprint, market)
        except (_DamagedError, OSError) as error:
            logger.warning("The cached panel %s is damaged or outdated (%s): it is built again.", folder, error)
            return None

    def store(self, panel: Panel, report: DataReport) -> None:
        """Keep `panel` and its report, in place of a damaged entry if there is one.

        Raises:
            InputError: the cache cannot be written.
        """
        folder = self._folder(panel.fingerprint)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            _remove_unfinished(folder.parent)
            unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
            try:
                _write(unfinished, panel, report)
                _put_in_place(unfinished, folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
            _sync_folder(folder.parent)
        except OSError as error:
            raise InputError(
                f"The cache folder {self.root} cannot be written ({error.strerror}): set EIGEN_CACHE to a folder "
                "that can."
            ) from error

    def _folder(self, fingerprint: str) -> Path:
        return self.root / "panels" / fingerprint


def _put_in_place(unfinished: Path, folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    try:
        unfinished.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        logger.info("The panel %s was stored by another process in the meantime.", folder)


def _write(folder: Path, panel: Panel, report: DataReport) -> None:
    files: dict[str, dict[str, int | str]] = {}
    for name in _ARRAYS:
        path = folder / f"{name}.npy"
        array: NDArray[Any] = np.ascontiguousarray(getattr(panel, name))
        # Days since 1970: a plain integer is mapped as it lies.
        np.save(path, array.astype(np.int64) if name == "dates" else array, allow_pickle=False)
        _sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    content = {
        "fingerprint": panel.fingerprint,
        "reading": _READING,
        "files": files,
        "symbols": list(panel.symbols),
        "feature_names": list(panel.feature_names),
        "report": report.as_dict(),
    }
    manifest = folder / _MANIFEST
    manifest.write_text(json.dumps({"content": content, "sha256": _sha256_of_json(content)}), encoding="utf-8")
    _sync(manifest)
    _sync_folder(folder)


def _load(folder: Path, fingerprint: str, market: MarketConfig) -> tuple[Panel, DataReport]:
    content = _read_manifest(folder)
    if content["fingerprint"] != fingerprint:
        raise _DamagedError("its manifest is that of another panel")
    if content.get("reading") != _READING:
        raise _DamagedError("its prices were read by another version")
    arrays: dict[str, NDArray[Any]] = {}
    for name in _ARRAYS:
        path = folder / f"{name}.npy"
        arrays[name] = _mapped(path, str(content["files"][path.name]["sha256"]))
    dates = np.asarray(arrays.pop("dates")).astype("datetime64[D]")
    panel = Panel(
        **arrays,
        dates=dates,
        symbols=tuple(content["symbols"]),
        feature_names=tuple(content["feature_names"]),
        splits=Splits.of_days(len(dates), market),
        fingerprint=fingerprint,
    )
    return panel, DataReport.of_dict(content["report"])


def _mapped(path: Path, sha256: str) -> NDArray[Any]:
    """Map a copy of an array's file that nobody else can open, if the copy has this checksum."""
    with _copied(path) as copy:
        if hashlib.file_digest(copy, "sha256").hexdigest() != sha256:
            raise _DamagedError(f"{path.name} is not as it was written")
        # The file has no other name. The mapping keeps it.
        array: NDArray[Any] = np.load(f"/proc/self/fd/{copy.fileno()}", mmap_mode="r", allow_pickle=False)
        return array


@contextmanager
def _copied(path: Path) -> Iterator[BufferedRandom]:
    """Give a file without a name that holds what `path` holds: in memory if its folder cannot take it."""
    with path.open("rb") as original, ExitStack() as opened:
        try:
            copy = opened.enter_context(tempfile.TemporaryFile(dir=path.parent))
            shutil.copyfileobj(original, copy, _COPIED_BYTES)
            copy.flush()
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT):
                raise
            original.seek(0)
            copy = opened.enter_context(os.fdopen(os.memfd_create(path.name), "w+b"))
            shutil.copyfileobj(original, copy, _COPIED_BYTES)
            copy.flush()
        copy.seek(0)
        yield copy


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        whole = isinstance(manifest, dict) and manifest.get("sha256") == _sha256_of_json(manifest.get("content"))
    except (ValueError, RecursionError) as error:
        raise _DamagedError(f"{_MANIFEST} cannot be read") from error
    if not whole:
        raise _DamagedError(f"{_MANIFEST} is not as it was written")
    content: dict[str, Any] = manifest["content"]
    return content


def _remove_unfinished(folder: Path) -> None:
    """Remove what builds left that were killed more than a day ago."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        if time.time() - path.stat().st_mtime > _UNFINISHED_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of_json(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
