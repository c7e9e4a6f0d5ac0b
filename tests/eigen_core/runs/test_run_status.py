"""Continuing a run with other settings, its status and journals, and runs that other versions have written.

A remote store chooses neither what a resume reads nor where it writes: this machine does.
"""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_cases import eigen
from fault_proxy import Fault, FaultProxy
from flow_cases import small_flow_config
from gcs_emulator import GcsEmulator
from memory_cases import bare_report
from record_cases import record, save_records, snapshot_of_records, telemetry
from store_cases import run_config, save_generations

from eigen_core.checkpoint.export import read_champion
from eigen_core.checkpoint.integrity import blob_path
from eigen_core.checkpoint.locks import Lease
from eigen_core.checkpoint.manifest import Manifest, manifest_bytes
from eigen_core.checkpoint.run_contents import RunContents, RunLocation
from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.checkpoint.session import open_session
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.checkpoint.store import StoreUnavailableError
from eigen_core.checkpoint.store_location import command_for
from eigen_core.common.errors import InputError
from eigen_core.config import Config, merge
from eigen_core.config.model import CheckpointConfig
from eigen_core.config.stored import config_from_stored
from eigen_core.housekeeping import export_champion, verify_run
from eigen_core.runs import journals
from eigen_core.runs.handle import Run, status_of, unfinished_runs
from flows.cli.common import RunOptions
from flows.server.status import newest_run


def save(config: Config, generation: int) -> Manifest:
    return save_records(config, "run", [telemetry(number) for number in range(1, generation + 1)])


def directory_of(location: RunLocation) -> RunDirectory:
    return RunDirectory.open(location.root, location.name)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return small_flow_config(tmp_path / "store")


@pytest.fixture
def location(config: Config) -> RunLocation:
    return Run(config.checkpoint, "run").begin(config)


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"generations": 9}, None),
        ({"threads": 2}, None),
        ({"device": "auto"}, None),
        ({"population": {"group_size": 1}}, None),
        ({"checkpoint": {"keep_last": 9, "keep_every": 0}}, None),
        ({"reporting": {"plot_every": 3}}, None),
        ({"seed": 4}, "seed"),
        ({"population": {"size": 6}}, "population.size"),
        ({"learner": {"gamma": 0.5}}, "learner.gamma"),
        ({"market": {"data": "other.csv"}}, "market.data"),
    ],
)
def test_only_what_changes_no_bit_may_change_while_a_run_goes_on(
    config: Config, changes: dict[str, object], refused: str | None
) -> None:
    Run(config.checkpoint, "run").begin(config)
    expected = pytest.raises(InputError, match=f"other settings: {refused} differs") if refused else nullcontext()
    with expected:
        Run(config.checkpoint, "run").require_same_settings(small_flow_config(Path(config.checkpoint.store), **changes))


def test_the_latest_configuration_is_that_of_the_newest_generation(config: Config, location: RunLocation) -> None:
    first = (directory_of(location).path / "config.json").read_bytes()
    save(config, 1)
    longer = config.model_copy(update={"generations": 9})
    save(longer, 2)
    assert Run(config.checkpoint, "run").config == longer
    assert (directory_of(location).path / "config.json").read_bytes() == first
    save(config, 3)
    assert Run(config.checkpoint, "run").config == config


def test_the_status_follows_the_run(config: Config, location: RunLocation) -> None:
    store, run = config.checkpoint.store, directory_of(location)
    status = status_of(store, "run")
    assert (status.state, status.generation, status.history) == ("unfinished", 0, ())
    save(config, 1)
    save(config, 2)
    status = status_of(store, "run")
    assert (status.state, status.generation) == ("unfinished", 2)
    assert status.history == (record(1), record(2))
    assert status.telemetry == (telemetry(1), telemetry(2))
    with run.lock():
        assert status_of(store, "run").state == "running"
    save(config, 3)
    assert status_of(store, "run").state == "finished"
    save(config.model_copy(update={"generations": 5}), 4)
    assert status_of(store, "run").state == "unfinished"


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.thorough
def test_looking_at_a_run_in_a_bucket_writes_nothing_and_asks_as_much_for_many_generations_as_for_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault_proxy: FaultProxy,
    gcs_emulator: GcsEmulator,
    elsewhere: bool,
) -> None:
    def requests() -> list[str]:
        if elsewhere:
            monkeypatch.chdir(tmp_path)
        fault_proxy.requests.clear()
        assert newest_run(store) == "run"
        assert status_of(store, "run").state == ("running" if running else "unfinished")
        return [method for method, _ in fault_proxy.requests]

    for running in (False, True):
        counts = []
        for generations in (1, 4):
            folder = tmp_path / f"{running}{generations}"
            folder.mkdir()
            monkeypatch.chdir(folder)
            store = f"gs://{gcs_emulator.make_bucket()}"
            config = small_flow_config(
                Path("runs"), generations=20, checkpoint={"store": store, "keep_last": 20, "keep_local": 20}
            )
            location = Run(config.checkpoint, "run").begin(config)
            for generation in range(1, generations + 1):
                save(config, generation)
            assert len(location.stored.manifest_names()) == generations
            with Lease.acquire(location.store, "run", 90.0) if running else nullcontext():
                counts.append(requests())
        assert counts[0] == counts[1]
        assert set(counts[0]) == {"GET"}
        assert 0 < len(counts[0]) < 40


