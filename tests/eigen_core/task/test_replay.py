"""The ring equals a list of whole transitions; batches are of different days, uniform, and reach everything."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from stand_in_gpu import GPU, stand_in_gpu
from torch import Tensor

from eigen_core.checkpoint.replay_shards import Ring
from eigen_core.checkpoint.tensors import tensors_sha256
from eigen_core.common.errors import InputError
from eigen_core.common.randomness import keyed_generator
from eigen_core.machine.allocation import shares_memory
from eigen_core.machine.memory_usage import own_resident_bytes
from eigen_core.task.replay import Column, Replay
from eigen_core.task.transitions import BlockSampler, market_columns, rows_of, stored_days

CPU = torch.device("cpu")
ASSETS = 3
COLUMNS = market_columns(ASSETS, 4)
MARGIN = 25_000_000
"""Memory that the allocator and pages that are written in part may take beside (bytes)."""


def rows_for(seed: int, count: int, days: int) -> dict[str, Tensor]:
    """Random transitions of whole episodes."""
    generator = keyed_generator(seed, 0, "test", "episodes")
    return rows_of(
        torch.tensor(generator.integers(0, 50, count)),
        torch.tensor(generator.standard_normal((count, days, ASSETS, 4)), dtype=torch.float16),
        torch.tensor(generator.standard_normal((count, days, ASSETS, 2)), dtype=torch.float32),
        torch.tensor(generator.standard_normal((count, days)), dtype=torch.float32),
    )


def saved_ring(replay: Replay) -> Ring:
    """What a checkpoint of the buffer gives back: the stored transitions alone, in memory of their own."""
    ring = replay.ring()
    columns = {name: torch.zeros_like(column) for name, column in ring.columns.items()}
    for name, column in columns.items():
        column[: ring.size] = ring.columns[name][: ring.size]
    return Ring(columns, ring.size, ring.written)


APPENDS = st.tuples(st.integers(1, 4), st.integers(1, 6), st.sampled_from(["", "saved", "shared", "followed"]))


@settings(deadline=None, max_examples=150)
@given(st.integers(24, 60), st.lists(APPENDS, max_size=8))
def test_the_ring_equals_a_list_of_transitions(capacity: int, appends: list[tuple[int, int, str]]) -> None:
    """Also if a checkpoint restores it, other processes read it, or another follows it now and then."""
    replay, follower = (Replay(capacity, COLUMNS, CPU) for _ in range(2))
    transitions, shared = list[dict[str, Any]](), dict[str, Tensor]()
    for number, (count, days, then) in enumerate(appends):
        rows = rows_for(number, count, days)
        replay = replay.appended(rows)
        values = {name: column.tolist() for name, column in rows.items()}
        transitions += [{name: column[row] for name, column in values.items()} for row in range(count * days)]
        expected = {number % capacity: transition for number, transition in enumerate(transitions)}
        assert sorted(expected) == list(range(replay.size))
        assert stored_days(replay).tolist() == [expected[slot]["day"] for slot in range(replay.size)]
        held = {name: column.tolist() for name, column in replay.pick(torch.arange(replay.size)).items()}
        for slot, transition in expected.items():
            assert {name: column[slot] for name, column in held.items()} == transition
        if then == "shared" and shares_memory("cpu"):
            opened = {name: column.opened() for name, column in replay.share().items()}
            shared = {name: column for name, column in opened.items() if column is not None}
        others = []
        if then == "saved":
            others.append(Replay.from_ring(saved_ring(replay), COLUMNS, CPU))
        if shared:
            others.append(Replay.from_ring(Ring(shared, replay.size, replay.written), COLUMNS, CPU))
        if then == "followed":
            follower.follow(replay)
            others.append(follower)
        for other in others:
            assert (other.written, other.capacity) == (len(transitions), capacity)
            assert tensors_sha256(other.tensors()) == tensors_sha256(replay.tensors())
            assert other.on_host("day").tolist() == replay.on_host("day").tolist()
        if then == "saved":
            replay, shared = others[0], {}
    for source in (replay, replay, Replay(capacity, COLUMNS, CPU)):
        follower.follow(source)
        assert tensors_sha256(follower.tensors()) == tensors_sha256(source.tensors())


@pytest.mark.cpu
def test_a_ring_on_a_gpu_follows_one_on_the_host() -> None:
    replay = Replay(24, COLUMNS, CPU)
    with stand_in_gpu():
        follower = Replay(24, COLUMNS, GPU)
        for number in range(3):
            replay.append(rows_for(number, 2, 6))
            follower.follow(replay)
            assert {tensor.device for name, tensor in follower.tensors().items() if name in COLUMNS} == {GPU}
            assert all(torch.equal(follower.tensors()[name].cpu(), replay.tensors()[name]) for name in COLUMNS)
            assert follower.on_host("day").tolist() == replay.on_host("day").tolist()


@pytest.mark.parametrize("name", ["portfolio", "day", "reward"])
def test_columns_of_something_else_are_refused(name: str) -> None:
    columns = dict(Replay(24, COLUMNS, CPU).ring().columns)
    for wrong in (columns[name].to(torch.float64), columns[name][..., None]):
        with pytest.raises(ValueError, match="not the columns"):
            Replay.from_ring(Ring({**columns, name: wrong}, 0, 0), COLUMNS, CPU)
    del columns[name]
    with pytest.raises(ValueError, match="not the columns"):
        Replay.from_ring(Ring(columns, 0, 0), COLUMNS, CPU)


def test_actions_of_half_precision_take_half_the_bytes_and_are_rounded_once() -> None:
    whole, half = (Replay(100, market_columns(108, 4, actions=kind), CPU) for kind in (torch.float32, torch.float16))
    assert whole.bytes_per_transition <= 2_000
    assert whole.bytes_per_transition - half.bytes_per_transition == 108 * 2 * 2
    columns, rows = market_columns(ASSETS, 4, actions=torch.float16), rows_for(1, 4, 6)
    replay = Replay(24, columns, CPU)
    replay.append(rows)
    drawn = Replay.from_ring(replay.ring(), columns, CPU).pick(torch.arange(24), "action")["action"].float()
    assert torch.equal(drawn, rows["action"].half().float())


def test_more_than_the_ring_can_hold_is_refused_and_changes_nothing() -> None:
    replay = Replay(24, COLUMNS, CPU).appended(rows_for(1, 4, 5))
    before = {name: tensor.clone() for name, tensor in replay.tensors().items()}
    with pytest.raises(InputError, match=r"replay\.capacity 24 is below the 25 transitions"):
        replay.append(rows_for(2, 5, 5))
    for name, tensor in replay.tensors().items():
        assert torch.equal(tensor, before[name])
    assert (replay.size, replay.cursor) == (20, 20)


STORED = st.lists(st.integers(0, 30), min_size=1, max_size=60).map(lambda days: np.array(days, dtype=np.int32))


@settings(deadline=None)
@given(STORED, st.integers(0, 30), st.integers(0, 30), st.data())
def test_a_batch_has_different_days_and_a_transition_of_each(
    stored: NDArray[np.int32], first_day: int, last_day: int, data: st.DataObject
) -> None:
    """Equal to a sampler that lists the slots of each day; both bounds are included."""
    slots_of: dict[int, list[int]] = {}
    for slot, day in enumerate(stored.tolist()):
        if first_day <= day <= last_day:
            slots_of.setdefault(day, []).append(slot)
    days, block_bars = sorted(slots_of), max(last_day - first_day + 1, 0)
    with pytest.raises(ValueError, match="sample"):
        BlockSampler(stored, block_bars, 0, 1, len(days) + 1).draw(keyed_generator(1), first_day)
    if days:
        size = data.draw(st.integers(1, len(days)))
        generator, same = keyed_generator(1, 2), keyed_generator(1, 2)
        drawn = BlockSampler(stored, block_bars, 0, 1, size).draw(generator, first_day)
        chosen = [days[index] for index in same.choice(len(days), size=size, replace=False)]
        within = same.integers(0, np.array([len(slots_of[day]) for day in chosen]))
        assert len(set(chosen)) == size
        assert drawn.tolist() == [slots_of[day][index] for day, index in zip(chosen, within, strict=True)]


@settings(deadline=None)
@given(STORED, st.integers(1, 40), st.integers(1, 45), st.integers(1, 8), st.integers(1, 12))
def test_blocks_hold_enough_different_days(
    stored: NDArray[np.int32], block_bars: int, stop: int, most_steps: int, batch_size: int
) -> None:
    sampler = BlockSampler(stored, block_bars, stop, most_steps, batch_size)
    for start in range(max(stop - block_bars, 0) + 1):
        block = range(start, start + block_bars)
        # The days that a transition may lead to, none of which is after `stop`, are within the block a day later.
        drawn = [day for day in block if min(day + most_steps, stop) <= block.stop]
        inside = set(drawn).intersection(stored.tolist())
        assert (start in sampler.block_starts) == (len(inside) >= batch_size)
        if start in sampler.block_starts:
            assert set(stored[sampler.draw(keyed_generator(1), start)].tolist()) <= inside


@pytest.mark.parametrize("capacity", [50_000, 500_000, 5_000_000])
def test_a_buffer_takes_what_was_written_of_it_whatever_its_capacity(capacity: int) -> None:
    shape = (80, 145, 20)
    rows = rows_of(torch.arange(80), torch.ones((*shape, 4)).half(), torch.ones((*shape, 2)), torch.ones(shape[:2]))
    before = own_resident_bytes()
    replay = Replay(capacity, market_columns(20, 4), CPU)
    assert own_resident_bytes() - before < MARGIN
    for _ in range(6):
        replay.append(rows)
    written = replay.size * replay.bytes_per_transition
    assert own_resident_bytes() - before == pytest.approx(written, abs=MARGIN)


@settings(deadline=None)
@given(st.data(), st.integers(1, 12), st.integers(1, 30), st.integers(1, 7))
def test_a_stretch_goes_up_to_the_end_of_its_episode_and_to_the_newest_transition(
    data: st.DataObject, capacity: int, rows: int, steps: int
) -> None:
    """Of rings that are wrapped or not, whose episodes end anywhere or not at all."""
    ends = data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    replay = Replay(capacity, {"number": Column(torch.int64), "end": Column(torch.bool)}, CPU)
    for number, end in enumerate(ends):
        replay.append({"number": torch.tensor([number]), "end": torch.tensor([end])})
    slots = torch.arange(replay.size).reshape(1, -1)
    numbers = replay.pick(slots, "number")["number"]
    stretches = replay.stretches(slots, steps, "end")
    followed = replay.pick(stretches.slots, "number")["number"]
    for slot, number in enumerate(numbers[0].tolist()):
        expected = [number]
        while len(expected) < steps and not ends[expected[-1]] and expected[-1] + 1 < rows:
            expected.append(expected[-1] + 1)
        assert followed[0, slot][stretches.mask[0, slot]].tolist() == expected
        assert stretches.mask[0, slot, : len(expected)].all()
        assert stretches.steps[0, slot] == len(expected)
        assert numbers[0, stretches.last[0, slot]] == expected[-1]
