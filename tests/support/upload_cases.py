"""A small run with generations to upload."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from memory_store import Clock, MemoryStore

from eigen_core.checkpoint.locks import Lease
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.replay_shards import Ring
from eigen_core.checkpoint.run_contents import RunContents
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.checkpoint.uploads import NOTHING_TO_DO, Uploader
from eigen_core.common.errors import InputError
from eigen_core.config import CheckpointConfig

RUN = "run"
KEEP_UPLOADED = CheckpointConfig(keep_last=100, keep_local=1, queue_generations=3, upload_mb_per_second=0)
REFUSED = InputError("you may not write there")
CAPACITY = 12
ROWS = 5
FORK = multiprocessing.get_context("fork")


def snapshot_of(generation: int, champion: int = 0) -> Snapshot:
    """A generation whose content follows from its number; a part of it never changes, its ring grows by `ROWS`."""
    rows = torch.arange(generation * ROWS)
    column = torch.zeros(CAPACITY, 2, dtype=torch.int64)
    for row in rows[-CAPACITY:]:
        column[row % CAPACITY] = row
    return Snapshot(
        generation,
        {"population": {"weights": torch.full((50, 2), float(generation))}, "layout": {"fixed": torch.arange(9)}},
        {"history": [{"generation": number} for number in range(1, generation + 1)]},
        champion,
        Ring({"day": column}, min(len(rows), CAPACITY), len(rows)),
    )


def commit(directory: RunDirectory, generation: int, champion: int = 0, epoch: int = 1) -> Manifest:
    return directory.save(snapshot_of(generation, champion), epoch=epoch).manifest


def new_directory(root: Path) -> RunDirectory:
    return RunDirectory.create(root, RUN, {"seed": 1})


class Machine:
    """A machine that trains a run whose store is elsewhere; its uploads are done step by step, by no thread."""

    def __init__(
        self, root: Path, memory: MemoryStore | None = None, *, again: bool = False, **settings: float
    ) -> None:
        self.clock = Clock()
        self.memory = memory or MemoryStore()
        self.directory = RunDirectory.open(root, RUN) if again else new_directory(root)
        self.target = RunContents(self.memory, RUN)
        self.config = KEEP_UPLOADED.model_copy(update=settings)
        self.lease = Lease.acquire(self.memory, RUN, self.config.lease_seconds, clock=self.clock)
        self.uploader = Uploader(
            self.directory, self.target, self.lease, self.config, clock=self.clock, sleep=self.clock.sleep
        )

    def uploader_in_a_thread(self, **settings: float) -> Uploader:
        return Uploader(self.directory, self.target, self.lease, self.config.model_copy(update=settings))

    def train(self, *generations: int, champion: int = 0) -> None:
        for generation in generations:
            self.uploader.add(commit(self.directory, generation, champion, self.lease.epoch))

    def draw(self, name: str, content: bytes = b"ink") -> None:
        path = self.directory.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        self.uploader.add_file(name)

    def steps(self) -> list[float]:
        """Let the uploader work until it has to wait, and return all pauses that it asked for."""
        pauses = []
        while (pause := self.uploader.step()) == 0.0:
            pauses.append(pause)
        return [*pauses, pause]

    def drain(self) -> None:
        assert self.steps()[-1] == NOTHING_TO_DO

    def stored(self) -> list[int]:
        return whole_generations(self.target)

    def here(self) -> list[int]:
        return whole_generations(self.directory.contents)


def whole_generations(contents: RunContents) -> list[int]:
    """Return the generations of a run, rising, after all that they refer to was verified."""
    found = list(contents.newest_first())
    manifests = [one for one in found if isinstance(one, Manifest)]
    assert manifests == found
    assert not any(contents.damages(manifest, deep=True) for manifest in manifests)
    return sorted(manifest.generation for manifest in manifests)


@contextmanager
def in_another_process(work: Callable[..., None], *arguments: object) -> Iterator[tuple[int, Any]]:
    """Run `work(*arguments, pipe)` in a forked process; yield its PID and what it has sent first, and kill it."""
    here, there = FORK.Pipe()
    process = FORK.Process(target=work, args=(*arguments, there), daemon=True)
    process.start()
    try:
        assert here.poll(60)
        assert process.pid is not None
        yield process.pid, here.recv()
    finally:
        process.kill()
        process.join()


@contextmanager
def locked_by_another_process(root: Path) -> Iterator[int]:
    with in_another_process(_lock, root) as (pid, _):
        yield pid


def _lock(root: Path, pipe: Connection) -> None:
    with RunDirectory.open(root, RUN).lock():
        pipe.send("locked")
        pipe.recv()
