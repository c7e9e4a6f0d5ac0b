"""A store in a folder: what it does when processes are killed, disks are full and files are in the way."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_samples import record_syncs

from eigen_core.checkpoint import store as store_module
from eigen_core.checkpoint.store import LocalStore, MissingObjectError, StoreUnavailableError
from eigen_core.common.errors import InputError
from eigen_core.common.files import leftovers


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "runs")


def test_a_name_is_given_after_the_content_lasts_and_lasts_itself(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"1")
    steps, runs = record_syncs(monkeypatch), str(store.folder)
    writes: dict[str, Callable[[], object]] = {
        "replace": lambda: store.put("a", b"2"),
        "link": lambda: store.create("c", b"1"),
    }
    for naming, write in writes.items():
        steps.clear()
        write()
        (named,) = [number for number, (call, _) in enumerate(steps) if call == naming]
        assert "fsync" in [call for call, _ in steps[:named]]
        assert ("fsync", runs) in steps[named:]
    store.put("new/folder/d", b"1")
    assert {("fsync", f"{runs}{folder}") for folder in ("", "/new", "/new/folder")} <= set(steps)
    steps.clear()
    store.delete(["a"])
    assert steps == [("fsync", runs)]


def test_what_begins_with_a_dot_is_not_seen(store: LocalStore) -> None:
    store.put("a/b", b"1")
    for hidden in (".remote/gs/bucket/x", "a/.hidden/x", "a/.x", ".x"):
        path = store.folder / hidden
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    assert [found.name for found in store.objects("")] == ["a/b"]
    assert store.folders("") == ["a"]
    assert store.folders("a/") == []


def test_links_are_followed_to_files_and_to_other_disks(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    store.put("a/file", b"1")
    (store.folder / "a" / "link").symlink_to(store.folder / "a" / "file")
    (store.folder / "big").symlink_to(tmp_path / "disk")
    store.put("big/a", b"1")
    assert [found.name for found in store.objects("a/")] == ["a/file", "a/link"]
    assert store.read("a/link", 1) == b"1"
    assert store.folders("") == ["a", "big"]
    assert [found.name for found in store.objects("big/")] == ["big/a"]
    for name in ("a", "big"):
        with pytest.raises(MissingObjectError):
            store.read(name, 10)


@pytest.mark.parametrize("in_the_way", ["file", "folder"])
def test_something_in_the_way(store: LocalStore, in_the_way: str) -> None:
    if in_the_way == "file":
        store.put("a", b"1")
        with pytest.raises(InputError, match="a file is in the place of a folder"):
            store.put("a/b", b"1")
        with pytest.raises(InputError, match="a file is in the place of a folder"):
            store.create("a/b", b"1")
    else:
        store.put("a/b", b"1")
        with pytest.raises(InputError, match="a folder is in the place of a file"):
            store.put("a", b"1")
        assert not store.create("a", b"1")
        with pytest.raises(InputError, match="a folder is in the place of a file"):
            store.delete(["a"])
    assert leftovers(store.folder) == []


@pytest.mark.parametrize(
    ("code", "error", "sentence"),
    [
        (errno.ENOSPC, InputError, "no space left"),
        (errno.EDQUOT, InputError, "no space left"),
        (errno.EROFS, InputError, "read-only"),
        (errno.EACCES, InputError, "not allowed"),
        (errno.EIO, StoreUnavailableError, "Input/output error"),
        (errno.ESTALE, StoreUnavailableError, "Stale file handle"),
    ],
)
def test_errors_of_the_file_system(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception], sentence: str
) -> None:
    store.put("a", b"before")

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    def write_after_a_removal() -> None:
        store.delete(["missing"])
        store.put("c/d/e", b"")

    writes: list[Callable[[], object]] = [
        lambda: store.put("a", b"1"),
        lambda: store.create("b", b"1"),
        write_after_a_removal,
        store.check,
    ]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        for write in writes:
            with pytest.raises(error, match=sentence):
                write()
    assert [found.name for found in store.objects("")] == ["a"]
    assert store.read("a", 10) == b"before"
    assert leftovers(store.folder) == []


def test_a_file_system_without_hard_links(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(InputError, match="no hard links"):
        store.check()
    with pytest.raises(InputError, match="no hard links"):
        store.create("a", b"1")
    assert leftovers(store.folder) == []


def test_a_link_whose_reply_was_lost_is_ours(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def lose_the_reply(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", lose_the_reply)
    assert store.create("a", b"1")
    assert store.read("a", 1) == b"1"


def test_a_disk_that_does_not_answer(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(store_module, "make_folder", lambda _: time.sleep(3))
    with pytest.raises(StoreUnavailableError, match="did not answer within"):
        store.check()


def test_folders_may_be_cleared_away_while_others_write(store: LocalStore) -> None:
    writer = """
import sys
from pathlib import Path
from eigen_core.checkpoint.store import LocalStore
store = LocalStore(Path(sys.argv[1]))
for turn in range(150):
    store.put(f"first/blobs/{sys.argv[2]}/{turn % 3}", b"x")
    store.delete([f"first/blobs/{sys.argv[2]}/{turn % 3}"])
"""
    writers = [
        subprocess.Popen([sys.executable, "-c", writer, str(store.folder), str(number % 2)]) for number in range(4)
    ]
    assert [process.wait() for process in writers] == [0, 0, 0, 0]
    assert store.objects("") == []
    assert store.folders("") == []
