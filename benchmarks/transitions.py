"""Size of a stored transition, and how fast the whole replay buffer is saved and loaded."""

import os
import tempfile
from pathlib import Path

import torch

from benchmarks.measure import Times, take_turns
from benchmarks.results import Section
from eigen_core.checkpoint import RunDirectory, Snapshot
from eigen_core.randomness import keyed_generator
from eigen_core.replay import EpisodeBatch, Replay
from eigen_core.trading import PORTFOLIO_VALUES

_CPU = torch.device("cpu")
_TRANSITIONS, _ASSETS = 50_000, 108
_EPISODES, _DAYS = 400, 125
_DENSE_BYTES = 2 * 4 * 504 * 669 * 9
_ROUNDS = 5


def run() -> Section:
    """Fill a replay buffer of the reference size, weigh it, save and load it."""
    replay = _full_replay()
    with tempfile.TemporaryDirectory(prefix="eigen-benchmark-") as folder:
        times = _save_and_load(replay, Path(folder))
    each = replay.bytes_per_transition
    rows = [
        ["bytes of a transition", f"{each:,.0f}", f"{_DENSE_BYTES:,.0f}", f"1 : {_DENSE_BYTES / each:,.0f}"],
        [f"MB of {_TRANSITIONS:,}", f"{replay.nbytes / 1e6:,.1f}", f"{_TRANSITIONS * _DENSE_BYTES / 1e6:,.0f}", ""],
        *(_time_row(work, times) for work in ("save", "load")),
    ]
    return Section(
        title="Transitions in the replay buffer",
        method=f"{_TRANSITIONS:,} transitions of {_ASSETS} assets with their portfolio, saved as a generation "
        "(compressed, written, hashed, fsynced, renamed) and loaded again (every byte verified, buffer rebuilt, files "
        f"still in the page cache), {_ROUNDS} times by turns with a plain file of the same bytes that is written and "
        "fsynced, or read; dense is a transition that carries its two windows `[504, 669, 9]`, which is computed.",
        columns=("", "ours (least)", "dense, or plain file (least)", "ratio"),
        rows=rows,
    )


def _time_row(work: str, times: dict[str, Times]) -> list[str]:
    checkpoint, plain = times[work], times[f"{work} plain"]
    cells = [f"{side.median:.3f} ({side.least:.3f})" for side in (checkpoint, plain)]
    return [f"seconds to {work} {_TRANSITIONS:,}", *cells, f"{checkpoint.over(plain):.1f} : 1"]


def _save_and_load(replay: Replay, folder: Path) -> dict[str, Times]:
    content = b"".join(tensor.contiguous().numpy().tobytes() for tensor in replay.tensors().values())
    RunDirectory.create(folder, "replay", {})
    plain = folder / "plain"
    generation = 0

    def save() -> None:
        nonlocal generation
        generation += 1
        # A directory that has saved nothing yet knows of no shard that it could leave as it is.
        directory = RunDirectory.open(folder, "replay")
        directory.save(Snapshot(generation, {}, {}, 0, replay.ring()))

    def save_plain() -> None:
        with open(plain, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def load() -> None:
        loaded = RunDirectory.open(folder, "replay").load_newest()
        if loaded is None or loaded.snapshot.ring is None:
            raise RuntimeError("the replay that was just saved is not there")
        Replay.from_ring(loaded.snapshot.ring, _CPU, take_memory=True)

    def thin_out() -> None:
        RunDirectory.open(folder, "replay").apply_retention(1, 0)

    works = {"save": save, "save plain": save_plain, "load": load, "load plain": plain.read_bytes, "": thin_out}
    return take_turns(works, _ROUNDS)


def _full_replay() -> Replay:
    """A buffer filled to its capacity with values that nothing could compress or share."""
    generator = keyed_generator(1, 0, "benchmarks", "transitions", "values")
    shape = (_EPISODES, _DAYS, _ASSETS)
    replay = Replay(_TRANSITIONS, _ASSETS, PORTFOLIO_VALUES, _CPU)
    replay.append(
        EpisodeBatch(
            first_days=torch.tensor(generator.integers(0, 5_000, _EPISODES)),
            portfolios=torch.tensor(generator.random((*shape, PORTFOLIO_VALUES), dtype="float32")).half(),
            actions=torch.tensor(generator.random((*shape, 2), dtype="float32")),
            rewards=torch.tensor(generator.random(shape[:2], dtype="float32")),
        )
    )
    return replay