def test_a_store_can_be_moved(config: Config, tmp_path: Path) -> None:
    Run(config.checkpoint, "run").begin(config)
    save(config, 1)
    moved = Path(config.checkpoint.store).rename(tmp_path / "moved")
    status = status_of(str(moved), "run")
    assert (status.generation, status.store, status.config.checkpoint.store) == (1, str(moved), str(moved))


@pytest.mark.parametrize("name", ["history.json", "telemetry.json", "manifest"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_generation_is_skipped_for_the_one_before(
    config: Config, location: RunLocation, name: str, damage: str
) -> None:
    run = directory_of(location)
    save(config, 1)
    manifest = save(config, 2)
    path = run.path / manifest.name if name == "manifest" else blob_path(run.path, manifest.entry(name).sha256)
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-7] if damage == "cut" else content.replace(b"2", b"3"))
    status = status_of(config.checkpoint.store, "run")
    assert (status.generation, status.history) == (1, (record(1),))


def test_commands_name_the_store_unless_it_is_the_usual_one(tmp_path: Path) -> None:
    for store in ("runs", str(Path("runs").absolute())):
        assert command_for("resume", "a", store) == "eigen resume a"
    assert command_for("resume", "a", str(tmp_path / "x y")) == f"eigen resume a --store '{tmp_path}/x y'"


def test_a_store_that_does_not_answer_is_said_and_this_machine_tells_what_it_knows(
    config: Config,
    fault_proxy: FaultProxy,
    gcs_emulator: GcsEmulator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    quick_retries: list[float],  # noqa: ARG001 - retries take no time
) -> None:
    monkeypatch.chdir(tmp_path)
    store = f"gs://{gcs_emulator.make_bucket()}/pre"
    config = config.model_copy(update={"checkpoint": CheckpointConfig(store=store)})
    Run(config.checkpoint, "run").begin(config)
    save(config, 1)
    before = status_of(store, "run")
    assert before.generation == 1
    fault_proxy.add(Fault("status", times=None))
    after = status_of(store, "run")
    assert (after.history, after.store, after.state) == (before.history, before.store, before.state)
    assert after.uploads is not None
    assert "What is on this machine is shown" in caplog.text
    with pytest.raises(StoreUnavailableError):
        status_of(store, "another")


