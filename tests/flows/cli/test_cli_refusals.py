"""A refused command changes nothing: not the store, not what `eigen up` has recorded, not the folder of the user."""

import shutil
from pathlib import Path

import pytest
from cli_cases import eigen
from flow_cases import small_settings
from folder_digest import digest
from trained_run_cases import trained

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("without_api")]

DAYS = range(1, 29)
MISSING = "tcp://127.0.0.1:9"
"""A scheduler that nobody can reach."""
SMALL = small_settings(market={"holdout_days": 60})
TINY = ["--set", "memory.limit_gb=0.3"]

# Name: the command, and a part of what it says.
REFUSED: dict[str, tuple[list[str], str]] = {
    "resume on other data": (["resume", "small", "--generations", "3", "--data", "other.csv"], "market.data"),
    "resume with another setting": (["resume", "small", "--generations", "3", "--set", "seed=9"], "seed"),
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
    "launch of an impossible name": (["launch", "--run", "../x"], "cannot be named"),
    "launch without a server": (["launch", "--run", "new", *SMALL], "No server runs here"),
    "logs without a server": (["logs", "mine"], "No server runs here"),
    "alerts without an address": (["alerts"], "--off"),
    "alerts without a server": (["alerts", "https://hooks.example.org/x"], "No server runs here"),
    "deploy without a server": (["deploy"], "No server runs here"),
    "up for others without a password": (["up", "--host", "0.0.0.0", "--only", "server"], "PREFECT_SERVER_API"),
    "plan": (["plan", *SMALL, *TINY], "does not fit"),
    "memory": (["memory", "nobody"], "no run 'nobody'"),
    "verify": (["verify", "nobody"], "no run 'nobody'"),
    "clean": (["clean", "nobody"], "no run 'nobody'"),
    "clean after no time": (["clean", "--older-than", "soon"], "soon"),
    "export": (["export", "nobody", "--champion", "champion.safetensors"], "no run 'nobody'"),
    "export below a file": (["export", "small", "--champion", "file/champion.safetensors"], "file"),
    "backtest": (["backtest", "nobody"], "no run 'nobody'"),
    "backtest of other days": (["backtest", "small", "--slice", "2050-01-03:2050-12-31"], "2050"),
    "backtest of no days": (["backtest", "small", "--slice", "holdouts"], "holdouts"),
    "backtest of nobody": (["backtest", "small", "--agent", "99"], "99"),
    "backtest of another run": (["backtest", "small", "--set", "seed=2"], "seed"),
    "backtest below a file": (["backtest", "small", "--out", "file/tables"], "file"),
    "backtest of what is unfinished": (["backtest", "unfinished"], "unfinished"),
    "report": (["report", "nobody"], "nobody"),
    "report of nobody": (["report", "small", "--agent", "99"], "99"),
    "report below a file": (["report", "small", "--out", "file/report.html"], "file"),
    "report into a folder": (["report", "small", "--out", "runs"], "a folder is in the place of a file"),
    "report of what is unfinished": (["report", "unfinished"], "unfinished"),
    "compare": (["compare", "small", "nobody"], "nobody"),
    "compare into a folder": (["compare", "small", "small2", "--out", "runs"], "a folder is in the place of a file"),
    "compare runs on other days": (["compare", "small", "longer"], "play different days"),
    "act of nobody": (["act", "nobody"], "no run 'nobody'"),
    "act on no day": (["act", "small", "--date", "2050-01-03"], "2050-01-03"),
    "act on no data": (["act", "small", "--data", "none.csv"], "none.csv"),
    "act on other symbols": (["act", "small", "--data", "columns.csv"], "CCC"),
    "act below a file": (["act", "small", "--ledger", "file/act.json"], "file"),
    "importance": (["importance", "small", "--agent", "99"], "99"),
    "walk": (["walk", "years", "--folds", "1000", "--span-days", "252"], "fold"),
    "walk without memory": (["walk", "years", *TINY, "--folds", "2"], "does not fit"),
    "walk side by side with a scheduler that is gone": (
        ["walk", "years", "--folds", "2", "--runs-on", MISSING],
        "cannot be reached",
    ),
    "walk after no days": (["walk", "years", "--train-days", "some"], "give a number of days, or growing"),
    "sweep": (["sweep", "rates", "--vary", "learner.gama=0.9:0.99"], "learner.gamma"),
    "sweep beyond a bound": (["sweep", "rates", "--vary", "learner.gamma=0.9:1.5"], "learner.gamma"),
    "sweep with a scheduler that is gone": (
        ["sweep", "rates", *SMALL, "--vary", "learner.gamma=0.9:0.99", "--runs-on", MISSING],
        "cannot be reached",
    ),
    "trust": (["trust", "none.csv", "--out", "trust"], "none.csv"),
    "trust below a file": (["trust", "--trials", "1", "--out", "file/trust"], "file"),
    "trust of no edges": (["trust", "--edges", "much", "--out", "trust"], "much"),
    "audit": (["audit", "--data", "none.csv"], "none.csv"),
    "audit of an unknown feature": (["audit", "--set", "market.own_features=unknown"], "unknown"),
    "workers": (["workers", MISSING], "cannot be reached"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of a finished and an unfinished run, data that are not theirs, and a file."""
    folder = tmp_path_factory.mktemp("made")
    trained(folder / "runs", "small", of=1)
    shutil.copytree(folder / "runs" / "small", folder / "runs" / "small2")
    trained(folder / "runs", "unfinished", of=2)
    trained(folder / "runs", "longer", of=1, market={"holdout_days": 61})
    (folder / "file").write_text("no folder")
    dates = [f"{year}-{month:02d}-{day:02d}" for year in range(1990, 2000) for month in range(1, 13) for day in DAYS]
    for name, symbol in (("other", "AAA"), ("columns", "CCC")):
        prices = [100 + number % 17 for number, _ in enumerate(dates)]
        rows = [f"{date},{symbol},{x},{x + 1},{x - 1},{x},1000" for date, x in zip(dates, prices, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["date,symbol,open,high,low,close,volume", *rows]) + "\n")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("EIGEN_STORE", "CLOUD_BUCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EIGEN_HOME", str(made / "state"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setattr("eigen_core.workers.connection._CONNECTING_SECONDS", 1.0)
    monkeypatch.chdir(made)
    return made


@pytest.mark.parametrize(("arguments", "part"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refused_command_changes_nothing(folder: Path, arguments: list[str], part: str) -> None:
    before = digest(folder)
    ended = eigen(*arguments)
    assert ended.exit_code in (2, 3), (ended.stdout, ended.stderr, ended.exception)
    assert part in ended.output, ended.output
    assert digest(folder) == before
