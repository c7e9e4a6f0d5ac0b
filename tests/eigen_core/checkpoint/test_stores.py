"""Every promise of the interface of stores, kept by each of them, and those of the store in a folder."""

import errno
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from checkpoint_samples import act_at_random, record_syncs
from known import known
from upload_cases import FORK

from eigen_core.checkpoint import store as store_module
from eigen_core.checkpoint.store import LocalStore, MissingObjectError, RemoteStore, Store, StoreUnavailableError
from eigen_core.checkpoint.store_location import open_store
from eigen_core.common.errors import InputError
from eigen_core.common.files import ForeignPlaceError, temporary_files_in

BLOCK = 8 << 20
BOUNDARY = b"\r\n--==0==\r\n\r\n--==0==--"


@pytest.fixture(params=["folder", "gs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return open_store(str(tmp_path / "runs"))
    return open_store(f"{request.getfixturevalue('gcs_bucket')}/some/prefix")


@pytest.fixture
def remote(gcs_bucket: str) -> RemoteStore:
    store = open_store(f"{gcs_bucket}/some/prefix")
    assert isinstance(store, RemoteStore)
    return store


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "runs")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


def names(store: Store, prefix: str = "") -> list[str]:
    return [found.name for found in store.objects(prefix)]


def test_a_new_store_is_empty_and_passes_its_check(store: Store) -> None:
    assert store.objects("") == []
    assert store.folders("") == []
    store.check()
    assert store.objects("") == []
    assert store.folders("") == []
    assert store.stat("first/config.json") is None


CONTENTS = {"empty": b"", "x": b"x", "lines": b"\0\r\n\r\n", "mime": BOUNDARY, "all": bytes(range(256)) * 40}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_small_contents_come_back(store: Store, content: bytes) -> None:
    store.put("a/put", content)
    assert store.create("a/create", content)
    for name in ("a/put", "a/create"):
        assert store.read(name, len(content)) == content
        stat = known(store.stat(name))
        assert (stat.name, stat.bytes) == (name, len(content))


@pytest.mark.parametrize(
    "content",
    [*CONTENTS.values(), *(random.Random(size).randbytes(size) for size in (BLOCK, BLOCK + 1, 2 * BLOCK + 300_001))],
    ids=[*CONTENTS, "block", "longer", "two blocks"],
)
def test_files_of_any_size_come_back_and_progress_is_reported_in_the_calling_thread(
    remote: RemoteStore, file: Path, content: bytes
) -> None:
    file.write_bytes(content)
    up, down, threads = [0], [0], set()

    def listen(counts: list[int], count: int) -> None:
        counts.append(count)
        threads.add(threading.get_ident())

    copy = file.with_name("folder") / "copy"
    remote.put_file("a/blob", file, partial(listen, up))
    remote.fetch("a/blob", copy, partial(listen, down))
    assert copy.read_bytes() == content
    assert remote.holds("a/blob", file)
    assert sum(up) == sum(down) == len(content)
    assert max(*up, *down) <= BLOCK
    assert threads <= {threading.get_ident()}
    assert [found.name for found in file.parent.rglob(".*")] == []


def test_one_of_many_creates(store: Store) -> None:
    for turn in range(5):
        start = threading.Barrier(8)

        def attempt(owner: int, name: str = f"lease/{turn:06d}", start: threading.Barrier = start) -> bool:
            start.wait()
            return store.create(name, b"owner %d" % owner)

        with ThreadPoolExecutor(8) as threads:
            won = list(threads.map(attempt, range(8)))
        assert sum(won) == 1
        assert store.read(f"lease/{turn:06d}", 100) == b"owner %d" % won.index(True)


def test_what_is_missing(store: Store, file: Path) -> None:
    store.put("a/b", b"there")
    for name in ("c", "a", "a/c", "a/b/c"):
        with pytest.raises(MissingObjectError):
            store.read(name, 100)
        assert store.stat(name) is None
        if isinstance(store, RemoteStore):
            with pytest.raises(MissingObjectError):
                store.fetch(name, file)
            assert not file.exists()
    store.delete(["c", "a/c"])
    assert names(store) == ["a/b"]


def test_read_refuses_what_is_too_long(store: Store) -> None:
    store.put("a", b"12345")
    assert store.read("a", 5) == b"12345"
    assert store.read("a", 500) == b"12345"
    with pytest.raises(StoreUnavailableError, match="longer than 4 bytes"):
        store.read("a", 4)
    with pytest.raises(StoreUnavailableError):
        store.read("a", 0)


@pytest.mark.parametrize("other", [b"Content", b"content and more", b""])
def test_holds_compares_size_and_content(remote: RemoteStore, file: Path, other: bytes) -> None:
    remote.put("a", b"content")
    file.write_bytes(b"content")
    assert remote.holds("a", file)
    assert not remote.holds("b", file)
    file.write_bytes(other)
    assert not remote.holds("a", file)


def test_objects_and_folders(store: Store) -> None:
    for name in ("second/blobs/ab/x", "first/config.json", "first/blobs/ab/x", "first/blobs/cd/y", "top", "first2/z"):
        store.put(name, name.encode())
    everything = ["first/blobs/ab/x", "first/blobs/cd/y", "first/config.json", "first2/z", "second/blobs/ab/x", "top"]
    assert names(store) == everything
    assert names(store, "first/") == everything[:3]
    assert names(store, "first/blobs/") == everything[:2]
    assert names(store, "third/") == []
    assert names(store, "top/") == []
    assert store.folders("") == ["first", "first2", "second"]
    assert store.folders("first/") == ["blobs"]
    assert store.folders("first/blobs/") == ["ab", "cd"]
    assert store.folders("first/blobs/ab/") == []
    assert store.folders("third/") == []
    assert [found.bytes for found in store.objects("first/blobs/")] == [16, 16]


def test_objects_are_dated_by_the_stores_clock_which_writes_nothing(store: Store) -> None:
    store.put("a", b"1")
    first = known(store.stat("a"))
    assert first.modified - timedelta(seconds=1) <= store.time() <= datetime.now(UTC)
    assert store.objects("") == [first]
    store.put("a", b"1")
    second = known(store.stat("a"))
    assert second.modified > first.modified


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "../a", "a/../b", "./a", ".a", "a/.b", "a\\b", "a\nb", "a\0"])
def test_names_that_no_object_has(store: Store, file: Path, name: str) -> None:
    actions: list[Callable[[], object]] = [
        lambda: store.put(name, b""),
        lambda: store.create(name, b""),
        lambda: store.read(name, 1),
        lambda: store.stat(name),
        lambda: store.delete([name]),
    ]
    if isinstance(store, RemoteStore):
        actions += [partial(store.put_file, name, file), partial(store.fetch, name, file)]
        actions.append(partial(store.holds, name, file))
    for action in actions:
        with pytest.raises(ValueError, match="cannot name an object"):
            action()
    for prefix in (name,) if name else ("a", "a//", "../", ".hidden/"):
        if prefix != "a/":
            with pytest.raises(ValueError, match="is not the name of a folder"):
                store.objects(prefix)
            with pytest.raises(ValueError, match="is not the name of a folder"):
                store.folders(prefix)


