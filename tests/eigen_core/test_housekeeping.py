"""Cleaning, verifying and exporting runs, in a folder and in a bucket."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from known import known
from store_cases import (
    champion_weights,
    objects_here,
    objects_of,
    run_config,
    save_generations,
)
from upload_cases import whole_generations

from eigen_core.checkpoint.export import read_champion
from eigen_core.checkpoint.integrity import DamagedGenerationError, blob_name
from eigen_core.checkpoint.locks import Lease, is_live
from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.checkpoint.session import create_run
from eigen_core.checkpoint.store import Store
from eigen_core.common.errors import InputError
from eigen_core.common.files import temporary_files_in
from eigen_core.config import Config
from eigen_core.housekeeping import clean_runs, export_champion, parse_duration, verify_run

DAY = 86_400.0


@pytest.fixture(params=["folder", "bucket"])
def config(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "store" if request.param == "folder" else f"{request.getfixturevalue('gcs_bucket')}/prefix"
    return run_config(store, tmp_path / "runs", keep_last=2, keep_every=4, keep_local=1)


@pytest.fixture
def elsewhere(gcs_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(tmp_path)
    return run_config(gcs_bucket, tmp_path / "runs", keep_last=2, keep_every=4, keep_local=1)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1_800), ("12h", 43_200), ("7d", 604_800), ("1.5h", 5_400), (" 0s ", 0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "7 d", "-1d", "1w", "1d2h", "infd", "1e3s", "١٢x"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(InputError, match=r"is no duration: write a number and a unit, such as 90s"):
        parse_duration(text)


def test_cleaning_applies_retention_and_frees_what_it_says(config: Config) -> None:
    location = save_generations(config, "run", *range(1, 8))
    before, before_here = objects_of(location), objects_here(location)
    (said,) = clean_runs(config.checkpoint.store, ["run"], 0.0, dry_run=True)
    assert (objects_of(location), objects_here(location)) == (before, before_here)
    (done,) = clean_runs(config.checkpoint.store, ["run"], 0.0, dry_run=False)
    assert done == said
    assert (done.run, done.skipped, done.stored.generations) == ("run", None, (1, 2, 3, 5))
    after, after_here = objects_of(location), objects_here(location)
    freed = sum(before.values()) - sum(after.values())
    if location.remote:
        assert done.local.generations == (1, 2, 3, 4, 5, 6)
        freed += sum(before_here.values()) - sum(after_here.values())
    assert done.bytes_freed == freed > 0
    assert whole_generations(location.stored) == [4, 6, 7]
    assert whole_generations(location.local) == ([7] if location.remote else [4, 6, 7])
    assert location.stored.verify() == location.local.verify() == []
    (again,) = clean_runs(config.checkpoint.store, None, 0.0, dry_run=False)
    assert again.bytes_freed == 0


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_run_that_another_machine_trains_is_left_alone_and_named(elsewhere: Config, dry_run: bool) -> None:
    location = save_generations(elsewhere, "run", *range(1, 4))
    save_generations(elsewhere, "other", *range(1, 4))
    store = elsewhere.checkpoint.store
    before, before_here = objects_of(location), objects_here(location)
    with Lease.acquire(location.store, "run", 90.0):
        other, run = clean_runs(store, None, 0.0, dry_run=dry_run)
        assert (other.run, other.skipped, other.stored.generations) == ("other", None, (1,))
        assert (run.run, run.bytes_freed) == ("run", 0)
        assert re.match("Run 'run' .*is in use", known(run.skipped))
        with pytest.raises(InputError, match=r"Run 'run' .*is in use"):
            clean_runs(store, ["run"], 0.0, dry_run=dry_run)
        assert (objects_of(location), objects_here(location)) == (before, before_here)
    (run,) = clean_runs(store, ["run"], 0.0, dry_run=dry_run)
    assert run.stored.generations == (1,)


def test_none_begins_to_train_a_run_that_is_being_cleaned(elsewhere: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    location = save_generations(elsewhere, "run", *range(1, 4))
    live: list[bool] = []
    delete = type(location.store).delete

    def watched(store: Store, names: Iterable[str]) -> None:
        live.append(is_live(location.store, "run"))
        delete(store, names)

    monkeypatch.setattr(type(location.store), "delete", watched)
    clean_runs(elsewhere.checkpoint.store, None, 0.0, dry_run=False)
    monkeypatch.undo()
    assert live
    assert all(live)
    assert not is_live(location.store, "run")


def test_a_dry_run_leaves_even_what_a_killed_process_left(config: Config) -> None:
    location = save_generations(config, "run", 1)
    (folder,) = {path.parent for path in (location.root / "run").glob("manifests/*")}
    left = folder / ".writing-0123"
    others = {path.name for path in (location.root / "run").rglob("*") if path.is_file()}
    left.write_bytes(b"half")
    assert temporary_files_in(location.root) == [left]
    clean_runs(config.checkpoint.store, None, 0.0, dry_run=True)
    assert left.exists()
    assert {path.name for path in (location.root / "run").rglob("*") if path.is_file()} == {*others, left.name}


def test_copies_here_stay_until_the_store_has_them_whole(elsewhere: Config) -> None:
    location = save_generations(elsewhere, "run", *range(1, 6))
    manifests = {manifest.generation: manifest for manifest in location.stored.manifests()}
    lost = next(name for name in manifests[4].blobs if name not in manifests[5].blobs)
    location.store.delete([f"run/{lost}", f"run/{manifests[3].name}"])
    for dry_run in (True, False):
        (run,) = clean_runs(elsewhere.checkpoint.store, None, 0.0, dry_run=dry_run)
        assert run.local.generations == (1, 2)
    assert whole_generations(location.local) == [3, 4, 5]


def test_a_run_that_is_only_in_the_store_is_cleaned_there(elsewhere: Config, tmp_path: Path) -> None:
    location = save_generations(elsewhere, "run", *range(1, 4))
    (tmp_path / "runs").rename(tmp_path / "gone")
    (run,) = clean_runs(elsewhere.checkpoint.store, ["run"], 0.0, dry_run=False)
    assert (run.stored.generations, run.local.generations) == ((1,), ())
    assert whole_generations(location.stored) == [2, 3]
    assert not (tmp_path / "runs").exists()


def test_a_run_that_cannot_be_read_keeps_no_other_from_being_cleaned(config: Config) -> None:
    location = RunLocation.of(config.checkpoint, "broken")
    create_run(location, {"preset": "ddpg", "learner": {"gamma": 7}})
    save_generations(config, "run", *range(1, 4))
    broken, run = clean_runs(config.checkpoint.store, None, 0.0, dry_run=False)
    assert "learner.gamma" in known(broken.skipped)
    assert run.stored.generations == (1,)
    with pytest.raises(InputError, match=r"learner\.gamma"):
        clean_runs(config.checkpoint.store, ["broken"], 0.0, dry_run=False)


def test_a_run_is_verified_though_its_configuration_cannot_be_read(config: Config) -> None:
    location = RunLocation.of(config.checkpoint, "new")
    create_run(location, config.model_dump(mode="json"))
    assert verify_run(config.checkpoint.store, "new", deep=True).damages == ()
    location.store.put("new/config.json", b"{}")
    found = verify_run(config.checkpoint.store, "new", deep=True)
    assert [damage.path for damage in found.damages] == ["config.json"]


def test_what_is_only_here_is_not_what_is_verified(elsewhere: Config) -> None:
    location = save_generations(elsewhere, "run", 1)
    assert location.local.newest_manifest() is not None
    for path in (location.root / "run" / "blobs").rglob("*"):
        if path.is_file():
            path.unlink()
    assert verify_run(elsewhere.checkpoint.store, "run", deep=True).damages == ()
    location.store.delete([stored.name for stored in location.store.objects("run/")])
    with pytest.raises(InputError, match="There is no run 'run'"):
        verify_run(elsewhere.checkpoint.store, "run", deep=True)


def test_the_newest_champion_is_exported_wherever_it_is(elsewhere: Config, tmp_path: Path) -> None:
    location = save_generations(elsewhere, "run", 1)
    # Another machine goes on; what is here is old by then.
    (tmp_path / "runs").rename(tmp_path / "first")
    save_generations(elsewhere, "run", 2)
    (tmp_path / "runs").rename(tmp_path / "second")
    (tmp_path / "first").rename(tmp_path / "runs")
    assert whole_generations(location.local) == [1]
    path = tmp_path / "champion.safetensors"
    sentence = export_champion(elsewhere.checkpoint.store, "run", path)
    assert sentence.startswith(f"{path} holds the champion of run 'run'")
    assert torch.equal(read_champion(path).weights, champion_weights(2))
    # What the store lacks is newer here.
    location.store.delete([stored.name for stored in location.store.objects("run/manifests/")])
    export_champion(elsewhere.checkpoint.store, "run", path)
    assert torch.equal(read_champion(path).weights, champion_weights(1))


@pytest.mark.parametrize("part", ["manifest", "champion.safetensors", "champion.json"])
def test_what_is_taken_in_place_of_a_damaged_generation_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    config = run_config(tmp_path / "store", tmp_path / "runs")
    contents = save_generations(config, "run", 1, 2).local
    manifest = known(contents.newest_manifest())
    name = contents.manifest_names()[0] if part == "manifest" else blob_name(manifest.entry(part).sha256)
    (tmp_path / "store" / "run" / name).write_bytes(b"{}")
    path = tmp_path / "champion.safetensors"
    export_champion(config.checkpoint.store, "run", path)
    assert torch.equal(read_champion(path).weights, champion_weights(1))
    assert f"generation 2: {part}" in caplog.text


def test_an_export_that_fails_leaves_what_was_there(config: Config, tmp_path: Path) -> None:
    location = RunLocation.of(config.checkpoint, "run")
    create_run(location, config.model_dump(mode="json"))
    path = tmp_path / "out" / "champion.safetensors"
    path.parent.mkdir()
    path.write_bytes(b"former")
    with pytest.raises(InputError, match="has no champion yet"):
        export_champion(config.checkpoint.store, "run", path)
    save_generations(config, "run", 1)
    for target in (tmp_path / "out", path / "x"):
        with pytest.raises(InputError, match=f"Cannot write {target}"):
            export_champion(config.checkpoint.store, "run", target)
    manifest = known(location.local.newest_manifest())
    (location.root / "run" / blob_name(manifest.entry("champion.safetensors").sha256)).write_bytes(b"")
    if not location.remote:
        with pytest.raises(DamagedGenerationError, match="no undamaged champion"):
            export_champion(config.checkpoint.store, "run", path)
    assert path.read_bytes() == b"former"
    assert [found.name for found in path.parent.iterdir()] == [path.name]
