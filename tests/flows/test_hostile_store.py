"""A store that somebody else has prepared: no setting in it imports, connects, or writes outside of the run.

Each setting of a stored configuration is replaced, one after the other, by what would do harm if it was followed, and
the commands that open a run are called.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from cli_cases import eigen
from flow_cases import eigen_environment, run_eigen, small_flow_config
from hostile_settings import nested
from operation_cases import digest, listening

from eigen_core.checkpoint.integrity import checksummed, is_verified
from eigen_core.checkpoint.locks import FileLock
from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.checkpoint.session import create_run, open_session
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.checkpoint.uploads import UploadStatus
from eigen_core.common.errors import InputError
from eigen_core.config.explain import settings
from eigen_core.config.machine_settings import MACHINE_SETTINGS
from eigen_core.config.model import merge
from eigen_core.config.stored import stored_values
from eigen_core.generation import evaluate, evolve, hold_out, snapshot, start_training, train
from eigen_core.market import build_panel
from eigen_core.reporting.trackers import make_database
from eigen_core.runs.journals import BlockedError, count_attempt
from flows.cli.run_jobs import RunJob, train_in_subprocess
from flows.server.state_directory import StateDirectory

_SECRET = "hunter2"
_MODULE = "planted_module"
_LOOKS = (["show"], ["show", "--json"], ["verify", "--deep"], ["runs"])
_TRUSTED_TEXTS = ("task", *(f"market.{name}" for name in ("data", "context", "levels", "own_features", "time_zone")))

_NAMES_IN_FILES = ("market.calendar", "market.date_format", "market.symbols")


class Hostile:
    """What a stored configuration points at, and whether it was followed."""

    def __init__(self, folder: Path, address: str, connections: list[Any]) -> None:
        self.store = folder / "runs"
        self.theirs = folder / "theirs"
        self.modules = folder / "modules"
        self.modules.mkdir()
        (self.modules / f"{_MODULE}.py").write_text(
            f"from pathlib import Path\nPath({str(self.theirs)!r}).mkdir(exist_ok=True)\n"
        )
        self.address, self.connections = address, connections

    def values_of(self, key: str) -> list[Any]:
        url = f"http://user:{_SECRET}@{self.address}"
        texts: dict[str, list[Any]] = {
            "scheduler": [f"tcp://{self.address}", f"tls://user:{_SECRET}@{self.address}"],
            "task": [f"gym:{_MODULE}:Environment", f"gym:{_MODULE}:Name-v0"],
            "reporting.trackers": [["mlflow", "tensorboard"]],
            "reporting.mlflow_uri": [url, f"sqlite:///{self.theirs}/mlflow.db"],
            "market.own_features": [[f"{_MODULE}:feature"], [_MODULE]],
            "market.time_zone": [f"../{self.theirs}", url],
        }
        return texts.get(key, [str(self.theirs), f"http://{self.address}/x", url])

    def assert_not_followed(self, *said: str) -> None:
        """Nothing was imported, connected to, written there, or printed."""
        assert _MODULE not in sys.modules
        assert self.connections == []
        assert not self.theirs.exists()
        assert not any(_SECRET in text for text in said)


@pytest.fixture(scope="module")
def trained() -> Any:
    config = small_flow_config(Path("runs"), generations=1, market={"holdout": 60})
    state = start_training(config, build_panel(config)[0])
    for phase in (evaluate, train, evolve):
        phase(state)
    return snapshot(state), hold_out(state)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hostile]:
    for setting in MACHINE_SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with listening() as listener, patch.dict(os.environ):
        found = Hostile(tmp_path, *listener)
        monkeypatch.syspath_prepend(str(found.modules))
        yield found


def plant(hostile: Hostile, trained: Any, changes: dict[str, Any], generations: int = 1) -> None:
    """A store with a run whose configuration has these values, in its own file and in its manifest."""
    config = small_flow_config(hostile.store, generations=generations, market={"holdout": 60})
    stored = merge(stored_values(config), changes)
    saved: Snapshot = trained[0]
    create_run(RunLocation.of(config.checkpoint, "run"), stored)
    with open_session(RunLocation.of(config.checkpoint, "run"), config.checkpoint) as session:
        session.save(saved, stored)
        if generations == 1:
            session.keep_holdout(1, trained[1].model_dump(mode="json"))


def said_by(hostile: Hostile, command: str, *options: str) -> str:
    """What a command says, which ends with a result or a sentence."""
    named = [] if command == "runs" else ["run"]
    found = eigen(command, *named, "--store", str(hostile.store), *options)
    assert found.exception is None or isinstance(found.exception, SystemExit), (command, found.exception)
    assert found.exit_code in (0, 1, 2), (command, found.output)
    return found.output


def use(hostile: Hostile, *, few: bool = False) -> list[str]:
    """What all commands say that open a run, those that compute with it first, and what they write for others.

    A few are one that computes, the one that trains, and one that looks.
    """
    page = hostile.store.parent / "report.html"
    champion = str(page.with_name("champion.safetensors"))
    computing = (["backtest"], ["report", "--out", str(page)], ["act"], ["export", "--champion", champion], ["resume"])
    commands = (["backtest"], ["resume"], ["show"]) if few else (*computing, *_LOOKS)
    said = [said_by(hostile, *command) for command in commands]
    written = [path for path in hostile.store.parent.rglob("*") if path.is_file() and path.name != "config.json"]
    new = [path for path in written if path.parent.name not in ("manifests", "modules")]
    return [*said, *(path.read_bytes().decode("latin-1") for path in new)]


@pytest.mark.thorough
@pytest.mark.parametrize("key", [key for key in settings() if key not in (*MACHINE_SETTINGS, *_TRUSTED_TEXTS)])
def test_a_text_in_place_of_any_other_setting_is_refused(hostile: Hostile, trained: Any, key: str) -> None:
    plant(hostile, trained, nested(key, hostile.values_of(key)[0]))
    # All commands open a run alike, and are called with a setting of each kind of refusal.
    said = use(hostile, few=key not in ("seed", "market.columns.close", "checkpoint.keep_last"))
    hostile.assert_not_followed(*said)
    # Any text may name a column or a form of dates: it is refused when the prices are read.
    refused_on_reading = key in _NAMES_IN_FILES or key.startswith("market.columns.")
    if refused_on_reading:
        assert said[0].startswith("eigen: ")
    else:
        assert "cannot be used" in said[0] or "is a setting of" in said[0]


@pytest.mark.thorough
@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("key", _TRUSTED_TEXTS)
def test_no_text_is_followed_by_commands_that_compute(hostile: Hostile, trained: Any, key: str, which: int) -> None:
    values = hostile.values_of(key)
    if which < len(values):
        plant(hostile, trained, nested(key, values[which]))
        hostile.assert_not_followed(*use(hostile))


_KINDS: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, kept: path.symlink_to(kept),
    "link inside": lambda path, _: path.symlink_to("config.json" if path.name != "config.json" else "blobs"),
    "link out": lambda path, kept: path.symlink_to(os.path.relpath(kept, path.parent)),
    "circle": lambda path, _: path.symlink_to(path.name),
    "link to a folder": lambda path, kept: path.symlink_to(kept.parent),
    "FIFO": lambda path, _: os.mkfifo(path),
    "device": lambda path, _: path.symlink_to("/dev/zero"),
}
_OF_COMMANDS = (
    *("lock", "act.json", "uploads.json", "stops.json", "plots/fitness.png", "backtests/champion/curve.csv"),
    *("memory/20260101T000000-000001-train.md", "tensorboard/events", "mlflow.db.part", "lease/000001"),
)
_CHANGES = (["clean", "--older-than", "0s"], ["resume", "--set", "generations=2"], ["memory"])


def places_of(store: Path) -> list[str]:
    """All files and folders of a run, with those that commands write, and the run's folder."""
    for name in _OF_COMMANDS:
        (store / "run" / name).parent.mkdir(exist_ok=True, parents=True)
        (store / "run" / name).touch()
    return [*sorted(path.relative_to(store).as_posix() for path in store.rglob("run/**/*")), "run"]


