"""From the store to another machine: the newest generation that is whole, and nothing that is there already.

A holder that is stopped for longer than its lease, at whatever request, leaves no generation that is half: a suspended
machine or a stopped process goes on where it was, with what it knew then, and may be killed soon after.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from checkpoint_samples import assert_same, newest_of
from known import known
from memory_store import MemoryStore
from upload_cases import ROWS, RUN, Machine, commit, new_directory, snapshot_of, whole_generations

from eigen_core.checkpoint.integrity import (
    BLOBS,
    CONFIG_NAME,
    DELETED_MARK,
    MANIFESTS,
    UnfitSnapshotError,
    blob_name,
)
from eigen_core.checkpoint.locks import Lease, LeaseLostError
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.snapshot import Snapshot, SnapshotForm
from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.common.errors import InputError


@pytest.fixture
def there(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path / "there", keep_local=100)
    machine.train(1, 2, 3)
    machine.drain()
    machine.memory.done.clear()
    return machine


@pytest.fixture
def here(tmp_path: Path) -> RunDirectory:
    return new_directory(tmp_path / "here")


def _fetched(memory: MemoryStore) -> list[str]:
    return [name.removeprefix(f"{RUN}/") for name in memory.written("read") if f"/{BLOBS}" in name]


def test_the_newest_generation_arrives_bit_for_bit_and_nothing_else(there: Machine, here: RunDirectory) -> None:
    fetched = newest_of(here, there.target)
    assert (fetched.manifest.generation, fetched.damages) == (3, [])
    assert sorted(_fetched(there.memory)) == sorted(fetched.manifest.blobs)
    assert whole_generations(here.contents) == [3]
    assert_same(newest_of(here).snapshot, snapshot_of(3))


def test_a_run_can_go_on_from_what_was_fetched_and_back(there: Machine, here: RunDirectory, tmp_path: Path) -> None:
    there.lease.release()
    newest_of(here, there.target)
    other = Machine(tmp_path / "here", there.memory, again=True, keep_local=100)
    other.directory.load_newest()
    other.train(4, 5)
    other.drain()
    sent = other.memory.written("put_file")
    assert len(sent) == 2 * 3, "nothing of the generation that was fetched is sent back"
    known = {blob for manifest in there.directory.contents.manifests() for blob in manifest.blobs}
    there.memory.done.clear()
    fetched = newest_of(there.directory, there.target)
    assert set(_fetched(there.memory)) == fetched.manifest.blobs.keys() - known
    assert_same(newest_of(there.directory).snapshot, snapshot_of(5))


def test_what_is_unfit_is_left_out_here_and_in_the_store(there: Machine, here: RunDirectory) -> None:
    """One of another form is not even fetched; one whose values are wrong shows it here."""
    there.train(4)
    there.drain()
    sample = snapshot_of(1)
    form = SnapshotForm.of(sample.tensors, ["history"], known(sample.ring), range(ROWS, ROWS + 1))
    of_another_form = replace(snapshot_of(5), documents={})
    there.uploader.add(there.directory.save(of_another_form, epoch=there.lease.epoch).manifest)
    there.drain()
    there.memory.done.clear()
    restored = []

    def restore(snapshot: Snapshot) -> None:
        restored.append(snapshot.generation)
        if snapshot.generation > 2:
            raise UnfitSnapshotError("replay", "holds reward from nan to 1")

    loaded = known(here.load_newest(form, restore, there.target))
    assert (loaded.manifest.generation, restored) == (2, [4, 3, 2])
    assert [str(damage).partition(" (")[0] for damage in loaded.damages] == [
        "generation 5: history.json is not in the manifest",
        "generation 4: replay holds reward from nan to 1",
        "generation 3: replay holds reward from nan to 1",
    ]
    assert whole_generations(here.contents) == [2, 3, 4]


def test_of_one_generation_the_higher_epoch_is_newer(there: Machine, here: RunDirectory, tmp_path: Path) -> None:
    there.lease.release()
    other = Machine(tmp_path / "other", there.memory, keep_local=100)
    other.train(3)
    other.drain()
    fetched = newest_of(here, there.target)
    assert (fetched.manifest.generation, fetched.manifest.epoch) == (3, 2)
    fetched = newest_of(there.directory, there.target)
    assert fetched.manifest.epoch == 2


@pytest.mark.parametrize("part", ["manifest", "population.safetensors"])
def test_damage_here_is_made_good(there: Machine, here: RunDirectory, part: str) -> None:
    manifest = newest_of(here, there.target).manifest
    blob = "" if part == "manifest" else blob_name(manifest.entry(part).sha256)
    path = here.path / (blob or manifest.name)
    content = path.read_bytes()
    path.write_bytes(_flip(content))
    there.memory.done.clear()
    newest_of(here, there.target)
    assert _fetched(there.memory) == ([blob] if blob else [])
    assert path.read_bytes() == content


def _flip(content: bytes) -> bytes:
    return content[:-2] + bytes([content[-2] ^ 1]) + content[-1:]


DAMAGES: list[Callable[[bytes], bytes | None]] = [_flip, lambda content: content[:-1], lambda _: b"", lambda _: None]


def _damage(memory: MemoryStore, name: str, how: Callable[[bytes], bytes | None]) -> None:
    content = how(memory.content[name])
    if content is None:
        del memory.content[name]
    else:
        memory.content[name] = content


@pytest.mark.parametrize("how", DAMAGES, ids=["flip", "cut", "empty", "remove"])
def test_damage_of_any_part_in_the_store_is_reported_and_the_next_older_one_is_used(
    there: Machine, tmp_path: Path, how: Callable[[bytes], bytes | None], caplog: pytest.LogCaptureFixture
) -> None:
    newest, older, _ = there.target.manifests()
    content, modified = dict(there.memory.content), dict(there.memory.modified)
    own = sorted(set(newest.blobs) - set(older.blobs))
    for number, name in enumerate([newest.name, *own]):
        there.memory.content, there.memory.modified = dict(content), dict(modified)
        _damage(there.memory, f"{RUN}/{name}", how)
        here = new_directory(tmp_path / f"{number}")
        fetched = newest_of(here, there.target)
        assert fetched.manifest.generation == 2
        removed_manifest = name == newest.name and how(b"???") is None
        assert {damage.path for damage in fetched.damages} == (set() if removed_manifest else {name})
        assert_same(newest_of(here).snapshot, snapshot_of(2))
        assert whole_generations(here.contents) == [2]
        assert name == newest.name or not (here.path / name).exists()
    assert "is damaged: generation 3" in caplog.text


def test_without_any_whole_generation_a_sentence_and_no_new_beginning(there: Machine, here: RunDirectory) -> None:
    for name in [name for name in there.memory.content if MANIFESTS in name]:
        _damage(there.memory, name, _flip)
    with pytest.raises(InputError, match=r"All saved generations of run .* are damaged \(generation 3: manifest"):
        newest_of(here, there.target)
    assert newest_of(there.directory, there.target).manifest.generation == 3, "but this machine has them"


def test_a_store_that_goes_away_at_any_request_leaves_this_machine_as_it_was_or_whole(
    there: Machine, tmp_path: Path
) -> None:
    requests = 0
    while True:
        here = new_directory(tmp_path / f"here-{requests}")
        there.memory.done.clear()

        def leave(_operation: str, _name: str, last: int = requests) -> None:
            there.memory.away = len(there.memory.done) >= last

        there.memory.before = leave
        try:
            newest_of(here, there.target)
        except StoreUnavailableError:
            assert whole_generations(here.contents) == []
        else:
            break
        finally:
            there.memory.before, there.memory.away = None, False
        newest_of(here, there.target)
        assert whole_generations(here.contents) == [3]
        requests += 1
    assert requests > 5


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


@pytest.mark.parametrize(
    "requests_left", [None, 1, *(pytest.param(count, marks=pytest.mark.slow) for count in range(2, 10))]
)
@pytest.mark.thorough
def test_wherever_a_holder_is_stopped_all_generations_stay_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requests_left: int | None
) -> None:
    # No machine loses its power here, and there are many.
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
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
