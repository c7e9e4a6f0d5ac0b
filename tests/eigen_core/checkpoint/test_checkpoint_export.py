"""The champion as a file of its own: three lines read it, and it says what it is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from checkpoint_samples import CONFIG, new_run, sample, saved_run
from pydantic import JsonValue
from safetensors import safe_open

from eigen_core.checkpoint.export import read_champion, write_champion
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.common.errors import InputError
from eigen_core.config.stored import current_values


def test_the_newest_champion_is_exported_with_its_configuration(tmp_path: Path) -> None:
    run, path = new_run(tmp_path), tmp_path / "out" / "champion.safetensors"
    run.save(sample(1))
    later = {**CONFIG, "generations": 80}
    manifest = run.save(sample(2), later).manifest
    assert write_champion(run.contents, path) == manifest
    weights, config, facts = read_champion(path)
    assert torch.equal(weights, sample(2).tensors["champion"]["weights"])
    assert config == current_values(later)
    assert facts == sample(2).documents["champion"]

    with safe_open(path, framework="pt") as file:
        three_lines = file.get_tensor("weights"), json.loads(file.metadata()["config"])
    assert torch.equal(three_lines[0], weights)
    assert three_lines[1] == later


def test_a_password_that_an_earlier_version_stored_is_not_exported(tmp_path: Path) -> None:
    run, path = new_run(tmp_path), tmp_path / "champion.safetensors"
    uris: list[JsonValue] = ["http://me:hunter2@host", "http://host?token=hunter2"]
    run.save(sample(1), {**CONFIG, "reporting": {"mlflow_uri": uris[0]}, "tracked": uris})
    write_champion(run.contents, path)
    assert b"hunter2" not in path.read_bytes()
    assert read_champion(path).config == {
        **current_values(CONFIG),
        "reporting": {"mlflow_uri": (hidden := "http://...@host")},
        "tracked": [hidden, "http://host?token=..."],
    }


def test_a_run_without_a_champion_says_so(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with pytest.raises(InputError, match="has no champion yet"):
        write_champion(run.contents, tmp_path / "x")
    run.save(Snapshot(1, {}, {}, 0))
    with pytest.raises(InputError, match="holds no champion"):
        write_champion(run.contents, tmp_path / "x")


def test_what_is_no_champion_is_passed_over(tmp_path: Path) -> None:
    run = saved_run(tmp_path, 1)
    run.save(replace(sample(2), tensors={"champion": {"other": torch.zeros(1)}}))
    run.save(replace(sample(3), documents={"champion": [1]}))
    assert write_champion(run.contents, tmp_path / "champion.safetensors").generation == 1


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "champion.safetensors"
    with pytest.raises(InputError, match="There is no file"):
        read_champion(path)
    good = {"format": "eigen champion", "format_version": "1", "config": "{}", "facts": "{}"}
    for metadata in (
        {},
        {**good, "format": "x"},
        {**good, "config": "[]"},
        {**good, "config": "{"},
        {**good, "facts": "1"},
    ):
        safetensors.torch.save_file({"weights": torch.zeros(1)}, path, metadata)
        with pytest.raises(InputError, match="no champion that Eigen exported"):
            read_champion(path)
    safetensors.torch.save_file({"other": torch.zeros(1)}, path, good)
    with pytest.raises(InputError, match="no champion that Eigen exported"):
        read_champion(path)
    safetensors.torch.save_file({"weights": torch.zeros(1)}, path, {**good, "format_version": "2"})
    with pytest.raises(InputError, match="newer version"):
        read_champion(path)
