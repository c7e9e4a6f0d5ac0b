"""Bad input of the command line: exit code 2, one or two sentences, no traceback, nothing half-written."""

import re
from pathlib import Path

import pytest
from cli_cases import document, eigen, refused
from folder_digest import digest

from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.config import PRESET_NAMES, Config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a file that is no folder, unusable price files, and a store with one run."""
    folder = tmp_path_factory.mktemp("bad-input")
    (folder / "file").write_text("not a folder")
    (folder / "empty.csv").write_text("")
    (folder / "text.csv").write_text("date,AAA,BBB\n2001-01-01,one,two\n2001-01-02,three,four\n")
    RunDirectory.create(folder / "store", "known", Config().model_dump(mode="json"))
    RunDirectory.create(folder / "store", "broken", {"preset": "quickstart", "learner": {"gamma": 7}})
    return folder


# Refused by the configuration alone.
SETTINGS: dict[str, tuple[list[str], str]] = {
    "unknown key": (["--set", "learner.batchsize=3"], "did you mean learner.batch_size?"),
    "key without its section": (["--set", "gamma=0.5"], "did you mean learner.gamma?"),
    "wrong type": (["--set", "learner.batch_size=many"], "give a whole number from 1 to 65,536"),
    "no equals sign": (["--set", "learner.batch_size"], "write it as key=value"),
    "a section": (["--set", "learner=3"], "is a section of settings"),
    "not a number": (["--set", "trading.cost_bps=.nan"], "'.nan' cannot be used"),
    "negative cost": (["--set", "trading.cost_bps=-1"], "give a number from 0 to 1,000,000,000"),
    "octal": (["--set", "population.size=010"], "'010' cannot be used"),
    "sexagesimal": (["--set", "learner.actor_learning_rate=1:30"], "'1:30' cannot be used"),
    "nested deep": (["--set", f"network.scales={'[' * 100_000}"], "give a list of whole numbers"),
    "aliases": (["--set", "network.scales=[&a 1, *a]"], "give a list of whole numbers"),
    "more memory than numbers can hold": (["--set", "memory.limit_gb=1e308"], "give a number above 0"),
    "infinite queue": (["--set", "checkpoint.queue_mb=inf"], "give a number above 0"),
    "5,000 digits": (["--seed", "9" * 5_000], "give a whole number of at least 0"),
    "too many generations": (["--generations", str(10**30)], "a whole number from 1 to 1,000,000"),
    "capacity below minimum": (["--set", "replay.capacity=10"], "is below replay.minimum"),
    "filter longer than the window": (["--set", "network.scales=[1,100]"], "may not reach further back"),
    "validation shorter than an episode": (["--set", "market.validation_days=9"], "shorter than an episode"),
    "negative seed": (["--seed", "-1"], "a whole number of at least 0"),
    "a key twice": (["--seed", "1", "--set", "seed=2"], "seed is given twice"),
    "unknown preset": (["--preset", "huge"], "there is no preset 'huge'"),
    "unknown device": (["--device", "tpu"], "give one of auto, cpu, cuda"),
}

# Refused by what the configuration meets: data, store, run.
SURROUNDINGS: dict[str, tuple[list[str], str]] = {
    "run name with a slash": (["train", "--run", "../x"], "cannot be named"),
    "run name with a space": (["train", "--run", "a b"], "cannot be named"),
    "empty run name": (["train", "--run", ""], "cannot be named"),
    "run name like another option": (["train", "--run=--help"], "cannot be named"),
    "resume a name like an option": (["resume", "--", "--help"], "cannot be named"),
    "missing data": (["train", "--data", "nowhere.csv"], "nowhere.csv"),
    "data in an unknown home": (["train", "--data", "~nosuchuser/x"], "~nosuchuser/x"),
    "empty data": (["train", "--data", "empty.csv"], "empty.csv"),
    "text in prices": (["train", "--data", "text.csv"], "text.csv"),
    "window too long for the data": (
        ["train", "--set", "market.window=5000", "--set", "market.validation_days=3000"],
        "the panel has",
    ),
    "capacity below one generation": (
        ["train", "--set", "replay.capacity=3000", "--set", "replay.minimum=3000"],
        "transitions of one generation",
    ),
    "batch larger than training": (["train", "--set", "learner.batch_size=60000"], "lower it"),
    "store in the place of a file": (["train", "--store", "file"], "file"),
    "store below a file": (["train", "--store", "file/store"], "file"),
    "store elsewhere": (["train", "--store", "s3://bucket/runs"], "folder"),
    "other settings": (["train", "--store", "store", "--run", "known", "--seed", "9"], "seed differs"),
    "not fresh": (["train", "--store", "store", "--run", "known", "--fresh"], "leave out --fresh"),
    "broken configuration": (["train", "--store", "store", "--run", "broken"], "learner.gamma"),
    "resume an unknown run": (["resume", "nope", "--store", "store"], "There is no run 'nope'"),
    "resume in a store that is a file": (["resume", "nope", "--store", "file"], "file"),
    "resume to no generation": (["resume", "known", "--store", "store", "--generations", "0"], "from 1 to"),
    "show an unknown run": (["show", "nope"], "There is no run 'nope'"),
    "show a broken configuration": (["show", "broken", "--store", "store"], "learner.gamma"),
    "list a file": (["runs", "--store", "file"], "file"),
    "explain an unknown preset": (["presets", "huge"], "there is no preset 'huge'"),
}


BAD = {name: (["train", *options], part) for name, (options, part) in SETTINGS.items()} | SURROUNDINGS


@pytest.mark.parametrize(("arguments", "part"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_in_a_sentence_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, folder: Path, arguments: list[str], part: str
) -> None:
    monkeypatch.chdir(folder)
    before = digest(folder)
    said = eigen(*arguments, code=2).stderr
    assert said.startswith("eigen: ")
    assert part in said
    assert said.count("\n") == 1, said
    assert len(re.findall(r"[.?!](?:\s|$)", said)) <= 3, said
    assert digest(folder) == before


def test_presets_explain_every_setting() -> None:
    rows = document("presets", "eigen2")
    assert {"key", "value", "default", "source", "accepts", "unit", "meaning"} == set(rows[0])
    assert next(row for row in rows if row["key"] == "market.window")["value"] == 504
    assert [row["preset"] for row in document("presets")] == list(PRESET_NAMES)
    assert "eigen train --preset quickstart" in eigen("train", "--help", code=0).stdout


_URL = "http://user:hunter2@127.0.0.1:1/prices.csv"


@pytest.mark.parametrize(
    "command", [("train", "--data", _URL), ("audit", "--data", _URL), ("plan", "--data", _URL), ("workers", _URL)]
)
def test_a_password_is_refused_and_not_repeated(command: tuple[str, ...]) -> None:
    said = refused(*command)
    assert "has a user or a password in it" in said
    assert "hunter2" not in said
