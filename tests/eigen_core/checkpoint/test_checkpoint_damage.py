"""Whatever happens to a file of a generation is found, said, and gone around."""

import json
import logging
import os
import pickle
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from checkpoint_samples import assert_same, new_run, sample

from eigen_core.checkpoint import RunDirectory
from eigen_core.errors import InputError
from eigen_core.randomness import keyed_generator

FILES = [
    "history.json",
    "manifest.json",
    "population.safetensors",
    "replay.safetensors",
    "state.json",
    "telemetry.json",
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


def _turn_into_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _turn_into_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _take_the_older_one(path: Path) -> None:
    shutil.copy(path.parent.parent / "generation-0001" / path.name, path)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = new_run(tmp_path)
    for generation in (1, 2):
        run.save(sample(generation, seconds=generation))
    return run


def test_the_samples_have_these_files(run: RunDirectory) -> None:
    assert sorted(os.listdir(run.path / "generation-0002")) == FILES


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "damage",
    [Path.unlink, _empty, _cut_a_byte, _append, _turn_into_a_folder, _turn_into_a_pipe, _take_the_older_one],
)
def test_a_damaged_generation_is_skipped_and_can_be_saved_again(
    run: RunDirectory, name: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(run.path / "generation-0002" / name)

    assert [found.file for found in run.verify(2)] == [name]
    with caplog.at_level(logging.WARNING):
        newest = run.load_newest()
    assert newest is not None
    assert_same(newest.snapshot, sample(1, seconds=1))
    assert [(found.generation, found.file) for found in newest.damages] == [(2, name)]
    assert f"generation 2: {name}" in caplog.text
    with pytest.raises(InputError, match=f"damaged generation 2.*{name}"):
        run.load(2)

    run.save(sample(2, seconds=2))
    assert run.verify(2) == []
    assert_same(run.load(2).snapshot, sample(2, seconds=2))


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_byte_is_found(run: RunDirectory, name: str) -> None:
    path = run.path / "generation-0002" / name
    size = path.stat().st_size
    masks = keyed_generator(3, name).integers(1, 256, size)
    for position in range(0, size, 1 if name == "manifest.json" else 3):
        mask = int(masks[position])
        _flip(path, position, mask)
        assert [found.file for found in run.verify(2)] == [name], f"byte {position} ^ {mask}"
        _flip(path, position, mask)
    assert run.verify(2) == []


def test_a_missing_folder_or_a_folder_in_another_ones_place_is_noticed(run: RunDirectory) -> None:
    shutil.copytree(run.path / "generation-0001", run.path / "generation-0003")
    newest = run.load_newest()
    assert newest is not None
    assert newest.snapshot.generation == 2
    assert str(newest.damages[0]) == "generation 3: manifest.json belongs to generation 1"
    shutil.rmtree(run.path / "generation-0002")
    assert run.generations() == [1, 3]


def test_several_damaged_generations_are_all_reported(run: RunDirectory) -> None:
    run.save(sample(3))
    for generation, name in ((2, "state.json"), (3, "replay.safetensors")):
        _cut_a_byte(run.path / f"generation-000{generation}" / name)
    newest = run.load_newest()
    assert newest is not None
    assert newest.snapshot.generation == 1
    assert [found.generation for found in newest.damages] == [3, 2]


def test_a_run_without_any_good_generation_says_so(run: RunDirectory) -> None:
    for generation in (1, 2):
        _empty(run.path / f"generation-000{generation}" / "population.safetensors")
    with pytest.raises(InputError, match="no generation that is whole"):
        run.load_newest()


def test_a_changed_configuration_is_refused(run: RunDirectory) -> None:
    (run.path / "config.json").write_text('{"seed": 8}')
    with pytest.raises(InputError, match="was changed after generation 2"):
        RunDirectory.open(str(run.store), "run").load_newest()


@pytest.mark.parametrize("content", ["", "{", "[1]", "\0\0"])
def test_an_unreadable_configuration_is_refused(run: RunDirectory, content: str) -> None:
    (run.path / "config.json").write_text(content)
    with pytest.raises(InputError, match=r"config\.json"):
        RunDirectory.open(str(run.store), "run")


def test_a_newer_format_is_not_taken_for_damage(run: RunDirectory) -> None:
    _rewrite_manifest(run, 2, {"format_version": 2, "something": "new"})
    with pytest.raises(InputError, match="newer version of Eigen"):
        run.load_newest()


@pytest.mark.parametrize(
    "change",
    [{"files": [{"name": "../../outside.json", "bytes": 1, "sha256": "0" * 64, "content_sha256": "0" * 64}]}, {"x": 1}],
)
def test_a_manifest_of_another_form_is_damage_even_with_a_right_checksum(
    run: RunDirectory, change: dict[str, object]
) -> None:
    _rewrite_manifest(run, 2, change)
    assert "unexpected form" in str(run.verify(2)[0])


class _Planted:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("name", ["population.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("listed", [False, True], ids=["unlisted", "listed in the manifest"])
def test_a_planted_pickle_is_refused_and_never_run(run: RunDirectory, tmp_path: Path, name: str, listed: bool) -> None:
    trace = tmp_path / "executed"
    content = pickle.dumps(_Planted(trace))
    (run.path / "generation-0002" / name).write_bytes(content)
    if listed and name != "manifest.json":
        entries = json.loads((run.path / "generation-0002" / "manifest.json").read_text())["files"]
        for entry in entries:
            if entry["name"] == name:
                entry.update(bytes=len(content), sha256=sha256(content).hexdigest())
        _rewrite_manifest(run, 2, {"files": entries})

    newest = run.load_newest()
    assert newest is not None
    assert newest.snapshot.generation == 1
    assert [found.file for found in newest.damages] == [name]
    assert not trace.exists()
    pickle.loads(content)  # the trap works: only pickle springs it
    assert trace.exists()


def _rewrite_manifest(run: RunDirectory, generation: int, change: dict[str, object]) -> None:
    """Change fields of a manifest and give it the checksum that then is right."""
    path = run.path / f"generation-{generation:04d}" / "manifest.json"
    fields = {**json.loads(path.read_text()), **change}
    del fields["checksum"]
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    fields["checksum"] = sha256(canonical).hexdigest()
    path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
