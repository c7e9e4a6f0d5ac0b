"""Every promise of the interface of stores, kept by each of them."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eigen_core.checkpoint.location import open_store
from eigen_core.checkpoint.store import MissingObjectError, Store, StoreUnavailableError

BLOCK = 8 << 20
BOUNDARY = b"\r\n--==0==\r\n\r\n--==0==--"


@pytest.fixture(params=["folder", "gs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return open_store(str(tmp_path / "runs"))
    return open_store(f"{request.getfixturevalue('gcs_bucket')}/some/prefix")


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


def test_the_time_is_that_by_which_objects_are_dated_and_asking_writes_nothing(store: Store) -> None:
    store.put("a", b"")
    dated = store.objects("")
    shown = store.time()
    assert dated[0].modified - timedelta(seconds=1) <= shown <= datetime.now(UTC)
    assert store.objects("") == dated


@pytest.mark.parametrize(
    "content", [b"", b"x", b"\0\r\n\r\n", BOUNDARY, bytes(range(256)) * 40], ids=["empty", "x", "lines", "mime", "all"]
)
def test_small_contents_come_back(store: Store, file: Path, content: bytes) -> None:
    store.put("a/put", content)
    assert store.create("a/create", content)
    file.write_bytes(content)
    store.put_file("a/file", file)
    for name in ("a/put", "a/create", "a/file"):
        assert store.read(name, len(content)) == content
        copy = file.with_name("copy")
        copy.unlink(missing_ok=True)
        store.fetch(name, copy)
        assert copy.read_bytes() == content
        assert store.holds(name, file)
        stat = store.stat(name)
        assert stat is not None
        assert (stat.name, stat.bytes) == (name, len(content))


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 300_001])
def test_files_of_any_size_come_back_and_progress_is_reported(store: Store, file: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    file.write_bytes(content)
    up: list[int] = []
    store.put_file("a/blob", file, up.append)
    down: list[int] = []
    copy = file.with_name("folder") / "copy"
    store.fetch("a/blob", copy, down.append)
    assert copy.read_bytes() == content
    assert sum(up) == sum(down) == size
    assert max(down) <= BLOCK
    assert max(up) <= BLOCK
    assert [found.name for found in file.parent.rglob("*") if found.is_file() and found.name.startswith(".")] == []


def test_progress_is_reported_in_the_calling_thread(store: Store, file: Path) -> None:
    file.write_bytes(bytes(BLOCK + 1))
    threads = set()
    store.put_file("a", file, lambda _: threads.add(threading.get_ident()))
    store.fetch("a", file.with_name("copy"), lambda _: threads.add(threading.get_ident()))
    assert threads == {threading.get_ident()}


def test_create_needs_a_free_name(store: Store) -> None:
    assert store.create("lease/000001", b"owner 1")
    assert not store.create("lease/000001", b"owner 2")
    store.put("lease/000002", b"put")
    assert not store.create("lease/000002", b"owner 2")
    assert store.read("lease/000001", 100) == b"owner 1"
    assert store.read("lease/000002", 100) == b"put"
    store.delete(["lease/000001"])
    assert store.create("lease/000001", b"owner 2")


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
        with pytest.raises(MissingObjectError):
            store.fetch(name, file)
        assert not file.exists()
        assert store.stat(name) is None
    file.write_bytes(b"there")
    assert store.holds("a/b", file)
    assert not store.holds("c", file)
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


def test_holds_compares_size_and_content(store: Store, file: Path) -> None:
    store.put("a", b"content")
    file.write_bytes(b"content")
    assert store.holds("a", file)
    file.write_bytes(b"Content")
    assert not store.holds("a", file)
    file.write_bytes(b"content and more")
    assert not store.holds("a", file)
    file.write_bytes(b"")
    assert not store.holds("a", file)


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


def test_modified_is_the_time_of_writing(store: Store) -> None:
    store.put("a", b"1")
    first = store.stat("a")
    assert first is not None
    assert first.modified.tzinfo is not None
    assert abs(datetime.now(UTC) - first.modified) < timedelta(minutes=1)
    store.put("a", b"1")
    second = store.stat("a")
    assert second is not None
    assert second.modified > first.modified
    assert store.objects("") == [second]


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "../a", "a/../b", "./a", ".a", "a/.b", "a\\b", "a\nb", "a\0"])
def test_names_that_no_object_has(store: Store, file: Path, name: str) -> None:
    file.write_bytes(b"x")
    for action in (
        lambda: store.put(name, b""),
        lambda: store.create(name, b""),
        lambda: store.put_file(name, file),
        lambda: store.read(name, 1),
        lambda: store.fetch(name, file.with_name("copy")),
        lambda: store.stat(name),
        lambda: store.holds(name, file),
        lambda: store.delete([name]),
    ):
        with pytest.raises(ValueError, match="no name of an object"):
            action()
    for prefix in (name,) if name else ("a", "a//", "../", ".hidden/"):
        if prefix != "a/":
            with pytest.raises(ValueError, match="not the name of a folder"):
                store.objects(prefix)
            with pytest.raises(ValueError, match="not the name of a folder"):
                store.folders(prefix)


def test_a_failing_listener_leaves_nothing_half(store: Store, file: Path) -> None:
    def fail(_: int) -> None:
        raise KeyboardInterrupt

    store.put("a", b"before")
    file.write_bytes(bytes(2 * BLOCK))
    with pytest.raises(KeyboardInterrupt):
        store.put_file("b", file, fail)
    assert store.read("a", 10) == b"before"
    store.put_file("c", file)
    copy = file.with_name("copy")
    with pytest.raises(KeyboardInterrupt):
        store.fetch("c", copy, fail)
    assert not copy.exists()
    assert sorted(found.name for found in file.parent.iterdir() if found.is_file()) == ["file"]


def test_a_file_that_is_not_there_is_the_callers_error(store: Store, file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.put_file("a", file)
    assert names(store) == []


def test_many_threads_at_once(store: Store, tmp_path: Path) -> None:
    def work(number: int) -> bytes:
        content = random.Random(number).randbytes(1000 * number)
        path = tmp_path / f"file-{number}"
        path.write_bytes(content)
        store.put_file(f"threads/{number:03d}", path)
        store.put("threads/shared", content)
        store.objects("threads/")
        store.fetch(f"threads/{number:03d}", tmp_path / f"copy-{number}")
        assert (tmp_path / f"copy-{number}").read_bytes() == content
        return store.read(f"threads/{number:03d}", len(content))

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(work, range(24)))
    assert found == [random.Random(number).randbytes(1000 * number) for number in range(24)]
    assert store.read("threads/shared", 24_000) in found


def test_a_forked_process_may_go_on(store: Store, tmp_path: Path) -> None:
    store.put("a", b"from the parent")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if store.read("a", 100) == b"from the parent":
                store.put("b", b"from the child")
                (tmp_path / "done").write_bytes(store.read("b", 100))
                code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "done").read_bytes() == b"from the child"
    assert store.read("b", 100) == b"from the child"


NAMES = ["a/x", "a/y", "a/b/x", "b/x", "c"]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "create", "put_file", "delete", "read", "fetch", "list"]),
        st.sampled_from(NAMES),
        st.binary(max_size=8),
    ),
    max_size=20,
)


@given(actions=ACTIONS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_store_is_a_dictionary(store: Store, tmp_path: Path, actions: list[tuple[str, str, bytes]]) -> None:
    store.delete(NAMES)
    known: dict[str, bytes] = {}
    path = tmp_path / "content"
    for action, name, content in actions:
        if action == "put":
            store.put(name, content)
            known[name] = content
        elif action == "create":
            assert store.create(name, content) == (known.setdefault(name, content) == content)
        elif action == "put_file":
            path.write_bytes(content)
            store.put_file(name, path)
            known[name] = content
        elif action == "delete":
            store.delete([name])
            known.pop(name, None)
        elif action == "list":
            assert store.folders("") == sorted({known_name.split("/")[0] for known_name in known if "/" in known_name})
            assert names(store, "a/") == sorted(known_name for known_name in known if known_name.startswith("a/"))
        elif name not in known:
            with pytest.raises(MissingObjectError):
                store.read(name, 8)
        elif action == "read":
            assert store.read(name, 8) == known[name]
        else:
            store.fetch(name, path)
            assert path.read_bytes() == known[name]
    assert {found.name: found.bytes for found in store.objects("")} == {n: len(c) for n, c in known.items()}