@pytest.mark.parametrize("content", [b"{}", b"[]", b"not json"])
def test_a_journal_that_cannot_be_read_counts_as_empty(
    location: RunLocation, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    stop = journals.Stop(moment=journals.now())
    journals.STOPS.append(location, stop)
    assert journals.STOPS.read(location) == [stop]
    location.stored.store.put("run/stops.json", content)
    assert journals.STOPS.read(location) == []
    assert "stops.json" in caplog.text
    journals.STOPS.append(location, stop)
    assert journals.STOPS.read(location) == [stop]


def test_only_the_newest_memory_reports_stay(location: RunLocation) -> None:
    written = [journals.write_memory_report(location, bare_report(), generation, "train") for generation in range(30)]
    left = journals.memory_reports(location.root / "run")
    assert left == written[:9:-1]
    assert len(list((location.root / "run" / "memory").iterdir())) == 2 * len(left)


STORED_RUNS = Path(__file__).parents[2] / "support" / "stored_runs"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    shutil.copytree(STORED_RUNS, tmp_path / "runs")
    return tmp_path / "runs"


def write_run(store: Path, name: str, values: dict[str, Any]) -> None:
    RunDirectory.create(store, name, values)
    records, weights = snapshot_of_records([telemetry(1)]), {"weights": torch.zeros(2)}
    tensors = {"population": weights, "champion": weights}
    settings = Config().checkpoint.model_copy(update={"store": str(store)})
    with open_session(RunLocation.of(settings, name), settings) as session:
        session.save(Snapshot(1, tensors, {**records.documents, "champion": {"layout": []}}, 1), values)


@pytest.mark.parametrize("name", [path.name for path in sorted(STORED_RUNS.iterdir())])
def test_a_run_of_each_version_is_read(store: Path, tmp_path: Path, name: str) -> None:
    status = status_of(str(store), name)
    assert (status.state, status.generation, status.config.population.size) == ("finished", 1, 2)
    assert verify_run(str(store), name, deep=True).damages == ()
    loaded = RunDirectory.open(store, name).load_newest()
    assert loaded is not None
    assert loaded.snapshot.ring is not None
    assert manifest_bytes(loaded.manifest) == (store / name / loaded.manifest.name).read_bytes()
    export_champion(str(store), name, tmp_path / "champion.safetensors")
    weights, config, _ = read_champion(tmp_path / "champion.safetensors")
    assert weights.isfinite().all()
    assert Config(**config).population.size == 2


def test_a_run_with_settings_that_its_learner_never_read_goes_on(store: Path, tmp_path: Path) -> None:
    """Up to version 10 each learner had the settings of all."""
    config = Config.model_validate({"preset": "ddpg", "generations": 3, "checkpoint": {"store": str(store)}})
    values = config.model_dump(mode="json")
    values["learner"] |= {"policy_delay": None, "clip_range": 0.3, "stretches": 2, "target_noise": 0.7}
    write_run(store, "old", {**values, "format_version": 10})
    run = Run.open(str(store), "old")
    assert run.config == config
    run.require_same_settings(config)
    assert status_of(str(store), "old").config == config
    assert verify_run(str(store), "old", deep=True).damages == ()
    assert [run.name for run in unfinished_runs(str(store))] == ["old"]
    export_champion(str(store), "old", tmp_path / "champion.safetensors")
    assert config_from_stored(read_champion(tmp_path / "champion.safetensors").config).learner == config.learner


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format_version": 99, "unheard_of": 1}, "was written by a newer version of Eigen"),
        ({"unheard_of": 1}, "unheard_of: unknown setting"),
        ({"population": {"unheard_of": 1}}, "population.unheard_of: unknown setting"),
        ({"checkpoint": {"unheard_of": 1}}, "checkpoint.unheard_of: unknown setting"),
        ({"reporting": 7}, "reporting: '7' cannot be used"),
        ({"learner": 7}, "learner: '7' cannot be used"),
    ],
)
def test_a_run_that_cannot_be_read_hides_no_other(store: Path, change: dict[str, Any], sentence: str) -> None:
    unfinished = Config.model_validate({"generations": 3})
    write_run(store, "unreadable", unfinished.model_dump(mode="json") | change)
    write_run(store, "another", unfinished.model_dump(mode="json"))

    def said_by(*arguments: str) -> tuple[int, str]:
        ended = eigen(*arguments, "--store", str(store))
        assert "Traceback" not in ended.output
        return ended.exit_code, ended.output

    code, said = said_by("runs", "--json")
    states = {row["run"]: row["state"] for row in json.loads(said)}
    assert (code, states) == (0, {"version-1": "finished", "another": "unfinished", "unreadable": "unreadable"})
    for arguments, expected in (["runs"], 0), (["show", "unreadable"], 2), (["verify", "unreadable"], 1):
        code, said = said_by(*arguments)
        assert (code, said.count(sentence)) == (expected, 1)
    assert said_by("verify", "another")[0] == 0
    assert unfinished_runs(str(store))[0].name == "another"


@pytest.fixture
def another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "machine").mkdir()
    monkeypatch.chdir(tmp_path / "machine")
    monkeypatch.delenv("EIGEN_DATA", raising=False)


@pytest.fixture
def bucket(gcs_bucket: str, another_folder: None) -> str:  # noqa: ARG001 - this machine has that folder
    return f"{gcs_bucket}/prefix"


def with_data(config: Config, data: Path | None) -> Config:
    return Config.model_validate(merge(config.model_dump(), {"market": {"data": None if data is None else str(data)}}))


