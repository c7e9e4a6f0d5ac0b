"""Sweeps with cross-validation: their splits, what is found in tests, interruptions, the refit and the report."""

import signal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from cli_cases import document, eigen, refused
from flow_cases import small_settings
from trained_run_cases import trained_as

from eigen_core.common.errors import End, Stopped
from eigen_core.config import Config
from eigen_core.judging.run_backtests import play
from eigen_core.market import build_panel
from eigen_core.runs.handle import Run
from eigen_core.trading.equity import daily_rates
from flows.cli.run_jobs import IsStopped, JobResult, RunJob

VARIED = ["--vary", "learner.actor_learning_rate=0.001,0.01"]
SETTINGS = [
    *small_settings(market={"data": "p.csv", "layout": "wide", "validation": 40, "holdout": 40}),
    "--set",
    "generations=1",
]
SETTINGS += ["--set", "account.risk_free=0.02", "--set", "account.periods_per_year=252"]
SETTINGS += ["--set", "market.embargo=5"]
TRAINED: list[RunJob] = []
DAYS = 700


def train(run: RunJob, _: Path, is_stopped: IsStopped) -> JobResult:
    if is_stopped():
        return JobResult(-signal.SIGTERM, "", End.INTERRUPTED)
    trained_as(run.name, run.config)
    TRAINED.append(run)
    return JobResult(0, "")


def begin_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings are of this process, on prices in a folder."""
    pytest.importorskip("optuna")
    TRAINED.clear()
    monkeypatch.setattr("flows.cli.run_jobs.train_in_subprocess", train)
    monkeypatch.chdir(folder)
    generator, days = np.random.default_rng(4), DAYS
    close = 50.0 * np.exp(np.cumsum(generator.normal(0.0, 0.02, (days, 3)), axis=0))
    dates = pd.bdate_range("2016-01-04", periods=days).strftime("%Y-%m-%d")
    pd.DataFrame(close, columns=list("ABC")).assign(date=dates).set_index("date").to_csv(folder / "p.csv")


@pytest.fixture(autouse=True)
def in_process(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_in(user_folder, monkeypatch)


class Undisturbed(NamedTuple):
    folder: Path
    found: dict[str, Any]
    trained: list[RunJob]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A sweep whose best trial is trained again; all tests only read it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as monkeypatch:
        begin_in(folder, monkeypatch)
        return Undisturbed(folder, document(*CPCV, "--refit"), TRAINED.copy())


def trained_on(config: Config) -> tuple[set[str], set[str]]:
    """The dates of a run's training and validation bars, and those of its test bars."""
    panel = build_panel(config)[0]
    splits = panel.splits
    known = [*splits.training_bars.tolist(), *splits.validation]
    tested = [bar for group in splits.tests or (splits.holdout,) for bar in group]
    return set(map(str, panel.dates[known])), set(map(str, panel.dates[tested]))


