"""Whatever is in the place of a file of a run is no file of it: nothing waits for it, and the rest goes on."""

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from checkpoint_samples import CONFIG, blob_of, generations_of, manifest_of, new_run, sample
from obstacles import OBSTACLES, replace_by

from eigen_core.checkpoint.contents import RunContents
from eigen_core.checkpoint.integrity import (
    ATTACHMENTS_NAME,
    DamagedFileError,
    DamagedGenerationError,
    checksummed,
    holdout_name,
)
from eigen_core.checkpoint.local import LocalStore
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.common.errors import InputError


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = new_run(tmp_path)
    for generation in (1, 2, 3):
        run.save(sample(generation))
    return run


def attach(run: RunDirectory) -> RunContents:
    """Put beside a run's generations what its training does."""
    contents = run.contents
    contents.put_attachment(holdout_name(3), checksummed({"generation": 3, "champion_rewards": [1.0, 2.5]}))
    contents.put_attachment("plots/fitness.png", b"picture: fitness")
    return contents


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("part", ["population.safetensors", "state.json", "2", "manifest"])
def test_an_older_generation_is_used_and_the_newest_made_again(run: RunDirectory, obstacle: str, part: str) -> None:
    path = run.path / manifest_of(run, 3).name if part == "manifest" else blob_of(run, 3, part)
    replace_by(path, obstacle)
    reopened = RunDirectory.open(run.root, "run")
    loaded = reopened.load_newest()
    assert loaded is not None
    assert loaded.snapshot.generation == 2
    if part != "manifest":
        assert {damage.path for damage in reopened.contents.verify()} == {path.relative_to(run.path).as_posix()}
    with reopened.lock():
        reopened.save(sample(3))
        reopened.clean(keep_last=1, keep_every=0, champion_generation=1)
    loaded = RunDirectory.open(run.root, "run").load_newest()
    assert loaded is not None
    assert loaded.snapshot.generation == 3
    assert 3 in generations_of(run)


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_the_configuration_is_taken_from_the_newest_generation(
    run: RunDirectory, obstacle: str, caplog: pytest.LogCaptureFixture
) -> None:
    replace_by(run.path / "config.json", obstacle)
    with caplog.at_level(logging.WARNING):
        reopened = RunDirectory.open(run.root, "run")
    assert reopened.config == CONFIG
    assert "the configuration of generation 3 is used" in caplog.text
    assert [damage.path for damage in reopened.contents.verify()] == ["config.json"]
    assert reopened.load_newest() is not None


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_a_lock_that_is_no_file_is_refused_at_once(run: RunDirectory, obstacle: str) -> None:
    (run.path / "lock").unlink(missing_ok=True)
    OBSTACLES[obstacle](run.path / "lock")
    if obstacle in ("link to nothing", "terabyte of zeros"):
        with run.lock():
            assert run.is_locked()
        return
    with pytest.raises(InputError, match="lock"), run.lock():
        pass
    with pytest.raises(InputError, match="lock"):
        run.is_locked()


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("name", [holdout_name(3), "plots/fitness.png"])
def test_an_attachment_that_is_no_file_is_named(run: RunDirectory, obstacle: str, name: str) -> None:
    attach(run)
    assert run.contents.verify() == []
    replace_by(run.path / name, obstacle)
    assert [damage.path for damage in run.contents.verify()] == [name]


OTHERS: Mapping[str, bytes] = {
    "plots/fitness.png": b"picture: another",
    holdout_name(3): checksummed({"generation": 3, "champion_rewards": [9.0]}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_whole_file_in_the_place_of_another_is_named(run: RunDirectory, name: str) -> None:
    contents = attach(run)
    (run.path / name).write_bytes(OTHERS[name])
    (damage,) = run.contents.verify()
    assert str(damage) == f"{name} is not the file that {ATTACHMENTS_NAME} lists"
    with pytest.raises(DamagedFileError, match=f"is not the file that {ATTACHMENTS_NAME} lists"):
        contents.read_attachment(name)
    (run.path / name).unlink()
    (damage,) = run.contents.verify()
    assert str(damage) == f"{name} is missing"
    contents.put_attachment(name, OTHERS[name])
    assert run.contents.verify() == []


def test_a_process_that_is_killed_between_the_files_and_their_list_leaves_no_damage(run: RunDirectory) -> None:
    contents = attach(run)
    contents.unlist_attachments("plots/")
    (run.path / "plots" / "fitness.png").write_bytes(b"picture: newer")
    assert run.contents.verify() == []
    contents.list_attachments(["plots/fitness.png"])
    (run.path / "plots" / "fitness.png").write_bytes(b"picture: another")
    assert len(run.contents.verify()) == 1


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is not JSON"),
        (b"{}", "has no checksum"),
        (checksummed({"format_version": 1, "files": [{"name": 1}]}), "has an unexpected form"),
        (checksummed({"format_version": 2, "files": []}), "has an unexpected form"),
    ],
)
def test_a_damaged_list_is_named_and_made_anew(run: RunDirectory, content: bytes, what: str) -> None:
    contents = attach(run)
    (run.path / ATTACHMENTS_NAME).write_bytes(content)
    (damage,) = run.contents.verify()
    assert str(damage).startswith(f"{ATTACHMENTS_NAME} {what}")
    contents.put_attachment("plots/fitness.png", b"picture: fitness")
    assert run.contents.verify() == []


def test_a_run_of_which_nothing_is_whole_says_so(run: RunDirectory) -> None:
    for generation in (1, 2, 3):
        replace_by(blob_of(run, generation, "state.json"), "circle of links")
    with pytest.raises(DamagedGenerationError, match="All saved generations of run"):
        run.load_newest()


def test_a_store_has_no_object_where_there_is_no_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for number, obstacle in enumerate(OBSTACLES):
        OBSTACLES[obstacle](tmp_path / f"{number}")
        is_file = obstacle == "terabyte of zeros"
        assert (store.stat(f"{number}") is not None) == is_file, obstacle
        assert (f"{number}" in [found.name for found in store.objects("")]) == is_file, obstacle
