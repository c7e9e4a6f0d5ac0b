"""The profile of a generation."""

import csv
import gzip
import json
from pathlib import Path

import pytest
import torch

from eigen_core.profiling import Profile, profiled, profiled_to


def rows(folder: Path) -> list[tuple[str, str, int]]:
    with (folder / "operators.csv").open(newline="", encoding="utf-8") as file:
        return [(row["phase"], row["operator"], int(row["calls"])) for row in csv.DictReader(file)]


@pytest.mark.cpu
def test_the_phases_of_one_generation_are_profiled(tmp_path: Path) -> None:
    values = torch.ones(4)
    profile = Profile(tmp_path / "profile", generation=2)
    with profiled_to(profile):
        for generation in (1, 2, 3):
            with profiled("evaluate", generation):
                for _ in range(generation):
                    values.cos()
            with profiled("train", generation):
                values.sin()
    found = rows(profile.folder)
    assert ("evaluate", "aten::cos", 2) in found
    assert ("train", "aten::sin", 1) in found
    assert ("train", "aten::cos") not in {row[:2] for row in found}
    assert sum(time.cpu_share for time in profile.operators if time.phase == "train") == pytest.approx(1.0)
    trace = json.loads(gzip.decompress((profile.folder / "train.trace.json.gz").read_bytes()))
    assert "aten::sin" in {event.get("name") for event in trace["traceEvents"]}


@pytest.mark.cpu
def test_a_phase_that_is_tried_again_counts_once(tmp_path: Path) -> None:
    profile = Profile(tmp_path, generation=1)
    with profiled_to(profile):
        with pytest.raises(RuntimeError), profiled("train", 1):
            raise RuntimeError
        assert profile.operators == []
        for _ in range(2):
            with profiled("train", 1):
                torch.ones(4).sin()
    assert [calls for _, name, calls in rows(tmp_path) if name == "aten::sin"] == [1]


def test_nothing_is_profiled_without_a_profile(tmp_path: Path) -> None:
    with profiled_to(None), profiled("train", 1):
        torch.ones(4).sin()
    assert list(tmp_path.iterdir()) == []