def test_a_failing_listener_leaves_nothing_half(remote: RemoteStore, file: Path) -> None:
    def fail(_: int) -> None:
        raise KeyboardInterrupt

    file.write_bytes(bytes(2 * BLOCK))
    with pytest.raises(KeyboardInterrupt):
        remote.put_file("b", file, fail)
    assert names(remote) == []
    remote.put_file("c", file)
    with pytest.raises(KeyboardInterrupt):
        remote.fetch("c", file.with_name("copy"), fail)
    assert [found.name for found in file.parent.iterdir()] == ["file"]


def test_many_threads_at_once(store: Store, tmp_path: Path) -> None:
    def work(number: int) -> bytes:
        content, name = random.Random(number).randbytes(1000 * number), f"threads/{number:03d}"
        store.put("threads/shared", content)
        store.put(name, content)
        store.objects("threads/")
        if isinstance(store, RemoteStore):
            copy = tmp_path / f"copy-{number}"
            store.fetch(name, copy)
            store.put_file(name, copy)
        return store.read(name, len(content))

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(work, range(24)))
    assert found == [random.Random(number).randbytes(1000 * number) for number in range(24)]
    assert store.read("threads/shared", 24_000) in found


def test_a_forked_process_may_go_on(store: Store, tmp_path: Path) -> None:
    store.put("a", b"from the parent")

    def go_on() -> None:
        assert store.read("a", 100) == b"from the parent"
        store.put("b", b"from the child")
        (tmp_path / "done").write_bytes(store.read("b", 100))

    child = FORK.Process(target=go_on)
    child.start()
    child.join()
    assert child.exitcode == 0
    assert (tmp_path / "done").read_bytes() == b"from the child"
    assert store.read("b", 100) == b"from the child"


@pytest.mark.parametrize("seed", range(5))
def test_a_store_is_a_dictionary(store: Store, file: Path, seed: int) -> None:
    known = act_at_random(store, file, seed)
    assert {found.name: found.bytes for found in store.objects("")} == {name: len(known[name]) for name in known}
    assert names(store, "a/") == sorted(name for name in known if name.startswith("a/"))
    assert store.folders("") == sorted({name.split("/")[0] for name in known if "/" in name})


