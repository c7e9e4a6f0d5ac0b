"""From what a user says to a store and its folder on this machine."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigen_core.checkpoint.local import LocalStore
from eigen_core.checkpoint.location import open_store
from eigen_core.checkpoint.store import is_remote, run_root, store_folder, store_from_environment
from eigen_core.common.errors import InputError


@pytest.mark.parametrize(
    ("store", "folder"),
    [
        ("/data/runs", "/data/runs"),
        ("file:///data/my%20runs", "/data/my runs"),
        ("file://localhost/data", "/data"),
        ("FILE:///data", "/data"),
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
        "",
        "a\0b",
        "gs://",
        "gs:///prefix",
        "gs://b",
        "gs://Bucket",
        "gs://bucket//a",
        "gs://bucket/../a",
        "gs://bucket/.a",
        "gs://bucket/a b",
        "gs://bucket/a?b",
        "gs://bucket/a#b",
        "gs://user@bucket",
        "gs:bucket",
        "gs:/bucket",
        "s3://bucket/a",
        "s3:bucket",
        "https://storage.googleapis.com/bucket",
        "file:runs",
        "file://host/data",
        "file://relative",
        "memory:x",
        "memory://tests/x",
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


@pytest.mark.parametrize("bucket", ["bucket/a", "gs://bucket/a"])
def test_runs_are_not_kept_here_if_the_replaced_system_kept_them_in_a_bucket(bucket: str) -> None:
    with pytest.raises(InputError, match="EIGEN_STORE=gs://bucket/a to"):
        store_from_environment({"CLOUD_PROVIDER": "gcs", "CLOUD_BUCKET": bucket})
