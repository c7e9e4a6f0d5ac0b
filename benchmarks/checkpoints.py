"""Time and memory of saving and loading a full replay buffer, beside a plain file of the same bytes."""

import os
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.measure import extra_resident_mb, in_own_process, take_turns
from benchmarks.results import Section
from benchmarks.synthetic import leaking_market
from eigen_core.checkpoint.replay_shards import Ring
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.config import Config
from eigen_core.generation import evaluate, evolve, start_training, train

_TRANSITIONS, _ASSETS, _DAYS = 50_000, 108, 2_500
_GRADIENT_STEPS = 4
_ROUNDS = 5
_CHECKPOINT, _PLAIN = "checkpoint, zstd", "plain file"

_generations: Counter[Path] = Counter()


def run() -> Section:
    with tempfile.TemporaryDirectory(prefix="eigen-benchmark-") as name:
        folder = Path(name)
        in_own_process(_trade, folder / "source")
        ring = _load(folder / "source")
        raw = sum(column.nbytes for column in ring.columns.values()) / 1e6
        works: dict[str, Callable[[], object]] = {
            f"save {_CHECKPOINT}": partial(_save, folder / "run", ring),
            f"load {_CHECKPOINT}": partial(_load, folder / "run"),
            f"save {_PLAIN}": partial(_save_plainly, folder / "replay", ring),
            f"load {_PLAIN}": (folder / "replay").read_bytes,
        }
        times = take_turns(works, _ROUNDS)
        loaded = _load(folder / "run")
        for column, held in ring.columns.items():
            if not np.array_equal(held.numpy(), loaded.columns[column].numpy()):
                raise RuntimeError(f"{column} comes back otherwise")
        stored = {_CHECKPOINT: _save(folder / "size", ring), _PLAIN: (folder / "replay").stat().st_size}
        rows = []
        for way, size in stored.items():
            save, load = times[f"save {way}"], times[f"load {way}"]
            rows.append(
                [
                    way,
                    f"{size / 1e6:.1f} ({max(100 * (1 - size / 1e6 / raw), 0):.0f} %)",
                    f"{save.median:.3f} ({save.least:.3f})",
                    f"{load.median:.3f} ({load.least:.3f})",
                    *(f"{in_own_process(_extra_mb, work, way, folder):.0f}" for work in ("save", "load")),
                ]
            )
    return Section(
        title="Saving and loading a full replay buffer",
        method=f"{_TRANSITIONS:,} transitions of {_ASSETS} assets ({raw:.1f} MB) that 16 agents of preset ddpg "
        "made in five generations on a synthetic market, saved as a generation (compressed, hashed, written, fsynced) "
        f"and loaded (every byte verified; files in the page cache), {_ROUNDS} times, taking turns with a plain file "
        "of the same bytes, fsynced. A run saves only new transitions; here all are new. Extra memory: peak of the "
        "resident memory above that before, in a process of its own; for loading it includes the buffer itself.",
        columns=("", "MB (saved)", "save: s (least)", "load: s (least)", "save: extra MB", "load: extra MB"),
        rows=rows,
        remarks=("The goal is less than 0.5 s and less than 100 MB of extra memory for saving, and for loading.",),
    )


def _save(folder: Path, ring: Ring) -> int:
    """Save a generation that holds the buffer alone; return the bytes written."""
    if not (folder / "run").exists():
        RunDirectory.create(folder, "run", {})
    _generations[folder] += 1
    # Opened again: a directory that has saved nothing yet reuses no shard.
    return RunDirectory.open(folder, "run").save(Snapshot(_generations[folder], {}, {}, 0, ring)).written_bytes


def _load(folder: Path) -> Ring:
    loaded = RunDirectory.open(folder, "run").load_newest()
    if loaded is None or loaded.snapshot.ring is None:
        raise RuntimeError(f"the replay that was saved in {folder} is not there")
    return loaded.snapshot.ring


def _save_plainly(path: Path, ring: Ring) -> None:
    with open(path, "wb") as file:
        for column in ring.columns.values():
            file.write(column.reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


def _extra_mb(work: str, way: str, folder: Path) -> float:
    if work == "load":
        load = partial(_load, folder / "run") if way == _CHECKPOINT else (folder / "replay").read_bytes
        return extra_resident_mb(load)
    ring = _load(folder / "source")
    save = _save if way == _CHECKPOINT else _save_plainly
    return extra_resident_mb(partial(save, folder / f"{way}, alone", ring))


def _trade(folder: Path) -> None:
    """Train until the buffer is full and save it: its compression depends on the agents' actions."""
    config = Config(
        preset="ddpg",
        device="cpu",
        replay={"capacity": _TRANSITIONS},
        learner={"gradient_steps": _GRADIENT_STEPS},
    )
    state = start_training(config, leaking_market(config, _DAYS, _ASSETS, config.seed))
    while state.replay.size < _TRANSITIONS:
        evaluate(state)
        train(state)
        evolve(state)
    _save(folder, state.replay.ring())