def replaced(hostile: Hostile, name: str, kind: str) -> None:
    """What was there is now in a folder of somebody else, beside other files of theirs."""
    path, kept = hostile.store / name, hostile.theirs / "kept"
    hostile.theirs.mkdir()
    path.rename(kept)
    for folder in {hostile.theirs, kept, kept / "ab"} if kept.is_dir() else {hostile.theirs}:
        folder.mkdir(exist_ok=True)
        for theirs in ("diary", ".writing-0123", "e" * 64):
            (folder / theirs).write_text("mine")
    _KINDS[kind](path, kept)


def require_untouched(hostile: Hostile, name: str, kind: str, commands: Iterable[Sequence[str]]) -> None:
    copy = hostile.store.with_name("planted")
    shutil.copytree(hostile.store, copy)
    replaced(hostile, name, kind)
    theirs, names = digest(hostile.theirs), sorted(hostile.store.rglob("*"))
    for command in commands:
        said = said_by(hostile, *command)
        assert digest(hostile.theirs) == theirs, (name, kind, command)
        if not is_verified(name.removeprefix("run/")) and command[0] != "runs":
            place = str(hostile.store / name)
            refusal = f"Cannot read {place}: a file" if (name, kind) == ("run", "FIFO") else f"{place} is a "
            assert f"eigen: {refusal}" in said, (name, kind, command, said)
            assert sorted(hostile.store.rglob("*")) == names, (name, kind, command)
    shutil.rmtree(hostile.store)
    shutil.rmtree(hostile.theirs)
    copy.rename(hostile.store)