def test_what_the_store_says_is_not_followed(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, prices = tmp_path / "theirs", tmp_path / "theirs" / "prices.csv"
    save_generations(with_data(run_config(bucket, theirs / "local"), prices), "run", 1)
    theirs.rename(tmp_path / "another machine")
    theirs.mkdir()
    prices.write_text("date,close\n")
    opened = Run.open(bucket, "run")
    location, config = opened.location, opened.config
    assert (location.root.is_relative_to(Path.cwd() / "runs"), config.checkpoint.local) == (True, "runs")
    assert status_of(bucket, "run").folder == location.root / "run"
    refusal = r"'run' was trained on 'prices.csv', and this machine does not know .* with --data"
    with pytest.raises(InputError, match=refusal):
        Run.open(bucket, "run").config_to_resume()
    own = tmp_path / "own.csv"
    assert Run.open(bucket, "run").config_to_resume(str(own)).market.data == str(own)
    assert Run.open(bucket, "run").config_to_resume("own.csv").market.data == str(Path.cwd() / "own.csv")
    monkeypatch.setenv("EIGEN_DATA", str(own))
    resumed = Run.open(bucket, "run").config_to_resume()
    assert resumed.market.data == str(own)
    Run.open(bucket, "run").require_same_settings(resumed)
    with pytest.raises(InputError, match=r"market\.data differs"):
        Run.open(bucket, "run").require_same_settings(with_data(resumed, None))
    assert list(theirs.iterdir()) == [prices]


def test_a_run_on_the_bundled_prices_is_resumed_anywhere(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_generations(run_config(bucket, tmp_path / "theirs"), "run", 1)
    (tmp_path / "theirs").rename(tmp_path / "another machine")
    save_generations(with_data(run_config(bucket, tmp_path / "theirs"), Path("us5")), "named", 1)
    monkeypatch.setenv("EIGEN_DATA", "elsewhere.csv")
    assert Run.open(bucket, "run").config_to_resume().market.data is None
    assert Run.open(bucket, "named").config_to_resume().market.data == "us5"
    assert Run.open(bucket, "run").config_to_resume("us5").market.data == "us5"
    assert RunOptions(data="us5").settings() == ["market.data=us5"]


def test_a_machine_remembers_its_own(bucket: str, tmp_path: Path) -> None:
    local = "../scratch"
    (prices := tmp_path / "prices.csv").write_text("date,close\n")
    config = with_data(run_config(bucket, Path(local)), prices)
    Run(config.checkpoint, "run").begin(config)
    assert Run.open(bucket, "run", {"checkpoint": {"local": local}}).config_to_resume() == config
    # A stored configuration chooses no folder here, even if this machine has used it.
    assert Run.open(bucket, "run").location.root.is_relative_to(tmp_path / "machine" / "runs")
    # Another machine goes on with it, under its own paths.
    theirs = with_data(run_config(bucket, tmp_path / "theirs"), tmp_path / "theirs" / "prices.csv")
    save_generations(theirs, "run", 1)
    (tmp_path / "theirs").rename(tmp_path / "another machine")
    location = RunLocation.of(config.checkpoint, "run")
    (memory,) = (tmp_path / "machine" / local).rglob(".own/run.json")
    assert memory.parent.parent == location.root
    assert Run.open(bucket, "run", {"checkpoint": {"local": local}}).config_to_resume().market.data == str(prices)
    for content in ("", "{}", memory.read_text().replace("prices", "prizes")):
        memory.write_text(content)
        with pytest.raises(InputError, match="this machine does not know"):
            Run.open(bucket, "run", {"checkpoint": {"local": local}}).config_to_resume()


@pytest.mark.usefixtures("another_folder")
def test_data_that_have_moved_are_given_again(tmp_path: Path) -> None:
    (prices := tmp_path / "prices.csv").write_text("date,close\n")
    store = str(tmp_path / "store")
    config = with_data(run_config(store, tmp_path), prices)
    Run(config.checkpoint, "run").begin(config)
    assert Run.open(store, "run").config_to_resume().market.data == str(prices)
    moved = tmp_path / "moved.csv"
    with pytest.raises(InputError, match=r"market\.data differs"):
        Run.open(store, "run").require_same_settings(Run.open(store, "run").config_to_resume(str(moved)))
    prices.rename(moved)
    with pytest.raises(InputError, match="it is not there any more: give it with --data"):
        Run.open(store, "run").config_to_resume()
    Run.open(store, "run").require_same_settings(Run.open(store, "run").config_to_resume(str(moved)))
    with pytest.raises(InputError, match=r"market\.data differs"):
        Run.open(store, "run").require_same_settings(with_data(config, Path("us5")))


def test_days_of_a_store_that_are_no_dates_are_neither_used_nor_shown(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "eigen_core")
    config = run_config(bucket, tmp_path / "theirs")
    save_generations(config, "run", 1)
    origin = {"files": "other", "first": "\x1b[2J", "last": "2020-01-02"}
    monkeypatch.setattr(RunContents, "document", lambda *_: {"origin": origin})
    assert Run.open(bucket, "run").on_its_days(config) == config
    assert not caplog.text
