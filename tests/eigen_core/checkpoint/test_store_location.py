"""Names of runs and stores, the place of a store and access to it: all that cannot be used gets a sentence, soon."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_samples import CONFIG, new_run, sample, saved_run
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from fault_proxy import Fault, FaultProxy
from google.oauth2.service_account import Credentials
from hypothesis import given, settings, strategies as st

from eigen_core.checkpoint import gcs
from eigen_core.checkpoint.run_contents import list_runs
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.store import LocalStore, StoreUnavailableError
from eigen_core.checkpoint.store_location import is_remote, open_store, run_root, store_folder, store_from_environment
from eigen_core.common.errors import InputError


@pytest.mark.parametrize(
    ("store", "folder"),
    [("/data/runs", "/data/runs"), ("runs", None), ("./gs:b", None)],
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


VARIABLES = (
    "STORAGE_EMULATOR_HOST",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GCE_METADATA_HOST",
    "NO_GCE_CHECK",
    "GOOGLE_CLOUD_PROJECT",
)


@pytest.fixture(autouse=True)
def _nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs, "_CHECK_RETRY_SECONDS", 0.5)
    monkeypatch.setattr(gcs, "_CHECK_SECONDS", 3.0)
    monkeypatch.setattr(gcs, "_SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(gcs, "_REFRESH_SECONDS", 0.5)


@pytest.fixture
def silent_address() -> Iterator[str]:
    """Where connections are taken and nothing is ever answered."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(50)
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture(scope="module")
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*form).decode()


def service_account(folder: Path, private_key: str, token_address: str) -> str:
    path, names = folder / "account.json", {"client_email": "eigen@project.example", "project_id": "project"}
    key = {"private_key": private_key, "private_key_id": "1", "token_uri": token_address}
    path.write_text(json.dumps({"type": "service_account", **names, **key}))
    return str(path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "was not found"),
        ("a folder", "Is a directory"),
        ("hello", "cannot be used"),
        ("[]", "cannot be used"),
        ("[" * 100_000, "cannot be used"),
        ('{"type": "nonsense"}', "does not have a valid type"),
        ('{"type": "service_account"}', "missing fields"),
        (
            '{"type": "service_account", "client_email": "a", "private_key": "b", "token_uri": "http://127.0.0.1:1"}',
            "cannot be used",
        ),
    ],
)
def test_a_file_of_credentials_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, sentence: str
) -> None:
    path = tmp_path / "key.json"
    if content == "a folder":
        path.mkdir()
    elif content is not None:
        path.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with pytest.raises(InputError, match=sentence) as refused:
        open_store("gs://bucket").check()
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_more_is_asked_for_than_to_read_and_write(
    tmp_path: Path, private_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = service_account(tmp_path, private_key, "http://127.0.0.1:1")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", key)
    found, _ = gcs.find_credentials()
    assert isinstance(found, Credentials)
    assert found.scopes == ["https://www.googleapis.com/auth/devstorage.read_write"]


@pytest.mark.parametrize("metadata", ["127.0.0.1:1", "silent"])
def test_no_credentials_at_all(monkeypatch: pytest.MonkeyPatch, silent_address: str, metadata: str) -> None:
    if metadata == "silent":
        monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("GCE_METADATA_HOST", silent_address if metadata == "silent" else metadata)
    with pytest.raises(InputError, match="no credentials for Google Cloud: GOOGLE_APPLICATION_CREDENTIALS is not set"):
        open_store("gs://bucket").check()


def test_a_login_that_is_broken_is_no_reason_to_go_on_anonymously(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gcloud"
    folder.mkdir()
    (folder / "application_default_credentials.json").write_text("{")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(InputError, match=r"application_default_credentials.json cannot be used"):
        open_store("gs://bucket").check()


def test_credentials_that_google_refuses(
    fault_proxy: FaultProxy, tmp_path: Path, private_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    fault_proxy.add(Fault("status", path="token", status=400, message="invalid_grant", times=None))
    key = service_account(tmp_path, private_key, f"{fault_proxy.url}/token")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", key)
    with pytest.raises(
        InputError, match=r"Google refused eigen@project.example .*account.json.*invalid_grant.*new key"
    ):
        open_store("gs://bucket").check()
    assert fault_proxy.count() == 1


@pytest.mark.usefixtures("short_timeouts")
def test_a_confirmation_that_does_not_come(
    silent_address: str, tmp_path: Path, private_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = service_account(tmp_path, private_key, f"http://{silent_address}/token")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", key)
    with pytest.raises(StoreUnavailableError, match=r"cannot be used now by eigen@project.example"):
        open_store("gs://bucket").check()


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize(
    ("address", "sentence"),
    [("127.0.0.1:1", "refused"), ("no-such-host.invalid:80", "no-such-host.invalid"), ("silent", "timed out")],
)
def test_an_address_that_does_not_answer(
    silent_address: str, monkeypatch: pytest.MonkeyPatch, address: str, sentence: str
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", silent_address if address == "silent" else address)
    with pytest.raises(StoreUnavailableError, match=f"gs://bucket.*{sentence}.*network"):
        open_store("gs://bucket").check()


@pytest.mark.parametrize(
    "address", ["http://a b", "http://127.0.0.1:x", "ftp://127.0.0.1", "http://h:1/path", "http://"]
)
def test_an_address_of_an_emulator_that_is_none(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    with pytest.raises(InputError, match="STORAGE_EMULATOR_HOST is"):
        open_store("gs://bucket").check()


@pytest.mark.usefixtures("quick_retries")
def test_without_an_emulator_requests_go_to_google_alone(
    tmp_path: Path, private_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = set()

    def resolve(host: str, port: int, *_: object, **__: object) -> None:
        sent.add((host, port))
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    def refresh(found: Credentials, _: object) -> None:
        found.token, found.expiry = "token", None

    key = service_account(tmp_path, private_key, "http://127.0.0.1:1")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", key)
    monkeypatch.setattr(Credentials, "refresh", refresh)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    store = open_store("gs://bucket/a/b")
    for action in (lambda: store.stat("c/d"), lambda: store.objects(""), lambda: store.put("c", b"")):
        with pytest.raises(StoreUnavailableError):
            action()
    assert ("storage.googleapis.com", 443) in sent
    # Google's library may ask another service of Google for more about the account.
    assert all(host.endswith(".googleapis.com") and port == 443 for host, port in sent)


_IN_A_FOLDER = """
import sys
from eigen_core.checkpoint.store_location import open_store

store = open_store(sys.argv[1])
store.check()
store.create("a/b", b"content")
assert store.read("a/b", 7) == b"content"
assert not {"google.auth", "google.cloud.storage", "requests", "torch"} & sys.modules.keys()
"""


def test_a_store_in_a_folder_loads_no_client(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _IN_A_FOLDER, str(tmp_path / "runs")], check=True)