def test_what_lies_elsewhere_stays_whatever_is_in_a_place_of_a_run(hostile: Hostile, trained: Any) -> None:
    plant(hostile, trained, {})
    for number, name in enumerate(places_of(hostile.store)):
        folder = (hostile.store / name).is_dir()
        kind = "link" if folder else list(_KINDS)[number % len(_KINDS)]
        change = _CHANGES[0 if is_verified(name.removeprefix("run/")) else number % 2]
        require_untouched(hostile, name, kind, (change, ["runs"]))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_no_command_touches_what_lies_elsewhere(hostile: Hostile, trained: Any, kind: str) -> None:
    plant(hostile, trained, {})
    names, out = places_of(hostile.store), str(hostile.store.with_name("out"))
    verified = [name for name in names if is_verified(name.removeprefix("run/"))]
    others = (["backtest"], ["report", "--out", out], ["importance"], ["act"], ["export", "--champion", out])
    commands = (*_CHANGES, *others, *_LOOKS)
    for number, name in enumerate(sorted({*names} - {*verified})):
        require_untouched(hostile, name, kind, commands[number % 4 :: 4])
    for name in (verified[0], *verified[-2:]):  # a blob, the configuration, the manifest
        require_untouched(hostile, name, kind, (["act"], *_CHANGES))


@pytest.mark.parametrize(
    "change",
    [
        "wider",
        *(pytest.param(one, marks=pytest.mark.thorough) for one in ("narrower", "another network", "another type")),
    ],
)
def test_weights_of_another_shape_are_named_by_all_commands(hostile: Hostile, trained: Any, change: str) -> None:
    saved: Snapshot = trained[0]
    tensors = {stem: dict(held) for stem, held in saved.tensors.items()}
    for held in (tensors["champion"], tensors["population"]):
        wider = torch.cat([held["weights"], held["weights"][..., :1]], dim=-1)
        values = {"wider": wider, "narrower": held["weights"][..., 1:], "another type": held["weights"].double()}
        held["weights"] = values.get(change, held["weights"])
    other = nested("network.embedding", 5) if change == "another network" else {}
    plant(hostile, (replace(saved, tensors=tensors), trained[1]), other)
    found = "'weights' of float32" if change == "another type" else "'weights' of agents of run 'run' has the shape"
    others = ["backtest"], ["backtest", "--agent", "elites"], ["importance"], ["report", "--out", str(hostile.theirs)]
    for command in (["act"], *(() if change == "wider" else others)):
        said = said_by(hostile, *command)
        assert found in said.splitlines()[-1], (command, said)
    said = said_by(hostile, "resume", "--set", "generations=2")
    assert "lists the tensor" in said, said


_SWEEP = ("sweep", "mine", "--vary", "learner.weight_decay=0.1:1", "--trials", "1")
_WALK = ("walk", "mine", "--folds", "1", "--jobs", "2")
_BESIDE_RUNS = {
    "runs/.sweeps": _SWEEP,
    "runs/.sweeps/mine-000-s1.log": _SWEEP,
    "runs/walks": _WALK,
    "runs/walks/mine": _WALK,
    "runs/walks/mine/mine-fold-1-seed-1.log": _WALK,
    "runs/looks": ("backtest", "run"),
    "runs/looks-chain": ("backtest", "run"),
    ".eigen": ("status",),
    ".eigen/.gitignore": ("up",),
    ".eigen/server.log": ("up",),
    "trust": ("trust", "us5", "--trials", "1"),
    "runs/.remote/gs/bucket": ("show", "run", "--store", "gs://bucket"),
}


