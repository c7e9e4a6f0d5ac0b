"""The profile of a generation."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from eigen_core.machine.profiling import Profile, profiled, profiled_to


def calls_of(table: Path) -> dict[str, int]:
    """Return the calls of each operator: the first and the last column of the profiler's table."""
    rows = [line.split() for line in table.read_text().splitlines() if line.strip().startswith("aten::")]
    return {row[0]: int(row[-1]) for row in rows}


@pytest.mark.cpu
def test_the_phases_of_one_generation_are_profiled_and_one_that_is_tried_again_counts_once(tmp_path: Path) -> None:
    values = torch.ones(4)
    profile = Profile(tmp_path / "profile", generation=2)
    with profiled_to(profile):
        with pytest.raises(RuntimeError), profiled("train", 2):
            raise RuntimeError
        assert not profile.folder.exists()
        for generation in (1, 2, 3):
            with profiled("evaluate", generation):
                for _ in range(generation):
                    values.cos()
            for _ in range(2):
                with profiled("train", generation):
                    values.sin()
    evaluate, train = (calls_of(profile.folder / f"{phase}.txt") for phase in ("evaluate", "train"))
    assert evaluate["aten::cos"] == 2
    assert train["aten::sin"] == 1
    assert "aten::cos" not in train
    trace = json.loads(gzip.decompress((profile.folder / "train.trace.json.gz").read_bytes()))
    assert "aten::sin" in {event.get("name") for event in trace["traceEvents"]}
