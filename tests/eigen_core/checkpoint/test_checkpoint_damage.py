"""Whatever happens to a file of a run, or is in its place, is found, said, and gone around."""

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from checkpoint_samples import (
    CONFIG,
    assert_same,
    blob_of,
    files_of,
    generations_of,
    manifest_of,
    new_run,
    newest_of,
    sample,
    saved_run,
)
from obstacles import OBSTACLES, replace_by

from eigen_core.checkpoint.contents import KeepRule, RunContents
from eigen_core.checkpoint.integrity import (
    ATTACHMENTS_NAME,
    CONFIG_NAME,
    Damage,
    DamagedFileError,
    DamagedGenerationError,
    checksummed,
    generation_of,
    holdout_name,
)
from eigen_core.checkpoint.local import LocalStore
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.snapshot import LoadedGeneration
from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator

PARTS = [
    "history.json",
    "state.json",
    "telemetry.json",
    "champion.json",
    "population.safetensors",
    "champion.safetensors",
    "2",
]


def _flip(path: Path, position: int, mask: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ mask]))


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _cut_a_byte(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _append(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"\n")


def _turn_into_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES = [Path.unlink, _empty, _cut_a_byte, _append, _turn_into_zeros]


def store_of_three(root: Path) -> RunDirectory:
    """A run of three generations that share the shards of their rings, as far as these overlap."""
    run = new_run(root)
    for generation in (1, 2, 3):
        run.save(sample(generation, seconds=generation))
    return run


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return store_of_three(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def run(tmp_path: Path, whole: RunDirectory) -> RunDirectory:
    shutil.copytree(whole.path, tmp_path / "run")
    return RunDirectory.open(tmp_path, "run")


def newest_whole(run: RunDirectory, file: Path) -> int:
    """Return the newest of the three generations that does not need a file."""
    name = file.relative_to(run.path).as_posix()
    for generation in (3, 2, 1):
        manifest = manifest_of(run, generation)
        if name not in {manifest.name, *manifest.blobs}:
            return generation
    return 0


@pytest.mark.parametrize("part", [*PARTS, "manifest"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_generation_is_skipped_and_can_be_saved_again(
    run: RunDirectory, part: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    manifest = manifest_of(run, 3)
    file = run.path / manifest.name if part == "manifest" else blob_of(run, 3, part)
    title = "replay shard 34" if part == "2" else part
    missing = damage is Path.unlink
    damage(file)

    reopened = RunDirectory.open(run.root, "run")
    if part == "manifest" and missing:
        # A generation exists when its manifest does.
        assert reopened.contents.verify() == []
        assert reopened.contents.unreferenced()
    else:
        assert [found.file for found in reopened.contents.verify()] == [title]
    with caplog.at_level(logging.WARNING):
        newest = reopened.load_newest()
    assert newest is not None
    assert_same(newest.snapshot, sample(2, seconds=2))
    if not (part == "manifest" and missing):
        assert [(found.generation, found.file) for found in newest.damages] == [(3, title)]
        assert f"generation 3: {title}" in caplog.text
    if part != "manifest":
        with pytest.raises(DamagedGenerationError, match=f"damaged generation 3.*{title}"):
            reopened.load(manifest)
        reopened.load_newest()

    reopened.save(sample(3, seconds=3))
    assert_same(_newest(run).snapshot, sample(3, seconds=3))


def _newest(run: RunDirectory) -> LoadedGeneration:
    return newest_of(RunDirectory.open(run.root, "run"))


@pytest.mark.parametrize("positions", [100, pytest.param(400, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("part", ["state.json", "2", "manifest", "config.json"])
def test_every_flipped_byte_is_found(run: RunDirectory, part: str, positions: int) -> None:
    manifest = manifest_of(run, 3)
    path = {"manifest": run.path / manifest.name, "config.json": run.path / "config.json"}.get(part)
    path = path or blob_of(run, 3, part)
    size = path.stat().st_size
    masks = keyed_generator(3, part).integers(1, 256, size)
    for position in range(0, size, max(1, size // positions)):
        mask = int(masks[position])
        _flip(path, position, mask)
        assert len(run.contents.verify()) == 1, f"byte {position} ^ {mask}"
        _flip(path, position, mask)
    assert run.contents.verify() == []


@pytest.mark.parametrize("cases", [150, pytest.param(1_000, marks=pytest.mark.slow)], ids=["150 cases", "1,000 cases"])
@pytest.mark.thorough
def test_damage_of_any_file_is_found_and_gone_around(
    run: RunDirectory, cases: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A flipped byte, a truncation or a deletion anywhere in a run; the newest generation that is whole is used."""
    _attach(run)
    names = sorted(files_of(run) - {"lock"})
    expected = {name: newest_whole(run, run.path / name) for name in names}
    # What all three need, beside the first generation's own shard, is the configuration alone.
    assert {name for name, newest in expected.items() if newest == 3} >= {"config.json"}
    for case in range(cases):
        generator = keyed_generator(1, "damage", case)
        name = names[case % len(names)]
        content = (run.path / name).read_bytes()
        what = _damage_somehow(run.path / name, generator)
        caplog.clear()
        message = f"case {case}: {name} {what}"
        found = RunContents(LocalStore(run.root), "run").verify()
        # A generation exists when its manifest does; nothing says that there must be a list of plots.
        may_lack = name.startswith(("manifests/", "attachments/"))
        if may_lack and what == "deleted":
            assert found == [], message
            _check_deleted(run, name, message)
        else:
            assert found, message
            assert {damage.path for damage in found} == {name}, message
        with caplog.at_level(logging.WARNING):
            _check_what_is_used(run.root, expected[name], message)
        if not (may_lack and what == "deleted"):
            if expected[name] < 3 or name == CONFIG_NAME:
                assert name in caplog.text, message
            assert all(str(damage) for damage in found)
        (run.path / name).write_bytes(content)
    assert run.contents.verify() == []


def _attach(run: RunDirectory) -> None:
    run.contents.put_attachment(holdout_name(3), checksummed({"generation": 3, "champion_rewards": [1.0, 2.5]}))
    run.contents.put_attachment("plots/fitness.png", b"a picture")


def _damage_somehow(path: Path, generator: np.random.Generator) -> str:
    kind = int(generator.integers(3))
    size = path.stat().st_size
    if kind == 0:
        _flip(path, int(generator.integers(size)), int(generator.integers(1, 256)))
        return "flipped"
    if kind == 1:
        os.truncate(path, int(generator.integers(size)))
        return "truncated"
    path.unlink()
    return "deleted"


def _check_deleted(run: RunDirectory, name: str, message: str) -> None:
    generation = generation_of(name)
    if generation is None:
        return
    assert run.contents.unreferenced() or generation == 1, message
    missing = run.contents.missing_generations([KeepRule(keep_last=3, keep_every=0)])
    assert [damage.generation for damage in missing] == ([generation] if generation < 3 else []), message


def _check_what_is_used(root: Path, generation: int, message: str) -> None:
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
    newest = _newest(run)
    assert newest.snapshot.generation == 3
    assert [(damage.generation, damage.file) for damage in newest.damages] == [(4, "manifest")]
    assert f"is that of manifests/{first.name}" in str(newest.damages[0])


def test_a_run_without_any_good_generation_says_so(run: RunDirectory) -> None:
    for generation in (3, 2):
        _empty(blob_of(run, generation, "population.safetensors"))
    newest = _newest(run)
    assert newest.snapshot.generation == 1
    assert [found.generation for found in newest.damages] == [3, 2]
    _empty(blob_of(run, 1, "population.safetensors"))
    with pytest.raises(DamagedGenerationError, match=r"All saved generations of run .*has 0 bytes instead"):
        run.load_newest()


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
    assert isinstance(damages[0], Damage)
    assert _newest(run).snapshot.generation == 1


def test_a_document_is_verified_before_it_is_parsed(run: RunDirectory) -> None:
    manifest = manifest_of(run, 3)
    assert run.contents.document(manifest, "history") == sample(3).documents["history"]
    _flip(blob_of(run, 3, "history.json"), 3, 1)
    with pytest.raises(DamagedGenerationError, match=r"history\.json does not match its SHA-256"):
        run.contents.document(manifest, "history")
    with pytest.raises(KeyError):
        run.contents.document(manifest, "nothing")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\0\0", b'{"config": {}}'])
def test_an_unreadable_configuration_without_a_generation_is_refused(tmp_path: Path, content: bytes) -> None:
    new_run(tmp_path)
    (tmp_path / "run" / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"Run 'run' .* cannot be used: config\.json .* Restore that file"):
        RunDirectory.open(tmp_path, "run")


def test_nothing_is_parsed_before_everything_is_verified(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    for name in ("read_tensors", "parse_document", "read_ring"):
        monkeypatch.setattr(f"eigen_core.checkpoint.snapshot.{name}", lambda *_: parsed.append(1))
    for part in PARTS:
        content = blob_of(run, 3, part).read_bytes()
        _flip(blob_of(run, 3, part), len(content) // 2, 16)
        with pytest.raises(DamagedGenerationError):
            run.load(manifest_of(run, 3))
        blob_of(run, 3, part).write_bytes(content)
    assert parsed == []
    assert sha256(blob_of(run, 3, PARTS[0]).read_bytes()).hexdigest() in str(blob_of(run, 3, PARTS[0]))


@pytest.fixture
def saved(tmp_path: Path) -> RunDirectory:
    return saved_run(tmp_path, 1, 2, 3)


def attach(saved: RunDirectory) -> RunContents:
    contents = saved.contents
    contents.put_attachment(holdout_name(3), checksummed({"generation": 3, "champion_rewards": [1.0, 2.5]}))
    contents.put_attachment("plots/fitness.png", b"picture: fitness")
    return contents


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("part", ["population.safetensors", "state.json", "2", "manifest"])
def test_an_older_generation_is_used_and_the_newest_made_again(saved: RunDirectory, obstacle: str, part: str) -> None:
    path = saved.path / manifest_of(saved, 3).name if part == "manifest" else blob_of(saved, 3, part)
    replace_by(path, obstacle)
    reopened = RunDirectory.open(saved.root, "run")
    loaded = newest_of(reopened)
    assert loaded.snapshot.generation == 2
    if part != "manifest":
        assert {damage.path for damage in reopened.contents.verify()} == {path.relative_to(saved.path).as_posix()}
    with reopened.lock():
        reopened.save(sample(3))
        reopened.clean(keep_last=1, keep_every=0, champion_generation=1)
    loaded = newest_of(RunDirectory.open(saved.root, "run"))
    assert loaded.snapshot.generation == 3
    assert 3 in generations_of(saved)


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_the_configuration_is_taken_from_the_newest_generation(
    saved: RunDirectory, obstacle: str, caplog: pytest.LogCaptureFixture
) -> None:
    replace_by(saved.path / "config.json", obstacle)
    with caplog.at_level(logging.WARNING):
        reopened = RunDirectory.open(saved.root, "run")
    assert reopened.config == CONFIG
    assert "the configuration of generation 3 is used" in caplog.text
    assert [damage.path for damage in reopened.contents.verify()] == ["config.json"]
    assert reopened.load_newest() is not None


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_a_lock_that_is_no_file_is_refused_at_once(saved: RunDirectory, obstacle: str) -> None:
    (saved.path / "lock").unlink(missing_ok=True)
    OBSTACLES[obstacle](saved.path / "lock")
    if obstacle in ("link to nothing", "terabyte of zeros"):
        with saved.lock():
            assert saved.is_locked()
        return
    with pytest.raises(InputError, match="lock"), saved.lock():
        pass
    with pytest.raises(InputError, match="lock"):
        saved.is_locked()


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("name", [holdout_name(3), "plots/fitness.png"])
def test_an_attachment_that_is_no_file_is_named(saved: RunDirectory, obstacle: str, name: str) -> None:
    attach(saved)
    assert saved.contents.verify() == []
    replace_by(saved.path / name, obstacle)
    assert [damage.path for damage in saved.contents.verify()] == [name]


OTHERS: Mapping[str, bytes] = {
    "plots/fitness.png": b"picture: another",
    holdout_name(3): checksummed({"generation": 3, "champion_rewards": [9.0]}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_whole_file_in_the_place_of_another_is_named(saved: RunDirectory, name: str) -> None:
    contents = attach(saved)
    (saved.path / name).write_bytes(OTHERS[name])
    (damage,) = saved.contents.verify()
    assert str(damage) == f"{name} is not the file that {ATTACHMENTS_NAME} lists"
    with pytest.raises(DamagedFileError, match=f"is not the file that {ATTACHMENTS_NAME} lists"):
        contents.read_attachment(name)
    (saved.path / name).unlink()
    (damage,) = saved.contents.verify()
    assert str(damage) == f"{name} is missing"
    contents.put_attachment(name, OTHERS[name])
    assert saved.contents.verify() == []


def test_a_process_that_is_killed_between_the_files_and_their_list_leaves_no_damage(saved: RunDirectory) -> None:
    contents = attach(saved)
    contents.unlist_attachments("plots/")
    (saved.path / "plots" / "fitness.png").write_bytes(b"picture: newer")
    assert saved.contents.verify() == []
    contents.list_attachments(["plots/fitness.png"])
    (saved.path / "plots" / "fitness.png").write_bytes(b"picture: another")
    assert len(saved.contents.verify()) == 1


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is not JSON"),
        (b"{}", "has no checksum"),
        (checksummed({"format_version": 1, "files": [{"name": 1}]}), "has an unexpected form"),
        (checksummed({"format_version": 2, "files": []}), "has an unexpected form"),
    ],
)
def test_a_damaged_list_is_named_and_made_anew(saved: RunDirectory, content: bytes, what: str) -> None:
    contents = attach(saved)
    (saved.path / ATTACHMENTS_NAME).write_bytes(content)
    (damage,) = saved.contents.verify()
    assert str(damage).startswith(f"{ATTACHMENTS_NAME} {what}")
    contents.put_attachment("plots/fitness.png", b"picture: fitness")
    assert saved.contents.verify() == []


def test_a_run_of_which_nothing_is_whole_says_so(saved: RunDirectory) -> None:
    for generation in (1, 2, 3):
        replace_by(blob_of(saved, generation, "state.json"), "circle of links")
    with pytest.raises(DamagedGenerationError, match="All saved generations of run"):
        saved.load_newest()


def test_a_store_has_no_object_where_there_is_no_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for number, obstacle in enumerate(OBSTACLES):
        OBSTACLES[obstacle](tmp_path / f"{number}")
        is_file = obstacle == "terabyte of zeros"
        assert (store.stat(f"{number}") is not None) == is_file, obstacle
        assert (f"{number}" in [found.name for found in store.objects("")]) == is_file, obstacle