@pytest.mark.parametrize("name", _BESIDE_RUNS)
@pytest.mark.parametrize("kind", ["link", pytest.param("FIFO", marks=pytest.mark.thorough)])
def test_nothing_beside_the_runs_leads_elsewhere(hostile: Hostile, trained: Any, name: str, kind: str) -> None:
    if name.startswith("runs/looks"):
        plant(hostile, trained, {})
    path, theirs = hostile.store.parent / name, hostile.theirs / "kept"
    path.parent.mkdir(parents=True, exist_ok=True)
    hostile.theirs.mkdir()
    if path.suffix in (".log", ".gitignore"):
        theirs.write_text("mine")
    else:
        theirs.mkdir()
        (theirs / "diary").write_text("mine")
    _KINDS[kind](path, theirs)
    before = digest(hostile.theirs)
    ended = eigen(*_BESIDE_RUNS[name])
    assert digest(hostile.theirs) == before
    assert (ended.exit_code, ended.exception.__class__) == (2, SystemExit), ended.output
    assert kind == "FIFO" or f"{path} is a symbolic link" in ended.output


def _log_a_trial(path: Path) -> None:
    with patch("subprocess.Popen", side_effect=OSError), suppress(OSError):
        train_in_subprocess(RunJob("run", small_flow_config(path.parents[1]), ()), path, lambda: False)


def _log_the_server(path: Path) -> None:
    StateDirectory(path.parent).start("server", ["true"], {}, lambda: False, 1.0, api="http://127.0.0.1:1/api")


def _ignore(path: Path) -> None:
    with StateDirectory(path.parent).locked():
        pass


_CHANGED_IN_PLACE: dict[str, Callable[[Path], object]] = {
    "runs/run/lock": lambda path: FileLock(path).require("Run 'run'"),
    "runs/mlflow.db": lambda path: make_database(path, path.with_name("run")),
    "runs/.sweeps/mine.log": _log_a_trial,
    ".eigen/lock": _ignore,
    ".eigen/.gitignore": _ignore,
    ".eigen/server.log": _log_the_server,
}


@pytest.mark.parametrize("name", _CHANGED_IN_PLACE)
def test_a_file_that_has_another_name_elsewhere_stays_as_it_is(hostile: Hostile, name: str) -> None:
    path, kept = hostile.store.parent / name, hostile.theirs / "kept"
    for folder in (path.parent, hostile.theirs):
        folder.mkdir(parents=True)
    kept.write_text("mine")
    os.link(kept, path)
    before = kept.stat()
    try:
        _CHANGED_IN_PLACE[name](path)
    except InputError as error:
        assert f"{path} is a hard link to another file" in str(error)  # noqa: PT017 - some are replaced instead
    assert kept.read_text() == "mine"
    assert kept.stat().st_mtime_ns == before.st_mtime_ns


def test_the_lock_of_a_run_that_was_copied_by_hard_links_is_taken(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "copy")
    assert first.acquire()
    os.link(tmp_path / "lock", tmp_path / "copy")
    assert not second.acquire(0.0)
    first.release()
    assert second.acquire()
    second.release()


_IN_PLACE = re.compile(r"""open\([^)]*["'](a|w|r\+)b?["']|write_text\(|write_bytes\(|\.touch\(|truncate\(""")
_NEW_FILES = ("without_file(", "mark.touch()", "oom_score_adj", "_CLEAR_REFS", "open(writing, ")


def test_no_other_file_is_changed_in_place() -> None:
    """All others are replaced as a whole: `replacing` and `temporary_file` make new files."""
    found = {
        (path.name, line.strip())
        for package in ("eigen_core", "flows", "tasks")
        for path in Path(package).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if _IN_PLACE.search(line) and not any(known in line for known in _NEW_FILES)
    }
    assert found == {
        ("locks.py", "os.ftruncate(descriptor, 0)"),
        ("gcs.py", "file.truncate()"),  # given by `replacing`
        ("allocation.py", "os.truncate(descriptor, max(size, 1))"),  # anonymous memory
        ("replay_shards.py", 'with open(path, "wb") as file:'),  # a `temporary_file`
    }


_ESCAPE = "\x1b[2Jred"


