"""A store elsewhere that cannot be used: said in a sentence before anything is loaded, made or trained."""

import re
from pathlib import Path

import pytest
from cli_cases import eigen
from fault_proxy import Fault, FaultProxy
from flow_cases import eigen_environment, run_eigen, small_settings

NAMES = (
    "STORAGE_EMULATOR_HOST",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_PROJECT",
    "GCE_METADATA_HOST",
    "EIGEN_STORE",
    "CLOUD_BUCKET",
)
COMMANDS: dict[str, list[str]] = {
    "train": ["train", "--run", "x"],
    "resume": ["resume", "x"],
    "runs": ["runs"],
    "show": ["show", "x"],
    "verify": ["verify", "x"],
    "clean one": ["clean", "x"],
    "clean all": ["clean"],
    "export": ["export", "x", "--champion", "champion.safetensors"],
}
ENVIRONMENTS: dict[str, tuple[dict[str, str], str]] = {
    "missing file": ({"GOOGLE_APPLICATION_CREDENTIALS": "key.json"}, "File key.json was not found"),
    "no credentials": ({}, "There are no credentials for Google Cloud"),
    "bucket of the replaced system": ({"CLOUD_BUCKET": "bucket"}, "set EIGEN_STORE=gs://bucket"),
    "impossible bucket": ({"EIGEN_STORE": "gs://No_Bucket"}, "names no bucket"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and an environment that knows no store and no credentials."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "nowhere"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def assert_train_refuses(folder: Path, home: Path, code: int, part: str, **variables: str) -> None:
    """Assert that `eigen train` ends with a sentence, before torch and Prefect are loaded and anything is made."""
    before = sorted(folder.rglob("*"))
    environment = {**eigen_environment(home, **variables), "PYTHONPROFILEIMPORTTIME": "1"}
    arguments = ["train", "--store", "gs://bucket/runs", "--run", "x", *small_settings()]
    ended = run_eigen(arguments, environment=environment, folder=folder)
    lines = ended.stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert imported
    assert not imported & {"torch", "prefect", "pandas"}
    assert_sentence(ended.returncode, [line for line in lines if not line.startswith("import time:")], code, part)
    assert ended.stdout == ""
    assert sorted(folder.rglob("*")) == before
    assert not home.exists()


def assert_sentence(found: int, lines: list[str], code: int, part: str) -> None:
    """Assert an exit code and one line of one to three sentences that holds `part`."""
    assert found == code, lines
    assert len(lines) == 1, lines
    assert lines[0].startswith("eigen: ")
    assert part in lines[0]
    assert len(re.findall(r"[.?!](?:\s|$)", lines[0])) <= 3, lines


@pytest.mark.thorough
def test_a_file_of_credentials_that_is_none(folder: Path, tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    key.write_text("{ no JSON")
    part = f"File {key} is not a valid json file"
    assert_train_refuses(folder, tmp_path / "home", 2, part, GOOGLE_APPLICATION_CREDENTIALS=str(key))


def test_a_bucket_without_permission(folder: Path, tmp_path: Path, fault_proxy: FaultProxy) -> None:
    fault_proxy.add(Fault("status", times=None, status=403, message="caller lacks storage.objects.list"))
    part = "may not list, read, write and delete there (caller lacks storage.objects.list)."
    assert_train_refuses(folder, tmp_path / "home", 2, part, STORAGE_EMULATOR_HOST=fault_proxy.url)


@pytest.mark.thorough
def test_an_address_that_does_not_answer(folder: Path, tmp_path: Path) -> None:
    assert_train_refuses(
        folder, tmp_path / "home", 1, "gs://bucket/runs cannot be used now", STORAGE_EMULATOR_HOST="127.0.0.1:1"
    )


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS.keys())
@pytest.mark.parametrize(("variables", "part"), ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_every_command_says_what_is_wrong_with_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], variables: dict[str, str], part: str
) -> None:
    if "CLOUD_BUCKET" not in variables:
        monkeypatch.setenv("EIGEN_STORE", "gs://bucket/runs")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ended = eigen(*arguments)
    assert_sentence(ended.exit_code, ended.stderr.splitlines(), 2, part)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS.keys())
def test_every_command_says_that_a_bucket_is_missing(folder: Path, gcs_bucket: str, arguments: list[str]) -> None:
    store = f"{gcs_bucket}-other"
    ended = eigen(*arguments, "--store", store)
    assert_sentence(ended.exit_code, ended.stderr.splitlines(), 2, f"there is no bucket '{store[5:]}'")
    assert list(folder.iterdir()) == []
