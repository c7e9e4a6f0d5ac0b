"""A trajectory buffer equals lists of trajectories, its advantages a slow loop; what does not fit is refused."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from live_tensors import LiveTensors
from torch import Tensor

from eigen_core.common.randomness import keyed_generator
from eigen_core.learning.trajectories import TrajectoryBuffer
from eigen_core.task.replay import Column

CPU = torch.device("cpu")
COLUMNS = {"reward": Column(torch.float32), "terminal": Column(torch.bool)}


def buffer_of(steps: int, lengths: Sequence[int], agents: int) -> TrajectoryBuffer:
    buffer = TrajectoryBuffer(steps, np.array(lengths).reshape(agents, -1), COLUMNS, CPU)
    # What is not stored may be anything.
    for name in ("reward", "value", "advantage", "return"):
        buffer.columns[name].fill_(torch.nan)
    buffer.columns["terminal"].fill_(True)
    return buffer


def trajectory_of(length: int, *key: int, terminal: bool = True) -> dict[str, Tensor]:
    generator = keyed_generator(1, length, *key)
    return {
        "reward": torch.tensor(generator.standard_normal(length), dtype=torch.float32),
        "terminal": (torch.arange(length) == length - 1) & terminal,
    }


def filled(steps: int, trajectories: Sequence[dict[str, Tensor]], agents: int) -> TrajectoryBuffer:
    buffer = buffer_of(steps, [len(trajectory["reward"]) for trajectory in trajectories], agents)
    for number, trajectory in enumerate(trajectories):
        for name, column in trajectory.items():
            buffer.columns[name][: len(column), number] = column
    return buffer


@settings(deadline=None)
@given(st.lists(st.integers(0, 12), min_size=6, max_size=6), st.integers(1, 9))
def test_each_step_is_in_exactly_one_minibatch_of_its_agent(lengths: list[int], count: int) -> None:
    buffer = buffer_of(12, lengths, 3)
    buffer.columns["reward"].copy_(torch.arange(72.0).reshape(12, 6))
    slots, counted = buffer.minibatches(count, [keyed_generator(1, agent) for agent in range(3)])
    assert slots.shape == counted.shape == (3, count, math.ceil(24 / count))
    picked = buffer.pick(slots, "reward")["reward"]
    for agent in range(3):
        own = [
            buffer.columns["reward"][:length, number] for number, length in enumerate(lengths) if number // 2 == agent
        ]
        found = picked[agent][counted[agent]]
        assert sorted(found.tolist()) == sorted(torch.cat(own).tolist())
        sizes = counted[agent].sum(-1).tolist()
        assert max(sizes) - min(sizes) <= 1
        filling = set(slots[agent][~counted[agent]].tolist())
        assert not found.numel() or filling <= set(slots[agent][counted[agent]].tolist())


@pytest.mark.cpu
def test_what_a_round_takes_beside_the_buffer_does_not_grow_with_the_steps() -> None:
    peaks = []
    for steps in (256, 1_024):
        buffer = filled(steps, [trajectory_of(steps)] * 4, 2)
        with LiveTensors() as tensors:
            peaks.append(tensors.peak_of(partial(buffer.estimate_advantages, 0.99, 0.95)))
            peaks.append(tensors.peak_of(buffer.normalise_advantages))
    assert peaks[:2] == peaks[2:]


AGENTS, EACH, STEPS = 3, 2, 300


def slow_advantages(
    trajectory: dict[str, Tensor], values: Sequence[float], discount: float, trace_decay: float
) -> list[float]:
    """Each as the sum of the discounted temporal-difference errors from its step on."""
    rewards, ends = trajectory["reward"].tolist(), trajectory["terminal"].tolist()
    following = [0.0 if ends[step] else values[step + 1] for step in range(len(rewards))]
    errors = [rewards[step] + discount * following[step] - values[step] for step in range(len(rewards))]
    estimates = []
    for first in range(len(rewards)):
        estimate, weight = 0.0, 1.0
        for step in range(first, len(rewards)):
            estimate += weight * errors[step]
            weight *= discount * trace_decay
            if ends[step]:
                break
        estimates.append(estimate)
    return estimates


def stored(buffers: Sequence[TrajectoryBuffer], name: str, lengths: Sequence[int]) -> list[Tensor]:
    columns = torch.cat([buffer.columns[name] for buffer in buffers], dim=1).T
    return [column[:length].double() for column, length in zip(columns, lengths, strict=True)]


EPISODE = st.tuples(st.integers(1, 25), st.booleans(), st.integers(0, 24))


@settings(deadline=None, max_examples=60)
@given(st.lists(EPISODE, min_size=AGENTS * EACH, max_size=AGENTS * EACH), st.floats(0, 1), st.floats(0, 1))
@example([(length, length % 2 == 0, length // 3) for length in (300, 257, 256, 129, 128, 1)], 0.99, 0.95)
def test_advantages_and_returns_equal_a_slow_loop(
    episodes: list[tuple[int, bool, int]], discount: float, trace_decay: float
) -> None:
    """Of trajectories that end with a terminal step or not and may have one before; of any group of agents."""
    trajectories: list[dict[str, Tensor]] = []
    for index, (length, ends, inside) in enumerate(episodes):
        trajectory = trajectory_of(length, index, terminal=ends)
        trajectory["terminal"] |= torch.arange(length) == inside
        trajectories.append(trajectory)
    bits, lengths = [], [length for length, _, _ in episodes]
    values = 3.0 * keyed_generator(3, STEPS).standard_normal((STEPS + 1, AGENTS * EACH), dtype=np.float32)
    # What lies beyond an episode may be anything.
    values[np.arange(STEPS + 1)[:, None] > lengths] = np.nan
    for groups in ([range(3)], [range(1), range(1, 3)]):
        buffers = []
        for agents in groups:
            own_part = slice(agents.start * EACH, agents.stop * EACH)
            buffer = filled(STEPS, trajectories[own_part], len(agents))
            buffer.columns["value"].copy_(torch.from_numpy(values[:, own_part]))
            buffer.estimate_advantages(discount, trace_decay)
            buffers.append(buffer)
        estimates, returns = stored(buffers, "advantage", lengths), stored(buffers, "return", lengths)
        for number, own_values in enumerate(stored(buffers, "value", [length + 1 for length in lengths])):
            slow = slow_advantages(trajectories[number], own_values.tolist(), discount, trace_decay)
            expected = torch.tensor(slow, dtype=torch.float64)
            torch.testing.assert_close(estimates[number], expected, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(returns[number], expected + own_values[:-1], rtol=1e-6, atol=1e-6)
        for buffer in buffers:
            buffer.normalise_advantages()
        normalised = stored(buffers, "advantage", lengths)
        for agent in range(AGENTS):
            own_steps = slice(agent * EACH, (agent + 1) * EACH)
            own, found = torch.cat(estimates[own_steps]), torch.cat(normalised[own_steps])
            scaled = (own - own.mean()) / max(float(own.std(correction=0)), 1e-8)
            torch.testing.assert_close(found, scaled, rtol=1e-5, atol=1e-6)
        bits.append(torch.cat([*returns, *normalised]))
    assert torch.equal(*bits)


def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            # Enough for torch to divide the work.
            buffer = TrajectoryBuffer(130, np.arange(400)[:, None] % 131, COLUMNS, CPU)
            rewards = keyed_generator(1).standard_normal((130, 400), dtype=np.float32)
            buffer.columns["reward"].copy_(torch.from_numpy(rewards))
            buffer.estimate_advantages(0.99, 0.95)
            buffer.normalise_advantages()
            found.append(buffer.columns["advantage"].clone())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