def with_escapes(document: Any) -> Any:
    if isinstance(document, list):
        return [with_escapes(item) for item in document]
    if not isinstance(document, dict):
        return document
    texts = ("run", "host", "moment", "last_error", "store")
    return {key: f"{value}{_ESCAPE}" if key in texts else with_escapes(value) for key, value in document.items()}


def escape(path: Path, **changes: object) -> None:
    document = with_escapes(json.loads(path.read_bytes()))
    had_checksum = document.pop("checksum", None) is not None
    document |= changes
    path.unlink()
    content = checksummed(document) if had_checksum else json.dumps(document).encode()
    if path.parent.name == "manifests":
        path = path.parent / f"000001-{json.loads(content)['checksum'][:8]}.json"
    path.write_bytes(content)


def test_no_text_of_a_store_is_printed_as_it_is(hostile: Hostile, trained: Any) -> None:
    plant(hostile, trained, {})
    run, location = hostile.store / "run", RunLocation.of(small_flow_config(hostile.store).checkpoint, "run")
    for _ in range(3):
        count_attempt(location, 2)
    status = UploadStatus(run="run", store="gs://bucket", updated=datetime.now(UTC), pending=1, last_error="none")
    (run / "uploads.json").write_text(status.model_dump_json())
    for name in ("attempts.json", "uploads.json", "lease/000001"):
        escape(run / name)
    said = [said_by(hostile, *command) for command in _LOOKS]
    try:
        count_attempt(location, 2)
    except BlockedError as error:
        said.append(str(error))
    # Whoever finds the run in use names its holder.
    lock = FileLock(run / "lock")
    assert lock.acquire()
    (run / "lock").write_text(json.dumps(with_escapes(json.loads((run / "lock").read_bytes()))))
    said += [said_by(hostile, *command) for command in (["show"], ["resume", "--set", "generations=2"])]
    lock.release()
    (manifest,) = (run / "manifests").iterdir()
    escape(manifest, format_version=99)
    said.append(said_by(hostile, "verify"))
    assert [text for text in said if "\x1b" in text] == []


def all_at_once(hostile: Hostile, which: int = 0) -> dict[str, Any]:
    """All settings of a machine, so that one which is followed can be told."""
    changes: dict[str, Any] = {}
    for key in MACHINE_SETTINGS:
        values = hostile.values_of(key)
        changes = merge(changes, nested(key, values[which % len(values)]))
    return changes


@pytest.mark.thorough
@pytest.mark.parametrize("which", range(3))
def test_no_setting_of_a_machine_is_followed_by_commands_that_compute(
    hostile: Hostile, trained: Any, which: int
) -> None:
    plant(hostile, trained, all_at_once(hostile, which))
    said = use(hostile)
    hostile.assert_not_followed(*said)
    assert "run" in said[0]
    assert (hostile.store.parent / "report.html").exists()
    assert not list(hostile.store.rglob("*.db")) + list(hostile.store.rglob("*tfevents*"))


def test_a_module_is_imported_by_a_resume_only_if_it_is_named_again(hostile: Hostile, trained: Any) -> None:
    task = f"gym:{_MODULE}:Environment"
    plant(hostile, trained, {"task": task}, generations=2)
    said = said_by(hostile, "resume", "--set", "generations=3")
    assert f"name the task again: --set task={task}" in " ".join(said.split())
    hostile.assert_not_followed(said)
    hostile.theirs.mkdir()
    said = said_by(hostile, "resume", "--set", f"task={task}")
    assert "name the task again" not in said
    sys.modules.pop(_MODULE, None)


@pytest.mark.thorough
def test_a_training_goes_on_with_this_machines_settings_alone(hostile: Hostile, trained: Any) -> None:
    plant(hostile, trained, merge(all_at_once(hostile), {"workers": 1}), generations=2)
    environment = eigen_environment(hostile.store.parent / "prefect", PYTHONPATH=str(hostile.modules))
    ended = run_eigen(("resume", "run"), environment=environment, folder=hostile.store.parent, timeout=500, code=0)
    assert "EIGEN_SCHEDULER" in ended.stdout + ended.stderr
    hostile.assert_not_followed(ended.stdout, ended.stderr)
    assert not list(hostile.store.rglob("*.db")) + list(hostile.store.rglob("*tfevents*"))
    new = RunLocation.of(small_flow_config(hostile.store).checkpoint, "run").stored.newest_manifest()
    assert new is not None
    assert new.generation == 2
    assert _SECRET not in str(new.config)
