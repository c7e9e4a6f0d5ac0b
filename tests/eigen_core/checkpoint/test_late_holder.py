"""A holder that is stopped for longer than its lease, at whatever request, leaves no generation that is half.

A suspended machine or a stopped process goes on where it was, with what it knew then, and may be killed soon after.
"""

import os
from itertools import count
from pathlib import Path

import pytest
from checkpoint_samples import assert_same, newest_of
from memory_store import MemoryStore
from upload_cases import RUN, Machine, commit, new_directory, snapshot_of

from eigen_core.checkpoint.integrity import CONFIG_NAME, DELETED_MARK, MANIFESTS
from eigen_core.checkpoint.locks import Lease, LeaseLostError
from eigen_core.checkpoint.store import StoreUnavailableError

LAST = 5


class KilledError(BaseException):
    """The process ends here."""


class LateHolder:
    """Two machines and a store: the first is stopped before a request, and the second takes over meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.memory = MemoryStore()
        self.first = Machine(folder / "first", self.memory, keep_last=2, keep_every=4)
        self.second: Machine | None = None
        self.first.train(1, 2)
        self.first.drain()
        config = self.first.directory.path / CONFIG_NAME
        self.memory.put(f"{RUN}/{CONFIG_NAME}", config.read_bytes())
        self._leave_orphans()
        self.first.train(3)

    def _leave_orphans(self) -> None:
        earlier = new_directory(self._folder / "earlier")
        for blob in commit(earlier, 4).blobs:
            self.memory.put_file(f"{RUN}/{blob}", earlier.path / blob)

    def upload(self, stop: int, requests_left: int | None) -> bool:
        """Let the first machine upload; return whether it was stopped.

        Args:
            stop: the request before which it is stopped, from 1.
            requests_left: it is killed so many requests after it was stopped; None: never.
        """
        requests = count(1)

        def watch(_operation: str, _name: str) -> None:
            number = next(requests)
            if number == stop:
                self.memory.before = None
                self.take_over()
                self.memory.before = watch
            elif requests_left is not None and number >= stop + requests_left:
                raise KilledError

        self.memory.before = watch
        try:
            self.first.steps()
        except (LeaseLostError, KilledError):
            pass
        finally:
            self.memory.before = None
        return self.second is not None

    def take_over(self) -> None:
        self.memory.pass_time(1_000)
        self.second = Machine(self._folder / "second", self.memory, keep_last=2, keep_every=4)
        loaded = newest_of(self.second.directory, self.second.target)
        for generation in range(loaded.manifest.generation + 1, LAST + 1):
            self.second.train(generation)
            self.second.drain()

    def assert_whole(self) -> None:
        assert self.second is not None
        target = self.second.target
        assert target.verify(deep=True) == []
        newest = target.newest_manifest()
        assert newest is not None
        assert (newest.generation, newest.epoch) == (LAST, self.second.lease.epoch)
        loaded = newest_of(new_directory(self._folder / "third"), target)
        assert loaded.damages == []
        assert_same(loaded.snapshot, snapshot_of(LAST))


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine loses its power here, and there are many."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.mark.parametrize(
    "requests_left", [None, 1, *(pytest.param(count, marks=pytest.mark.slow) for count in range(2, 10))]
)
@pytest.mark.thorough
def test_wherever_a_holder_is_stopped_all_generations_stay_whole(tmp_path: Path, requests_left: int | None) -> None:
    for stop in count(1):
        case = LateHolder(tmp_path / f"{stop}")
        if not case.upload(stop, requests_left):
            break
        case.assert_whole()
    assert stop >= 20


def test_a_manifest_that_was_withdrawn_is_written_by_its_machine_once_it_holds_the_lease_again(
    machine: Machine, tmp_path: Path
) -> None:
    machine.train(1)
    (manifest,) = machine.directory.contents.manifests()
    machine.lease.announce(manifest.name)
    machine.lease.release()
    again = Machine(tmp_path / "here", machine.memory, again=True)
    assert machine.memory.content[f"{RUN}/{manifest.name}"] == DELETED_MARK
    again.drain()
    assert again.stored() == [1]


def test_a_taker_that_fails_before_the_names_are_occupied_leaves_that_to_the_next_one(machine: Machine) -> None:
    def fail(operation: str, name: str) -> None:
        if operation == "create" and MANIFESTS in name:
            machine.memory.before = None
            raise StoreUnavailableError("away")

    machine.train(1)
    (manifest,) = machine.directory.contents.manifests()
    machine.lease.announce(manifest.name)
    machine.memory.pass_time(1_000)
    machine.memory.before = fail
    with pytest.raises(StoreUnavailableError):
        Lease.acquire(machine.memory, RUN, 90.0)
    assert Lease.acquire(machine.memory, RUN, 90.0).epoch == 3
    assert machine.memory.content[f"{RUN}/{manifest.name}"] == DELETED_MARK


def test_a_damaged_manifest_as_short_as_a_withdrawn_one_is_still_damage(machine: Machine) -> None:
    machine.train(1)
    machine.drain()
    (name,) = machine.target.manifest_names()
    machine.memory.content[f"{RUN}/{name}"] = machine.memory.content[f"{RUN}/{name}"][: len(DELETED_MARK)]
    assert [damage.generation for damage in machine.target.verify() if damage.file == "manifest"] == [1]