KINDS = [
    ("walk", ["--folds", "3"], 3, 1),
    pytest.param("cpcv", ["--groups", "4"], 6, 3, marks=pytest.mark.thorough),
    pytest.param("kfold", ["--folds", "4"], 4, 1, marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("kind", "shape", "splits", "paths"), KINDS)
def test_champions_trade_groups_that_they_were_not_trained_on(
    kind: str, shape: list[str], splits: int, paths: int
) -> None:
    found = document("sweep", "mine", *VARIED, "--trials", "1", "--cv", kind, *shape, *SETTINGS)
    assert [len(trial["runs"]) for trial in found["trials"]] == [splits]
    whole = build_panel(TRAINED[0].config.model_copy(update={"market": _of_all(TRAINED[0].config)}))[0]
    before = set(map(str, whole.dates[: whole.splits.holdout.start]))
    tested_by = []
    for run in TRAINED[:splits]:
        known, tested = trained_on(run.config)
        assert known | tested <= before
        assert not known & tested
        if kind == "walk":
            assert max(known) < min(tested)
        tested_by.append(tested)
    counted = pd.Series([date for tested in tested_by for date in tested]).value_counts()
    assert set(counted.unique()) == {paths}
    # The first group of a walk tests nothing.
    assert len(counted) == pytest.approx(len(before) * (0.75 if kind == "walk" else 1.0), abs=1)
    for trial in found["trials"]:
        values = [path_sharpe(trial, number) for number in range(paths)]
        assert trial["paths"] == pytest.approx(values, abs=1e-9)
        assert trial["value"] == pytest.approx(np.mean(values), abs=1e-9)


def _of_all(config: Config) -> Any:
    update = {"last_date": None, "holdout": 40, "groups": None, "test_groups": ()}
    return config.market.model_copy(update=update)


def path_sharpe(trial: dict[str, Any], number: int) -> float:
    """The Sharpe ratio of a path: of each group the account of the run that is the path's turn, by `eigen backtest`."""
    played: dict[int, list[Any]] = {}
    for run in trial["runs"]:
        config = Run.open("runs", run["run"]).config
        panel = build_panel(config)[0]
        groups = panel.splits.tests or (panel.splits.holdout,)
        for group, span in zip(run["test_groups"], groups, strict=True):
            dates = panel.dates[[max(span[0], config.market.window - 1), span[-1]]]
            played.setdefault(group, []).append((run["run"], f"{dates[0]}:{dates[1]}"))
    chosen = (played[group][number] for group in sorted(played))
    curves = [play("runs", run, span=span, agent="champion", draws=9)[0].curve for run, span in chosen]
    returns, dates = (np.concatenate([getattr(curve, name) for curve in curves]) for name in ("returns", "dates"))
    excess = returns - daily_rates(0.02, dates)
    return float(excess.mean() / excess.std(ddof=1) * 252**0.5) if excess.std() > 0.0 else 0.0


CPCV = ["sweep", "mine", *VARIED, "--trials", "2", "--cv", "cpcv", "--groups", "3", *SETTINGS]


@pytest.mark.thorough
def test_a_sweep_that_was_stopped_or_whose_files_are_damaged_ends_as_an_undisturbed_one(
    undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed.found
    *alone, refit = [run.name for run in undisturbed.trained]
    assert refit == "mine-best"
    TRAINED.clear()

    def stopped_once(run: RunJob, log: Path, is_stopped: IsStopped) -> JobResult:
        if len(TRAINED) == 4:
            TRAINED.append(run)
            raise Stopped("Stopped.")
        return train(run, log, is_stopped)

    monkeypatch.setattr("flows.cli.run_jobs.train_in_subprocess", stopped_once)
    again = ["other" if word == "mine" else word for word in CPCV]
    eigen(*again, code=1)
    first, second = sorted(Path("runs/.sweeps").glob("other-000-*.parquet"))[:2]
    first.write_bytes(b"damaged")
    second.write_bytes(pd.read_parquet(second).assign(agent=np.nan).to_parquet(index=False))
    found = document(*again)
    del TRAINED[4]
    assert [run.name.replace("other", "mine") for run in TRAINED] == alone
    assert [trial["value"] for trial in found["trials"]] == [trial["value"] for trial in expected["trials"]]
    assert found["choice"] == expected["choice"]


@pytest.mark.thorough
def test_the_best_trial_is_trained_again_on_all_bars_but_the_holdout_and_the_report_is_one_page(
    undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(undisturbed.folder)
    found = undisturbed.found
    best, settings = undisturbed.trained[-1], found["trials"][0]["settings"]
    assert best.name == "mine-best"
    assert best.config.learner.model_dump()["actor_learning_rate"] == settings["learner.actor_learning_rate"]
    panel = build_panel(best.config)[0]
    assert (len(panel.splits.holdout), panel.splits.tests) == (40, ())
    page = tmp_path / "mine.html"
    reported = document("report", "mine", "--out", str(page))
    assert reported | {"file": None} == found["choice"]
    text = page.read_text()
    assert text.count("<svg") == 2
    for trial in found["trials"]:
        assert f"learner.actor_learning_rate={trial['settings']['learner.actor_learning_rate']}" in text
    assert "<script" not in text
    assert str(Path.cwd()) not in text


@pytest.mark.thorough
def test_with_several_objectives_the_front_is_marked_and_the_best_by_the_first_is_trained_again(tmp_path: Path) -> None:
    command = ["sweep", "mine", *VARIED, "--trials", "2", "--cv", "walk", "--folds", "1", *SETTINGS]
    command += ["--objective", "excess", "--objective", "sharpe"]
    said = " ".join(eigen(*command, "--refit", code=0).stdout.split())
    assert "No trial is stopped early" in said
    found = document(*command)
    first, second = found["trials"]
    assert found["objectives"] == ["excess", "sharpe"]
    assert first["value"] == first["values"][0] >= second["values"][0]
    assert first["front"]
    assert second["front"] == (second["values"] == first["values"] or second["values"][1] > first["values"][1])
    assert found["choice"]["best"] == first["number"]
    assert f"Run mine-best has the settings of trial {first['number']}, of the Pareto front the best by growth" in said
    page = tmp_path / "mine.html"
    document("report", "mine", "--out", str(page))
    text = page.read_text()
    assert "of the Pareto front of excess, sharpe the best by excess" in text
    assert "--objective excess --objective sharpe" in text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--objective", "sharpe"], "add --cv"),
        (["--cv", "kfold", "--objective", "sharpe", "--objective", "sharpe"], "each once"),
        (["--cv", "kfold", "--objective", "profit"], "give one of score, sharpe, growth, excess"),
        (["--cv", "cpcv", "--groups", "2"], "2 test groups of 2 groups"),
        (["--cv", "walk", "--groups", "5"], "--groups is an option of --cv cpcv"),
        (["--cv", "kfold", "--test-groups", "2"], "--test-groups is an option of --cv cpcv"),
        (["--cv", "cpcv", "--folds", "5"], "--folds is an option of --cv kfold or walk"),
        (["--folds", "5"], "--folds is an option of"),
        (["--cv", "kfold", "--refit", "--set", "market.holdout=0"], "market.holdout is 0"),
        (["--cv", "kfold", "--set", "market.validation=400"], "Give at least"),
    ],
)
def test_what_cannot_be_cross_validated_is_refused(options: list[str], reason: str) -> None:
    settings = [word for word in SETTINGS if word != options[-1].partition("=")[0]]
    if "--set" in options:
        key = options[-1].partition("=")[0]
        place = next(index for index, word in enumerate(SETTINGS) if word.startswith(f"{key}="))
        settings = SETTINGS[: place - 1] + SETTINGS[place + 1 :]
    assert reason in refused("sweep", "mine", *VARIED, *settings, *options)


def test_a_sweep_without_cross_validation_has_no_report(tmp_path: Path) -> None:
    document("sweep", "plain", *VARIED, *SETTINGS)
    assert "has no finished trial of a cross-validation" in refused(
        "report", "plain", "--out", str(tmp_path / "a.html")
    )
    Path("runs/.sweeps/broken.db").write_bytes(b"no database")
    assert "holds no study" in refused("report", "broken", "--out", str(tmp_path / "b.html"))
