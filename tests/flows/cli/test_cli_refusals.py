"""A refused command says why in a sentence, gives advice that can be followed, and changes nothing on disk."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_cases import document, eigen, follow_advice, refused
from fault_proxy import Fault, FaultProxy
from flow_cases import eigen_environment, run_eigen, small_flow_config, small_settings
from operation_cases import digest
from trained_run_cases import trained

from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.config import PRESET_NAMES, Config

pytestmark = pytest.mark.usefixtures("without_api")

THOROUGH = pytest.mark.thorough

# Name: a command that settings, data, store or a run refuse, and a part of the message.
ON_BUSY_WORKERS = ["--runs-on", "tcp://127.0.0.1:1", "--set", "scheduler=tcp://127.0.0.1:1"]
QUICKLY_REFUSED: dict[str, tuple[list[str], str]] = {
    "key without its section": (["train", "--set", "gamma=0.5"], "did you mean learner.gamma?"),
    "negative seed": (["train", "--seed", "-1"], "a whole number of at least 0"),
    "too many generations": (["train", "--generations", str(10**30)], "a whole number from 1 to 1,000,000"),
    "unknown preset": (["train", "--preset", "huge"], "there is no preset 'huge'"),
    "unknown device": (["train", "--device", "tpu"], "give one of auto, cpu, cuda"),
    "run name with a slash": (["train", "--run", "../x"], "cannot be named"),
    "resume a name like an option": (["resume", "--", "--help"], "cannot be named"),
    "missing data": (["train", "--data", "nowhere.csv"], "nowhere.csv"),
    "empty data": (["train", "--data", "empty.csv"], "empty.csv"),
    "batch larger than training": (["train", "--set", "learner.batch_size=60000"], "lower learner.batch_size"),
    "store in the place of a file": (["train", "--store", "file"], "file"),
    "other settings": (["train", "--store", "store", "--run", "known", "--seed", "9"], "begun with other settings"),
    "not fresh": (["train", "--store", "store", "--run", "known", "--fresh"], "leave out --fresh"),
    "broken configuration": (["train", "--store", "store", "--run", "broken"], "learner.gamma"),
    "resume an unknown run": (["resume", "nope", "--store", "store"], "There is no run 'nope'"),
    "resume in a store that is a file": (["resume", "nope", "--store", "file"], "file"),
    "show an unknown run": (["show", "nope"], "There is no run 'nope'"),
    "show a broken configuration": (["show", "broken", "--store", "store"], "learner.gamma"),
    "list a file": (["runs", "--store", "file"], "file"),
    "explain an unknown preset": (["presets", "huge"], "there is no preset 'huge'"),
    "plan without days": (["plan", "--columns", "669"], "give both --days and --columns"),
    "plan without columns": (["plan", "--days", "3700", "--assets", "8"], "give both --days and --columns"),
    "plan more assets than columns": (
        ["plan", "--columns", "8", "--days", "3700", "--assets", "9"],
        "--assets 9 of --columns 8 cannot be tradable",
    ),
    "plan a panel and none": (["plan", "--columns", "8", "--days", "370", "--data", "prices.csv"], "give one of them"),
    "walk on workers that compute agents": (["walk", "mine", *ON_BUSY_WORKERS], "wait for a worker's thread"),
    "sweep on workers that compute agents": (
        ["sweep", "mine", "--vary", "learner.weight_decay=0.1:1", *ON_BUSY_WORKERS],
        "wait for a worker's thread",
    ),
}


MISSING = "tcp://127.0.0.1:9"
"""A scheduler that nobody can reach."""
SMALL = small_settings(market={"holdout": 60})
TINY = ["--set", "memory.limit_gb=0.3"]

# Refused by what other commands meet, such as trained runs.
REFUSED: dict[str, tuple[list[str], str]] = {
    "resume on other data": (["resume", "small", "--generations", "3", "--data", "other.csv"], "market.data"),
    "resume with a scheduler that is gone": (
        ["resume", "unfinished", "--set", f"scheduler={MISSING}"],
        "cannot be reached",
    ),
    "train on other data": (["train", "--run", "small", *SMALL, "--data", "other.csv", "--generations", "3"], "data"),
    "train with a scheduler that is gone": (
        ["train", "--run", "new", *SMALL, "--set", f"scheduler={MISSING}"],
        "cannot be reached",
    ),
    "launch with an unknown setting": (["launch", "--set", "learner.batchsize=3"], "did you mean learner.batch_size?"),
    "launch without a server": (["launch", "--run", "new", *SMALL], "No server runs here"),
    "logs without a server": (["logs", "mine"], "No server runs here"),
    "alerts without an address": (["alerts"], "--off"),
    "alerts without a server": (["alerts", "https://hooks.example.org/x"], "No server runs here"),
    "deploy without a server": (["deploy"], "No server runs here"),
    "up for others without a password": (["up", "--host", "0.0.0.0", "--only", "server"], "PREFECT_SERVER_API"),
    **{name: ([name, "nobody"], "no run 'nobody'") for name in ("memory", "verify", "clean", "backtest", "act")},
    "clean after no time": (["clean", "--older-than", "soon"], "soon"),
    "export": (["export", "nobody", "--champion", "champion.safetensors"], "no run 'nobody'"),
    "export below a file": (["export", "small", "--champion", "file/champion.safetensors"], "file"),
    "backtest of nobody": (["backtest", "small", "--agent", "99"], "99"),
    "backtest of another run": (["backtest", "small", "--set", "seed=2"], "seed"),
    "backtest below a file": (["backtest", "small", "--out", "file/tables"], "file"),
    "backtest of what is unfinished": (["backtest", "unfinished"], "unfinished"),
    "report": (["report", "nobody"], "nobody"),
    "report below a file": (["report", "small", "--out", "file/report.html"], "file"),
    "report into a folder": (["report", "small", "--out", "runs"], "a folder is in the place of a file"),
    "report of what is unfinished": (["report", "unfinished"], "unfinished"),
    "compare": (["compare", "small", "nobody"], "nobody"),
    "compare into a folder": (["compare", "small", "small2", "--out", "runs"], "a folder is in the place of a file"),
    "compare runs on other days": (["compare", "small", "longer"], "play different days"),
    "act on no data": (["act", "small", "--data", "none.csv"], "none.csv"),
    "act on other symbols": (["act", "small", "--data", "columns.csv"], "CCC"),
    "act below a file": (["act", "small", "--ledger", "file/act.json"], "file"),
    "importance": (["importance", "small", "--agent", "99"], "99"),
    **{
        f"{words[0]} where no folder can be made": ([*words, *SMALL, "--store", "/proc/nowhere"], "Cannot ")
        for words in (["train", "--run", "new"], ["plan"], ["sweep", "rates"])
    },
    "walk": (["walk", "years", "--folds", "1000", "--span", "252"], "fold"),
    "walk without memory": (["walk", "years", *TINY, "--folds", "2"], "does not fit"),
    "walk side by side with a scheduler that is gone": (
        ["walk", "years", "--folds", "2", "--runs-on", MISSING],
        "cannot be reached",
    ),
    "sweep": (["sweep", "rates", "--vary", "learner.gama=0.9:0.99"], "learner.gamma"),
    "sweep with a scheduler that is gone": (
        ["sweep", "rates", *SMALL, "--vary", "learner.gamma=0.9:0.99", "--runs-on", MISSING],
        "cannot be reached",
    ),
    "trust": (["trust", "none.csv", "--out", "trust"], "none.csv"),
    "trust below a file": (["trust", "--trials", "1", "--out", "file/trust"], "file"),
    "audit": (["audit", "--data", "none.csv"], "none.csv"),
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file that is no folder, unusable price files, and a store with one usable run."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "file").write_text("not a folder")
    (folder / "empty.csv").write_text("")
    RunDirectory.create(
        folder / "store", "known", small_flow_config(folder / "store", generations=1).model_dump(mode="json")
    )
    RunDirectory.create(folder / "store", "broken", {"preset": "ddpg", "learner": {"gamma": 7}})
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of a finished and an unfinished run, data that are not theirs, and a file."""
    folder = tmp_path_factory.mktemp("made")
    trained(folder / "runs", "small", of=1)
    shutil.copytree(folder / "runs" / "small", folder / "runs" / "small2")
    trained(folder / "runs", "unfinished", of=2)
    trained(folder / "runs", "longer", of=1, market={"holdout": 61})
    (folder / "file").write_text("not a folder")
    days = np.arange("1990-01-01", "2000-01-01", dtype="datetime64[D]")
    price = 100.0 + np.arange(len(days)) % 17
    prices = pd.DataFrame({"open": price, "high": price + 1, "low": price - 1, "close": price, "volume": 1_000})
    for name, symbol in (("other", "AAA"), ("columns", "CCC")):
        prices.assign(date=days, symbol=symbol).to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    name = "made" if request.node.get_closest_marker("thorough") else "bare"
    folder: Path = request.getfixturevalue(name)
    for variable in ("EIGEN_STORE", "CLOUD_BUCKET"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("EIGEN_HOME", str(folder / "state"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setattr("eigen_core.workers.connection._CONNECTING_SECONDS", 1.0)
    monkeypatch.chdir(folder)
    return folder


def assert_sentence(found: int, lines: list[str], code: int, part: str) -> None:
    """Assert an exit code and one line of one to three sentences that holds `part`."""
    assert found == code, lines
    assert len(lines) == 1, lines
    assert lines[0].startswith("eigen: ")
    assert part in lines[0]
    assert len(re.findall(r"[.?!](?:\s|$)", lines[0])) <= 3, lines


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        *(pytest.param(*case, id=name) for name, case in QUICKLY_REFUSED.items()),
        *(pytest.param(*case, id=name, marks=THOROUGH) for name, case in REFUSED.items()),
    ],
)
def test_a_refused_command_says_why_in_a_sentence_and_changes_nothing(
    folder: Path, arguments: list[str], part: str
) -> None:
    before = digest(folder)
    ended = eigen(*arguments)
    assert ended.stderr.endswith("\n")
    assert_sentence(ended.exit_code, ended.stderr.splitlines(), 3 if "does not fit" in part else 2, part)
    assert digest(folder) == before
    follow_advice(arguments, ended.stderr)


def test_presets_explain_every_setting() -> None:
    rows = document("presets", "eigen2")
    assert {"key", "value", "default", "source", "accepts", "unit", "meaning"} == set(rows[0])
    assert next(row for row in rows if row["key"] == "market.window")["value"] == 504
    assert [row["preset"] for row in document("presets")] == list(PRESET_NAMES)
    assert "eigen train --preset quickstart" in eigen("train", "--help", code=0).stdout


_URL = "http://user:hunter2@127.0.0.1:1/prices.csv"


@pytest.mark.parametrize(
    "command",
    [("train", "--data", _URL), ("audit", "--data", _URL), ("plan", "--data", _URL), ("sweep", "s", "--runs-on", _URL)],
)
def test_a_password_is_refused_and_not_repeated(command: tuple[str, ...]) -> None:
    said = refused(*command)
    assert "has a user or a password in it" in said
    assert "hunter2" not in said


# Of a store elsewhere that cannot be used.
STORE_NAMES = (
    *("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GCE_METADATA_HOST"),
    *("EIGEN_STORE", "CLOUD_BUCKET"),
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
    "no credentials": ({}, "There are no credentials for Google Cloud"),
    "bucket of the replaced system": ({"CLOUD_BUCKET": "bucket"}, "set EIGEN_STORE=gs://bucket"),
}


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and an environment that knows no store and no credentials."""
    for name in STORE_NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "nowhere"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


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
    empty: Path, tmp_path: Path, request: pytest.FixtureRequest, code: int, part: str, variable: str, value: str | None
) -> None:
    home = tmp_path / "home"
    variables = {variable: value or request.getfixturevalue("without_permission"), "PYTHONPROFILEIMPORTTIME": "1"}
    arguments = ["train", "--store", "gs://bucket/runs", "--run", "x", *small_settings()]
    ended = run_eigen(arguments, environment=eigen_environment(home, **variables), folder=empty)
    lines = ended.stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert imported
    assert not imported & {"torch", "prefect", "pandas"}
    assert_sentence(ended.returncode, [line for line in lines if not line.startswith("import time:")], code, part)
    assert ended.stdout == ""
    assert list(empty.iterdir()) == []
    assert not home.exists()


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS.keys())
@pytest.mark.parametrize(("variables", "part"), ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_every_command_says_what_is_wrong_with_the_environment(
    empty: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], variables: dict[str, str], part: str
) -> None:
    if "CLOUD_BUCKET" not in variables:
        monkeypatch.setenv("EIGEN_STORE", "gs://bucket/runs")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ended = eigen(*arguments)
    assert_sentence(ended.exit_code, ended.stderr.splitlines(), 2, part)
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS.keys())
def test_every_command_says_that_a_bucket_is_missing(empty: Path, gcs_bucket: str, arguments: list[str]) -> None:
    store = f"{gcs_bucket}-other"
    ended = eigen(*arguments, "--store", store)
    assert_sentence(ended.exit_code, ended.stderr.splitlines(), 2, f"there is no bucket '{store[5:]}'")
    assert list(empty.iterdir()) == []


# What refusals tell a user to type: each command and option is accepted, or refused for another reason.
HOURS = pd.date_range("2020-01-01 09:00", periods=9_000, freq="h")
HOLDOUT = ["--set", "market.holdout=300"]
JUDGES = ("backtest", "report", "importance", "act")


def prices(days: pd.DatetimeIndex, jump: float = 1.0) -> pd.DataFrame:
    """Prices of two symbols; the first one is `jump` times as high from the 400th row on, with nothing between."""
    each = []
    for number, symbol in enumerate(("AAA", "BBB")):
        close = 100.0 * np.exp(np.random.default_rng(number).normal(0.0, 0.01, len(days)).cumsum())
        close[400:] *= 1.0 if number else jump
        bars = {"open": close, "high": close * 1.01, "low": close * 0.99, "close": close, "volume": 1_000}
        each.append(pd.DataFrame({"date": days, "symbol": symbol, **bars}))
    return pd.concat(each)


@pytest.fixture(scope="module")
def advised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs, of which `run` and `other` have prices that have been corrected since, and unclear files."""
    folder = tmp_path_factory.mktemp("advice")
    days, data = pd.bdate_range("2018-01-01", periods=900), folder / "prices.csv"
    prices(days).to_csv(data, index=False)
    for run in ("run", "other"):
        trained(folder / "runs", run, of=1, market={"data": str(data)})
    for jumps in (data, folder / "jump.csv"):
        prices(days, jump=4.0).to_csv(jumps, index=False)
    prices(HOURS).to_csv(folder / "hours.csv", index=False)
    frame = prices(days).assign(close=lambda rows: rows["close"].map("{:.3f}".format).str.replace(".", ","))
    frame.to_csv(folder / "decimal.csv", index=False, sep=";")
    known = small_flow_config(folder / "elsewhere", generations=1)
    RunDirectory.create(folder / "elsewhere", "known", known.model_dump(mode="json"))
    task = {**Config(preset="pendulum").model_dump(mode="json"), "task": "gym:module:Class"}
    RunDirectory.create(folder / "runs", "foreign", task)
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        *(([command, "run"], "market.suspicious=keep") for command in JUDGES),
        (["compare", "run", "other"], "market.suspicious=keep"),
        (["resume", "run", "--generations", "2"], "market.suspicious=keep"),
        (["resume", "foreign"], "--set task=gym:module:Class"),
        (["train", *SMALL, "--generations", "1", "--data", "jump.csv"], "market.events="),
        (["audit", *HOLDOUT, "--data", "hours.csv"], "market.bar=1d"),
        (["audit", *HOLDOUT, "--data", "decimal.csv"], "market.decimal"),
        (["train", "--run", "known", "--store", "elsewhere", "--seed", "9"], "eigen resume known --store elsewhere"),
        (["train", "--set", "nonsense=3"], "eigen presets"),
    ],
)
def test_advice_is_accepted_or_refused_for_another_reason(
    advised: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], part: str
) -> None:
    for variable in ("EIGEN_HOME", "EIGEN_STORE", "EIGEN_DATA", "EIGEN_TASK", "CLOUD_BUCKET", "PREFECT_API_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(advised)
    arguments = [*arguments[0].split(), *arguments[1:]]
    said = eigen(*arguments, code=2).stderr
    assert part in said
    assert follow_advice(arguments, said)
