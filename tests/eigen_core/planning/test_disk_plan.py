"""The planned size on disk, against run directories."""

from pathlib import Path

import pytest
from science_cases import random_panel, small_config
from training_cases import advance

from eigen_core.checkpoint.run_directory import RunDirectory
from eigen_core.config import Config
from eigen_core.generation import snapshot, start_training
from eigen_core.planning.sizes import DiskPlan, Sizes, disk_plan
from eigen_core.task import TaskData
from eigen_core.task.market import MarketTask


def _blob_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _saved(config: Config, root: Path) -> tuple[list[int], int, Sizes]:
    """Train a small run; return what each checkpoint wrote, and what is left at the end."""
    panel = random_panel(config, days=400, assets=24)
    state = start_training(config, panel)
    directory = RunDirectory.create(root, "planned", config.model_dump(mode="json"))
    written = []
    with directory.lock():
        for _ in range(config.generations):
            advance(state, 1)
            written.append(directory.save(snapshot(state)).written_bytes)
            settings = config.checkpoint
            directory.clean(settings.keep_last, settings.keep_every, 1)
    return written, _blob_bytes(directory.path / "blobs"), Sizes.of(config, TaskData(panel))


def planned(config: Config) -> DiskPlan:
    """Plan a run on 3,000 days of 20 assets."""
    return disk_plan(config, Sizes.of(config, MarketTask.data_of_shape(config, 3_000, 20, 20)))


@pytest.mark.parametrize(("keep_last", "keep_every"), [(1, 0), (2, 3), (3, 2)])
@pytest.mark.thorough
def test_a_run_takes_the_planned_room(tmp_path: Path, keep_last: int, keep_every: int) -> None:
    config = small_config(
        generations=7,
        replay={"capacity": 600},
        checkpoint={"keep_last": keep_last, "keep_every": keep_every},
        network={"channels": 64, "head_width": 64},
    )
    written, left, sizes = _saved(config, tmp_path)
    plan = disk_plan(config, sizes)
    assert plan.checkpoint_bytes == pytest.approx(sum(written) / len(written), rel=0.05)
    assert plan.run_bytes - 240_000 == pytest.approx(left, rel=0.05)
    assert plan.most_bytes >= plan.run_bytes


def test_compressed_transitions_take_less_and_the_assumption_is_told() -> None:
    packed = planned(Config())
    assert packed.shard_bytes < packed.shard_raw_bytes
    assert packed.shard_bytes == pytest.approx(1_464_100, rel=0.05)
    assert "zstd" in packed.assumption


def test_uploads_are_counted_where_the_store_is_elsewhere() -> None:
    here = planned(Config())
    there = planned(Config(checkpoint={"store": "gs://bucket/runs"}))
    assert (here.upload_bytes, here.upload_generation_bytes, here.local_bytes) == (0, 0, 0)
    assert there.upload_generation_bytes == there.checkpoint_bytes == here.checkpoint_bytes
    assert there.upload_bytes == pytest.approx(Config().generations * there.checkpoint_bytes, rel=0.02)
    assert there.local_bytes > 0


def test_a_replay_that_wraps_needs_only_the_shards_that_hold_its_rows() -> None:
    # 11,600 transitions a generation: five shards hold 50,000 rows, and the champion's generation one more.
    settings = {"keep_last": 1, "keep_every": 0}
    long = planned(Config(generations=100, checkpoint=settings))
    longer = planned(Config(generations=101, checkpoint=settings))
    assert 6 * long.shard_bytes < long.run_bytes - 2 * long.population_bytes < 7 * long.shard_bytes
    assert longer.run_bytes - long.run_bytes < 5_000
