"""A store on Google Cloud Storage behind a network that loses, damages, delays and refuses."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from checkpoint_samples import act_at_random
from fault_proxy import Fault, FaultProxy
from gcs_emulator import GcsEmulator

from eigen_core.checkpoint import gcs
from eigen_core.checkpoint.gcs import GcsStore
from eigen_core.checkpoint.store import MissingObjectError, StoreUnavailableError
from eigen_core.checkpoint.store_location import open_store
from eigen_core.common.errors import InputError

BLOCK = 256 << 10
CONTENT = random.Random(1).randbytes(2_000)
OURS = random.Random(2).randbytes(2_000)


def remote(url: str) -> GcsStore:
    store = open_store(url)
    assert isinstance(store, GcsStore)
    return store


@pytest.fixture
def store(
    fault_proxy: FaultProxy, gcs_emulator: GcsEmulator, quick_retries: list[float], monkeypatch: pytest.MonkeyPatch
) -> GcsStore:
    """A store behind the proxy, with two objects, that waits for half a second at most and has small blocks."""
    assert quick_retries == []
    monkeypatch.setattr(gcs, "BLOCK", BLOCK)
    monkeypatch.setattr(gcs, "_SILENCE_SECONDS", 0.5)
    # Google's client uploads larger files in blocks.
    monkeypatch.setattr("google.cloud.storage.blob._MAX_MULTIPART_SIZE", BLOCK)
    store = remote(f"gs://{gcs_emulator.make_bucket()}/prefix")
    store.put("a/content", CONTENT)
    store.put("a/rubbish", b"")
    fault_proxy.requests.clear()
    return store


def put_file(store: GcsStore, path: Path, name: str, content: bytes) -> None:
    (path / "source").write_bytes(content)
    store.put_file(name, path / "source")


def fetch(store: GcsStore, path: Path, name: str) -> bytes:
    store.fetch(name, path / "copy")
    return (path / "copy").read_bytes()


def holds(store: GcsStore, path: Path, name: str, content: bytes) -> bool:
    (path / "source").write_bytes(content)
    return store.holds(name, path / "source")


ACTIONS: dict[str, Callable[[GcsStore, Path], object]] = {
    "put": lambda store, _: store.put("new", OURS),
    "create": lambda store, _: store.create("new", OURS),
    "put_file": lambda store, path: put_file(store, path, "new", OURS),
    "read": lambda store, _: store.read("a/content", 5_000),
    "fetch": lambda store, path: fetch(store, path, "a/content"),
    "holds": lambda store, path: holds(store, path, "a/content", CONTENT),
    "objects": lambda store, _: [found.name for found in store.objects("a/")],
    "folders": lambda store, _: store.folders(""),
    "stat": lambda store, _: store.stat("a/content"),
    "delete": lambda store, _: store.delete(["a/rubbish"]),
    "check": lambda store, _: store.check(),
}
FAULTS = {
    **{f"status {code}": Fault("status", status=code, times=2) for code in (408, 429, 500, 502, 503, 504)},
    "reset": Fault("reset", times=2),
    "lost reply": Fault("lost_reply"),
    "stall": Fault("stall"),
    "cut": Fault("cut", times=2),
    "flipped content": Fault("flip_reply", path="alt=media"),
    "flipped upload": Fault("flip_request", path="upload", where=0.6),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.thorough
def test_what_passes_is_survived(store: GcsStore, fault_proxy: FaultProxy, tmp_path: Path, action: str) -> None:
    expected = ACTIONS[action](store, tmp_path)
    for name, fault in FAULTS.items():
        store.delete(["new"])
        store.put("a/rubbish", b"")
        fault_proxy.add(Fault(**vars(fault)))
        assert ACTIONS[action](store, tmp_path) == expected, name
        fault_proxy.clear()
        if action in ("put", "create", "put_file"):
            assert store.read("new", 5_000) == OURS, name
        elif action == "delete":
            assert store.stat("a/rubbish") is None, name


@pytest.mark.parametrize("action", [action for action in ACTIONS if action != "check"])
def test_what_does_not_pass_ends(
    store: GcsStore, fault_proxy: FaultProxy, quick_retries: list[float], tmp_path: Path, action: str
) -> None:
    fault_proxy.add(Fault("status", status=503, message="try later", times=None))
    with pytest.raises(StoreUnavailableError, match="HTTP 503: try later"):
        ACTIONS[action](store, tmp_path)
    assert 4 <= len(fault_proxy.requests) <= 20
    assert 5 < sum(quick_retries) < 40
    # As of an upload whose session has always ended.
    fault_proxy.clear()
    fault_proxy.add(Fault("status", status=410, times=None))
    with pytest.raises(StoreUnavailableError, match="gs://bucket"):
        ACTIONS[action](store, tmp_path)


@pytest.mark.parametrize("action", ["put_file", "fetch", "objects", "check"])
@pytest.mark.thorough
def test_silence_ends(store: GcsStore, fault_proxy: FaultProxy, tmp_path: Path, action: str) -> None:
    fault_proxy.add(Fault("stall", times=None))
    with pytest.raises(StoreUnavailableError, match="gs://bucket"):
        ACTIONS[action](store, tmp_path)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(("status", "sentence"), [(403, "may not list.*denied here"), (401, "refused a client")])
def test_no_permission_is_said_at_once(
    store: GcsStore, fault_proxy: FaultProxy, tmp_path: Path, action: str, status: int, sentence: str
) -> None:
    fault_proxy.add(Fault("status", status=status, message="denied here", times=None))
    with pytest.raises(InputError, match=sentence):
        ACTIONS[action](store, tmp_path)
    assert len(fault_proxy.requests) <= 1


@pytest.mark.parametrize("action", ["put", "create", "put_file", "objects", "folders", "check"])
def test_a_bucket_that_is_not_there(fault_proxy: FaultProxy, tmp_path: Path, action: str) -> None:
    missing = remote("gs://not-there/prefix")
    with pytest.raises(InputError, match="no bucket 'not-there'"):
        ACTIONS[action](missing, tmp_path)
    with pytest.raises(InputError, match="no bucket 'not-there'"):
        put_file(missing, tmp_path, "new", bytes(BLOCK + 1))
    with pytest.raises(MissingObjectError):
        missing.read("a", 1)
    assert fault_proxy.count() <= 3


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", status=503, times=3),
        Fault("status", status=404),
        Fault("status", status=410),
        Fault("reset"),
        Fault("lost_reply"),
        Fault("flip_request"),
        Fault("flip_request", where=0.0),
        Fault("flip_request", where=1.0),
    ],
    ids=lambda fault: f"{fault.kind} {fault.status} {fault.where}",
)
@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_fault_in_a_block_of_a_file(
    store: GcsStore, fault_proxy: FaultProxy, tmp_path: Path, fault: Fault, block: int
) -> None:
    content = random.Random(3).randbytes(2 * BLOCK + 1_000)
    fault_proxy.add(Fault(**vars(fault) | {"method": "PUT", "after": block}))
    put_file(store, tmp_path, "blob", content)
    assert fetch(store, tmp_path, "blob") == content
    assert fault_proxy.count("PUT") > 3


@pytest.mark.parametrize("size", [500, BLOCK + 500])
def test_an_upload_that_is_always_damaged_is_given_up(
    store: GcsStore, fault_proxy: FaultProxy, quick_retries: list[float], tmp_path: Path, size: int
) -> None:
    method = "PUT" if size > BLOCK else "POST"
    fault_proxy.add(Fault("flip_request", method=method, where=0.6, times=None))
    content = random.Random(4).randbytes(size)
    with pytest.raises(StoreUnavailableError, match="cut off, damaged or refused"):
        put_file(store, tmp_path, "blob", content)
    assert sum(quick_retries) < 30
    fault_proxy.clear()
    put_file(store, tmp_path, "blob", content)
    assert fetch(store, tmp_path, "blob") == content


def test_a_download_that_is_always_damaged_is_given_up(
    store: GcsStore, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    fault_proxy.add(Fault("flip_reply", path="alt=media", times=None))
    with pytest.raises(StoreUnavailableError, match="cut off, damaged or refused"):
        store.read("a/content", 5_000)
    with pytest.raises(StoreUnavailableError, match="cut off, damaged or refused"):
        store.fetch("a/content", tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_a_download_of_what_is_replaced_meanwhile_is_whole(
    store: GcsStore,
    fault_proxy: FaultProxy,
    gcs_emulator: GcsEmulator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, after = bytes(BLOCK + 100), b"\1" * (BLOCK + 100)
    put_file(store, tmp_path, "blob", before)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_emulator.url)
    other = remote(store.url)
    (tmp_path / "after").write_bytes(after)
    downloads = []

    def replace(_: int, __: str, path: str) -> None:
        if "alt=media" in path:
            downloads.append(path)
            if len(downloads) == 2:
                other.put_file("blob", tmp_path / "after")

    fault_proxy.hook = replace
    assert fetch(store, tmp_path, "blob") == after


def test_a_listing_of_several_pages(store: GcsStore, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        store.put(f"many/{number}/x", b"")
    monkeypatch.setattr(gcs, "_PAGE", 2)
    fault_proxy.requests.clear()
    assert [found.name for found in store.objects("many/")] == [f"many/{number}/x" for number in range(5)]
    assert len(fault_proxy.requests) > 2
    assert store.folders("many/") == [f"{number}" for number in range(5)]


@pytest.mark.usefixtures("quick_retries")
def test_a_lost_reply_to_create_before_an_outage_is_not_a_name_that_others_took(
    store: GcsStore, fault_proxy: FaultProxy
) -> None:
    fault_proxy.add(Fault("lost_reply", method="POST"), Fault("status", method="GET", times=None))
    with pytest.raises(StoreUnavailableError):
        store.create("lease/1", b"owner 1")


def test_one_of_many_creates_over_a_bad_network(store: GcsStore, fault_proxy: FaultProxy) -> None:
    fault_proxy.add(
        Fault("lost_reply", method="POST", times=None, probability=0.3),
        # Four in a row, after which a create leaves a damaged object, must not happen in sixty creates.
        Fault("flip_request", method="POST", times=None, probability=0.05, where=0.6),
        Fault("status", status=503, times=None, probability=0.2),
    )
    for turn in range(10):

        def attempt(owner: int, name: str = f"lease/{turn}") -> bool:
            while True:
                # About once in fifteen tests, one of the sixty creates meets eight errors in a row and gives up.
                with suppress(StoreUnavailableError):
                    return store.create(name, b"%d" % owner * 1_000)

        with ThreadPoolExecutor(6) as threads:
            won = list(threads.map(attempt, range(1, 7)))
        assert sum(won) == 1
        assert store.read(f"lease/{turn}", 5_000) == b"%d" % (won.index(True) + 1) * 1_000


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_store_behind_a_bad_network_is_a_dictionary(
    store: GcsStore, fault_proxy: FaultProxy, tmp_path: Path, seed: int
) -> None:
    store.delete(["a/content", "a/rubbish"])
    fault_proxy.seed(seed)
    always = {"times": None, "probability": 0.03}
    fault_proxy.add(*(Fault(**vars(fault) | always) for name, fault in FAULTS.items() if name != "stall"))
    known = act_at_random(store, tmp_path / "file", seed)
    fault_proxy.clear()
    # A flipped bit in a name, from which TLS protects, may have left others.
    assert {found.name for found in store.objects("")} >= set(known)
    assert {name: store.read(name, 5_000) for name in known} == known
