"""Whatever happens to a file of a run, or is in its place, is found and named, and an undamaged generation is used."""

import logging
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from checkpoint_samples import (
    CONFIG,
    assert_same,
    blob_of,
    files_of,
    generations_of,
    in_memory,
    manifest_of,
    new_run,
    newest_of,
    sample,
)
from obstacles import OBSTACLES, remove, replace_by

from eigen_core.checkpoint.integrity import (
    CONFIG_NAME,
    LIST_NAME,
    DamagedFileError,
    DamagedGenerationError,
    checksummed,
    generation_of,
    holdout_name,
)
from eigen_core.checkpoint.locks import FileLock
from eigen_core.checkpoint.run_contents import RunContents, list_runs
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.store import LocalStore, StoreUnavailableError
from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.config import CheckpointConfig


def _flip(path: Path, position: int, mask: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ mask]))


def _cut_a_byte(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "cut": _cut_a_byte,
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    **{name: partial(replace_by, obstacle=name) for name in OBSTACLES},
}


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = new_run(tmp_path_factory.mktemp("whole"))
    for generation in (1, 2, 3):
        run.save(sample(generation, seconds=generation))
    return run


@pytest.fixture
def run(tmp_path: Path, whole: RunDirectory) -> RunDirectory:
    shutil.copytree(whole.path, tmp_path / "run")
    return RunDirectory.open(tmp_path, "run")


def newest_whole(run: RunDirectory, file: Path) -> int:
    name = file.relative_to(run.path).as_posix()
    for generation in (3, 2, 1):
        manifest = manifest_of(run, generation)
        if name not in {manifest.name, *manifest.blobs}:
            return generation
    return 0


