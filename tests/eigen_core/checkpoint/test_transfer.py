"""From the store to another machine: the newest generation that is whole, and nothing that is there already."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_samples import assert_same, newest_of
from memory_store import MemoryStore
from upload_cases import ROWS, RUN, Machine, new_directory, snapshot_of, whole_generations

from eigen_core.checkpoint.integrity import BLOBS, MANIFESTS, UnfitSnapshotError, blob_name
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


def test_what_is_here_already_is_not_fetched(there: Machine, here: RunDirectory) -> None:
    newest_of(here, there.target)
    for directory in (here, there.directory):
        there.memory.done.clear()
        again = newest_of(directory, there.target)
        assert (again.manifest.generation, _fetched(there.memory)) == (3, [])


def test_what_is_unfit_is_left_out_here_and_in_the_store(there: Machine, here: RunDirectory) -> None:
    """One of another form is not even fetched; one whose values are wrong shows it here."""
    there.train(4)
    there.drain()
    sample = snapshot_of(1)
    assert sample.ring is not None
    form = SnapshotForm.of(sample.tensors, ["history"], sample.ring, range(ROWS, ROWS + 1))
    of_another_form = replace(snapshot_of(5), documents={})
    there.uploader.add(there.directory.save(of_another_form, epoch=there.lease.epoch).manifest)
    there.drain()
    there.memory.done.clear()
    restored = []

    def restore(snapshot: Snapshot) -> None:
        restored.append(snapshot.generation)
        if snapshot.generation > 2:
            raise UnfitSnapshotError("replay", "holds reward from nan to 1")

    loaded = here.load_newest(form, restore, there.target)
    assert loaded is not None
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
