"""A run can be read, verified and described in any store."""

from pathlib import Path

import pytest
from checkpoint_samples import files_of, new_run, sample
from memory_store import MemoryStore

from eigen_core.checkpoint.run_contents import RunContents
from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.common.progress import progress_to


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    run, store = new_run(tmp_path), MemoryStore()
    for generation in (1, 2, 3):
        run.save(sample(generation))
    for name in sorted(files_of(run) - {"lock"}):
        store.put(f"run/{name}", (run.path / name).read_bytes())
    store.done.clear()
    return store


def test_verifying_says_how_far_it_is(store: MemoryStore) -> None:
    told: list[tuple[str, int, int]] = []

    class Listener:
        def update(self, name: str, done: int, total: int) -> None:
            told.append((name, done, total))

    contents = RunContents(store, "run")
    with progress_to(Listener()):
        contents.verify()
    total = sum({name: size for found in contents.manifests() for name, size in found.blobs.items()}.values())
    assert {(name, whole) for name, _, whole in told} == {("verify", total)}
    done = [count for _, count, _ in told]
    assert done == sorted(done)
    assert done[-1] == total


def test_a_store_that_is_away_is_not_damage(store: MemoryStore) -> None:
    contents = RunContents(store, "run")
    store.away = True
    for ask in (contents.exists, contents.config, contents.manifests, contents.verify):
        with pytest.raises(StoreUnavailableError):
            ask()


def test_a_store_that_gives_up_in_mid_run_loses_no_generation(store: MemoryStore) -> None:
    """A manifest that cannot be read is not taken for one that is damaged, whose blobs could go."""
    contents = RunContents(store, "run")
    before = dict(store.content)
    reads = 0

    def fail_second_read(operation: str, _name: str) -> None:
        nonlocal reads
        reads += operation == "read"
        store.away = reads == 2

    store.before = fail_second_read
    with pytest.raises(StoreUnavailableError):
        contents.clean(3, 0)
    store.away, store.before = False, None
    assert store.content == before


@pytest.mark.parametrize("deep", [True, False])
def test_what_a_living_run_removes_meanwhile_is_not_damage(store: MemoryStore, deep: bool) -> None:
    contents = RunContents(store, "run")
    oldest, second = contents.manifests()[::-1][:2]

    def remove(_operation: str, name: str) -> None:
        if name == f"run/{second.name}":  # after the listing, while the newest first are read
            store.content.pop(f"run/{second.name}", None)
        if name.startswith("run/blobs/"):  # after the manifests were read
            for gone in (oldest.name, *(set(oldest.blobs) - set(second.blobs))):
                store.content.pop(f"run/{gone}", None)

    store.before = remove
    store.done.clear()
    assert contents.verify(deep=deep) == []
    assert f"run/{oldest.name}" not in store.content
