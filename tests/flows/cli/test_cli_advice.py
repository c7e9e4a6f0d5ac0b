"""What refusals tell a user to type: each command and option is accepted, or refused for another reason."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_cases import eigen, follow_advice
from flow_cases import small_flow_config, small_settings
from trained_run_cases import trained

from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.config import Config

SMALL = [*small_settings(market={"holdout_days": 60}), "--generations", "1"]
HOURS = pd.date_range("2020-01-01 09:00", periods=9_000, freq="h")
HOLDOUT = ["--set", "market.holdout_days=300"]
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    task = {**Config().model_dump(mode="json"), "task": "gym:module:Class"}
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
        (["train", *SMALL, "--data", "jump.csv"], "market.events="),
        (["audit", *HOLDOUT, "--data", "hours.csv"], "market.intraday=aggregate"),
        (["audit", *HOLDOUT, "--data", "decimal.csv"], "market.decimal"),
        (["train", "--run", "known", "--store", "elsewhere", "--seed", "9"], "eigen resume known --store elsewhere"),
        (["train", "--set", "nonsense=3"], "eigen presets"),
    ],
)
def test_advice_is_accepted_or_refused_for_another_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], part: str
) -> None:
    for variable in ("EIGEN_HOME", "EIGEN_STORE", "EIGEN_DATA", "EIGEN_TASK", "CLOUD_BUCKET", "PREFECT_API_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(folder)
    arguments = [*arguments[0].split(), *arguments[1:]]
    said = eigen(*arguments, code=2).stderr
    assert part in said
    assert follow_advice(arguments, said)
