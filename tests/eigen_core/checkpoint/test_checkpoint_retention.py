"""Old generations go; the last, every m-th and the champion's stay, and damage never costs the last good one."""

import os
from pathlib import Path

import pytest
from checkpoint_samples import new_run, sample
from hypothesis import given
from hypothesis import strategies as st

from eigen_core.checkpoint.retention import kept_generations


def test_the_last_every_fifth_and_the_champions_stay(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with run.lock():
        for generation in range(1, 14):
            run.save(sample(generation))
        assert run.apply_retention(keep_last=3, keep_every=5, champion_generation=7) == [1, 2, 3, 4, 6, 8, 9]
        assert run.generations() == [5, 7, 10, 11, 12, 13]
        assert run.apply_retention(keep_last=3, keep_every=5, champion_generation=7) == []
        assert run.apply_retention(keep_last=1, keep_every=0, champion_generation=12) == [5, 7, 10, 11]
    assert run.generations() == [12, 13]
    assert sorted(os.listdir(run.path)) == ["config.json", "generation-0012", "generation-0013", "lock"]
    with pytest.raises(ValueError, match="keep_last is 0"):
        run.apply_retention(0, 0, 0)


@pytest.mark.parametrize("name", ["manifest.json", "population.safetensors"])
def test_damaged_generations_do_not_count(tmp_path: Path, name: str) -> None:
    run = new_run(tmp_path)
    for generation in range(1, 7):
        run.save(sample(generation))
    for generation in (4, 6):
        (run.path / f"generation-000{generation}" / name).unlink()
    assert run.apply_retention(keep_last=2, keep_every=0, champion_generation=0) == [1, 2, 4]
    newest = run.load_newest()
    assert newest is not None
    assert newest.snapshot.generation == 5


def test_without_a_good_generation_nothing_goes(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for generation in (1, 2):
        run.save(sample(generation))
        (run.path / f"generation-000{generation}" / "state.json").unlink()
    assert run.apply_retention(keep_last=1, keep_every=0, champion_generation=0) == []


@given(st.sets(st.integers(1, 60)), st.integers(1, 5), st.integers(0, 7), st.integers(0, 60))
def test_the_rule_is_the_union_of_its_parts(stored: set[int], last: int, every: int, champion: int) -> None:
    rising = sorted(stored)
    newest = rising[-last:]
    kept = kept_generations(rising, newest, every, champion)
    expected = set(newest)
    if champion in stored:
        expected.add(champion)
    if every:
        expected |= {generation for generation in stored if generation % every == 0}
    assert kept == expected