@pytest.mark.parametrize("part", ["state.json", "population.safetensors", "champion.safetensors", "2", "manifest"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_generation_is_skipped_and_can_be_saved_again(run: RunDirectory, part: str, damage: str) -> None:
    manifest = manifest_of(run, 3)
    file = run.path / manifest.name if part == "manifest" else blob_of(run, 3, part)
    title = "replay shard 34" if part == "2" else part
    DAMAGES[damage](file)
    # A generation exists when its manifest does, and only a file can be one.
    is_gone = part == "manifest" and not file.is_file()

    reopened = RunDirectory.open(run.root, "run")
    newest = newest_of(reopened)
    assert_same(newest.snapshot, sample(2, seconds=2))
    assert [(one.generation, one.file) for one in newest.damages] == ([] if is_gone else [(3, title)])
    if part != "manifest":
        with pytest.raises(DamagedGenerationError, match=f"damaged generation 3.*{title}"):
            reopened.load(manifest)
        reopened.load_newest()

    with reopened.lock():
        reopened.save(sample(3, seconds=3))
        reopened.contents.clean(keep_last=1, keep_every=0)
    assert_same(newest_of(RunDirectory.open(run.root, "run")).snapshot, sample(3, seconds=3))
    assert 3 in generations_of(run)


@pytest.mark.parametrize("part", ["state.json", "2", "manifest", "config.json"])
def test_every_flipped_byte_is_found(run: RunDirectory, part: str) -> None:
    manifest = manifest_of(run, 3)
    path = {"manifest": run.path / manifest.name, "config.json": run.path / "config.json"}.get(part)
    path = path or blob_of(run, 3, part)
    size = path.stat().st_size
    masks = keyed_generator(3, part).integers(1, 256, size)
    for position in range(0, size, max(1, size // 100)):
        mask = int(masks[position])
        _flip(path, position, mask)
        assert len(run.contents.verify()) == 1, f"byte {position} ^ {mask}"
        _flip(path, position, mask)
    assert run.contents.verify() == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_any_file_is_found_and_gone_around(
    run: RunDirectory, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    run.contents.write_holdout(holdout_name(3), {"generation": 3, "champion_rewards": [1.0, 2.5]})
    names = sorted(files_of(run) - {"lock"})
    expected = {name: newest_whole(run, run.path / name) for name in names}
    # What all three need, beside the first generation's own shard, is the configuration alone.
    assert {name for name, newest in expected.items() if newest == 3} >= {"config.json"}
    for name in names:
        path = run.path / name
        content = path.read_bytes()
        DAMAGES[damage](path)
        # A generation exists when its manifest does; nothing says that there must be a list.
        is_gone = name.startswith(("manifests/", LIST_NAME)) and not path.is_file()
        found = RunContents(LocalStore(run.root), "run").verify()
        paths = {one.path.removesuffix("/notes.txt") for one in found}  # of an obstacle that is a folder
        assert paths == (set() if is_gone else {name}), name
        if is_gone and (generation := generation_of(name)) is not None:
            assert run.contents.unreferenced() or generation == 1, name
            missing = run.contents.missing_generations([CheckpointConfig(keep_last=3, keep_every=0)])
            assert [one.generation for one in missing] == ([generation] if generation < 3 else []), name
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            _check_what_is_used(run.root, expected[name], name)
        if not is_gone and (expected[name] < 3 or name == CONFIG_NAME):
            assert name in caplog.text, name
        remove(path)
        path.write_bytes(content)
    assert run.contents.verify() == []


def _check_what_is_used(root: Path, generation: int, message: str) -> None:
    assert list_runs(LocalStore(root)) == ["run"], message
    run = RunDirectory.open(root, "run")
    assert run.config == CONFIG, message
    if generation == 0:
        with pytest.raises(InputError, match="All saved generations of run"):
            run.load_newest()
        return
    loaded = run.load_newest()
    assert loaded is not None, message
    assert_same(loaded.snapshot, sample(generation, seconds=generation))


def test_a_manifest_under_another_name_is_noticed(run: RunDirectory) -> None:
    first = run.path / manifest_of(run, 1).name
    shutil.copy(first, run.path / "manifests" / f"000004-{first.stem[-8:]}.json")
    shutil.copy(first, run.path / "manifests" / "notes.json")
    newest = newest_of(run)
    assert newest.snapshot.generation == 3
    assert [(damage.generation, damage.file) for damage in newest.damages] == [(4, "manifest")]
    assert f"has the content of manifests/{first.name}" in str(newest.damages[0])


def test_presence_and_size_are_looked_at_without_reading(run: RunDirectory) -> None:
    newest = manifest_of(run, 3)
    _flip(blob_of(run, 3, "state.json"), 0, 1)
    assert run.contents.damages(newest) == []
    assert [found.file for found in run.contents.damages(newest, deep=True)] == ["state.json"]
    _cut_a_byte(blob_of(run, 3, "history.json"))
    blob_of(run, 3, "2").unlink()
    assert sorted(str(found).split(" (")[0] for found in run.contents.verify(deep=False)) == [
        f"generation 3: history.json has {newest.entry('history.json').bytes - 1} bytes instead of "
        f"{newest.entry('history.json').bytes}",
        "generation 3: replay shard 34 is missing",
    ]


def test_a_shared_blob_is_reported_for_each_generation_that_needs_it(run: RunDirectory) -> None:
    blob_of(run, 3, "1").unlink()
    damages = run.contents.verify()
    assert [(damage.generation, damage.file) for damage in damages] == [(3, "replay shard 17"), (2, "replay shard 17")]
    assert newest_of(run).snapshot.generation == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"[" * 100_000, b"[1]", b"\xff", b'{"config": {}}', b'{"checksum": NaN}', b'{"checksum": 1, "a": 1e999}'],
)
def test_an_unreadable_configuration_without_a_generation_is_refused(tmp_path: Path, content: bytes) -> None:
    new_run(tmp_path)
    (tmp_path / "run" / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"Run 'run' .* cannot be used: config\.json .* Restore that file"):
        RunDirectory.open(tmp_path, "run")


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_a_lock_that_is_no_file_is_refused_at_once(run: RunDirectory, obstacle: str) -> None:
    replace_by(run.path / "lock", obstacle)
    if obstacle == "terabyte of zeros":
        with run.lock():
            assert FileLock(run.path / "lock").is_taken()
        return
    with pytest.raises(InputError, match="lock"), run.lock():
        pass
    with pytest.raises(InputError, match="lock"):
        FileLock(run.path / "lock").is_taken()


def test_a_result_of_the_holdout_that_is_damaged_missing_or_another_is_named_and_not_used(run: RunDirectory) -> None:
    name, contents = holdout_name(3), run.contents
    contents.write_holdout(name, {"generation": 3})
    whole = (run.path / name).read_bytes()
    assert contents.read_holdout(name) == {"generation": 3}
    assert contents.verify() == []
    for content in (whole[:-1], whole + b"\n", checksummed({"generation": 3, "champion_rewards": [9.0]})):
        (run.path / name).write_bytes(content)
        assert [damage.path for damage in contents.verify()] == [name]
        with pytest.raises(DamagedFileError):
            contents.read_holdout(name)
    (run.path / name).unlink()
    assert [str(damage) for damage in contents.verify()] == [f"{name} is missing"]
    contents.write_holdout(name, {"generation": 3})
    assert contents.verify() == []
    # Of a run whose list is damaged, a result's own checksum counts.
    (run.path / LIST_NAME).write_bytes(b"{")
    assert [damage.path for damage in contents.verify()] == [LIST_NAME]
    assert contents.read_holdout(name) == {"generation": 3}


def test_a_store_that_is_away_is_not_damage(run: RunDirectory) -> None:
    store, contents = in_memory(run)
    store.away = True
    for ask in (contents.exists, contents.config, contents.manifests, contents.verify):
        with pytest.raises(StoreUnavailableError):
            ask()


@pytest.mark.parametrize("deep", [True, False])
def test_what_a_living_run_removes_meanwhile_is_not_damage(run: RunDirectory, deep: bool) -> None:
    store, contents = in_memory(run)
    oldest, second = contents.manifests()[::-1][:2]

    def remove(_operation: str, name: str) -> None:
        if name == f"run/{second.name}":  # after the listing, while the newest first are read
            store.content.pop(f"run/{second.name}", None)
        if name.startswith("run/blobs/"):  # after the manifests were read
            for gone in (oldest.name, *(set(oldest.blobs) - set(second.blobs))):
                store.content.pop(f"run/{gone}", None)

    store.before = remove
    assert contents.verify(deep=deep) == []
    assert f"run/{oldest.name}" not in store.content