def test_a_name_is_given_after_the_content_lasts_and_lasts_itself(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.put("a", b"1")
    steps, runs = record_syncs(monkeypatch), str(local.folder)
    writes: dict[str, Callable[[], object]] = {
        "replace": lambda: local.put("a", b"2"),
        "link": lambda: local.create("c", b"1"),
    }
    for naming, write in writes.items():
        steps.clear()
        write()
        (named,) = [number for number, (call, _) in enumerate(steps) if call == naming]
        assert "fsync" in [call for call, _ in steps[:named]]
        assert ("fsync", runs) in steps[named:]
    local.put("new/folder/d", b"1")
    assert {("fsync", f"{runs}{folder}") for folder in ("", "/new", "/new/folder")} <= set(steps)
    steps.clear()
    local.delete(["a"])
    assert steps == [("fsync", runs)]


def test_what_begins_with_a_dot_is_not_seen(local: LocalStore) -> None:
    local.put("a/b", b"1")
    for hidden in (".remote/gs/bucket/x", "a/.hidden/x", "a/.x", ".x"):
        path = local.folder / hidden
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    assert [found.name for found in local.objects("")] == ["a/b"]
    assert local.folders("") == ["a"]
    assert local.folders("a/") == []


def test_a_store_may_be_a_link_and_nothing_in_it_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    local = LocalStore(tmp_path / "runs")
    local.put("a/file", b"1")
    (local.folder / "a" / "link").symlink_to(local.folder / "a" / "file")
    (local.folder / "big").symlink_to("a")
    assert [found.name for found in local.objects("")] == ["a/file"]
    assert local.stat("a/link") is None
    for name in ("a", "a/link"):
        with pytest.raises(MissingObjectError):
            local.read(name, 10)
    uses: list[Callable[[], object]] = [
        lambda: local.put("big/file", b"2"),
        lambda: local.create("big/new", b"2"),
        lambda: local.read("big/file", 1),
        lambda: local.stat("big/file"),
        lambda: local.objects("big/"),
        lambda: local.folders("big/"),
        lambda: local.delete(["big/file"]),
    ]
    for use in uses:
        with pytest.raises(ForeignPlaceError, match="big is a symbolic link"):
            use()
    local.put("a/link", b"2")
    local.delete(["a/link", "big"])
    assert [path.name for path in sorted((tmp_path / "disk").rglob("*"))] == ["a", "file"]
    assert local.read("a/file", 1) == b"1"


@pytest.mark.parametrize("in_the_way", ["file", "folder"])
def test_something_in_the_way(local: LocalStore, in_the_way: str) -> None:
    if in_the_way == "file":
        local.put("a", b"1")
        with pytest.raises(InputError, match="a file is in the place of a folder"):
            local.put("a/b", b"1")
        with pytest.raises(InputError, match="a file is in the place of a folder"):
            local.create("a/b", b"1")
    else:
        local.put("a/b", b"1")
        with pytest.raises(InputError, match="a folder is in the place of a file"):
            local.put("a", b"1")
        assert not local.create("a", b"1")
        with pytest.raises(InputError, match="a folder is in the place of a file"):
            local.delete(["a"])
    assert temporary_files_in(local.folder) == []


@pytest.mark.parametrize(
    ("code", "error", "sentence"),
    [
        (errno.ENOSPC, InputError, "no space left"),
        (errno.EDQUOT, InputError, "no space left"),
        (errno.EROFS, InputError, "read-only"),
        (errno.EACCES, InputError, "permission is denied"),
        (errno.EIO, StoreUnavailableError, "Input/output error"),
        (errno.ESTALE, StoreUnavailableError, "Stale file handle"),
    ],
)
def test_errors_of_the_file_system(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception], sentence: str
) -> None:
    local.put("a", b"before")

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    def write_after_a_removal() -> None:
        local.delete(["missing"])
        local.put("c/d/e", b"")

    writes: list[Callable[[], object]] = [
        lambda: local.put("a", b"1"),
        lambda: local.create("b", b"1"),
        write_after_a_removal,
        local.check,
    ]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        for write in writes:
            with pytest.raises(error, match=sentence):
                write()
    assert [found.name for found in local.objects("")] == ["a"]
    assert local.read("a", 10) == b"before"
    assert temporary_files_in(local.folder) == []


def test_a_file_system_without_hard_links(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(InputError, match="no hard links"):
        local.check()
    with pytest.raises(InputError, match="no hard links"):
        local.create("a", b"1")
    assert temporary_files_in(local.folder) == []


def test_a_link_whose_reply_was_lost_is_ours(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def lose_the_reply(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", lose_the_reply)
    assert local.create("a", b"1")
    assert local.read("a", 1) == b"1"


def test_a_disk_that_does_not_answer(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(store_module, "make_folder", lambda _: time.sleep(3))
    with pytest.raises(StoreUnavailableError, match="did not answer within"):
        local.check()


def test_folders_may_be_cleared_away_while_others_write(local: LocalStore) -> None:
    writer = """
import sys
from pathlib import Path
from eigen_core.checkpoint.store import LocalStore
store = LocalStore(Path(sys.argv[1]))
for turn in range(40):
    store.put(f"first/blobs/{sys.argv[2]}/{turn % 3}", b"x")
    store.delete([f"first/blobs/{sys.argv[2]}/{turn % 3}"])
"""
    writers = [
        subprocess.Popen([sys.executable, "-c", writer, str(local.folder), str(number % 2)]) for number in range(4)
    ]
    assert [process.wait() for process in writers] == [0, 0, 0, 0]
    assert local.objects("") == []
    assert local.folders("") == []
