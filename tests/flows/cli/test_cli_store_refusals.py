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
THOROUGH = pytest.mark.thorough
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
    "no credentials": ({}, "There are no credentials for Google Cloud"),
    "bucket of the replaced system": ({"CLOUD_BUCKET": "bucket"}, "set EIGEN_STORE=gs://bucket"),
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


def assert_sentence(found: int, lines: list[str], code: int, part: str) -> None:
    """Assert an exit code and one line of one to three sentences that holds `part`."""
    assert found == code, lines
    assert len(lines) == 1, lines
    assert lines[0].startswith("eigen: ")
    assert part in lines[0]
    assert len(re.findall(r"[.?!](?:\s|$)", lines[0])) <= 3, lines


@pytest.fixture
def without_permission(fault_proxy: FaultProxy) -> str:
    fault_proxy.add(Fault("status", times=None, status=403, message="caller lacks a permission"))
    return fault_proxy.url


@pytest.mark.parametrize(
    ("code", "part", "variable", "value"),
    [
        pytest.param(2, "is not a valid json file", "GOOGLE_APPLICATION_CREDENTIALS", __file__, marks=THOROUGH),
        pytest.param(1, "cannot be used now", "STORAGE_EMULATOR_HOST", "127.0.0.1:1", marks=THOROUGH),
        (2, "may not list, read, write and delete there (caller lacks a permission).", "STORAGE_EMULATOR_HOST", None),
    ],
)
def test_training_is_refused_before_torch_and_prefect_are_loaded_and_anything_is_made(
    folder: Path, tmp_path: Path, request: pytest.FixtureRequest, code: int, part: str, variable: str, value: str | None
) -> None:
    home = tmp_path / "home"
    variables = {variable: value or request.getfixturevalue("without_permission"), "PYTHONPROFILEIMPORTTIME": "1"}
    arguments = ["train", "--store", "gs://bucket/runs", "--run", "x", *small_settings()]
    ended = run_eigen(arguments, environment=eigen_environment(home, **variables), folder=folder)
    lines = ended.stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert imported
    assert not imported & {"torch", "prefect", "pandas"}
    assert_sentence(ended.returncode, [line for line in lines if not line.startswith("import time:")], code, part)
    assert ended.stdout == ""
    assert list(folder.iterdir()) == []
    assert not home.exists()


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
