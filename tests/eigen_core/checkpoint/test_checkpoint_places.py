"""Names and stores: what can be used is used, everything else gets a sentence and leaves nothing behind."""

import os
import resource
from pathlib import Path

import pytest
from checkpoint_samples import CONFIG, new_run, sample

from eigen_core.checkpoint import RunDirectory, list_runs, store_folder
from eigen_core.errors import InputError


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "2026-01-31", "x" * 100, "-dash", "a..b"])
def test_good_names(tmp_path: Path, name: str) -> None:
    new_run(tmp_path, name)
    assert list_runs(str(tmp_path)) == [name]
    assert RunDirectory.open(str(tmp_path), name).config == CONFIG


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "a b", "ü", "a\n", "a\0b", "x" * 101, "a\\b", "$HOME"]
)
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    store = tmp_path / "store"
    with pytest.raises(InputError, match="cannot be named"):
        new_run(store, name)
    with pytest.raises(InputError, match="cannot be named"):
        RunDirectory.open(str(store), name)
    assert not store.exists()


def test_a_store_is_a_path_or_a_file_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store_folder("runs") == tmp_path / "runs"
    assert store_folder("~/runs") == tmp_path / "runs"
    assert store_folder("file:///data/my%20runs") == Path("/data/my runs")
    assert store_folder("file://localhost/data") == Path("/data")
    RunDirectory.create("deep/er/runs", "one", CONFIG)
    monkeypatch.chdir("/")
    assert list_runs(f"file://{tmp_path}/deep/er/runs") == ["one"]


@pytest.mark.parametrize(
    "store",
    ["gs://bucket/runs", "s3://bucket", "http://host/x", "memory://x", "file://host/runs", "file://", "FTP://x"],
)
def test_other_stores_are_refused(store: str) -> None:
    for attempt in (lambda: RunDirectory.create(store, "run", CONFIG), lambda: list_runs(store)):
        with pytest.raises(InputError, match="keeps runs in a folder only"):
            attempt()


@pytest.mark.parametrize("store", ["", "a\0b", "~nobody-of-this-name/runs"])
def test_paths_that_are_none_are_refused(store: str) -> None:
    with pytest.raises(InputError, match="store"):
        store_folder(store)


def test_a_file_in_the_place_of_the_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for store in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(InputError, match=r"Cannot make a run in .* a file is in the place of a folder"):
            new_run(store)
    with pytest.raises(InputError, match="a file is in the place"):
        list_runs(str(tmp_path / "file"))
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that even root cannot write to")
def test_a_store_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(InputError, match="Cannot make a run in /proc/eigen-runs"):
        RunDirectory.create("/proc/eigen-runs", "run", CONFIG)


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    store = tmp_path / ("x" * 300)
    with pytest.raises(InputError, match="too long"):
        new_run(store)
    with pytest.raises(InputError, match="too long"):
        RunDirectory.open(str(store), "run")


def test_a_run_is_not_made_twice(tmp_path: Path) -> None:
    new_run(tmp_path).save(sample(1))
    with pytest.raises(InputError, match="choose another name, or resume"):
        RunDirectory.create(str(tmp_path), "run", {"seed": 2})
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(InputError, match="choose another name"):
        new_run(tmp_path, "taken")
    assert RunDirectory.open(str(tmp_path), "run").config == CONFIG
    assert sorted(os.listdir(tmp_path)) == ["run", "taken"]


def test_a_configuration_that_is_no_json_makes_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        RunDirectory.create(str(tmp_path / "store"), "run", {"limit": float("inf")})
    assert not (tmp_path / "store").exists()


def test_a_run_that_is_not_there_is_said_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no run 'gone' in .*: it holds none"):
        RunDirectory.open(str(tmp_path / "nowhere"), "gone")
    new_run(tmp_path, "one")
    new_run(tmp_path, "two")
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / ".hidden").mkdir()
    assert list_runs(str(tmp_path)) == ["one", "two"]
    with pytest.raises(InputError, match=r"no run 'gone' in .*: it holds one, two\."):
        RunDirectory.open(str(tmp_path), "gone")
    assert list_runs(str(tmp_path / "nowhere")) == []


def test_a_file_that_gets_too_large_is_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.save(sample(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(InputError, match=r"Cannot save generation 2 in .* larger than is allowed"):
            run.save(sample(2, size=5_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(os.listdir(run.path)) == ["config.json", "generation-0001", "lock"]


def test_files_can_be_read_by_those_whom_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        run = new_run(tmp_path)
        run.save(sample(1))
    finally:
        os.umask(before)
    folder = run.path / "generation-0001"
    assert folder.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}
