"""Small snapshots and runs for the tests of this folder."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from memory_store import MemoryStore
from pydantic import JsonValue

from eigen_core.checkpoint.integrity import blob_path
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.replay_shards import Ring, slot_ranges
from eigen_core.checkpoint.run_contents import RunContents
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.snapshot import LoadedGeneration, Snapshot
from eigen_core.checkpoint.store import MissingObjectError, RemoteStore, Store
from eigen_core.common.randomness import keyed_generator

CONFIG: dict[str, JsonValue] = {"seed": 7, "generations": 25, "learner": {"batch_size": 64}}
CAPACITY = 40
ROWS_PER_GENERATION = 17


def new_run(store: Path, name: str = "run") -> RunDirectory:
    return RunDirectory.create(store, name, CONFIG)


def row_values(first: int, count: int) -> dict[str, torch.Tensor]:
    number = torch.arange(first, first + count)
    wide = number[:, None] * torch.arange(1, 7)
    return {
        "action": (torch.sin(wide.double()) * 100).float().reshape(count, 3, 2),
        "day": number.to(torch.int32) * 3,
        "portfolio": (torch.cos(wide.double())).half(),
        "nothing": torch.zeros(count, 2, 0),
        "terminal": number % 5 == 4,
    }


def ring_of(written: int, capacity: int = CAPACITY) -> Ring:
    size = min(written, capacity)
    values = row_values(written - size, size)
    columns = {name: torch.full((capacity, *part.shape[1:]), 7).to(part.dtype) for name, part in values.items()}
    for first, slots in slot_ranges(capacity, written - size, written):
        start = first - (written - size)
        for name, column in columns.items():
            column[slots] = values[name][start : start + slots.stop - slots.start]
    return Ring(columns, size, written)


def sample(generation: int, seconds: float = 0.0, size: int = 50) -> Snapshot:
    values = keyed_generator(1, generation).standard_normal((4, size)).astype(np.float32)
    weights = torch.from_numpy(values)
    return Snapshot(
        generation=generation,
        tensors={
            "population": {"weights": weights, "step": torch.tensor(generation)},
            "champion": {"weights": weights[0]},
        },
        documents={
            "state": {"noise_scale": 0.1 / max(generation, 1), "champion": None},
            "history": [{"generation": number, "best_fitness": number / 3} for number in range(1, generation + 1)],
            "telemetry": [{"seconds": seconds}],
            "champion": {
                "symbols": ["A", "B"],
                "generation": generation,
                "layout": [{"name": "weight", "shape": [size]}],
            },
        },
        champion_generation=max(1, generation // 2),
        ring=ring_of(generation * ROWS_PER_GENERATION),
    )


def assert_same(one: Snapshot, other: Snapshot) -> None:
    assert one.generation == other.generation
    assert one.champion_generation == other.champion_generation
    assert one.documents == other.documents
    assert one.tensors.keys() == other.tensors.keys()
    for stem, tensors in one.tensors.items():
        assert tensors.keys() == other.tensors[stem].keys()
        for name, tensor in tensors.items():
            twin = other.tensors[stem][name]
            assert tensor.dtype == twin.dtype
            assert torch.equal(tensor, twin)
    if one.ring is None or other.ring is None:
        assert one.ring is other.ring
    else:
        assert_same_ring(one.ring, other.ring)


def saved_run(store: Path, *generations: int) -> RunDirectory:
    run = new_run(store)
    for generation in generations:
        run.save(sample(generation))
    return run


def newest_of(run: RunDirectory, stored: RunContents | None = None) -> LoadedGeneration:
    loaded = run.load_newest(stored=stored)
    assert loaded is not None
    return loaded


def assert_same_ring(one: Ring, other: Ring) -> None:
    assert (one.capacity, one.size, one.written) == (other.capacity, other.size, other.written)
    assert one.columns.keys() == other.columns.keys()
    for name, column in one.columns.items():
        twin = other.columns[name]
        assert (column.dtype, column.shape) == (twin.dtype, twin.shape)
        assert torch.equal(column[: one.size], twin[: one.size]), name


def generations_of(run: RunDirectory) -> list[int]:
    return sorted({manifest.generation for manifest in run.contents.manifests()})


def manifest_of(run: RunDirectory, generation: int) -> Manifest:
    (found,) = [found for found in run.contents.manifests() if found.generation == generation]
    return found


def blob_of(run: RunDirectory, generation: int, part: str) -> Path:
    """Return the file of one part of a generation; `part` is a file's name or the number of a shard."""
    manifest = manifest_of(run, generation)
    if part.isdigit():
        return blob_path(run.path, manifest.shards[int(part)].sha256)
    return blob_path(run.path, manifest.entry(part).sha256)


def files_of(run: RunDirectory) -> set[str]:
    return {path.relative_to(run.path).as_posix() for path in run.path.rglob("*") if path.is_file()}


def in_memory(run: RunDirectory) -> tuple[MemoryStore, RunContents]:
    """Return a run's files in a store in memory."""
    store = MemoryStore()
    for name in sorted(files_of(run) - {"lock"}):
        store.put(f"run/{name}", (run.path / name).read_bytes())
    store.done.clear()
    return store, RunContents(store, "run")


def act_at_random(store: Store, file: Path, seed: int) -> dict[str, bytes]:
    """Compare random actions on an empty store with those on a dictionary; return the content that it must have."""
    numbers, known = random.Random(seed), dict[str, bytes]()
    remote = store if isinstance(store, RemoteStore) else None
    for turn in range(60):
        action = numbers.choice(["put", "put", "create", "read", "read", "delete"])
        name = numbers.choice(["a/x", "a/y", "a/b/x", "b/x", "c"])
        content = numbers.randbytes(numbers.choice([1_500, 3_000]))
        if action == "create":
            assert store.create(name, content) == (known.setdefault(name, content) == content)
        elif action == "delete":
            store.delete([name])
            known.pop(name, None)
        elif action == "put":
            known[name] = content
            if remote is not None and turn % 2:
                file.write_bytes(content)
                remote.put_file(name, file)
            else:
                store.put(name, content)
        elif name not in known:
            with pytest.raises(MissingObjectError):
                store.read(name, 5_000)
        elif remote is not None and turn % 2:
            remote.fetch(name, file)
            assert file.read_bytes() == known[name], turn
        else:
            assert store.read(name, 5_000) == known[name], turn
    return known


def seconds_of(snapshot: Snapshot) -> float:
    match snapshot.documents["telemetry"]:
        case [{"seconds": float(seconds)}]:
            return seconds
    raise AssertionError(f"the telemetry is {snapshot.documents['telemetry']!r}")


def record_syncs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return a list to which each `fsync` adds its path from now on, and each `replace` and `link` the new name."""
    steps: list[tuple[str, str]] = []

    def record(call: str, what: Callable[..., str]) -> None:
        original = getattr(os, call)

        def recorded(*arguments: Any) -> object:
            steps.append((call, what(*arguments)))
            return original(*arguments)

        monkeypatch.setattr(os, call, recorded)

    record("fsync", lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}"))
    record("replace", lambda old, new: f"{old} -> {new}")
    record("link", lambda _old, new: str(new))
    return steps


def work_in_progress(run: RunDirectory) -> list[str]:
    return sorted(name for name in files_of(run) if any(part.startswith(".") for part in name.split("/")))
