"""Runs that other versions of Eigen have written are read, migrated, or refused one by one in a sentence."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import JsonValue
from record_cases import record, telemetry
from typer.testing import CliRunner

from eigen_core.checkpoint.export import read_champion
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.session import open_session
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.config import Config, stored
from eigen_core.housekeeping import export_champion, verify_run
from eigen_core.training.runs import Run, status_of
from flows.cli.app import app
from flows.server.training import unfinished_runs

STORED_RUNS = Path(__file__).parents[2] / "support" / "stored_runs"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the runs that are kept as files of the tests."""
    shutil.copytree(STORED_RUNS, tmp_path / "runs")
    return tmp_path / "runs"


def write_run(store: Path, name: str, values: dict[str, Any]) -> None:
    """Write a run of one generation whose configuration is stored as `values`."""
    RunDirectory.create(store, name, values)
    documents: dict[str, JsonValue | bytes] = {
        "history": [record(1).model_dump(mode="json")],
        "telemetry": [telemetry(1).model_dump(mode="json")],
        "champion": {"layout": []},
    }
    tensors = {"population": {"weights": torch.zeros(2)}, "champion": {"weights": torch.zeros(2)}}
    settings = Config().checkpoint.model_copy(update={"store": str(store)})
    with open_session(settings, name) as session:
        session.save(Snapshot(1, tensors, documents, 1), values)


@pytest.mark.parametrize("name", [path.name for path in sorted(STORED_RUNS.iterdir())])
def test_a_run_of_each_version_is_read(store: Path, tmp_path: Path, name: str) -> None:
    status = status_of(str(store), name)
    assert (status.state, status.generation, status.config.population.size) == ("finished", 1, 2)
    assert verify_run(str(store), name, deep=True).damages == ()
    loaded = RunDirectory.open(store, name).load_newest()
    assert loaded is not None
    assert loaded.snapshot.ring is not None
    export_champion(str(store), name, tmp_path / "champion.safetensors")
    weights, config, _ = read_champion(tmp_path / "champion.safetensors")
    assert weights.isfinite().all()
    assert Config(**config).population.size == 2


def test_a_run_with_a_setting_that_was_renamed_goes_on(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.model_validate({"generations": 3, "learner": {"gamma": 0.5}, "checkpoint": {"store": str(store)}})
    values = config.model_dump(mode="json")
    values["learner"]["discount"] = values["learner"].pop("gamma")
    write_run(store, "old", values)

    def renamed(old: dict[str, Any]) -> None:
        if "discount" in old.get("learner", {}):
            old["learner"]["gamma"] = old["learner"].pop("discount")

    monkeypatch.setattr(stored, "MIGRATIONS", (renamed,))
    run = Run.open(str(store), "old")
    found = run.config
    assert found == config
    run.require_same(config)
    assert status_of(str(store), "old").config == config
    assert verify_run(str(store), "old", deep=True).damages == ()
    chosen = unfinished_runs(str(store))[0]
    assert (chosen.name, chosen.config) == ("old", config)
    export_champion(str(store), "old", tmp_path / "champion.safetensors")
    assert Config(**read_champion(tmp_path / "champion.safetensors").config) == config


def test_a_run_with_settings_that_its_learner_never_read_goes_on(store: Path) -> None:
    """Up to version 10 each learner had the settings of all."""
    config = Config.model_validate({"generations": 3, "checkpoint": {"store": str(store)}})
    values = config.model_dump(mode="json")
    values["learner"] |= {"policy_delay": None, "clip_range": 0.3, "stretches": 2, "target_noise": 0.7}
    write_run(store, "old", {**values, "format_version": 10})
    run = Run.open(str(store), "old")
    assert run.config == config
    run.require_same(config)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format_version": 99, "unheard_of": 1}, "was written by a newer version of Eigen"),
        ({"unheard_of": 1}, "unheard_of: unknown setting"),
        ({"learner": 7}, "learner: '7' cannot be used"),
    ],
)
def test_a_run_that_cannot_be_read_hides_no_other(store: Path, change: dict[str, Any], sentence: str) -> None:
    unfinished = Config.model_validate({"generations": 3})
    write_run(store, "unreadable", unfinished.model_dump(mode="json") | change)
    write_run(store, "another", unfinished.model_dump(mode="json"))

    def eigen(*arguments: str) -> tuple[int, str]:
        ended = CliRunner().invoke(app, [*arguments, "--store", str(store)])
        assert "Traceback" not in ended.output
        return ended.exit_code, ended.output

    code, said = eigen("runs")
    assert code == 0
    assert {"another", "version-1"} <= set(said.split())
    assert sentence in said
    code, said = eigen("runs", "--json")
    rows = {row["run"]: row for row in json.loads(said)}
    assert (code, len(rows), rows["unreadable"]["state"], rows["another"]["state"]) == (
        0,
        3,
        "unreadable",
        "unfinished",
    )
    assert sentence in rows["unreadable"]["error"]
    code, said = eigen("show", "unreadable")
    assert code == 2
    assert sentence in said
    code, said = eigen("verify", "unreadable")
    assert code == 1
    assert said.count(sentence) == 1
    assert eigen("verify", "another")[0] == 0
    chosen = unfinished_runs(str(store))[0]
    assert chosen.name == "another"
