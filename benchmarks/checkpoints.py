"""How fast a full replay buffer is saved and loaded, and in how much memory, beside the replaced way."""

import gzip
import os
import pickle
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from benchmarks.measure import Times, take_turns
from benchmarks.resident import extra_resident_mb, in_own_process
from benchmarks.results import Section
from benchmarks.synthetic import leaking_market
from eigen_core.checkpoint.ring import Ring
from eigen_core.checkpoint.run import RunDirectory
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.config import Config
from eigen_core.generation import evaluate, evolve, start_training, train

_TRANSITIONS, _ASSETS, _DAYS = 50_000, 108, 2_500
_GRADIENT_STEPS = 4
_ROUNDS = 5
_ZSTD = "zstd"
_REPLACED, _PLAIN = "pickle and gzip 6", "plain file"
_WAYS = (_ZSTD, _REPLACED, _PLAIN)
_SOURCE = "source"


class _Way(Protocol):
    def save(self, ring: Ring) -> None: ...

    def load(self) -> Mapping[str, torch.Tensor | np.ndarray] | bytes: ...

    def stored_bytes(self) -> int: ...


class _Checkpoint:
    """Whole generations that hold the buffer alone, in a run of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._generation = 0
        self._bytes = 0
        if not (folder / "run").exists():
            RunDirectory.create(folder, "run", {})

    def save(self, ring: Ring) -> None:
        self._generation += 1
        # A directory that has saved nothing yet knows of no shard that it could leave as it is.
        directory = RunDirectory.open(self._folder, "run")
        saved = directory.save(Snapshot(self._generation, {}, {}, 0, ring))
        self._bytes = saved.written_bytes

    def load(self) -> Mapping[str, torch.Tensor]:
        return _ring_in(self._folder).columns

    def stored_bytes(self) -> int:
        return self._bytes


class _Pickle:
    """The replaced way. Pickle is used here alone, and reads nothing but what this process has written."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._path = folder / "replay.pkl.gz"

    def save(self, ring: Ring) -> None:
        # That system did not wait for the disk.
        with gzip.open(self._path, "wb", compresslevel=6) as file:
            pickle.dump({name: column.numpy() for name, column in ring.columns.items()}, file)

    def load(self) -> Mapping[str, np.ndarray]:
        with gzip.open(self._path, "rb") as file:
            arrays: dict[str, np.ndarray] = pickle.load(file)
            return arrays

    def stored_bytes(self) -> int:
        return self._path.stat().st_size


class _Plain:
    """The buffer's bytes in a file, on the disk when `save` returns."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._path = folder / "replay"

    def save(self, ring: Ring) -> None:
        with open(self._path, "wb") as file:
            for column in ring.columns.values():
                file.write(column.reshape(-1).view(torch.uint8).numpy().data)
            file.flush()
            os.fsync(file.fileno())

    def load(self) -> bytes:
        return self._path.read_bytes()

    def stored_bytes(self) -> int:
        return self._path.stat().st_size


def run() -> Section:
    """Fill a replay buffer of the reference size by trading, save and load it in every way, by turns."""
    with tempfile.TemporaryDirectory(prefix="eigen-benchmark-") as name:
        folder = Path(name)
        in_own_process(_trade, folder / _SOURCE)
        ring = _ring_in(folder / _SOURCE)
        ways = {way: _open(way, folder / way) for way in _WAYS}
        times = _take_turns(ways, ring)
        _require_equal(ways, ring)
        rows = [_row(way, ways[way], times, folder) for way in _WAYS]
    raw = sum(column.nbytes for column in ring.columns.values()) / 1e6
    return Section(
        title="Saving and loading a full replay buffer",
        method=f"{_TRANSITIONS:,} transitions of {_ASSETS} assets ({raw:.1f} MB) that 16 agents of preset quickstart "
        "made in five generations on a synthetic market, saved as a generation (compressed, hashed, written, fsynced) "
        f"and loaded (every byte verified; files in the page cache), {_ROUNDS} times by turns with pickle and gzip 6 "
        "of the same arrays, as the replaced system did without fsync, and with a plain file of the same bytes, "
        "fsynced. A run saves only what is new; here it is all. Extra memory: peak of the resident memory above what "
        "was there before, in a process of its own; for loading it includes the buffer itself.",
        columns=(
            "",
            "MB (saved)",
            "save: s (least)",
            "load: s (least)",
            f"save: {_REPLACED} takes",
            "save: extra MB",
            "load: extra MB",
        ),
        rows=rows,
        remarks=("The goal is less than 0.5 s and less than 100 MB of extra memory for saving, and for loading.",),
    )


def _row(name: str, way: _Way, times: Mapping[str, Times], folder: Path) -> list[str]:
    save, load = times[f"save {name}"], times[f"load {name}"]
    stored, raw = way.stored_bytes() / 1e6, (folder / _PLAIN / "replay").stat().st_size / 1e6
    return [
        f"checkpoint, {name}" if name == _ZSTD else name,
        f"{stored:.1f} ({max(100 * (1 - stored / raw), 0):.0f} %)",
        f"{save.median:.3f} ({save.least:.3f})",
        f"{load.median:.3f} ({load.least:.3f})",
        f"{times[f'save {_REPLACED}'].over(save):.1f} times as long",
        *(f"{in_own_process(_extra_mb, work, name, folder):.0f}" for work in ("save", "load")),
    ]


def _take_turns(ways: Mapping[str, _Way], ring: Ring) -> dict[str, Times]:
    works: dict[str, Callable[[], object]] = {}
    for name, way in ways.items():
        works[f"save {name}"] = partial(way.save, ring)
        works[f"load {name}"] = way.load
    return take_turns(works, _ROUNDS)


def _open(way: str, folder: Path) -> _Way:
    if way == _ZSTD:
        return _Checkpoint(folder)
    return _Pickle(folder) if way == _REPLACED else _Plain(folder)


def _extra_mb(work: str, way: str, folder: Path) -> float:
    if work == "load":
        return extra_resident_mb(_open(way, folder / way).load)
    ring = _ring_in(folder / _SOURCE)
    fresh = _open(way, folder / f"{way} in a process of its own")
    return extra_resident_mb(lambda: fresh.save(ring))


def _require_equal(ways: Mapping[str, _Way], ring: Ring) -> None:
    for name, way in ways.items():
        loaded = way.load()
        if isinstance(loaded, bytes):
            continue
        for column, held in ring.columns.items():
            if not np.array_equal(held.numpy(), np.asarray(loaded[column])):
                raise RuntimeError(f"{column} comes back otherwise from {name}")


def _ring_in(folder: Path) -> Ring:
    loaded = RunDirectory.open(folder, "run").load_newest()
    if loaded is None or loaded.snapshot.ring is None:
        raise RuntimeError(f"the replay that was saved in {folder} is not there")
    return loaded.snapshot.ring


def _trade(folder: Path) -> None:
    """Train until the buffer is full and keep it: how well it can be compressed depends on what agents do."""
    config = Config(
        preset="quickstart",
        device="cpu",
        replay={"capacity": _TRANSITIONS},
        learner={"gradient_steps": _GRADIENT_STEPS},
    )
    state = start_training(config, leaking_market(config, _DAYS, _ASSETS, config.seed))
    while state.replay.size < _TRANSITIONS:
        evaluate(state)
        train(state)
        evolve(state)
    _Checkpoint(folder).save(state.replay.ring())
