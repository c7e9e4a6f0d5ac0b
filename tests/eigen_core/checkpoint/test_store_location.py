"""Names of runs and stores, and the place of a store: what can be used is used, all else gets a sentence."""

import os
from pathlib import Path

import pytest
from checkpoint_samples import CONFIG, new_run, sample, saved_run
from hypothesis import given, settings, strategies as st

from eigen_core.checkpoint.run_contents import list_runs
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.store import LocalStore
from eigen_core.checkpoint.store_location import is_remote, open_store, run_root, store_folder, store_from_environment
from eigen_core.common.errors import InputError


@pytest.mark.parametrize(
    ("store", "folder"),
    [
        ("/data/runs", "/data/runs"),
        ("runs", None),
        ("./gs:b", None),
    ],
)
def test_folders(store: str, folder: str | None) -> None:
    expected = Path(folder) if folder else Path.cwd() / store
    assert store_folder(store) == expected
    assert not is_remote(store)
    assert run_root(store, "elsewhere") == expected
    opened = open_store(store)
    assert isinstance(opened, LocalStore)
    assert opened.url == str(expected)


@pytest.mark.parametrize(
    ("store", "url", "folder"),
    [
        ("gs://bucket", "gs://bucket", "gs/bucket"),
        ("gs://bucket/", "gs://bucket", "gs/bucket"),
        ("gs://bucket/a/b//", "gs://bucket/a/b", "gs/bucket/a/b"),
        ("GCS://bucket/A", "gs://bucket/A", "gs/bucket/A"),
    ],
)
def test_remote_locations(store: str, url: str, folder: str, tmp_path: Path) -> None:
    assert is_remote(store)
    assert open_store(store).url == url
    assert run_root(store, str(tmp_path)) == tmp_path / ".remote" / folder


@pytest.mark.parametrize(
    "store",
    [
        *("", "a\0b", "file:runs", "file:///data", "FILE:///data"),
        *("gs://", "gs:///prefix", "gs://b", "gs://Bucket", "gs://user@bucket", "gs:bucket", "gs:/bucket"),
        *(f"gs://bucket/{prefix}" for prefix in ("/a", "../a", ".a", "a b", "a?b", "a#b")),
        *("s3://bucket/a", "s3:bucket", "https://storage.googleapis.com/bucket", "memory:x", "memory://tests/x"),
    ],
)
def test_stores_that_are_none(store: str) -> None:
    with pytest.raises(InputError):
        open_store(store)
    with pytest.raises(InputError):
        run_root(store, "runs")


def test_the_folder_on_this_machine_is_a_folder() -> None:
    with pytest.raises(InputError, match="no folder on this machine"):
        run_root("gs://bucket", "gs://other")


@settings(max_examples=20)
@given(st.text(max_size=30))
def test_whatever_is_given_is_a_store_or_a_sentence(store: str) -> None:
    for text in (store, f"gs://{store}", f"gs://bucket/{store}", f"file://{store}"):
        try:
            root = run_root(text, "/local")
            assert is_remote(text) == root.is_relative_to("/local/.remote")
            assert ".." not in root.parts or not is_remote(text)
        except InputError as error:
            sentence = str(error).replace(text, "")
            if "\n" in sentence:
                raise


def test_the_store_of_the_environment() -> None:
    assert store_from_environment({}) is None
    assert store_from_environment({"EIGEN_STORE": " ", "CLOUD_BUCKET": ""}) is None
    assert store_from_environment({"EIGEN_STORE": " /data "}) == "/data"
    assert store_from_environment({"EIGEN_STORE": "/data", "CLOUD_BUCKET": "bucket"}) == "/data"
    for bucket in ("bucket/a", "gs://bucket/a"):  # in which the replaced system kept runs
        with pytest.raises(InputError, match="EIGEN_STORE=gs://bucket/a to"):
            store_from_environment({"CLOUD_PROVIDER": "gcs", "CLOUD_BUCKET": bucket})


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "2026-01-31", "x" * 100, "a-", "a..b"])
def test_good_names(tmp_path: Path, name: str) -> None:
    new_run(tmp_path, name)
    assert list_runs(LocalStore(tmp_path)) == [name]
    assert RunDirectory.open(tmp_path, name).config == CONFIG


@pytest.mark.parametrize(
    "name", ["", "..", ".hidden", "-x", "--help", "a/b", "a b", "ü", "a\n", "a\0b", "x" * 101, "a\\b", "$HOME"]
)
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    store = tmp_path / "store"
    with pytest.raises(InputError, match="cannot be named"):
        new_run(store, name)
    with pytest.raises(InputError, match="cannot be named"):
        RunDirectory.open(store, name)
    assert not store.exists()


@pytest.mark.parametrize(
    ("store", "sentence"),
    [
        ("file", "a file is in the place of a folder"),
        ("file/deeper", "a file is in the place of a folder"),
        ("x" * 300, "too long"),
        ("/proc/eigen-runs", "Cannot .* in /proc/eigen-runs"),
    ],
)
def test_a_store_that_cannot_be_made_is_refused(tmp_path: Path, store: str, sentence: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=sentence):
        new_run(tmp_path / store)
    with pytest.raises(InputError):
        RunDirectory.open(tmp_path / store, "run")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_run_is_not_made_twice(tmp_path: Path) -> None:
    new_run(tmp_path).save(sample(1))
    with pytest.raises(InputError, match=r"choose another name, .*eigen resume run"):
        RunDirectory.create(tmp_path, "run", {"seed": 2})
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(InputError, match="choose another name"):
        new_run(tmp_path, "taken")
    assert RunDirectory.open(tmp_path, "run").config == CONFIG
    assert sorted(os.listdir(tmp_path)) == ["run", "taken"]


def test_a_run_that_is_not_there_is_said_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no run 'gone' in .*: it has no runs"):
        RunDirectory.open(tmp_path / "nowhere", "gone")
    new_run(tmp_path, "one")
    new_run(tmp_path, "two")
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / ".hidden").mkdir()
    assert list_runs(LocalStore(tmp_path)) == ["one", "two"]
    with pytest.raises(InputError, match=r"no run 'gone' in .*: its runs are one, two\."):
        RunDirectory.open(tmp_path, "gone")
    assert list_runs(LocalStore(tmp_path / "nowhere")) == []
    with pytest.raises(InputError, match="a file is in the place"):
        list_runs(LocalStore(tmp_path / "one" / "config.json"))


def test_files_can_be_read_by_those_whom_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        run = saved_run(tmp_path, 1)
    finally:
        os.umask(before)
    everything = list(run.path.rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in everything if path.is_dir()} == {0o755}
    assert {path.stat().st_mode & 0o777 for path in everything if path.is_file()} == {0o644}
